package peers

import "time"

// Health says how a peer is, judged by its last handshake and by when it was last
// heard.
type Health string

// A peer's way, with keepalives in both directions:
//
//	configured    handshake            next due       session ends     given up
//	    |--- connecting ---|--------- up ---------|------ up ------|---- down ...
//	    0                  t                   t+120 s           t+180 s
//
// WireGuard renews a session after 120 s when there is traffic, which keepalives
// guarantee, and refuses to use one after 180 s (WireGuard whitepaper, section
// 6.1). A handshake is tried for 90 s before it is given up, so that a peer that
// was never heard for that long isn't there. A peer with a session that hasn't been
// heard for silentAfter is silent: it may be there or not. One of which it isn't known
// where it is, as it is behind address translation, is waited for until it speaks.
const (
	HealthConnecting Health = "connecting" // configured a moment ago, no handshake yet
	HealthWaiting    Health = "waiting"    // it publishes no endpoint, and hasn't spoken yet
	HealthUp         Health = "up"
	HealthSilent     Health = "silent" // there is a session, and no sign of life
	HealthDown       Health = "down"
)

// Healths are all of them, the worst first.
func Healths() []Health {
	return []Health{HealthDown, HealthSilent, HealthWaiting, HealthConnecting, HealthUp}
}

const (
	sessionEnds      = 180 * time.Second
	handshakeGivenUp = 90 * time.Second
	// silentAfter has room for one keepalive that is lost: see Listen.
	silentAfter = 45 * time.Second
)

// inSession reports whether a peer has a session at the time now that last shook hands
// at the given one; zero: never.
func inSession(now, handshake time.Time) bool {
	return !handshake.IsZero() && now.Sub(handshake) < sessionEnds
}

// HealthAt returns the health at the time now of a peer that was configured, last
// shook hands and was last heard at the given times; a zero time is never. Located says
// that the device knows an endpoint of it.
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
