// Package handover moves a userspace WireGuard device from one process to another
// without losing a packet, while wireguard-go and the remotes stay as they are.
//
// Session keys never leave a process: wireguard-go has no way to give them away, and
// two processes that seal with one key could use a nonce twice. So the process that
// takes over makes sessions of its own while the other one goes on with its own, and
// each message goes to the one that has its session: the receiver's index in it says
// which. Both have descriptors of the same TUN and UDP sockets, and a SEQPACKET pair
// between them.
//
//	giver (serves)                       taker (starts)
//	                                     device configured, down; TUN not read
//	                      <-- begin ---
//	begins and answers no handshake any more
//	waits until those that it began are over
//	stops reading UDP
//	                      --- peers -->  those with a live session, their endpoints
//	                      --- paused ->
//	                      <- progress -  before its first handshake
//	                                     device up: reads UDP, and passes on what is
//	                      <-- relay ---  for no session of its own
//	decrypts that into the TUN
//	reads the TUN, sends                 begins a handshake with each of these peers
//	                      <- progress -  again and again, until all have a session
//	                      <-- peers -->  endpoints that roamed, who was heard
//	                      <-- ready ---
//	stops reading the TUN
//	                      ---- tun --->
//	                      <-- taken ---
//	                                     reads the TUN: sends in its own sessions
//	lingers for what is still on its way in its sessions, and ends
//
// The taker owns the device from the moment that it has written "taken", and at no
// other: when the giver gives up waiting, it first shuts its end for writing by the
// other one, and then looks whether that message is there already. A giver that goes
// on after the taker had sessions makes new ones, because remotes send in the latest;
// what is to be sent meanwhile waits, and is lost beyond the 128 packets for which
// wireguard-go has room. So the taker says when it begins handshakes: a giver that goes
// on before goes on in the sessions that it has, and nothing is lost.
//
// An initiation of the giver after the taker's first would make the giver's session
// the remote's latest, and the remote would go on sending there when the giver has
// ended; a response would do the same. So the giver drops what it would send of
// either. Two handshakes that cross spoil each other, too: a remote that answers an
// initiation forgets the session before the one that it sends in, and one that it had
// answered and that nothing has come in. So the giver gives a handshake that had begun a
// second, and drops initiations of remotes; the taker drops them until it has the TUN,
// and answers that come later than that. An initiation that was recorded and is sent
// again would also be believed by a process that doesn't know the remote's last timestamp.
package handover
