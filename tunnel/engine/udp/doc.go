// Package udp is how a userspace WireGuard device sends and receives: an
// implementation of wireguard-go's conn.Bind, see [Bind].
package udp
