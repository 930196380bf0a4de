// Package window bounds how many packets are inside wireguard-go at a time, see
// [Window].
package window
