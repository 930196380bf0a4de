package paths

import "time"

// Health is the state of a peer, derived from its last handshake and from when it was
// last heard.
type Health string

// The states of a peer, with keepalives in both directions:
//
//	configured    handshake            next due       session ends     given up
//	    |--- connecting ---|--------- up ---------|------ up ------|---- down ...
//	    0                  t                   t+120 s           t+180 s
//
// WireGuard renews a session after 120 s when there is traffic, which keepalives
// guarantee, and refuses to use one after 180 s (WireGuard whitepaper, section
// 6.1). It tries a handshake for 90 s before it gives up: a peer without one by then is
// down. A peer with a session from which nothing was received for silentAfter is silent:
// it may be up or down. A peer without endpoint, behind NAT, is waiting until it sends.
const (
	HealthConnecting Health = "connecting" // configured less than 90 s ago, no handshake yet
	HealthWaiting    Health = "waiting"    // publishes no endpoint, nothing received yet
	HealthUp         Health = "up"
	HealthSilent     Health = "silent" // has a session, nothing received for silentAfter
	HealthDown       Health = "down"
)

// Healths returns all states, the worst first.
func Healths() []Health {
	return []Health{HealthDown, HealthSilent, HealthWaiting, HealthConnecting, HealthUp}
}

const (
	sessionEnds      = 180 * time.Second
	handshakeGivenUp = 90 * time.Second
	// silentAfter tolerates one lost keepalive, see Monitor.Tend.
	silentAfter = 45 * time.Second
)

// inSession reports whether a peer with the given last handshake (zero: never) has a
// session at the time now.
func inSession(now, handshake time.Time) bool {
	return !handshake.IsZero() && now.Sub(handshake) < sessionEnds
}

// HealthAt returns the health at the time now of a peer, by the times when it was
// configured, of its last handshake and when it was last heard (zero: never), and by
// whether the device knows an endpoint of it.
func HealthAt(now, configured, handshake, heard time.Time, located bool) Health {
	switch {
	case handshake.IsZero() && !located:
		return HealthWaiting
	case handshake.IsZero() && now.Sub(configured) < handshakeGivenUp:
		return HealthConnecting
	case !inSession(now, handshake):
		return HealthDown
	case now.Sub(latest(handshake, heard)) >= silentAfter:
		return HealthSilent
	}
	return HealthUp
}
