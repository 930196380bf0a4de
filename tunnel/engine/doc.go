// Package engine serves WireGuard devices in user space, with wireguard-go, and goes
// on when whoever configures them has ended. It is two processes:
//
//	agent --control socket--> keeper --socket pair--> server (child of it)
//	wg    --UAPI sockets----> keeper
//
// The keeper holds what must not get lost: the descriptors of TUNs and UDP sockets,
// in which packets wait while nobody reads them, and each device's configuration, in
// memory only. It handles no packets, and starts another server when one ends. That
// gets descriptors and configuration, and begins handshakes with the peers that had
// sessions. No session key leaves the process that it was made in.
//
// The engine knows nothing of Kubernetes, of remote clusters, or of links: who has it
// serve a device makes the TUN, and deletes it.
package engine
