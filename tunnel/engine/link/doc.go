// Package link is the TUN link of a userspace WireGuard device: an implementation of
// wireguard-go's tun.Device on a descriptor that somebody else has opened.
package link
