package controllers_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/policy"
)

// membership is an address in a set.
type membership struct {
	id policy.Identity
	ip string
}

// span is a time in which a pod had its address in its set. From is before the request that made
// it so, certain after its response; ending and to are the same for the one that ended it, zero
// until then.
type span struct{ from, certain, ending, to time.Time }

// chronicle is what happened in the remotes.
type chronicle map[membership][]*span

func (c chronicle) begin(m membership, from, certain time.Time) *span {
	s := &span{from: from, certain: certain}
	c[m] = append(c[m], s)
	return s
}

// first returns when an address came into a set at the earliest.
func (c chronicle) first(m membership) (at time.Time, ever bool) {
	for _, s := range c[m] {
		if !ever || s.from.Before(at) {
			at, ever = s.from, true
		}
	}
	return at, ever
}

// left returns when the last pod with an address had left a set, if there is none any more.
func (c chronicle) left(m membership) (at time.Time, left bool) {
	for _, s := range c[m] {
		if s.to.IsZero() {
			return time.Time{}, false
		}
		if s.to.After(at) {
			at = s.to
		}
	}
	return at, true
}

// mayLack reports whether a set may have lost an address: a pod had left it, and no other one of
// those that have it was there before.
func (c chronicle) mayLack(m membership, at time.Time) bool {
	return slices.ContainsFunc(c[m], func(e *span) bool {
		return !e.ending.IsZero() && !e.ending.After(at) && !slices.ContainsFunc(c[m], func(s *span) bool {
			return s != e && !s.certain.After(e.ending) && (s.ending.IsZero() || s.ending.After(at))
		})
	})
}

// check looks at every version of every set. It knows no time that a change may take, only their
// order, which is that of the remote's watch:
//
//   - A set has an address only after a pod has it.
//   - A set gets an address of a remote only after it has lost those that had left before.
//   - A set loses an address only after a pod has left it.
func (c chronicle) check(t *testing.T, r *recorder) {
	t.Helper()
	n, faults := 0, 0
	before := map[membership]bool{}
	r.replay(func(v version, s state) {
		n++
		held := map[membership]bool{}
		for _, s := range networkSets(s) {
			for _, net := range s.Spec.Nets {
				ip, _, _ := strings.Cut(net, "/")
				held[membership{identity(s), ip}] = true
			}
		}
		fault := func(format string, args ...any) {
			if faults++; faults <= 10 {
				t.Errorf("version %s: %s", v.object.GetResourceVersion(), fmt.Sprintf(format, args...))
			}
		}
		for m := range held {
			from, ever := c.first(m)
			if !ever || from.After(v.at) {
				fault("%v has %s, which no pod has had", m.id, m.ip)
			}
			if before[m] {
				continue
			}
			for other := range held {
				if left, is := c.left(other); is && other.id == m.id && left.Before(from) {
					fault("%v has %s, which had left before %s came", m.id, other.ip, m.ip)
				}
			}
		}
		for m := range before {
			if !held[m] && !c.mayLack(m, v.at) {
				fault("%v has lost %s, which a pod has", m.id, m.ip)
			}
		}
		before = held
	})
	if n < 50 {
		t.Errorf("saw only %d versions", n)
	}
	t.Logf("%d versions, %d faults", n, faults)
}

// livePod is a pod in a remote.
type livePod struct {
	podSpec
	cluster *testbed.Cluster
	span    *span
}

func (p *livePod) membership() membership {
	return membership{policy.Identity{Cluster: p.cluster.Name, Namespace: p.namespace, Name: p.set}, p.ips[0]}
}

// testHistory creates, deletes, finishes and relabels pods of two remotes at random, and gives
// them addresses of other pods.
func (b *policyBed) testHistory(t *testing.T) {
	sets := b.sets(t, b.aws)
	for _, c := range []*testbed.Cluster{b.gcp, b.merit} {
		createNamespace(t, c, "ns-a")
		createNamespace(t, c, "ns-b")
	}
	b.start(t, b.aws, func(c *policy.Config) { c.ShardSize = 4 }, b.gcp, b.merit)
	r := recordSets(t, sets)

	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	c := chronicle{}
	var live []*livePod
	number := 0
	add := func(ip string, remote *testbed.Cluster) {
		number++
		p := &livePod{cluster: remote, podSpec: running(
			[]string{"ns-a", "ns-b"}[rng.IntN(2)], fmt.Sprintf("pod-%d", number), []string{"x", "y", "b-x", "X"}[rng.IntN(4)], ip)}
		from := time.Now()
		must(t, putPod(t.Context(), remote, p.podSpec))
		p.span = c.begin(p.membership(), from, time.Now())
		live = append(live, p)
	}
	end := func(p *livePod, do func() error) {
		p.span.ending = time.Now()
		must(t, do())
		p.span.to = time.Now()
		live = slices.DeleteFunc(live, func(q *livePod) bool { return q == p })
	}
	for step := range 300 {
		remote := []*testbed.Cluster{b.gcp, b.merit}[rng.IntN(2)]
		action := rng.IntN(10)
		if len(live) < 8 || action < 3 && len(live) < 40 {
			add(fmt.Sprintf("10.%d.0.%d", 2+2*rng.IntN(3), 1+rng.IntN(250)), remote)
			continue
		}
		p := live[rng.IntN(len(live))]
		switch {
		case action < 6:
			end(p, func() error { return deletePod(t.Context(), p.cluster, p.namespace, p.name) })
		case action < 7:
			p.phase = corev1.PodSucceeded
			end(p, func() error { return setStatus(t.Context(), p.cluster, p.podSpec) })
		case action < 8:
			// Another pod has the address before the old one is gone.
			add(p.ips[0], p.cluster)
			end(p, func() error { return deletePod(t.Context(), p.cluster, p.namespace, p.name) })
		default:
			from := time.Now()
			old := p.span
			old.ending = from
			p.set = []string{"x", "y", "b-x", "X"}[rng.IntN(4)]
			must(t, relabel(t.Context(), p.cluster, p.namespace, p.name, p.set))
			old.to = time.Now()
			p.span = c.begin(p.membership(), from, old.to)
		}
		if step%100 == 99 {
			expectMembers(t, sets, live)
		}
	}

	expectMembers(t, sets, live)
	r.end(t)
	c.check(t, r)
}

// expectMembers waits until the sets hold exactly the addresses of the pods.
func expectMembers(t *testing.T, sets policy.SetClient, live []*livePod) {
	t.Helper()
	want := map[policy.Identity][]netip.Addr{}
	for _, p := range live {
		id := p.membership().id
		want[id] = append(want[id], netip.MustParseAddr(p.ips[0]))
	}
	for id, addrs := range want {
		slices.SortFunc(addrs, netip.Addr.Compare)
		want[id] = slices.Compact(addrs)
	}
	wait(t, "the sets to hold the addresses of the pods", func() error {
		got, err := membersOf(t.Context(), sets)
		if err != nil {
			return err
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			return fmt.Errorf("got  %v\nwant %v", got, want)
		}
		return nil
	})
}

// membersOf reads the addresses of sets by identity, in all of their objects.
func membersOf(ctx context.Context, sets policy.SetClient) (map[policy.Identity][]netip.Addr, error) {
	list, err := sets.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	got := map[policy.Identity][]netip.Addr{}
	for i := range list.Items {
		s := &list.Items[i]
		id := identity(s)
		for _, net := range s.Spec.Nets {
			prefix, err := netip.ParsePrefix(net)
			if err != nil {
				return nil, err
			}
			got[id] = append(got[id], prefix.Addr())
		}
		slices.SortFunc(got[id], netip.Addr.Compare)
	}
	return got, nil
}
