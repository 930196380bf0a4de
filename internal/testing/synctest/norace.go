//go:build !race

package synctest

const race = false
