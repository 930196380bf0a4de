package kubelet_test

import (
	"context"
	"errors"
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

var three = flag.Bool("three", false, "join three clusters with kubelets, too")

// TestThreeClusters joins three clusters at once; first one of them leaves, then the others.
func TestThreeClusters(t *testing.T) {
	if !*three {
		t.Skip("-three isn't given: three clusters aren't joined")
	}
	l := startLab(t, "aws", "gcp", "merit")
	l.startDNS(t)
	l.serveCalico(t)
	for i := range l.clusters {
		l.serveMeter(t, i)
	}
	before := l.everything(t)
	names := []string{"aws", "gcp", "merit"}
	with := func(command string, args ...string) []string {
		return append(append([]string{command}, names...), args...)
	}

	began := time.Now()
	l.ctl(t, with("join", "--yes", "--image", ourImage())...)
	t.Logf("FIGURE semaphorectl join of three took %v", time.Since(began).Round(10*time.Millisecond))
	l.answerByName(t, 0, 1, 2)
	t.Logf("FIGURE requests by name answered among three, both ways, %v after the command was started", time.Since(began).Round(10*time.Millisecond))

	versions := l.resourceVersions(t)
	l.ctl(t, with("join", "--image", ourImage())...)
	if diff := cmp.Diff(versions, l.resourceVersions(t)); diff != "" {
		t.Errorf("joined again it changed (-before +after):\n%s", diff)
	}
	t.Run("verify", func(t *testing.T) {
		defer l.enforce(t)()
		began := time.Now()
		out := l.ctl(t, with("verify", "--skip", "throughput")...)
		t.Logf("FIGURE semaphorectl verify of three took %v", time.Since(began).Round(10*time.Millisecond))
		for what, times := range map[string]int{"✓ it does": 12 + 6, "✓ its own": 12, "without the label: denied": 12, "with the label: admitted": 12} {
			// Six directions with two families; each direction has a set.
			if n := strings.Count(out, what); n != times {
				t.Errorf("%q is there %d times, want %d", what, n, times)
			}
		}
	})
	t.Run("status and doctor", func(t *testing.T) {
		l.ctl(t, with("status")...)
		l.ctl(t, with("doctor", "--probe")...)
	})
	t.Run("one leaves", func(t *testing.T) {
		// The others forget it; then it finds no neighbour that is still joined with it.
		l.ctl(t, "leave", "--gone", "merit", "aws", "gcp")
		l.answerByName(t, 0, 1)
		l.ctl(t, "doctor", "--probe", "aws", "gcp")
		for i := range 2 {
			if err := l.byName(within(t, time.Minute), i, 2); err == nil {
				t.Errorf("%s still reaches merit", names[i])
			}
		}
		if out := l.ctl(t, "leave", "merit"); strings.Count(out, "it had left merit already") != 2 {
			t.Errorf("merit has left by itself:\n%s", out)
		}
		l.answerByName(t, 0, 1)
	})
	t.Run("nothing is left", func(t *testing.T) {
		l.ctl(t, "leave", "aws", "gcp")
		l.same(t, before)
	})
}

// answerByName waits until requests by name are answered among clusters, both ways.
func (l *lab) answerByName(t *testing.T, clusters ...int) {
	t.Helper()
	must(t, testbed.Wait(within(t, 3*time.Minute), "answers by name", func(ctx context.Context) error {
		var errs []error
		for _, from := range clusters {
			for _, to := range clusters {
				if from != to {
					errs = append(errs, l.byName(ctx, from, to))
				}
			}
		}
		return errors.Join(errs...)
	}))
}
