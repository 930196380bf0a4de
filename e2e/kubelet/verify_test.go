package kubelet_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/ctl/probe"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
)

// verified runs verify without faults, and with nodes that masquerade or drop pods' packets,
// which agents don't see.
func (l *lab) verified(t *testing.T) {
	verify := []string{"verify", "aws", "gcp", "--skip", "policy"}
	t.Run("all is well, and policies hold", func(t *testing.T) {
		defer l.enforce(t)()
		began := time.Now()
		out := l.ctl(t, "verify", "aws", "gcp")
		t.Logf("FIGURE semaphorectl verify took %v", time.Since(began).Round(10*time.Millisecond))
		l.says(t, out, "✓ it does", "✓ its own", "✓ they do", "Mbit/s", "meter.default.svc.cluster.gcp is ", "meter.default.svc.cluster.aws is ")
		for what, times := range map[string]int{"without the label: denied": 4, "with the label: admitted": 4, "it contains the address of the pod with the label": 2} {
			// One line per cluster and address family.
			if n := strings.Count(out, what); n != times {
				t.Errorf("%q is there %d times, want %d", what, n, times)
			}
		}
		if strings.ContainsAny(out, "✗?") || strings.Contains(out, "- not tried") {
			t.Error("something isn't well")
		}
		l.probesGone(t)
	})
	t.Run("policies don't hold", l.verifyUnenforced)
	t.Run("masqueraded", func(t *testing.T) {
		defer l.rules(t, 0, `add chain ip trial nat { type nat hook postrouting priority 90; }`, `add rule ip trial nat oifname "wireguard.*" masquerade`)()
		out := l.fails(t, verify...)
		l.says(t, out, ": it is masqueraded")
		l.names(t, "masqueraded pod traffic", "pods-masqueraded")
	})
	t.Run("dropped", func(t *testing.T) {
		defer l.rules(t, 0, `add chain ip trial drops { type filter hook forward priority 0; }`, `add rule ip trial drops oifname "wireguard.*" drop`)()
		l.names(t, "FORWARD chain drops", "pods-dropped")
		l.probesGone(t)
	})
	t.Run("interrupted", l.verifyInterrupted)
}

// rules adds nftables rules on a node, until the function that it returns is called.
func (l *lab) rules(t *testing.T, node int, rules ...string) (remove func()) {
	t.Helper()
	for _, rule := range append([]string{"add table ip trial"}, rules...) {
		_, err := l.nodes[node].Run(t.Context(), "nft", rule)
		must(t, err)
	}
	return func() {
		_, err := l.nodes[node].Run(context.WithoutCancel(t.Context()), "nft", "delete table ip trial")
		must(t, err)
	}
}

// names checks that doctor reports a fault, and no others. It prints a line like those of
// TestDoctor in e2e/scenarios, which covers the faults that agents see.
func (l *lab) names(t *testing.T, fault, cause string) {
	t.Helper()
	var said []string
	for line := range strings.Lines(l.fails(t, "doctor", "--probe", "aws", "gcp")) {
		if id, found := strings.CutPrefix(line, "✗ "); found {
			id, _, _ = strings.Cut(id, ":")
			if !slices.Contains(said, id) {
				said = append(said, id)
			}
		}
	}
	t.Logf("FIGURE %-48s %-22s %s", fault, cause, strings.Join(said, ", "))
	if !slices.Equal(said, []string{cause}) {
		t.Errorf("%s: it names %q, want %s", fault, said, cause)
	}
}

func (l *lab) says(t *testing.T, out string, wanted ...string) {
	t.Helper()
	for _, want := range wanted {
		if !strings.Contains(out, want) {
			t.Errorf("it doesn't say %q", want)
		}
	}
}

// fails runs semaphorectl, which must find a fault.
func (l *lab) fails(t *testing.T, args ...string) string {
	t.Helper()
	out, err := l.run(t, args...)
	if err == nil || !strings.Contains(err.Error(), "exit status 1") {
		t.Errorf("%q ended with %v", args, err)
	}
	return out
}

// probesLeft counts the remaining temporary objects.
func (l *lab) probesLeft(ctx context.Context) (int, error) {
	left := 0
	for _, c := range l.clusters {
		pods, err := c.Client().CoreV1().Pods(probe.Namespace).List(ctx, metav1.ListOptions{LabelSelector: temporary})
		if err != nil {
			return 0, err
		}
		left += len(pods.Items)
	}
	policies, err := l.guards(ctx)
	return left + len(policies), err
}

const temporary = "semaphore.uw.io/temporary=true"

func (l *lab) probesGone(t *testing.T) {
	t.Helper()
	must(t, testbed.Wait(within(t, 2*time.Minute), "what is temporary to be gone", func(ctx context.Context) error {
		left, err := l.probesLeft(ctx)
		if err == nil && left > 0 {
			err = fmt.Errorf("%d are left", left)
		}
		return err
	}))
}

// verifyInterrupted interrupts the command while its pods run and its policies exist: with
// SIGKILL, and then like a user, after which none of both remain.
func (l *lab) verifyInterrupted(t *testing.T) {
	kubeconfig, err := l.testbed.Kubeconfig()
	must(t, err)
	var killed []string
	for _, signal := range []os.Signal{os.Kill, os.Interrupt} {
		process, err := l.nodes[0].Start(sandbox.Command{
			Name: "semaphorectl", Path: l.tool, Args: []string{"verify", "aws", "gcp", "--skip", "throughput,name", "--nodes", "1"}, Log: filepath.Join(t.TempDir(), "log"),
			Env: []string{"KUBECONFIG=" + kubeconfig, "HOME=" + t.TempDir()},
		})
		must(t, err)
		var made []string
		must(t, testbed.Wait(within(t, 2*time.Minute), "temporary policies in both clusters", func(ctx context.Context) error {
			made, err = l.guards(ctx)
			if err == nil && (len(made) < 2 || slices.ContainsFunc(made, func(uid string) bool { return slices.Contains(killed, uid) })) {
				err = fmt.Errorf("there are %d", len(made))
			}
			return err
		}))
		must(t, process.Signal(signal))
		<-process.Done()
		t.Logf("ended with %v:\n%s", process.Err(), process.Log())
		if process.Err() == nil {
			t.Error("it ended as if it had been done")
		}
		killed = made
	}
	l.probesGone(t)
}
