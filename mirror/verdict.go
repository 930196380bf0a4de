package mirror

import "time"

// verdict is whether the endpoints on one remote node are withdrawn.
//
//	most local nodes report it down  ______/-----\____/--\___/----\______________
//	withdrawn                        ______/-----\____/------\___/-------------\_
//	                                             ^    at once  ^ hold 4 s, then 8 s ...
//
// It is withdrawn at once: each moment costs requests. It comes back as soon as
// agents say so, who wait until a path has been up for a while. One that is withdrawn
// again within steadyAfter of having come back is held longer from time to time, so
// that a path that comes and goes costs few writes.
type verdict struct {
	withdrawn bool
	since     time.Time // when that became so
	up        time.Time // since when a withdrawn one isn't reported any more; zero: it is
	again     int       // how often in a row it was withdrawn soon after it had come back
}

const (
	steadyAfter  = 2 * time.Minute
	shortestHold = 4 * time.Second
	longestHold  = time.Minute
)

// hold is how long a path must have been up, as reports have it, to come back.
func (v *verdict) hold() time.Duration {
	if v.again == 0 {
		return 0
	}
	return min(longestHold, shortestHold<<min(v.again-1, 10))
}

// step takes in what reports say now, and returns when to look again although they
// say the same; the zero time is never.
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

// over reports whether nothing need be remembered.
func (v *verdict) over(now time.Time) bool {
	return !v.withdrawn && now.Sub(v.since) >= steadyAfter
}
