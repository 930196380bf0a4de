package scenarios_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
)

// moving is how many origins move while replicas change.
const moving = 10

func mover(i int) string { return fmt.Sprintf("moves-%d", i) }

// lead starts two replicas, of which the first one leads.
func (f *controllers) lead(t *testing.T, s *subject) {
	t.Helper()
	s.Kill()
	for i, name := range []string{"first", "second"} {
		s.replicas[i] = f.replica(t, s, name, 1+i)
		must(t, s.replicas[i].Start())
		if i == 0 {
			f.leads(t, s.replicas[i])
		}
		f.ready(t, s.replicas[i])
	}
	for i := range moving {
		f.has(t, s, f.aws, mover(i), 50+i)
	}
}

func (f *controllers) leads(t *testing.T, p *programs.Program) {
	t.Helper()
	eventually(t, patient, p.Name+" to lead", func(ctx context.Context) error {
		leads, err := p.Leads(ctx)
		if err == nil && !leads {
			err = errors.New("it doesn't")
		}
		return err
	})
}

// uids returns the UIDs of the objects of moving origins.
func (f *controllers) uids(t *testing.T, s *subject) map[string]string {
	t.Helper()
	all, err := f.observe(t.Context(), s)
	must(t, err)
	uids := map[string]string{}
	for name, o := range all {
		uids[name] = o.uid
	}
	return uids
}

// move moves origins until ctx ends and all have moved as often, and returns how often.
func (f *controllers) move(ctx context.Context, s *subject) (changes int, err error) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	step := context.WithoutCancel(ctx)
	for ; ctx.Err() == nil || changes%moving != 0; changes++ {
		if err := s.put(step, f.aws, mover(changes%moving), addressOf(f.aws, 1000+changes)); err != nil {
			return changes, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	return changes, nil
}

// testHandOver ends the leader, as Kubernetes does, while origins change.
func (f *controllers) testHandOver(t *testing.T) {
	for _, s := range f.subjects {
		f.lead(t, s)
		uids, writes := f.uids(t, s), f.writes(t, s)
		changes := f.handOver(t, s)
		for i := range moving {
			f.comes(t, s, f.aws, mover(i), 1000+changes-moving+i)
		}
		if now := f.uids(t, s); !maps.Equal(uids, now) {
			t.Errorf("%s: objects were made again: %v, and were %v", s.program(), now, uids)
		}
		made := f.writes(t, s) - writes
		t.Logf("%s: %d changes, %d writes", s.program(), changes, made)
		if made > changes {
			t.Errorf("%s: %d writes for %d changes", s.program(), made, changes)
		}
	}
}

// handOver makes each of two replicas hand over to the other one, and returns the number of
// changes meanwhile.
func (f *controllers) handOver(t *testing.T, s *subject) int {
	t.Helper()
	type result struct {
		changes int
		err     error
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan result, 1)
	go func() {
		changes, err := f.move(ctx, s)
		done <- result{changes, err}
	}()
	for i, leader := range s.replicas {
		must(t, leader.Stop(within(t, patient)))
		f.leads(t, s.replicas[1-i])
		must(t, leader.Start())
		f.ready(t, leader)
	}
	stop()
	moves := <-done
	must(t, moves.err)
	return moves.changes
}

// testLostLeader stops the local API server from answering, until the leader has given up
// with writes in flight.
func (f *controllers) testLostLeader(t *testing.T) {
	uids := map[*subject]map[string]string{}
	for _, s := range f.subjects {
		f.leads(t, s.replicas[0])
		uids[s] = f.uids(t, s)
	}
	must(t, f.gcp.PauseAPI())
	for _, s := range f.subjects {
		for i := range moving {
			f.puts(t, s, f.aws, mover(i), 70+i)
		}
	}
	for _, s := range f.subjects {
		leader := s.replicas[0].Process()
		eventually(t, patient, "the end of the leader of "+s.program(), func(context.Context) error {
			if leader.Running() {
				return errors.New("it runs")
			}
			return nil
		})
		if end := leader.Tail(30); !strings.Contains(end, "leader election lost") || strings.Contains(end, "stuck") {
			t.Errorf("%s: %v\n%s", s.program(), leader.Err(), end)
		}
		if !s.replicas[1].Process().Running() {
			t.Errorf("%s: the other replica has ended, too", s.program())
		}
	}
	must(t, f.gcp.ResumeAPI())
	for _, s := range f.subjects {
		f.leads(t, s.replicas[1])
		for i := range moving {
			f.comes(t, s, f.aws, mover(i), 70+i)
		}
		if now := f.uids(t, s); !maps.Equal(uids[s], now) {
			t.Errorf("%s: objects were made again: %v, and were %v", s.program(), now, uids[s])
		}
		must(t, s.replicas[0].Start())
		f.ready(t, s.replicas[0])
		for _, p := range s.replicas {
			must(t, p.Stop(within(t, patient)))
		}
	}
}
