package main

import (
	"fmt"
	"time"
)

const (
	// repairsWindow is the time in which repairs are counted, mostRepairs their number in it
	// that is no fault.
	repairsWindow = time.Minute
	mostRepairs   = 5
)

// repairs counts how often a loop has restored what other programs had changed in the
// kernel. The first repairs are immediate. While there are more than mostRepairs, note
// returns an error: the loop then waits for its back-off before it follows another event,
// and the error is in the status, the log and the metric of failed passes.
type repairs struct {
	want string // desired state of the last pass; empty: none, or it failed
	at   []time.Time
}

// note records a pass. Changes made with an unchanged desired state are repairs.
func (r *repairs) note(now time.Time, want any, changed bool, err error) error {
	text := fmt.Sprint(want)
	if changed && text == r.want {
		r.at = append(r.at, now)
	}
	if r.want = text; err != nil {
		r.want = "" // The next pass continues this one.
	}
	for len(r.at) > 0 && (now.Sub(r.at[0]) >= repairsWindow || len(r.at) > 10*mostRepairs) {
		r.at = r.at[1:]
	}
	if len(r.at) > mostRepairs {
		return fmt.Errorf("another program removes or changes them again and again: %d repairs or more within %v", mostRepairs+1, repairsWindow)
	}
	return nil
}
