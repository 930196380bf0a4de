package agent

import (
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/peers"
)

// TestForms steps through a remote's life; each line is a pass.
func TestForms(t *testing.T) {
	const spread = 100 * time.Second
	disk := peers.State{Source: peers.SourceDisk}
	fine := peers.State{Source: peers.SourceAPI}
	unpublished := peers.State{Source: peers.SourceAPI, Specs: true}
	undecided := peers.State{Source: peers.SourceAPI, Specs: true, Undecided: true}
	type pass struct {
		after time.Duration
		state peers.State
		whole bool // the form until now
		list  bool
	}
	for name, passes := range map[string][]pass{
		"metadata suffices": {{0, disk, false, false}, {0, fine, false, false}, {24 * time.Hour, fine, false, false}},
		"an agent that doesn't publish its prefixes, and then does": {
			{0, unpublished, true, false}, {24 * time.Hour, unpublished, true, false},
			{wholeFor / 2, fine, true, false}, {wholeFor, fine, true, false}, {spread, fine, true, true}, {time.Second, fine, false, false},
		},
		"one that comes and goes": {
			{0, unpublished, true, false}, {wholeFor / 2, fine, true, false}, {wholeFor/2 - 1, unpublished, true, false},
			{wholeFor - 1, fine, true, false}, {0, unpublished, true, false}, {wholeFor - 1, fine, true, false},
		},
		"an overlap": {
			{0, fine, false, false}, {0, undecided, false, false}, {spread, undecided, false, true},
			{0, undecided, true, false}, {time.Minute, undecided, true, false}, // until they are read
			{0, unpublished, true, false},
		},
		"one that is over before the list":       {{0, fine, false, false}, {0, undecided, false, false}, {0, fine, false, false}, {spread, fine, false, false}},
		"read whole by what an earlier pass saw": {{0, fine, true, false}, {wholeFor, fine, true, false}, {spread, fine, true, true}},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Unix(1_800_000_000, 0)
			var f form
			for i, p := range passes {
				now = now.Add(p.after)
				if list := f.next(now, &p.state, p.whole, spread); list != p.list {
					t.Fatalf("pass %d: list: %v", i, list)
				}
				if due := f.due(); !due.IsZero() && (due.Before(now) || due.After(now.Add(spread))) {
					t.Fatalf("pass %d: due %v", i, due.Sub(now))
				}
			}
		})
	}
}
