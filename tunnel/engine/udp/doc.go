// Package udp implements wireguard-go's conn.Bind, through which a userspace WireGuard
// device sends and receives, see [Bind].
package udp
