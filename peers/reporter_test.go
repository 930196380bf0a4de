package peers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kube-semaphore/kube-semaphore/internal/pathreport"
	"github.com/kube-semaphore/kube-semaphore/peers/paths"
)

// reporting is a reporter with an API server in memory and paths set by the test.
type reporting struct {
	*Reporter
	client *fake.Clientset
	all    map[string][]paths.Path
	now    time.Time
}

func newReporting(t *testing.T) *reporting {
	t.Helper()
	b := &reporting{client: fake.NewClientset(), all: map[string][]paths.Path{}, now: time.Unix(1e9, 0)}
	b.again()
	return b
}

// again restarts the process.
func (b *reporting) again() {
	b.Reporter = NewReporter(ReporterConfig{
		Leases: b.client.CoordinationV1().Leases("sys"), Namespace: "sys", Node: "gcp-1",
		Owner: metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "pod", UID: "uid"},
		Paths: func() map[string][]paths.Path { return b.all }, Reporters: func() int { return 0 }, Logger: slog.New(slog.DiscardHandler),
	})
}

// set sets the state of a path of aws from now on.
func (b *reporting) set(node string, state paths.State) {
	all := slices.DeleteFunc(b.all["aws"], func(p paths.Path) bool { return p.Node == node })
	b.all["aws"] = append(all, paths.Path{Node: node, State: state, Since: b.now, Sign: paths.SignAnswer})
}

// pass advances the clock, running passes as the loop does, and returns the number of write
// requests.
func (b *reporting) pass(t *testing.T, seconds float64) (writes int) {
	t.Helper()
	end := b.now.Add(time.Duration(seconds * float64(time.Second)))
	before := len(b.client.Actions())
	for {
		if b.loadedAt.IsZero() {
			if err := b.load(t.Context(), b.now); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.Reporter.pass(t.Context(), b.now); err != nil {
			t.Fatal(err)
		}
		if b.due.IsZero() || b.due.After(end) {
			break
		}
		if !b.due.After(b.now) {
			t.Fatal("due in the past")
		}
		b.now = b.due
	}
	b.now = end
	for _, a := range b.client.Actions()[before:] {
		if a.GetVerb() != "get" {
			writes++
		}
	}
	return writes
}

// says returns the reported nodes of aws; nil: there is no report.
func (b *reporting) says(t *testing.T) *pathreport.Down {
	t.Helper()
	l, err := b.client.CoordinationV1().Leases("sys").Get(t.Context(), "semaphore-paths-gcp-1", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	r, err := pathreport.Read(l)
	if err != nil {
		t.Fatal(err)
	}
	d := r.Remotes["aws"]
	return &d
}

func (b *reporting) expect(t *testing.T, what string, want *pathreport.Down) {
	t.Helper()
	if diff := cmp.Diff(want, b.says(t)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestReporter(t *testing.T) {
	b := newReporting(t)
	for _, node := range []string{"aws-1", "aws-2", "aws-3"} {
		b.set(node, paths.Up)
	}
	if n := b.pass(t, 3600); n != 0 || b.says(t) != nil {
		t.Errorf("a quiet mesh wrote %d times", n)
	}
	b.set("aws-1", paths.Down)
	if n := b.pass(t, 1); n != 1 {
		t.Errorf("%d writes for one path", n)
	}
	b.expect(t, "one is down", &pathreport.Down{Nodes: []string{"aws-1"}})
	if n := b.pass(t, 300); n != 10 {
		t.Errorf("%d writes in 300 s in which nothing changed", n)
	}
	b.set("aws-2", paths.Down)
	b.pass(t, 1)
	b.expect(t, "most are down", &pathreport.Down{AllBut: true, Nodes: []string{"aws-3"}})
	b.set("aws-2", paths.Up)
	b.pass(t, 1.5)
	b.expect(t, "up for less than 2 s", &pathreport.Down{AllBut: true, Nodes: []string{"aws-3"}})
	b.pass(t, 1)
	b.expect(t, "up for 2 s", &pathreport.Down{Nodes: []string{"aws-1"}})
	b.set("aws-1", paths.Up)
	b.pass(t, 3)
	b.expect(t, "all are up", nil)
	if n := b.pass(t, 3600); n != 0 {
		t.Errorf("a quiet mesh wrote %d times", n)
	}
}

// TestFlappingPathIsReportedOnce changes the state of a path each second.
func TestFlappingPathIsReportedOnce(t *testing.T) {
	b, writes := newReporting(t), 0
	for second := range 300 {
		b.set("aws-1", []paths.State{paths.Down, paths.Up}[second%2])
		writes += b.pass(t, 1)
	}
	b.expect(t, "it flaps", &pathreport.Down{AllBut: true, Nodes: []string{}})
	t.Logf("%d writes in 300 s, of which 10 renew", writes)
	if writes > 11 {
		t.Errorf("%d writes", writes)
	}
}

// TestReportsOfAFlappingMeshAreBounded changes paths slowly enough that each change changes
// the report, in a cluster in which many nodes report at the same time.
func TestReportsOfAFlappingMeshAreBounded(t *testing.T) {
	const size = 1000
	b, writes := newReporting(t), 0
	b.cfg.Reporters = func() int { return size }
	b.set("aws-2", paths.Up)
	b.set("aws-3", paths.Up)
	var longest time.Duration
	for range 100 {
		b.set("aws-1", paths.Down)
		at := b.now
		for b.says(t) == nil && b.now.Sub(at) < time.Minute {
			writes += b.pass(t, 0.5)
		}
		longest = max(longest, b.now.Sub(at))
		writes += b.pass(t, 3)
		b.set("aws-1", paths.Up)
		writes += b.pass(t, 3)
	}
	took := b.now.Sub(time.Unix(1e9, 0))
	perSecond := float64(writes) / took.Seconds() * size
	t.Logf("%d writes in %v: %.0f a second of %d nodes; a path that is down again is reported after %v at most", writes, took, perSecond, size, longest)
	if perSecond > 150 {
		t.Errorf("%.0f writes a second", perSecond)
	}
	if longest > 1500*time.Millisecond {
		t.Errorf("a path that is down was reported after %v", longest)
	}
	b.set("aws-1", paths.Up)
	b.pass(t, 40)
	b.expect(t, "all are up", nil)
}

// TestReportIsTakenOver restarts the process while paths are down.
func TestReportIsTakenOver(t *testing.T) {
	b := newReporting(t)
	b.set("aws-1", paths.Down)
	b.set("aws-2", paths.Down)
	b.pass(t, 10)
	b.again()
	b.set("aws-1", paths.Unknown)
	b.set("aws-2", paths.Up)
	if n := b.pass(t, 1); n != 1 {
		t.Errorf("the new one wrote %d times, want once: the report goes with the owner", n)
	}
	b.expect(t, "nothing is known of one", &pathreport.Down{AllBut: true, Nodes: []string{}})
	b.pass(t, 60)
	b.expect(t, "the other one is up", &pathreport.Down{Nodes: []string{"aws-1"}})
	b.set("aws-1", paths.Up)
	b.pass(t, 5)
	b.expect(t, "both are up", nil)

	// A leftover report of peers that don't exist: they may still be configured.
	b.set("aws-1", paths.Down)
	b.pass(t, 1)
	b.again()
	b.all = map[string][]paths.Path{"aws": {}}
	b.pass(t, 30)
	b.expect(t, "its peers aren't configured yet", &pathreport.Down{Nodes: []string{"aws-1"}})
	b.pass(t, 60)
	b.expect(t, "its peers are gone", nil)
}

// TestOldHandshakeIsNoSign restarts the process, which then reads a handshake from before
// the restart.
func TestOldHandshakeIsNoSign(t *testing.T) {
	b := newReporting(t)
	b.set("aws-1", paths.Down)
	b.pass(t, 1)
	b.again()
	b.all["aws"] = []paths.Path{{Node: "aws-1", State: paths.Up, Since: b.now, Sign: paths.SignHandshake}}
	b.pass(t, 40)
	b.expect(t, "it seems to be up", &pathreport.Down{AllBut: true, Nodes: []string{}})
	b.all["aws"] = []paths.Path{{Node: "aws-1", State: paths.Unknown, Since: b.now, Sign: paths.SignSilence}}
	b.pass(t, 100)
	b.expect(t, "it doesn't any more", &pathreport.Down{AllBut: true, Nodes: []string{}})
	b.all["aws"] = []paths.Path{{Node: "aws-1", State: paths.Up, Since: b.now, Sign: paths.SignHandshake}}
	b.pass(t, 3)
	b.expect(t, "a new handshake", nil)
}

func TestReporterForbidden(t *testing.T) {
	b := newReporting(t)
	refuse := true
	b.client.PrependReactor("*", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		if refuse {
			return true, nil, apierrors.NewForbidden(coordinationv1.Resource("leases"), "x", errors.New("no rule"))
		}
		return false, nil, nil
	})
	b.set("aws-1", paths.Down)
	if err := b.Reconcile(context.Background()); !apierrors.IsForbidden(err) {
		t.Error(err)
	}
	refuse = false
	b.pass(t, 1)
	b.expect(t, "it is allowed again", &pathreport.Down{AllBut: true, Nodes: []string{}})
}

// TestReportSaysWhatIsDown compares reports of random paths with the state of each path.
func TestReportSaysWhatIsDown(t *testing.T) {
	states := []paths.State{paths.Unknown, paths.Up, paths.Down}
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 3))
		now, before := time.Unix(1e9, 0), pathreport.Report{Node: "gcp-1"}
		for range 20 {
			now = now.Add(time.Duration(r.IntN(3000)) * time.Millisecond)
			all := map[string][]paths.Path{}
			for i := range 2 {
				remote := fmt.Sprintf("remote-%d", i)
				for j := range r.IntN(6) {
					all[remote] = append(all[remote], paths.Path{
						Node: fmt.Sprintf("n%d", j), State: states[r.IntN(3)], Since: now.Add(-time.Duration(r.IntN(4000)) * time.Millisecond),
					})
				}
			}
			want, due := reportAt(now, "gcp-1", &before, all, false)
			if !due.IsZero() && !due.After(now) {
				t.Fatalf("seed %d: due in the past", seed)
			}
			for remote, known := range all {
				d, reported := want.Remotes[remote]
				was, wasReported := before.Remotes[remote]
				for _, p := range known {
					is := reported && d.Has(p.Node)
					held := wasReported && was.Has(p.Node)
					var must bool
					switch p.State {
					case paths.Down:
						must = true
					case paths.Up:
						must = held && now.Sub(p.Since) < upFor
					case paths.Unknown:
						must = held
					}
					if is != must {
						t.Fatalf("seed %d: %s of %s is reported down: %v; %+v, before %v", seed, p.Node, remote, is, p, held)
					}
				}
			}
			before = want
		}
	}
}
