package scenarios_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
)

// diagnosis is part of the output of "semaphorectl doctor -o json".
type diagnosis struct {
	Verdict string
	Causes  []struct {
		ID, What string
		Evidence []struct{ Text, Command string }
	}
	Unknown []struct{ What, Why string }
}

// ids returns the causes, without duplicates.
func (d *diagnosis) ids() []string {
	var all []string
	for _, c := range d.Causes {
		if !slices.Contains(all, c.ID) {
			all = append(all, c.ID)
		}
	}
	return all
}

// fault is a fault that is caused, diagnosed and healed.
type fault struct {
	name string
	// want is the cause that doctor must report; empty: it can't detect this one, and must
	// report unknown.
	want string
	// besides are further causes that are true, too.
	besides []string
	make    func(t *testing.T)
	heal    func(t *testing.T)
}

// blamed returns reported causes that aren't true.
func (f *fault) blamed(d diagnosis) []string {
	return slices.DeleteFunc(d.ids(), func(id string) bool { return id == f.want || slices.Contains(f.besides, id) })
}

// TestDoctor causes one fault after the other, and runs doctor. It prints the diagnoses, and
// how many of them were right.
func TestDoctor(t *testing.T) {
	t.Parallel()
	p := startPair(t, 2)
	a := administered(t, p)
	s := &surgery{Pair: p, administrator: a}
	eventually(t, time.Minute, "all paths to be up", func(ctx context.Context) error {
		var v statusView
		code, err := a.ask(ctx, &v, "status", "aws", "gcp")
		if err == nil && (code != 0 || v.counts() != `aws>gcp{"Up":4,"Down":0,"Unknown":0} gcp>aws{"Up":4,"Down":0,"Unknown":0} ` || v.unmeasured() > 0) {
			err = fmt.Errorf("code %d: %+v", code, v)
		}
		return err
	})
	s.healthy(t)

	type outcome struct {
		name, want, said string
		named, healed    time.Duration
	}
	var table []outcome
	right, blamed, pods := 0, 0, 0
	for _, f := range append(s.faults(), s.neighbourFaults()...) {
		f.make(t)
		made := time.Now()
		var last diagnosis
		said, passing := "", map[string]bool{}
		ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
		for ctx.Err() == nil {
			var d diagnosis
			args := []string{"doctor", "aws", "gcp", "--no-probe"}
			if f.want != "" {
				args = append(args, "--paths-only")
			}
			if _, err := a.ask(ctx, &d, args...); err != nil {
				if ctx.Err() == nil {
					t.Errorf("%s: %v", f.name, err)
				}
				break
			}
			last = d
			untrue := f.blamed(d)
			for _, id := range untrue {
				passing[id] = true
			}
			// During a fault, such as while an agent restarts, other causes may be reported, too.
			if len(untrue) == 0 && (f.want == "" || slices.Contains(d.ids(), f.want)) {
				break
			}
		}
		cancel()
		for _, id := range f.blamed(last) {
			said += " BLAMED " + id
		}
		switch {
		case last.Verdict == "well":
			t.Errorf("%s: doctor says that all is well", f.name)
			said += " WELL"
		case said != "":
			blamed++
			t.Errorf("%s:%s: %+v", f.name, said, last.Causes)
		case f.want == "":
			pods++
			said = "not named, " + last.Verdict + ": it takes pods"
		case slices.Contains(last.ids(), f.want):
			right++
			said = strings.Join(last.ids(), ", ")
		default:
			t.Errorf("%s: it isn't named: %+v", f.name, last)
			said = "not named: " + last.Verdict
		}
		if len(passing) > 0 {
			said += fmt.Sprintf("; for a moment: %v", slices.Sorted(maps.Keys(passing)))
		}
		o := outcome{name: f.name, want: f.want, said: said, named: time.Since(made)}
		f.heal(t)
		healed := time.Now()
		s.healthy(t)
		o.healed = time.Since(healed)
		table = append(table, o)
	}
	for _, o := range table {
		t.Logf("%-48s %-22s %s (%.1f s; well again after %.1f s)", o.name, o.want, o.said, o.named.Seconds(), o.healed.Seconds())
	}
	t.Logf("%d of %d faults are named right, %d blamed on something else; %d more take pods to be seen, see TestKubelet", right, len(table)-pods, blamed, pods)
}

// surgery causes faults.
type surgery struct {
	*programs.Pair
	*administrator
}

// healthy waits until doctor finds no faults.
func (s *surgery) healthy(t *testing.T) {
	t.Helper()
	eventually(t, 90*time.Second, "doctor to find all well", func(ctx context.Context) error {
		var d diagnosis
		code, err := s.ask(ctx, &d, "doctor", "aws", "gcp", "--paths-only")
		if err == nil && (code != 0 || d.Verdict != "well") {
			err = fmt.Errorf("code %d: %+v", code, d)
		}
		return err
	})
	eventually(t, time.Minute, "code 2, as pods' requests weren't tried", func(ctx context.Context) error {
		var d diagnosis
		code, err := s.ask(ctx, &d, "doctor", "aws", "gcp", "--no-probe")
		if err == nil && (code != 2 || len(d.Causes) > 0) {
			err = fmt.Errorf("code %d: %+v", code, d.Causes)
		}
		return err
	})
}

// shell runs a line of a shell on the node of an agent.
func (s *surgery) shell(t *testing.T, agent int, line string) {
	t.Helper()
	if out, err := s.Agents[agent].Node.Run(t.Context(), "sh", "-ec", line); err != nil {
		t.Fatal(errors.Join(err, errors.New(out)))
	}
}

// restart restarts an agent with other settings for its remote.
func (s *surgery) restart(t *testing.T, agent int, settings map[string]string) {
	t.Helper()
	a := s.Agents[agent]
	must(t, a.Stop(within(t, time.Minute)))
	remote := s.Remotes(a.Node.Cluster)[0].Name
	for name, value := range settings {
		if value == "" {
			delete(a.Env, programs.Variable(remote, name))
		} else {
			a.Env[programs.Variable(remote, name)] = value
		}
	}
	must(t, a.Start())
}
