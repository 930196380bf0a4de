package agent

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// repairsWindow is the time in which repairs are counted, mostRepairs their number in it
	// that is no fault. What the kernel doesn't report is compared every 30 s, so that a
	// program that changes it all the time is found after 3 minutes.
	repairsWindow = 5 * time.Minute
	mostRepairs   = 5
	// repairsQuiet is the time without a repair after which the fault is over.
	repairsQuiet = time.Minute
)

// errUndone is wrapped by the error of note.
var errUndone = errors.New("another program removes or changes them again and again")

// repairs counts how often a loop has restored what other programs had changed in the
// kernel. The first repairs are immediate. After more than mostRepairs, note returns an
// error: the loop then waits for its back-off before it follows another event, and the error
// is in the status, the log and the metric of failed passes.
type repairs struct {
	total prometheus.Counter
	want  string // desired state of the last pass; empty: none, or it failed
	at    []time.Time
}

// newRepairs returns the repairs of a loop.
func (a *agent) newRepairs(loop string) repairs {
	return repairs{total: a.metrics.repairs.WithLabelValues(loop)}
}

// note records a pass. Changes made with an unchanged desired state are repairs.
func (r *repairs) note(now time.Time, want any, changed bool, err error) error {
	text := fmt.Sprint(want)
	if changed && text == r.want {
		r.at = append(r.at, now)
		r.total.Inc()
	}
	if r.want = text; err != nil {
		r.want = "" // The next pass continues this one.
	}
	for len(r.at) > 0 && (now.Sub(r.at[0]) >= repairsWindow || len(r.at) > 10*mostRepairs) {
		r.at = r.at[1:]
	}
	if n := len(r.at); n > mostRepairs && now.Sub(r.at[n-1]) < repairsQuiet {
		return fmt.Errorf("%w: %d repairs or more within %v", errUndone, mostRepairs+1, repairsWindow)
	}
	return nil
}
