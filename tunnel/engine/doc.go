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
// An engine that starts takes over the devices of the engine that runs. The supervisors
// decide which engine has a device and pass its descriptors; the servers move its sessions,
// see package handover:
//
//	old engine                                      new engine
//	server    supervisor (handover_linux.go)        supervisor (takeover_linux.go)    server
//	          <---------- BeginTakeover -----------
//	          ------- Devices, each with: -------->
//	          <------------- HandOver -------------
//	  <- opHandOver, end of pair ------- configuration, end of pair, TUN, sockets -->
//	                                                --- opOpen, opUAPI, opTakeOver --->
//	  <============================= pair: sessions and TUN =========================>
//	  -- answer -->  drops the device               <----------- answer --------------
//	          <--------- TakenOver, device --------  has the device, replaces its UAPI socket
//	                                                replaces the control socket
//	          <------------- TakenOver ------------
//	          ends, connects again: ---- Standby -->
//	          <---------- RequestTakeover ---------  when this engine has to end
//
// If the new engine ends before it has the device, the old engine continues to serve it. If
// the old engine's server has ended, TakenOver decides whether the device is restored here.
//
// The engine knows nothing of Kubernetes or remote clusters. Its client creates and
// deletes the TUN links.
package engine
