package peers

import "time"

// Health says how a peer is, judged by its last handshake.
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
// was never heard for that long isn't there.
const (
	HealthConnecting Health = "connecting" // configured a moment ago, no handshake yet
	HealthUp         Health = "up"
	HealthDown       Health = "down"
)

const (
	sessionEnds      = 180 * time.Second
	handshakeGivenUp = 90 * time.Second
)

// HealthAt returns the health at the time now of a peer that was configured and
// last shook hands at the given times; a zero handshake is none.
func HealthAt(now, configured, handshake time.Time) Health {
	switch {
	case !handshake.IsZero() && now.Sub(handshake) < sessionEnds:
		return HealthUp
	case handshake.IsZero() && now.Sub(configured) < handshakeGivenUp:
		return HealthConnecting
	}
	return HealthDown
}
