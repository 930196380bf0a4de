// Package handover moves a userspace WireGuard device from one process to another
// without losing a packet, while wireguard-go and the remotes stay as they are.
//
// Session keys never leave a process: wireguard-go has no function that exports them, and
// two processes that encrypt with the same key could use a nonce twice. So the new engine
// makes sessions of its own while the old engine continues to use its own. Each message
// goes to the engine that has its session, by the receiver's index in it. Both engines have
// descriptors of the same TUN and UDP sockets, and a SEQPACKET pair between them.
//
//	old engine (serves)                  new engine (starts)
//	                                     device configured, down; TUN not read
//	                      <-- begin ---
//	stops starting and answering handshakes
//	waits for the handshakes that it started
//	stops reading UDP
//	                      --- peers -->  peers with a live session, their endpoints
//	                      --- paused ->
//	                      <- progress -  before its first handshake
//	                                     device up: reads UDP, and relays the messages
//	                      <-- relay ---  for other sessions than its own
//	decrypts these into the TUN
//	reads the TUN, sends                 starts a handshake with each of these peers,
//	                      <- progress -  and retries until all have a session
//	                      <-- peers -->  endpoints that roamed, peers that were heard
//	                      <-- ready ---
//	stops reading the TUN
//	                      -- released ->
//	                      <-- owned ---
//	                                     reads the TUN: sends in its own sessions
//	drains its sessions, and ends
//
// The new engine owns the device from the moment when it has written "owned". When the old
// engine times out, it first shuts the pair for writing by the new engine, and then checks
// whether that message has arrived. An old engine that continues after the new engine made
// sessions makes new ones itself, because remotes send in the latest session; meanwhile
// packets wait, and those beyond wireguard-go's queue of 128 are lost. So the new engine
// announces its handshakes: before that, an old engine that continues does so in its own
// sessions, and loses nothing.
//
// An initiation or a response of the old engine after the new engine's first initiation
// would make the old engine's session the remote's latest, and the remote would send in it
// after the old engine has ended. So the old engine drops its own initiations and responses.
// Crossing handshakes break each other, too: a remote that answers an initiation forgets the
// session before the one that it sends in, and a session that it had answered without
// receiving anything in it since. So the old engine gives a handshake in progress a second,
// and drops initiations of remotes. The new engine drops them until it has the TUN, and
// answers later ones. A replayed initiation would be accepted by a process that doesn't know
// the remote's last timestamp.
package handover
