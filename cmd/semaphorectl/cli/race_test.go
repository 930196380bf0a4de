//go:build race

package cli

// raceEnabled tells that bytes take ten times as long.
const raceEnabled = true
