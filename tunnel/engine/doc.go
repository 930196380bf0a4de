// Package engine serves WireGuard devices in user space, with wireguard-go, and
// continues to serve them when the agent that configured them has ended. It consists of
// two processes:
//
//	                          supervisor                   server (its child)
//	agent --control socket--> descriptors, configurations  wireguard-go, all devices
//	wg    --UAPI sockets----> TUN, UDP sockets (copies) -> TUN <--> UDP sockets
//	                          get, set                  -> get, set
//	                          where peers are           <- get
//
// The supervisor owns the state that must survive the server: the descriptors of TUNs
// and UDP sockets, which queue packets while no process reads them, and the
// configuration of each device, in memory only. It handles no packets. Session keys never
// leave the server that made them.
//
// There is one way to restart a device, restart_linux.go: the next server gets descriptors and
// configuration, reads the sockets, makes handshakes with the peers that had sessions, and then
// reads the TUN. After a crash of the server they come from its supervisor. In an upgrade they
// come from the supervisor of the engine that ends:
//
//	old engine                                 new engine, which waits
//	server    supervisor                       supervisor                    server
//	          <---------------- Wait ---------
//	          -- Ending (it got SIGTERM) ---->
//	          <------------- Upgrade ---------
//	          each device: <----- State ------
//	          -- configuration, TUN, sockets ->
//	                                          -- opOpen, opUAPI, opUp -->
//	                                          -- opReconnect, opStart -->  waits at a pipe
//	          <------- Stop, the pipe --------
//	  <- opStop, the pipe
//	  reads no more
//	  ============================ writes to the pipe ===================>  handshakes, reads
//	                                          replaces UAPI and control sockets
//	          <------------- Serving ---------
//	          ends
//
// If the new engine ends before Serving, the old one restores its devices as after a crash, and
// goes on. When the old engine or its host crashes, the agent passes the links to the next
// engine.
//
// Packages, from the outside in: control is the protocol between agent, supervisors and servers;
// resume stops and starts a device's packets; backpressure bounds those inside wireguard-go;
// link and udp read and write them.
//
// The engine knows nothing of Kubernetes or remote clusters. Its client creates and
// deletes the TUN links.
package engine
