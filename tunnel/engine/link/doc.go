// Package link implements wireguard-go's tun.Device on the descriptor of an existing TUN
// link.
package link
