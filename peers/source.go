package peers

import "time"

// Source is where the nodes of a remote come from: its API server, or what semaphore-relay has stored
// in this cluster. Nothing that uses nodes knows which.
type Source interface {
	// Snapshot returns all nodes, and whether they have been read since start. Later they are the last
	// known ones.
	Snapshot() (nodes []*Node, synced bool)
	// Decided is called after each decision about them. Undecided means that what was read of some
	// doesn't suffice. It returns when to decide again, even if they don't change; zero: never.
	Decided(now time.Time, undecided bool) (again time.Time)
}
