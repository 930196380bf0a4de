// Package resume stops a device of wireguard-go in one process, and continues it in another
// one, while wireguard-go and the remotes are as they are. Both processes have descriptors of
// the same TUN and UDP sockets, in whose queues packets wait meanwhile.
//
//	old process                   new process
//	                              device up, reads nothing
//	[Tun.Stop], [Bind.Stop]
//	                              [Bind.Start]: reads the sockets
//	                              [Initiate]: handshakes with the peers that had sessions
//	                              [Tun.Start]: reads the TUN
//
// A process that was killed has stopped, too. Session keys never leave a process: wireguard-go
// has no function that exports them, and two processes that encrypt with the same key could use
// a nonce twice. So messages that remotes send in sessions of the old process are lost, from its
// last read on until a remote has received a message in the new session: two round trips after
// the new process has begun.
package resume
