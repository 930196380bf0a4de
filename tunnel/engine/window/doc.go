// Package window bounds how many packets are inside wireguard-go at a time, see
// [Window], and what waits there for sessions, see [NewDevice] and [Answer].
package window
