// Package reconcile has the reconcile loop of every component: wait for an event, compare
// the whole observed state with the desired one, apply the differences, and back off after
// failures.
package reconcile

// Trigger requests a pass of a loop. It has no data and holds at most one signal: any number
// of events before a pass cause one pass. It is safe for concurrent use.
type Trigger struct{ signal chan struct{} }

// NewTrigger returns a trigger that has not fired.
func NewTrigger() *Trigger { return &Trigger{signal: make(chan struct{}, 1)} }

// Fire sends a signal unless one is pending. It never blocks.
func (t *Trigger) Fire() {
	select {
	case t.signal <- struct{}{}:
	default:
	}
}

// C returns the channel of the signal, for a single reader.
func (t *Trigger) C() <-chan struct{} { return t.signal }

// drain discards a pending signal.
func (t *Trigger) drain() {
	select {
	case <-t.signal:
	default:
	}
}
