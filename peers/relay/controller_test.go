package relay

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kube-semaphore/kube-semaphore/internal/keep"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/logtest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/synctest"
	"github.com/kube-semaphore/kube-semaphore/internal/wireguardpeers/v1alpha1"
	"github.com/kube-semaphore/kube-semaphore/peers"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

const namespace = "sys-semaphore"

// rig is a controller of aws, with the remote gcp, that leads, between API servers in memory.
type rig struct {
	*Controller
	aws, gcp *kubetest.API
	log      *logtest.Buffer
	stop     func()
}

func client(t testing.TB, api *kubetest.API) kube.Client {
	t.Helper()
	c, err := kube.NewClient(api.Config())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// start runs a controller until it is stopped or the test ends.
func start(t *testing.T, aws, gcp *kubetest.API) *rig {
	t.Helper()
	r := &rig{aws: aws, gcp: gcp, log: &logtest.Buffer{}}
	cfg := Config{
		Cluster: "aws", Client: client(t, aws), Namespace: namespace, Metrics: NewMetrics(),
		Watches: kube.NewMetrics("relay", "failures"), Logger: slog.New(slog.NewTextHandler(r.log, nil)),
	}
	if gcp != nil {
		remote := client(t, gcp)
		cfg.Remotes = []RemoteConfig{{
			Name: "gcp", Client: func() (kube.Client, error) { return remote, nil },
			Bounds: kube.Bounds{Answer: 64 << 20}, MaxPrefixes: 1024,
		}}
	}
	r.Controller = New(cfg)
	r.stop = kubetest.Run(t, r.Tasks(), r.Lead)
	return r
}

// elapse waits for a time of the bubble, and until all that was due then is done.
func elapse(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// node returns a node of gcp that publishes an endpoint for aws.
func node(n int, change ...func(*corev1.Node)) *corev1.Node {
	o := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("gcp-%d", n), CreationTimestamp: metav1.Unix(1_700_000_000+int64(n), 0),
			Annotations: map[string]string{
				peers.PublicKeyAnnotation("aws"): tunnel.Key{1, byte(n), byte(n >> 8)}.String(),
				peers.EndpointAnnotation("aws"):  fmt.Sprintf("10.22.%d.%d:51820", n>>8, n&255),
			},
		},
		Spec: corev1.NodeSpec{PodCIDRs: []string{fmt.Sprintf("10.%d.%d.0/24", 100+n>>8, n&255)}},
	}
	for _, c := range change {
		c(o)
	}
	return o
}

// moved changes the endpoint of a node.
func moved(to int) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Annotations[peers.EndpointAnnotation("aws")] = fmt.Sprintf("10.23.%d.%d:51820", to>>8, to&255)
	}
}

func fill(t *testing.T, api *kubetest.API, count int) {
	t.Helper()
	for n := range count {
		api.Put(t, "nodes", node(n))
	}
}

func objects(api *kubetest.API) map[string]*v1alpha1.WireguardPeers {
	all := map[string]*v1alpha1.WireguardPeers{}
	for _, o := range kubetest.All[v1alpha1.WireguardPeers](api, v1alpha1.Resource, namespace) {
		all[o.Name] = &o
	}
	return all
}

// read returns what agents read of a cluster: endpoints by name, and why it is incomplete.
func read(t *testing.T, api *kubetest.API, cluster string) (nodes map[string]string, incomplete string) {
	t.Helper()
	return readFrom(t, objects(api), cluster)
}

func readFrom(t *testing.T, objects map[string]*v1alpha1.WireguardPeers, cluster string) (nodes map[string]string, incomplete string) {
	t.Helper()
	nodes = map[string]string{}
	counted := -1
	for name, o := range objects {
		switch s := &o.Spec; {
		case s.Cluster != cluster || name != s.ObjectName():
		case s.Name == "":
			counted = s.Count
		case len(s.Addresses) > 0:
			nodes[s.Name] = fmt.Sprint(s.Addresses)
		default:
			nodes[s.Name] = s.Endpoint
		}
	}
	return nodes, v1alpha1.Incomplete(counted, len(nodes))
}

// wants fails unless agents know this many nodes of gcp, completely.
func (r *rig) wants(t *testing.T, count int) {
	t.Helper()
	if nodes, incomplete := read(t, r.aws, "gcp"); len(nodes) != count || incomplete != "" {
		t.Errorf("%d nodes, incomplete %q, want %d\n%s", len(nodes), incomplete, count, r.log)
	}
}

// writes returns the number of writes of objects so far.
func writes(api *kubetest.API) (n int) {
	for _, r := range api.Requests() {
		if r.Resource == v1alpha1.Resource && r.Verb != "get" {
			n++
		}
	}
	return n
}

func TestNodesAreStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		aws, gcp := kubetest.NewAPI(), kubetest.NewAPI()
		fill(t, gcp, 40)
		aws.Put(t, "nodes", &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "aws-1"},
			Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}}},
		})
		r := start(t, aws, gcp)
		elapse(2 * time.Second)
		r.wants(t, 40)
		if nodes, incomplete := read(t, aws, "aws"); incomplete != "" || nodes["aws-1"] != "[10.0.0.1]" {
			t.Errorf("own nodes %v, incomplete %q", nodes, incomplete)
		}
		for name, o := range objects(aws) {
			if o.Labels[v1alpha1.ClusterLabel] != o.Spec.Cluster {
				t.Errorf("%s has the labels %v", name, o.Labels)
			}
		}
		before := writes(aws)

		gcp.Put(t, "nodes", node(7, moved(1)))
		elapse(100 * time.Millisecond)
		if nodes, _ := read(t, aws, "gcp"); nodes["gcp-7"] != "10.23.0.1:51820" {
			t.Errorf("after 100 ms the node is at %s", nodes["gcp-7"])
		}
		gcp.Remove("nodes", "", "gcp-8")
		elapse(5 * time.Second)
		r.wants(t, 39)
		if n := writes(aws) - before; n != 3 {
			t.Errorf("%d writes for a changed and a removed node, and the count", n)
		}
		// Heartbeats, and everything again.
		gcp.Put(t, "nodes", node(7, moved(1), func(n *corev1.Node) { n.Status.Phase = "x" }))
		r.everything()
		elapse(time.Minute)
		if n := writes(aws) - before; n != 3 {
			t.Errorf("%d writes without a change", n-3)
		}
	})
}

// TestNothingIsRemovedUnread: a relay that has not read a remote since start, or that has no
// contact, removes nothing of it.
func TestNothingIsRemovedUnread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		aws, gcp := kubetest.NewAPI(), kubetest.NewAPI()
		fill(t, gcp, 40)
		r := start(t, aws, gcp)
		elapse(5 * time.Second)
		r.wants(t, 40)
		r.stop()
		before := writes(aws)
		gcp.Stop()
		gcp.Remove("nodes", "", "gcp-3")
		r = start(t, aws, gcp)
		elapse(10 * time.Minute)
		r.wants(t, 40)
		if n := writes(aws) - before; n > 0 {
			t.Errorf("%d writes while the remote can't be read", n)
		}
		gcp.Start()
		elapse(time.Minute)
		r.wants(t, 39)
	})
}

// TestRepair: objects that others delete or edit are restored, and while one is missing, agents
// know that the set is incomplete.
func TestRepair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		aws, gcp := kubetest.NewAPI(), kubetest.NewAPI()
		fill(t, gcp, 100)
		r := start(t, aws, gcp)
		elapse(10 * time.Second)
		r.wants(t, 100)
		for name, o := range objects(aws) {
			// The relay may restore it before a request for the others would be answered.
			without := objects(aws)
			delete(without, name)
			if _, incomplete := readFrom(t, without, o.Spec.Cluster); incomplete == "" {
				t.Errorf("complete without %s", name)
			}
			aws.Remove(v1alpha1.Resource, namespace, name)
			elapse(time.Second)
			r.wants(t, 100)
		}
		for name, o := range objects(aws) {
			if o.Spec.Cluster != "gcp" {
				continue
			}
			o.Spec.Endpoint, o.Spec.Count, o.Labels = "192.0.2.1:1", o.Spec.Count/2, nil
			aws.Put(t, v1alpha1.Resource, o)
			elapse(time.Second)
			r.wants(t, 100)
			if now := objects(aws)[name]; now.Labels[v1alpha1.ClusterLabel] != "gcp" || now.Spec.Endpoint == o.Spec.Endpoint && o.Spec.Name != "" {
				t.Errorf("%s is %+v", name, now)
			}
		}
		// All at once, with the relay stopped.
		r.stop()
		for name := range objects(aws) {
			aws.Remove(v1alpha1.Resource, namespace, name)
		}
		r = start(t, aws, gcp)
		elapse(10 * time.Second)
		r.wants(t, 100)
	})
}

// TestDeletedMeanwhile has others delete objects, one and now and then all, while nodes come and
// go: no node is lost, and in the end all is stored.
func TestDeletedMeanwhile(t *testing.T) {
	const seeds, rounds, stable = 20, 10, 30
	for seed := range uint64(seeds) {
		synctest.Test(t, func(t *testing.T) {
			aws, gcp := kubetest.NewAPI(), kubetest.NewAPI()
			fill(t, gcp, stable)
			r := start(t, aws, gcp)
			elapse(10 * time.Second)
			r.wants(t, stable)
			random, live := rand.New(rand.NewPCG(seed, 33)), map[int]struct{}{}
			known, _ := read(t, aws, "gcp")
			for i := range rounds {
				for range 20 {
					if n := stable + random.IntN(60); random.IntN(2) > 0 {
						gcp.Put(t, "nodes", node(n))
						live[n] = struct{}{}
					} else {
						gcp.Remove("nodes", "", fmt.Sprintf("gcp-%d", n))
						delete(live, n)
					}
				}
				elapse(time.Duration(random.IntN(300)) * time.Millisecond)
				have := objects(aws)
				names := slices.Sorted(maps.Keys(have))
				random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
				if random.IntN(10) > 0 && len(names) > 0 {
					names = names[:1]
				}
				for _, name := range names {
					aws.Remove(v1alpha1.Resource, namespace, name)
					delete(have, name)
				}
				nodes, incomplete := readFrom(t, have, "gcp")
				if incomplete != "" {
					maps.Copy(known, nodes)
				} else {
					known = nodes
				}
				for n := range stable {
					if name := fmt.Sprintf("gcp-%d", n); known[name] == "" {
						t.Fatalf("seed %d: %s is lost in round %d", seed, name, i)
					}
				}
			}
			elapse(time.Minute)
			r.wants(t, stable+len(live))
		})
	}
}

// TestCountDeletedMeanwhile deletes the count while new nodes wait for its write, which fails, and
// nothing happens after it.
func TestCountDeletedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		aws, gcp := kubetest.NewAPI(), kubetest.NewAPI()
		fill(t, gcp, 12)
		r := start(t, aws, gcp)
		elapse(10 * time.Second)
		r.wants(t, 12)
		var waits atomic.Bool
		waits.Store(true)
		count := v1alpha1.CountName("gcp")
		aws.Hook(func(h *kubetest.Hooks) {
			h.Fail = func(q kubetest.Request) *metav1.Status {
				if waits.Load() && q.Resource == v1alpha1.Resource && q.Name == count {
					return kubetest.Failure(500, metav1.StatusReasonInternalError)
				}
				return nil
			}
		})
		for n := range 8 {
			gcp.Put(t, "nodes", node(12+n))
		}
		elapse(time.Second)
		if nodes, _ := read(t, aws, "gcp"); len(nodes) != 12 {
			t.Errorf("%d nodes, of which 12 are counted", len(nodes))
		}
		aws.Remove(v1alpha1.Resource, namespace, count)
		waits.Store(false)
		elapse(time.Minute)
		r.wants(t, 20)
	})
}

// TestCountedWhileAnotherIsRemoved has a node that waits to be counted, and is once another one is
// removed.
func TestCountedWhileAnotherIsRemoved(t *testing.T) {
	s := newSet(false)
	s.read()
	a, b := v1alpha1.NodeName("gcp", "a"), v1alpha1.NodeName("gcp", "b")
	s.observe(a, true)
	s.desire(b, &v1alpha1.Spec{Cluster: "gcp", Name: "b"})
	if _, due := s.next("gcp", b, 1); due {
		t.Error("b is written before it is counted")
	}
	s.observe(a, false)
	if want, due := s.next("gcp", v1alpha1.CountName("gcp"), 1); !due || want.Count != 1 {
		t.Errorf("count %+v, due %v", want, due)
	}
	if got := s.ready(1); !slices.Equal(got, []string{b}) {
		t.Errorf("ready are %q", got)
	}
}

// counted counts the bytes of the objects that are stored.
type counted struct {
	*kubetest.API
	bytes atomic.Int64
}

func count() *counted {
	c := &counted{API: kubetest.NewAPI()}
	c.Hook(func(h *kubetest.Hooks) {
		h.Admit = func(q kubetest.Request, o *unstructured.Unstructured) *metav1.Status {
			if text, err := o.MarshalJSON(); err == nil && q.Resource == v1alpha1.Resource {
				c.bytes.Add(int64(len(text)))
			}
			return nil
		}
	})
	return c
}

// simulated is how long remotes change, in seconds.
func simulated() int {
	if testing.Short() {
		return 15
	}
	return 60
}

// TestBytesAreBounded has a remote whose nodes have many prefixes and change all the time, and a
// small node of it that changes once.
func TestBytesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		aws, gcp := count(), kubetest.NewAPI()
		const agents, nodes = 20, 30
		seconds := simulated()
		for n := range agents {
			aws.Put(t, "nodes", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("aws-%d", n)}})
		}
		r := start(t, aws.API, gcp)
		many := func(n *corev1.Node) {
			var all []string
			for i := range 1024 {
				all = append(all, fmt.Sprintf("fd00:%x:%x::/64", len(n.Name), i))
			}
			n.Annotations[peers.PodCIDRsAnnotation] = strings.Join(all, ",")
		}
		for n := range nodes {
			gcp.Put(t, "nodes", node(n, many))
		}
		gcp.Put(t, "nodes", node(nodes))
		elapse(2 * time.Minute)
		r.wants(t, nodes+1)
		before := aws.bytes.Load()
		for i := range 10 * seconds {
			for n := range nodes {
				if n%10 == i%10 {
					gcp.Put(t, "nodes", node(n, many, moved(i)))
				}
			}
			if i == 5*seconds {
				gcp.Put(t, "nodes", node(nodes, moved(1)))
				at := writes(aws.API)
				for now, _ := read(t, aws.API, "gcp"); now[fmt.Sprint("gcp-", nodes)] != "10.23.0.1:51820"; now, _ = read(t, aws.API, "gcp") {
					if n := writes(aws.API) - at; n > 1 {
						t.Fatalf("%d large objects are written before a small one", n)
					}
					elapse(10 * time.Millisecond)
				}
			}
			elapse(100 * time.Millisecond)
		}
		n := aws.bytes.Load() - before
		t.Logf("%d bytes in %d s", n, seconds)
		if most := int64(burst + fastest*(seconds+6)); n > most {
			t.Errorf("%d bytes in %d s, at most %d are allowed", n, seconds, most)
		}
		if st := r.Status(); st.Clusters[1].Pending == 0 || len(st.Clusters[1].Failing) > 0 {
			t.Errorf("status %+v", st.Clusters[1])
		}
		elapse(10 * time.Minute)
		r.wants(t, nodes+1)
		if st := r.Status(); st.Clusters[1].Pending != 0 {
			t.Errorf("later: status %+v", st.Clusters[1])
		}
	})
}

// TestWritesAreBounded has a remote whose nodes all change all the time, and come and go.
func TestWritesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		aws, gcp := count(), kubetest.NewAPI()
		fill(t, gcp, 300)
		r := start(t, aws.API, gcp)
		elapse(time.Minute)
		r.wants(t, 300)
		before, known := aws.bytes.Load(), map[string]string{}
		seconds := simulated()
		for i := range 10 * seconds {
			for n := range 300 {
				switch {
				case n < 200:
					if n%20 == i%20 {
						gcp.Put(t, "nodes", node(n, moved(i)))
					}
				case (n+i)%40 == 0:
					gcp.Remove("nodes", "", fmt.Sprintf("gcp-%d", n))
				case (n+i)%40 == 20:
					gcp.Put(t, "nodes", node(n))
				}
			}
			elapse(100 * time.Millisecond)
			nodes, incomplete := read(t, aws.API, "gcp")
			if incomplete == "" {
				known = nodes
			} else {
				maps.Copy(known, nodes)
			}
			for n := range 200 {
				if name := fmt.Sprintf("gcp-%d", n); known[name] == "" {
					t.Fatalf("%s is lost after %d rounds", name, i)
				}
			}
		}
		n := aws.bytes.Load() - before
		t.Logf("%d bytes in %d s", n, seconds)
		if most := int64(burst + fastest*(seconds+1)); n > most {
			t.Errorf("%d bytes in %d s, at most %d are allowed", n, seconds, most)
		}
		for n := range 300 {
			gcp.Put(t, "nodes", node(n))
		}
		elapse(2 * time.Minute)
		r.wants(t, 300)
	})
}

// TestChangesAreWrittenSoon has 1,000 nodes, of which 20 a second change.
func TestChangesAreWrittenSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		aws, gcp := kubetest.NewAPI(), kubetest.NewAPI()
		const nodes, changes = 1000, 600
		for n := range nodes {
			aws.Put(t, "nodes", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("aws-%d", n)}})
		}
		fill(t, gcp, nodes)
		r := start(t, aws, gcp)
		elapse(2 * time.Minute)
		r.wants(t, nodes)
		var mu sync.Mutex
		changed, took := map[string]time.Time{}, []time.Duration{}
		aws.Hook(func(h *kubetest.Hooks) {
			h.Answer = func(q kubetest.Request) {
				var o v1alpha1.WireguardPeers
				if q.Resource != v1alpha1.Resource || !aws.Get(v1alpha1.Resource, namespace, q.Name, &o) {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				if at, is := changed[o.Spec.Endpoint]; is {
					took = append(took, time.Since(at))
					delete(changed, o.Spec.Endpoint)
				}
			}
		})
		random := rand.New(rand.NewPCG(1, 37))
		for i := range changes {
			mu.Lock()
			changed[fmt.Sprintf("10.23.%d.%d:51820", i>>8, i&255)] = time.Now()
			mu.Unlock()
			gcp.Put(t, "nodes", node(random.IntN(nodes), moved(i)))
			elapse(50 * time.Millisecond)
		}
		elapse(time.Second)
		slices.Sort(took)
		if len(took) < changes*99/100 {
			t.Fatalf("%d of %d changes were written", len(took), changes)
		}
		p50, p99 := took[len(took)/2], took[len(took)*99/100]
		t.Logf("p50 %v, p99 %v, at most %v", p50, p99, took[len(took)-1])
		if p99 > 50*time.Millisecond {
			t.Errorf("p99 is %v", p99)
		}
	})
}

// TestRates: the rate of writes falls with the number of agents that get them.
func TestRates(t *testing.T) {
	for agents, want := range map[int]int{0: 64 << 10, 100: 64 << 10, 1024: 64 << 10, 2048: 32 << 10, 5000: 13421, 20000: 12 << 10} {
		if cluster, total := ratesFor(agents); cluster != want || total != 2*want {
			t.Errorf("%d agents: %d bytes a second, %d in all, want %d", agents, cluster, total, want)
		}
	}
}

// TestHostileNodes: what a remote publishes reaches objects only in valid form.
func TestHostileNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		aws, gcp := kubetest.NewAPI(), kubetest.NewAPI()
		fill(t, gcp, 10)
		gcp.Put(t, "nodes", node(20, func(n *corev1.Node) {
			n.Annotations[peers.PublicKeyAnnotation("aws")] = "\x1b[31m" + strings.Repeat("x", 100_000)
			n.Annotations[peers.EndpointAnnotation("aws")] = "[fe80::1%$(reboot)]:1"
			n.Spec.PodCIDRs = []string{"{{ .Evil }}"}
		}))
		gcp.Put(t, "nodes", node(21, func(n *corev1.Node) {
			n.Annotations[peers.PodCIDRsAnnotation] = strings.Repeat("10.4.1.0/28,", 20_000)
		}))
		gcp.Put(t, "nodes", node(22, func(n *corev1.Node) { n.Name = "Evil/../../x" }))
		start(t, aws, gcp)
		elapse(10 * time.Second)
		nodes, incomplete := read(t, aws, "gcp")
		if len(nodes) != 12 || incomplete != "" || nodes["gcp-20"] != v1alpha1.Invalid {
			t.Errorf("incomplete %q: %v", incomplete, nodes)
		}
		if s := objects(aws)["gcp.gcp-20"].Spec; s.PublicKey != v1alpha1.Invalid || !slices.Equal(s.PodCIDRs, []string{v1alpha1.Invalid}) {
			t.Errorf("%+v", s)
		}
	})
}

// TestLeases: the Lease of a cluster exists as soon as its nodes were read, and is renewed while
// contact lasts.
func TestLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		aws, gcp := kubetest.NewAPI(), kubetest.NewAPI()
		start(t, aws, gcp)
		elapse(2 * time.Second)
		if !aws.Get("leases", namespace, v1alpha1.LeaseName("gcp"), &coordinationv1.Lease{}) {
			t.Error("there is no Lease of gcp yet")
		}
		elapse(time.Hour)
		age := func(cluster string) time.Duration {
			var lease coordinationv1.Lease
			if !aws.Get("leases", namespace, v1alpha1.LeaseName(cluster), &lease) {
				t.Fatalf("no lease of %s", cluster)
			}
			return time.Since(lease.Spec.RenewTime.Time)
		}
		for _, cluster := range []string{"aws", "gcp"} {
			if age(cluster) > leaseDuration {
				t.Errorf("the lease of %s is %v old", cluster, age(cluster))
			}
		}
		gcp.Stop()
		elapse(10 * time.Minute)
		if age("gcp") < 9*time.Minute || age("aws") > leaseDuration {
			t.Errorf("without contact to gcp its lease is %v old, the other %v", age("gcp"), age("aws"))
		}
		gcp.Start()
		elapse(time.Minute)
		if age("gcp") > leaseDuration {
			t.Errorf("with contact again the lease is %v old", age("gcp"))
		}
	})
}

// TestGoneCluster: objects and Lease of a cluster that is no longer configured are removed. Agents
// remove none of its nodes because of that.
func TestGoneCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		aws, gcp := kubetest.NewAPI(), kubetest.NewAPI()
		fill(t, gcp, 100)
		r := start(t, aws, gcp)
		elapse(20 * time.Second)
		r.wants(t, 100)
		r.stop()
		aws.Hook(func(h *kubetest.Hooks) {
			h.Answer = func(q kubetest.Request) {
				if _, incomplete := read(t, aws, "gcp"); q.Resource == v1alpha1.Resource && q.Verb == kubetest.Delete && incomplete == "" {
					t.Errorf("complete after %v", q)
				}
			}
		})
		start(t, aws, nil)
		elapse(time.Minute)
		for name, o := range objects(aws) {
			if o.Spec.Cluster == "gcp" {
				t.Errorf("%s is left", name)
			}
		}
		if aws.Get("leases", namespace, v1alpha1.LeaseName("gcp"), &coordinationv1.Lease{}) {
			t.Error("the lease is left")
		}
	})
}

// TestOverriddenObject has a client that reverts an object after each write.
func TestOverriddenObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		aws, gcp := kubetest.NewAPI(), kubetest.NewAPI()
		fill(t, gcp, 5)
		r := start(t, aws, gcp)
		elapse(5 * time.Second)
		before := writes(aws)
		o := objects(aws)["gcp.gcp-1"]
		o.Spec.Endpoint = ""
		for range 600 {
			o.ResourceVersion = ""
			aws.Put(t, v1alpha1.Resource, o)
			elapse(time.Second)
		}
		n := writes(aws) - before
		t.Logf("%d writes in 10 minutes", n)
		if n > 40 {
			t.Errorf("%d writes against a client that reverts them", n)
		}
		if st := r.Status(); len(st.Clusters[1].Overridden) != 1 {
			t.Errorf("status %+v", st.Clusters[1])
		}
	})
}

// TestObjectThatAdmissionChanges has an admission policy that changes each write of an object.
func TestObjectThatAdmissionChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		aws, gcp := kubetest.NewAPI(), kubetest.NewAPI()
		aws.Hook(func(h *kubetest.Hooks) {
			h.Admit = func(r kubetest.Request, o *unstructured.Unstructured) *metav1.Status {
				if r.Name == "gcp.gcp-1" || o.GetName() == "gcp.gcp-1" {
					unstructured.RemoveNestedField(o.Object, "spec", "endpoint")
				}
				return nil
			}
		})
		fill(t, gcp, 5)
		r := start(t, aws, gcp)
		elapse(5 * time.Second)
		before := writes(aws)
		overridden := func(want int) {
			t.Helper()
			if st := r.Status(); len(st.Clusters[1].Overridden) != want {
				t.Errorf("status %+v", st.Clusters[1])
			}
		}
		overridden(1)
		elapse(time.Hour)
		if n := writes(aws) - before; n < 4 || n > 7 {
			t.Errorf("%d writes in an hour, want one each ten minutes", n)
		}
		overridden(1)
		aws.Hook(func(h *kubetest.Hooks) { h.Admit = nil })
		elapse(keep.LongestWait)
		if o := objects(aws)["gcp.gcp-1"]; o.Spec.Endpoint == "" {
			t.Error("not repaired once the policy has ended")
		}
		overridden(0)
	})
}

// TestSizeOfANode: a change of a node is an event of less than 1 kB, also with both IP families.
func TestSizeOfANode(t *testing.T) {
	const metadata = 430 // what an API server adds, and to a watch event of it
	n, _ := (&peers.Node{
		Name: "ip-10-4-101-201.eu-west-1.compute.internal", Created: time.Unix(1_700_000_000, 0), PublicKey: tunnel.Key{1}.String(),
		Endpoint: "[2001:db8:1234:5678::1]:51820", PodCIDRs: []string{"10.4.1.0/24", "fd00:10:4:1::/64"}, Published: true, Allocated: []string{"10.4.1.0/24", "fd00:10:4:1::/64"},
	}).Stored("gcp")
	c := &Controller{Config: Config{Namespace: namespace}}
	text, err := json.Marshal(c.object(Key{"gcp", n.ObjectName()}, n))
	if size := len(text) + metadata; err != nil || size > 1000 {
		t.Errorf("%d bytes, %v", size, err)
	}
}
