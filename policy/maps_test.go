package policy

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/status"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
	"github.com/kube-semaphore/kube-semaphore/internal/virtual"
)

const toVirtual, toOther = "10.4.0.0/16=10.200.0.0/16", "10.4.0.0/16=10.201.0.0/16"

// mapped is a rig whose remote gcp has a map of pod subnets.
type mapped struct {
	*rig
	t      *testing.T
	remote *kubetest.API
}

// startMapped runs a controller with a virtual pod subnet of gcp. prepare is called before that.
func startMapped(t *testing.T, sets *kubetest.API, prepare func(m *mapped), adjust func(*Config)) *mapped {
	t.Helper()
	m := &mapped{t: t, remote: kubetest.NewAPI()}
	client, err := kube.NewClient(m.remote.Config())
	if err != nil {
		t.Fatal(err)
	}
	prepare(m)
	m.rig = startRig(t, sets, func(cfg *Config) {
		cfg.Remotes[0].Client = func() (kube.Client, error) { return client, nil }
		cfg.Remotes[0].Rules.Subnets = []netip.Prefix{netip.MustParsePrefix("10.200.0.0/15")}
		if adjust != nil {
			adjust(cfg)
		}
	})
	m.pods["gcp"] = m.remote
	return m
}

func (m *mapped) node(name, text string) {
	m.t.Helper()
	annotations := map[string]string{"wireguard.semaphore.uw.io/podCIDRs": "10.4.0.0/24"}
	if text != "" {
		annotations[config.SubnetMapAnnotation] = text
	}
	m.remote.Put(m.t, "nodes", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}})
}

func (m *mapped) pod(name, set, node string, ips ...string) {
	m.t.Helper()
	p := podObject("ns", name, set, corev1.PodRunning, ips...)
	p.Spec.NodeName = node
	m.remote.Put(m.t, "pods", p)
}

// refuses makes the remote refuse reading nodes; 0: it doesn't.
func (m *mapped) refuses(code int, reason metav1.StatusReason) {
	m.remote.Hook(func(h *kubetest.Hooks) {
		h.Read = func(resource string) *metav1.Status {
			if code == 0 || resource != "nodes" {
				return nil
			}
			return kubetest.Failure(code, reason)
		}
	})
}

func (m *mapped) wantMap(state string) {
	m.t.Helper()
	if got := m.Status().Remotes[0].PodSubnetsMap; got.State != state {
		m.t.Errorf("map %+v, want %s", got, state)
	}
}

// TestSetsFollowAMap changes the map of a node, and removes it. No write leaves the set empty.
func TestSetsFollowAMap(t *testing.T) {
	bubble(t, func(t *testing.T) {
		sets := kubetest.NewAPI()
		m := startMapped(t, sets, func(m *mapped) {
			m.node("n", toVirtual)
			m.pod("a", "app", "n", "10.4.0.1")
			m.pod("b", "app", "n", "10.4.0.2")
			m.pod("c", "app", "m", "10.200.0.9")
		}, nil)
		var empty atomic.Int64
		admit(sets, func(_ string, set *unstructured.Unstructured) *metav1.Status {
			if nets, _, _ := unstructured.NestedStringSlice(set.Object, "spec", "nets"); len(nets) < 3 {
				empty.Add(1)
			}
			return nil
		})
		m.wantSets(t, map[string]string{"gcp-ns-app": "10.200.0.1/32 10.200.0.2/32 10.200.0.9/32"})
		m.wantMap(status.MapKnown)
		before := len(writes(sets))
		m.node("n", toOther)
		elapse(time.Second)
		m.wantSets(t, map[string]string{"gcp-ns-app": "10.200.0.9/32 10.201.0.1/32 10.201.0.2/32"})
		m.node("n", " "+toOther)
		m.node("o", toOther)
		elapse(time.Minute)
		if n := writes(sets)[before:]; len(n) != 1 || empty.Load() > 0 {
			t.Errorf("writes %q, %d of them without an address", n, empty.Load())
		}
		m.pod("a", "app", "n", "10.4.0.5")
		m.drop("b")
		elapse(time.Minute)
		m.wantSets(t, map[string]string{"gcp-ns-app": "10.200.0.9/32 10.201.0.5/32"})
		m.node("n", "")
		elapse(time.Minute)
		m.wantSets(t, map[string]string{"gcp-ns-app": "10.200.0.9/32"})
		m.wantMap(status.MapDiffers)
		m.drop("a")
		m.drop("c")
		elapse(time.Minute)
		m.wantSets(t, map[string]string{})
		if l := m.remotes["gcp"].located; len(l.nodes)+len(l.shown)+len(l.unplaced) > 0 {
			t.Errorf("%+v is left without pods", l)
		}
	})
}

// TestSetsStayUntilNodesAreRead restarts while the nodes of the remote can't be read.
func TestSetsStayUntilNodesAreRead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		sets := kubetest.NewAPI()
		first := startMapped(t, sets, func(m *mapped) {
			m.node("n", toVirtual)
			m.pod("a", "app", "n", "10.4.0.1")
		}, nil)
		want := map[string]string{"gcp-ns-app": "10.200.0.1/32"}
		first.wantSets(t, want)
		first.stop()
		before := len(writes(sets))
		m := startMapped(t, sets, func(m *mapped) {
			m.refuses(http.StatusInternalServerError, metav1.StatusReasonInternalError)
			m.node("n", toVirtual)
			m.pod("a", "app", "n", "10.4.0.1")
			m.pod("b", "other", "n", "10.4.0.2")
		}, nil)
		elapse(10 * time.Minute)
		m.wantSets(t, want)
		m.wantMap(status.MapUnread)
		if n := writes(sets)[before:]; len(n) > 0 {
			t.Errorf("written before nodes are read: %q", n)
		}
		m.refuses(0, "")
		elapse(time.Minute)
		m.wantSets(t, map[string]string{"gcp-ns-app": "10.200.0.1/32", "gcp-ns-other": "10.200.0.2/32"})
		m.wantMap(status.MapKnown)
	})
}

// TestForbiddenNodesHoldUpNoSet has an account that may not read nodes, and then may.
func TestForbiddenNodesHoldUpNoSet(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := startMapped(t, kubetest.NewAPI(), func(m *mapped) {
			m.refuses(http.StatusForbidden, metav1.StatusReasonForbidden)
			m.node("n", toVirtual)
			m.pod("a", "app", "n", "10.4.0.1")
		}, func(cfg *Config) { cfg.Remotes[0].Rules.Subnets = nil })
		m.wantSets(t, map[string]string{"gcp-ns-app": "10.4.0.1/32"})
		m.wantMap(status.MapForbidden)
		if strings.Contains(m.log.String(), "level=WARN") {
			t.Errorf("warnings about an account of an older release:\n%s", m.log)
		}
		m.refuses(0, "")
		elapse(time.Minute)
		m.wantSets(t, map[string]string{"gcp-ns-app": "10.200.0.1/32"})
	})
}

// TestMapThatFlapsCostsFewWritesOfSets changes the map of a node with many sets twenty times a second.
func TestMapThatFlapsCostsFewWritesOfSets(t *testing.T) {
	bubble(t, func(t *testing.T) {
		pods, length := rounds(200, 20), time.Duration(rounds(600, 60))*time.Second
		api := kubetest.NewAPI()
		m := startMapped(t, api, func(m *mapped) {
			m.node("n", toVirtual)
			for i := range pods {
				m.pod(fmt.Sprint("p-", i), fmt.Sprint("s-", i), "n", fmt.Sprintf("10.4.0.%d", i+1))
			}
		}, nil)
		elapse(time.Minute)
		before := len(writes(api))
		if before != pods {
			t.Fatalf("%d writes for %d sets", before, pods)
		}
		for n := range int(length / (50 * time.Millisecond)) {
			m.node("n", []string{toOther, toVirtual}[n%2])
			elapse(50 * time.Millisecond)
		}
		if n := len(writes(api)) - before; n > 7*pods {
			t.Errorf("%d writes for %d sets", n, pods)
		}
		elapse(15 * time.Minute)
		if got := content(api)["gcp-ns-s-0"]; got != "10.200.0.1/32" {
			t.Errorf("a set has %s in the end", got)
		}
	})
}

// TestLocatedIsTheSameFromScratch changes pods and maps of nodes at random.
func TestLocatedIsTheSameFromScratch(t *testing.T) {
	texts := []string{"", toVirtual, toOther, "10.5.0.0/16=10.200.0.0/16", "bad"}
	for seed := range rounds(200, 20) {
		random := rand.New(rand.NewPCG(uint64(seed), 3))
		now := time.Unix(1000, 0)
		rules := Rules{Cluster: "gcp", Subnets: []netip.Prefix{netip.MustParsePrefix("10.200.0.0/15")}}
		maps, members := &virtual.Table{}, NewMembers(rules)
		l, pods, shown := newLocated(maps), map[string]*Pod{}, map[string]*Pod{}
		update := func(c kube.Change[Pod]) {
			if shown[c.Key] != c.Before {
				t.Fatalf("seed %d: %s is updated from %v, was %v", seed, c.Key, c.Before, shown[c.Key])
			}
			members.Update(c.Before, c.After, now)
			if shown[c.Key] = c.After; c.After == nil {
				delete(shown, c.Key)
			}
		}
		for range 300 {
			if random.IntN(3) == 0 {
				name := []string{"n", "m", "o"}[random.IntN(3)]
				n := virtual.NodeOf(map[string]string{config.SubnetMapAnnotation: texts[random.IntN(len(texts))]})
				node := &n
				if random.IntN(4) == 0 {
					node = nil
				}
				var changed []string
				if maps.Update(name, node) {
					changed = append(changed, name)
				}
				if maps.Agree() {
					changed = append(changed, "")
				}
				for _, name := range changed {
					for _, c := range l.remap(name) {
						update(c)
					}
				}
				continue
			}
			name := fmt.Sprint("ns/p-", random.IntN(20))
			var after *Pod
			if random.IntN(4) > 0 {
				p := podWith(strings.TrimPrefix(name, "ns/"), string(rune('a'+random.IntN(3))), fmt.Sprintf("10.%d.0.%d", 4+random.IntN(3), random.IntN(15)))
				p.Node = []string{"", "n", "m", "o", "x"}[random.IntN(5)]
				after = &p
			}
			c := l.change(kube.Change[Pod]{Key: name, Before: pods[name], After: after})
			if pods[name] = after; after == nil {
				delete(pods, name)
			}
			update(c)
		}
		scratch, again := NewMembers(rules), newLocated(maps)
		for name, p := range pods {
			scratch.Update(nil, again.change(kube.Change[Pod]{Key: name, After: p}).After, now)
		}
		if diff := cmp.Diff(scratch.holdAll(), members.holdAll(), compareAddrs); diff != "" {
			t.Fatalf("seed %d: sets (-scratch +incremental):\n%s", seed, diff)
		}
		if diff := cmp.Diff(scratch.Skipped(), members.Skipped()); diff != "" {
			t.Fatalf("seed %d: skipped (-scratch +incremental):\n%s", seed, diff)
		}
		for name, p := range pods {
			update(l.change(kube.Change[Pod]{Key: name, Before: p}))
		}
		if len(l.nodes)+len(l.shown)+len(l.unplaced)+len(members.sets) > 0 {
			t.Fatalf("seed %d: %+v is left without pods", seed, l)
		}
	}
}
