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

// lag is how far behind the pods a network set may be, beyond the pace of the API servers.
const lag = time.Second

// membership is an address in a set.
type membership struct {
	id policy.Identity
	ip string
}

// span is a time in which a pod had its address in its set. From is before the
// request that made it so, to after the one that ended it; zero: not ended.
type span struct {
	from, certain time.Time // certain: the request was answered
	to, ending    time.Time // ending: before the request that ended it
}

// chronicle is what happened in the remotes.
type chronicle struct {
	spans map[membership][]*span
	pace  *pace
}

// late reports whether a set had time enough to follow what was so at one time,
// and didn't at another.
func (c *chronicle) late(since, at time.Time) bool {
	behind := at.Sub(since)
	return behind > lag && behind > lag+c.pace.slowest(since, at)
}

func (c *chronicle) begin(m membership, from, certain time.Time) *span {
	s := &span{from: from, certain: certain}
	c.spans[m] = append(c.spans[m], s)
	return s
}

// mayHold reports whether a set may hold the address at a time.
func (c *chronicle) mayHold(m membership, at time.Time) bool {
	return slices.ContainsFunc(c.spans[m], func(s *span) bool {
		return !s.from.After(at) && (s.to.IsZero() || !c.late(s.to, at))
	})
}

// mustHold reports whether a set must: one pod or another has had the address
// for longer than the lag.
func (c *chronicle) mustHold(m membership, at time.Time) bool {
	return slices.ContainsFunc(c.spans[m], func(s *span) bool {
		return c.late(s.certain, at) && (s.ending.IsZero() || s.ending.After(at))
	})
}

// check looks at every version of every set, when it came and when the next
// one did.
func (c *chronicle) check(t *testing.T, r *recorder, end time.Time) {
	t.Helper()
	versions := r.all()
	n, faults := 0, 0
	fault := func(format string, args ...any) {
		if faults++; faults <= 10 {
			t.Errorf(format, args...)
		}
	}
	r.replay(func(v version, s state) {
		n++
		until := end
		if n < len(versions) {
			until = versions[n].at
		}
		held := map[membership]bool{}
		for _, s := range networkSets(s) {
			id := identity(s)
			for _, net := range s.Spec.Nets {
				ip, _, _ := strings.Cut(net, "/")
				m := membership{id, ip}
				held[m] = true
				for _, at := range []time.Time{v.at, until} {
					if !c.mayHold(m, at) {
						fault("version %s: %v holds %s, which no pod has or had in the last second", v.object.GetResourceVersion(), id, ip)
					}
				}
			}
		}
		for m := range c.spans {
			for _, at := range []time.Time{v.at, until} {
				if !held[m] && c.mustHold(m, at) {
					fault("version %s: %v lacks %s, which a pod has had for more than a second", v.object.GetResourceVersion(), m.id, m.ip)
				}
			}
		}
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
	pace, stop := keepPace(t, b.aws, b.gcp, b.merit)
	c := &chronicle{spans: map[membership][]*span{}, pace: pace}
	began := time.Now()
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
			time.Sleep(time.Duration(rng.IntN(1200)) * time.Millisecond) // part of the history
		}
	}

	expectMembers(t, sets, live)
	r.end(t)
	ended := time.Now()
	stop()
	t.Logf("the slowest round of the API servers took %v", pace.slowest(began, ended))
	c.check(t, r, ended)
}

// expectMembers waits until the sets hold exactly the addresses of the pods.
func expectMembers(t *testing.T, sets policy.SetClient, live []*livePod) {
	t.Helper()
	want := map[policy.Identity][]netip.Addr{}
	members := map[string]*policy.Members{}
	for _, p := range live {
		object := &corev1.Pod{Status: corev1.PodStatus{Phase: p.phase, PodIPs: []corev1.PodIP{{IP: p.ips[0]}}}}
		object.Namespace, object.Name, object.Labels = p.namespace, p.name, map[string]string{domain + "/name": p.set}
		trimmed, _ := policy.PodFor(domain + "/name")(object)
		if members[p.cluster.Name] == nil {
			members[p.cluster.Name] = policy.NewMembers(policy.Rules{Cluster: p.cluster.Name})
		}
		members[p.cluster.Name].Update(nil, &trimmed, time.Time{})
	}
	for _, m := range members {
		for _, id := range m.Touched() {
			want[id] = m.Addrs(id)
		}
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
