package agent

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/reconcile"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/reporttest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/synctest"
	"github.com/kube-semaphore/kube-semaphore/internal/wireguardpeers/v1alpha1"
	"github.com/kube-semaphore/kube-semaphore/peers"
)

const relayNamespace = "sys-semaphore"

// relayBed is an API server with the objects that a relay would write, and what an agent of aws
// knows by them.
type relayBed struct {
	t    *testing.T
	api  *kubetest.API
	seen *relayed
	from nodeSource
	own  localSource
	// changed counts the calls for gcp.
	changed int
}

// relayBubble runs a test while the objects are read.
func relayBubble(t *testing.T, test func(b *relayBed)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &relayBed{t: t, api: kubetest.NewAPI()}
		client, err := kube.NewClient(b.api.Config())
		if err != nil {
			t.Fatal(err)
		}
		cfg := &config.Wireguard{
			Base:      config.Base{ClusterName: "aws", Remotes: []config.Remote{{Name: "gcp", MaxPrefixes: 4, MaxObjects: 50}}},
			Namespace: relayNamespace,
		}
		sorting := reconcile.NewTrigger()
		b.seen = newRelayed(cfg, client, nil, kube.NewMetrics("test", "test_failures_total"), slog.New(slog.DiscardHandler), sorting.Fire)
		b.from, b.own = b.seen.of("gcp", func() { b.changed++ }), b.seen.own(func() {})
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = b.seen.watch.Run(ctx) }()
		go func() {
			_ = reconcile.NewLoop(reconcile.Config{Name: "sort", Reconcile: b.seen.sort, Trigger: sorting, Logger: slog.New(slog.DiscardHandler)}).Run(ctx)
		}()
		test(b)
		cancel()
		synctest.Wait()
	})
}

// store writes the objects of a cluster, as the relay does, and returns their names.
func (b *relayBed) store(cluster string, nodes []*v1alpha1.Spec) (names []string) {
	b.t.Helper()
	for _, n := range append(slices.Clone(nodes), &v1alpha1.Spec{Cluster: cluster, Count: len(nodes)}) {
		b.put(n)
		names = append(names, n.ObjectName())
	}
	for _, o := range kubetest.All[v1alpha1.WireguardPeers](b.api, v1alpha1.Resource, relayNamespace) {
		if o.Spec.Cluster == cluster && !slices.Contains(names, o.Name) {
			b.api.Remove(v1alpha1.Resource, relayNamespace, o.Name)
		}
	}
	return names
}

// put writes one object.
func (b *relayBed) put(spec *v1alpha1.Spec) {
	b.t.Helper()
	b.api.Put(b.t, v1alpha1.Resource, &v1alpha1.WireguardPeers{
		ObjectMeta: metav1.ObjectMeta{Namespace: relayNamespace, Name: spec.ObjectName()}, Spec: *spec,
	})
}

func (b *relayBed) wait() {
	time.Sleep(10 * time.Second)
	synctest.Wait()
}

// names returns the names of the known nodes.
func (b *relayBed) names() string {
	nodes, synced := b.from.Snapshot()
	if !synced {
		return "unknown"
	}
	var all []string
	for _, n := range nodes {
		all = append(all, n.Name)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func remoteNode(i int) *peers.Node {
	return &peers.Node{Name: fmt.Sprintf("gcp-%02d", i), PublicKey: "k", Endpoint: fmt.Sprintf("192.0.2.%d:51820", i), Published: true, PodCIDRs: []string{fmt.Sprintf("10.4.%d.0/24", i)}}
}

func remoteNodes(from, to int) (all []*v1alpha1.Spec) {
	for i := from; i < to; i++ {
		n, _ := remoteNode(i).Stored("gcp")
		all = append(all, n)
	}
	return all
}

// TestFirstLease: a report doesn't call a remote silent for long after its Lease was created.
func TestFirstLease(t *testing.T) {
	relayBubble(t, func(b *relayBed) {
		if c := b.seen.leases(b.t.Context())["gcp"]; !c.Late {
			t.Errorf("without a Lease: %+v", c)
		}
		for _, cluster := range []string{"aws", "gcp"} {
			at, seconds := metav1.NowMicro(), int32(30)
			b.api.Put(t, "leases", &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Namespace: relayNamespace, Name: v1alpha1.LeaseName(cluster)},
				Spec:       coordinationv1.LeaseSpec{RenewTime: &at, LeaseDurationSeconds: &seconds},
			})
		}
		time.Sleep(lateSpacing)
		if c := b.seen.leases(b.t.Context())["gcp"]; c.Late || c.Renewed == nil {
			t.Errorf("with a Lease: %+v", c)
		}
	})
}

// TestNodesOfTheRelay: whatever happens to the objects, known nodes stay until a complete set
// lacks them.
func TestNodesOfTheRelay(t *testing.T) {
	relayBubble(t, func(b *relayBed) {
		want := func(what, names, err string) {
			t.Helper()
			b.wait()
			if got := b.names(); got != names {
				t.Errorf("%s: %s, want %s", what, got, names)
			}
			switch got := b.from.Err(); {
			case err == "" && got != nil, err != "" && (got == nil || !strings.Contains(got.Error(), err)):
				t.Errorf("%s: Err() = %v, want %q", what, got, err)
			}
		}
		// The report names what was read last, although Leases are read less often.
		revision := ""
		newer := func(what, cluster string) {
			t.Helper()
			now := b.seen.leases(b.t.Context())[cluster].Revision
			if order, err := resourceversion.CompareResourceVersion(cmp.Or(revision, "1"), now); err != nil || order >= 0 {
				t.Errorf("%s: revision %q of %s after %q: %v", what, now, cluster, revision, err)
			}
			revision = now
		}
		want("no objects", "unknown", "no objects")
		if got := b.seen.leases(b.t.Context())["gcp"].Revision; got != "" {
			t.Errorf("no objects: revision %q", got)
		}
		three := remoteNodes(1, 4)
		for _, n := range three {
			b.put(n)
		}
		want("without a count", "unknown", "the count of nodes is missing")
		b.store("gcp", three)
		want("complete", "gcp-01 gcp-02 gcp-03", "")
		newer("complete", "gcp")
		local := func(name, address string) *v1alpha1.Spec {
			return peers.LocalNode{Name: name, Addrs: []netip.Addr{netip.MustParseAddr(address)}}.Stored("aws")
		}
		b.store("aws", []*v1alpha1.Spec{local("aws-1", "192.0.2.99")})
		b.wait()
		if locals, synced := b.own.Snapshot(); !synced || len(locals) != 1 || locals[0].Addrs[0].String() != "192.0.2.99" {
			t.Errorf("own nodes: %v, %v", locals, synced)
		}
		newer("own nodes", "aws")
		changed := b.changed
		b.store("aws", []*v1alpha1.Spec{local("aws-1", "192.0.2.99"), local("aws-2", "192.0.2.98")})
		b.wait()
		if b.changed != changed || b.own.Len() != 2 {
			t.Errorf("a change of another cluster: %d calls; %d own nodes", b.changed-changed, b.own.Len())
		}
		moved := *three[1]
		moved.Endpoint = "192.0.2.77:51820"
		b.put(&moved)
		want("a changed node", "gcp-01 gcp-02 gcp-03", "")
		if nodes, _ := b.from.Snapshot(); !slices.ContainsFunc(nodes, func(n *peers.Node) bool { return n.Endpoint == moved.Endpoint }) {
			t.Errorf("the change isn't known: %+v", nodes)
		}
		b.api.Remove(v1alpha1.Resource, relayNamespace, three[1].ObjectName())
		want("a node deleted by hand", "gcp-01 gcp-02 gcp-03", "1 of 3 nodes are missing")
		b.store("gcp", three)
		want("and written again", "gcp-01 gcp-02 gcp-03", "")
		b.put(&v1alpha1.Spec{Cluster: "gcp", Count: 4})
		want("a node that is counted and not written yet", "gcp-01 gcp-02 gcp-03", "1 of 4 nodes are missing")
		b.store("gcp", three)
		b.api.Remove(v1alpha1.Resource, relayNamespace, v1alpha1.CountName("gcp"))
		want("the count deleted by hand", "gcp-01 gcp-02 gcp-03", "the count of nodes is missing")
		for _, name := range b.store("gcp", three) {
			b.api.Remove(v1alpha1.Resource, relayNamespace, name)
		}
		want("all deleted by hand", "gcp-01 gcp-02 gcp-03", "no objects")
		b.store("gcp", remoteNodes(2, 5))
		want("and written again, with other nodes", "gcp-02 gcp-03 gcp-04", "")
		newer("written again", "gcp")
		for _, name := range []string{"gcp", "gcp.p", "gcp.p01"} {
			b.api.Put(t, v1alpha1.Resource, &v1alpha1.WireguardPeers{
				ObjectMeta: metav1.ObjectMeta{Namespace: relayNamespace, Name: name}, Spec: v1alpha1.Spec{Cluster: "gcp"},
			})
		}
		want("objects of the release before", "gcp-02 gcp-03 gcp-04", "")
		b.api.Stop()
		want("no API server", "gcp-02 gcp-03 gcp-04", "connection refused")
		b.api.Start()
		want("again", "gcp-02 gcp-03 gcp-04", "")
	})
}

// TestIncompleteSetsAreBounded: a relay whose remote names other nodes again and again, while its
// set is never complete, makes an agent hold no more than its bound.
func TestIncompleteSetsAreBounded(t *testing.T) {
	known := relayedNodes{}.after(relayedNodes{nodes: []*peers.Node{remoteNode(1), remoteNode(2)}}, 10)
	for i := range 100 {
		known = known.after(relayedNodes{nodes: []*peers.Node{remoteNode(3 + i)}, incomplete: "x"}, 10)
	}
	if n := len(known.nodes); n > 10 || !known.synced {
		t.Errorf("%d nodes", n)
	}
	if known = known.after(relayedNodes{}, 10); len(known.nodes) > 0 || known.incomplete != "" {
		t.Errorf("a complete set without nodes: %+v", known)
	}
}

// TestOwnNodeIsRequested follows this node without the verbs list and watch.
func TestOwnNodeIsRequested(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewAPI()
		client, err := kube.NewClient(api.Config())
		if err != nil {
			t.Fatal(err)
		}
		w := kube.NewWatch(kube.WatchConfig[string]{
			Cluster: "aws", Kind: "own node",
			ListWatch: kube.PollNode(client, "aws-1", func() time.Duration { return 10 * time.Second }),
			Keep:      func(o runtime.Object) (string, bool) { return o.(*corev1.Node).Labels["l"], true },
			Logger:    slog.New(slog.DiscardHandler), Metrics: kube.NewMetrics("test", "test_failures_total"),
		})
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = w.Run(ctx) }()
		want := func(label ...string) {
			t.Helper()
			time.Sleep(15 * time.Second)
			synctest.Wait()
			if got, synced := w.Snapshot(); !synced || !slices.Equal(got, label) || w.Err() != nil {
				t.Errorf("%q, %v, want %q; %v", got, synced, label, w.Err())
			}
		}
		put := func(label string) {
			api.Put(t, "nodes", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "aws-1", Labels: map[string]string{"l": label}}})
		}
		want()
		put("1")
		want("1")
		put("2")
		put("3")
		want("3")
		api.Stop()
		time.Sleep(time.Minute)
		if got, _ := w.Snapshot(); !slices.Equal(got, []string{"3"}) || w.Err() == nil {
			t.Errorf("without an API server: %q, %v", got, w.Err())
		}
		api.Start()
		put("4")
		want("4")
		api.Remove("nodes", "", "aws-1")
		want()
		before := len(api.Requests())
		time.Sleep(10 * time.Minute)
		if n := len(api.Requests()) - before; n > 70 || len(api.Lists()) > 0 {
			t.Errorf("%d requests in ten minutes, %d lists", n, len(api.Lists()))
		}
		cancel()
		synctest.Wait()
	})
}

// TestWhatIsSilent distinguishes a relay that is gone from a remote that is silent.
func TestWhatIsSilent(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	lease := func(age time.Duration) *coordinationv1.Lease {
		at, seconds := metav1.NewMicroTime(now.Add(-age)), int32(30)
		return &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{RenewTime: &at, LeaseDurationSeconds: &seconds}}
	}
	for name, c := range map[string]struct {
		aws, gcp time.Duration
		want     string
	}{
		"all is well":     {9 * time.Second, 11 * time.Second, ""},
		"a silent remote": {9 * time.Second, time.Hour, "remote gcp is silent"},
		"no relay":        {time.Hour, time.Hour, "semaphore-relay is gone"},
	} {
		t.Run(name, func(t *testing.T) {
			rep := wellReport()
			rep.RemotesFrom = config.RemotesFromRelay
			rep.Relay = map[string]statuspage.RelayContact{"aws": contact(lease(c.aws), now), "gcp": contact(lease(c.gcp), now)}
			out := reporttest.Run(t, statusCommand(), rep).Stdout
			if !strings.Contains(out, " relay ") {
				t.Errorf("where the peers are from isn't shown:\n%s", out)
			}
			for _, text := range []string{"remote gcp is silent", "semaphore-relay is gone"} {
				if strings.Contains(out, text) != (text == c.want) {
					t.Errorf("%s", out)
				}
			}
		})
	}
	if c := contact(&coordinationv1.Lease{}, now); !c.Late {
		t.Errorf("an empty Lease: %+v", c)
	}
}

// TestRelayedObjectsHoldDataAlone looks for what an object as it is held could lead to: the watch
// measures it, and would measure and race with that.
func TestRelayedObjectsHoldDataAlone(t *testing.T) {
	seen := map[reflect.Type]bool{}
	var walk func(of reflect.Type, path string)
	walk = func(of reflect.Type, path string) {
		if seen[of] {
			return
		}
		seen[of] = true
		switch of.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array:
			walk(of.Elem(), path)
		case reflect.Struct:
			if pkg := of.PkgPath(); pkg == "net/netip" || pkg == "time" {
				return
			}
			for i := range of.NumField() {
				walk(of.Field(i).Type, path+"."+of.Field(i).Name)
			}
		case reflect.Map, reflect.Func, reflect.Chan, reflect.Interface, reflect.UnsafePointer:
			if of != reflect.TypeFor[error]() { // an immutable one
				t.Errorf("%s is a %s", path, of)
			}
		}
	}
	walk(reflect.TypeFor[*relayedObject](), "relayedObject")
}
