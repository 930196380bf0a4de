package withdrawal

import "time"

// verdict decides whether the endpoints on one remote node are withdrawn.
//
//	most local nodes report it down  ______/-----\____/--\___/----\______________
//	withdrawn                        ______/-----\____/------\___/-------------\_
//	                                             ^    at once  ^ hold 4 s, then 8 s ...
//
// They are withdrawn at once, as each moment costs requests, and restored as soon as agents
// report the path up, which they do when it has been up for a while. If a node is withdrawn
// again within steadyAfter, the hold time doubles, so that a flapping path causes few writes.
type verdict struct {
	withdrawn bool
	since     time.Time // of the last change
	up        time.Time // end of the reports while withdrawn; zero: still reported
	again     int       // number of consecutive withdrawals within steadyAfter
}

const (
	steadyAfter  = 2 * time.Minute
	shortestHold = 4 * time.Second
	longestHold  = time.Minute
)

// hold returns how long a path must be reported up before endpoints are restored.
func (v *verdict) hold() time.Duration {
	if v.again == 0 {
		return 0
	}
	return min(longestHold, shortestHold<<min(v.again-1, 10))
}

// step updates the verdict, and returns when the next step is due without a change; the zero
// time is never.
func (v *verdict) step(now time.Time, down bool) (due time.Time) {
	switch {
	case down && !v.withdrawn:
		if now.Sub(v.since) < steadyAfter {
			v.again++
		} else {
			v.again = 0
		}
		v.withdrawn, v.since, v.up = true, now, time.Time{}
	case down:
		v.up = time.Time{}
	case v.withdrawn:
		if v.up.IsZero() {
			v.up = now
		}
		if due = v.up.Add(v.hold()); now.Before(due) {
			return due
		}
		v.withdrawn, v.since, v.up = false, now, time.Time{}
		return now.Add(steadyAfter)
	default:
		return v.since.Add(steadyAfter)
	}
	return time.Time{}
}

// over reports whether the verdict can be dropped.
func (v *verdict) over(now time.Time) bool {
	return !v.withdrawn && now.Sub(v.since) >= steadyAfter
}
