// Package reconcile runs the loop that every component is built around: wait
// for something to have happened, look at the whole state, put right what
// differs, back off when that fails.
package reconcile

// Trigger tells a loop that there may be something to do. It carries no data
// and holds at most one signal: any number of events before a pass make one
// pass. All methods may be called from any goroutine.
type Trigger struct{ signal chan struct{} }

// NewTrigger returns a trigger that has not fired.
func NewTrigger() *Trigger { return &Trigger{signal: make(chan struct{}, 1)} }

// Fire leaves a signal unless one is waiting already. It never blocks.
func (t *Trigger) Fire() {
	select {
	case t.signal <- struct{}{}:
	default:
	}
}

// C delivers the signal. Receiving takes it away, so that one reader is all a
// trigger can have.
func (t *Trigger) C() <-chan struct{} { return t.signal }

// drain takes a waiting signal away.
func (t *Trigger) drain() {
	select {
	case <-t.signal:
	default:
	}
}
