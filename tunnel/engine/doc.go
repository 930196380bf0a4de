// Package engine serves WireGuard devices in user space, with wireguard-go, and
// continues to serve them when the agent that configured them has ended. It consists of
// two processes:
//
//	agent --control socket--> supervisor --socket pair--> server (its child)
//	wg    --UAPI sockets----> supervisor
//
// The supervisor owns the state that must survive the server: the descriptors of TUNs
// and UDP sockets, which queue packets while no process reads them, and the
// configuration of each device, in memory only. It handles no packets. When the server
// ends, it starts another one, passes descriptors and configuration to it, and the new
// server begins handshakes with the peers that had sessions. Session keys never leave
// the process that made them.
//
// The engine knows nothing of Kubernetes or remote clusters. Its client creates and
// deletes the TUN links.
package engine
