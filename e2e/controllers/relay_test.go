package controllers_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/wireguardpeers/v1alpha1"
	"github.com/kube-semaphore/kube-semaphore/peers"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// relayBed is a bed where aws has semaphore-relay's objects, and gcp and merit let it read
// their nodes.
type relayBed struct {
	*bed
	objects kube.Objects[*v1alpha1.WireguardPeers, *v1alpha1.WireguardPeersList] // the administrator's
}

func newRelayBed(t *testing.T) *relayBed {
	t.Helper()
	remote := []string{"deploy/remote/wireguard.yaml"}
	b := newBed(t, map[string][]string{
		"aws": {"deploy/relay/crd.yaml", "deploy/relay/rbac.yaml", "deploy/relay/admission.yaml"}, "gcp": remote, "merit": remote,
	})
	client, err := kube.NewClient(b.aws.RESTConfig())
	must(t, err)
	return &relayBed{b, client.WireguardPeers(home)}
}

// run starts a replica that reads gcp and merit.
func (b *relayBed) run(t *testing.T, name string, port int) *programs.Program {
	t.Helper()
	r := b.replica(t, programs.Relay, name, port, b.aws, b.gcp, b.merit)
	must(t, r.Start())
	return r
}

// published returns what makes a node a peer of aws.
func published(n int) map[string]string {
	return map[string]string{
		peers.PublicKeyAnnotation("aws"): tunnel.Key{1, byte(n), byte(n >> 8)}.String(),
		peers.EndpointAnnotation("aws"):  fmt.Sprintf("192.0.2.%d:%d", 1+n%250, 1000+n),
	}
}

// addNodes creates nodes that publish what makes them peers, and returns their names.
func (b *relayBed) addNodes(t *testing.T, c *testbed.Cluster, prefix string, count int) (names []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), settle)
	defer cancel()
	for i := range count {
		names = append(names, fmt.Sprintf("%s-%d", prefix, i))
	}
	must(t, testbed.InParallel(ctx, count, func(ctx context.Context, i int) error {
		return addNode(ctx, c, names[i], published(i))
	}))
	return names
}

func addNode(ctx context.Context, c *testbed.Cluster, name string, annotations map[string]string) error {
	_, err := c.Client().CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}}, metav1.CreateOptions{})
	return err
}

func annotate(ctx context.Context, c *testbed.Cluster, name string, annotations map[string]string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err != nil {
		return err
	}
	_, err = c.Client().CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

func deleteNode(ctx context.Context, c *testbed.Cluster, name string) error {
	return c.Client().CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})
}

// clean deletes the nodes of gcp and merit, and all objects.
func (b *relayBed) clean(t *testing.T) {
	t.Helper()
	for _, c := range []*testbed.Cluster{b.gcp, b.merit} {
		must(t, c.Client().CoreV1().Nodes().DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	}
	b.deleteAll(t)
}

func (b *relayBed) deleteAll(t *testing.T) {
	t.Helper()
	list, err := b.objects.List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for i := range list.Items {
		if err := b.objects.Delete(t.Context(), list.Items[i].Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
}

// read returns the nodes of a cluster that agents read in these objects, and why there may be more.
func read(objects []*v1alpha1.WireguardPeers, cluster string) (names []string, incomplete string) {
	counted := -1
	for _, o := range objects {
		switch {
		case o.Spec.Cluster != cluster || o.Name != o.Spec.ObjectName():
		case o.Spec.Name == "":
			counted = o.Spec.Count
		default:
			names = append(names, o.Spec.Name)
		}
	}
	return names, v1alpha1.Incomplete(counted, len(names))
}

// expect waits until agents know exactly these nodes of a cluster.
func (b *relayBed) expect(t *testing.T, cluster string, names []string) {
	t.Helper()
	wait(t, "the objects of "+cluster, func() error {
		list, err := b.objects.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		var all []*v1alpha1.WireguardPeers
		for i := range list.Items {
			all = append(all, &list.Items[i])
		}
		got, incomplete := read(all, cluster)
		if incomplete != "" {
			return errors.New(incomplete)
		}
		slices.Sort(got)
		if want := slices.Sorted(slices.Values(names)); !slices.Equal(got, want) {
			return fmt.Errorf("%d nodes %v, want %d", len(got), got, len(want))
		}
		return nil
	})
}

// record records all objects.
func (b *relayBed) record(t *testing.T) *recorder {
	t.Helper()
	return record(t, recorded{"peers", func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return b.objects.List(ctx, o) }, b.objects.Watch})
}

// keeps fails the test unless an agent, which removes nothing because of an incomplete set, has
// known all of the nodes ever since it knew them first. It returns the number of versions.
func keeps(t *testing.T, rec *recorder, cluster string, names []string) (versions int) {
	t.Helper()
	rec.end(t)
	known := map[string]struct{}{}
	rec.replay(func(v version, s state) {
		versions++
		var all []*v1alpha1.WireguardPeers
		for _, o := range s {
			if p, is := o.(*v1alpha1.WireguardPeers); is {
				all = append(all, p)
			}
		}
		read, incomplete := read(all, cluster)
		now := map[string]struct{}{}
		for _, name := range read {
			now[name] = struct{}{}
		}
		if incomplete != "" {
			maps.Copy(now, known)
		}
		for _, name := range names {
			_, before := known[name]
			if _, still := now[name]; before && !still {
				t.Errorf("%s is lost with version %s of %s, %s", name, v.object.GetResourceVersion(), v.key, v.event)
			}
		}
		known = now
	})
	return versions
}

// TestRelay runs semaphore-relay on three API servers.
func TestRelay(t *testing.T) {
	t.Parallel()
	b := newRelayBed(t)
	for _, test := range []struct {
		name string
		run  func(*relayBed, *testing.T)
	}{
		{"objects follow nodes", (*relayBed).testLife},
		{"kill -9 under churn", (*relayBed).testKill},
		{"deleted and edited objects", (*relayBed).testDrift},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(b, t) })
		b.clean(t)
	}
}

func (b *relayBed) testLife(t *testing.T) {
	gcp, merit := b.addNodes(t, b.gcp, "gcp", 100), b.addNodes(t, b.merit, "merit", 10)
	must(t, addNode(t.Context(), b.gcp, "silent", nil))
	r := b.run(t, "life", 8090)
	b.expect(t, "gcp", gcp)
	b.expect(t, "merit", merit)
	list, err := b.objects.List(t.Context(), metav1.ListOptions{LabelSelector: v1alpha1.ClusterLabel + "=aws"})
	must(t, err)
	own, counted := 0, false
	for i := range list.Items {
		switch s := &list.Items[i].Spec; {
		case s.Name == "":
			counted = s.Count == len(b.aws.Nodes())
		case len(s.Addresses) > 0:
			own++
		}
	}
	if own != len(b.aws.Nodes()) || !counted {
		t.Errorf("own nodes: %+v", list.Items)
	}

	rec := b.record(t)
	must(t, annotate(t.Context(), b.gcp, gcp[3], published(1000)), deleteNode(t.Context(), b.gcp, gcp[4]), annotate(t.Context(), b.gcp, "silent", map[string]string{"x": "y"}))
	b.expect(t, "gcp", slices.Delete(slices.Clone(gcp), 4, 5))
	wait(t, "the leases", func() error {
		for _, cluster := range []string{"aws", "gcp", "merit"} {
			lease, err := b.aws.Client().CoordinationV1().Leases(home).Get(t.Context(), v1alpha1.LeaseName(cluster), metav1.GetOptions{})
			if err != nil {
				return err
			}
			if age := time.Since(lease.Spec.RenewTime.Time); age > settle {
				return fmt.Errorf("the lease of %s is %v old", cluster, age)
			}
		}
		return nil
	})
	// A restart with nothing to do writes nothing.
	must(t, r.Stop(t.Context()), r.Start())
	wait(t, "readiness", func() error {
		var st statuspage.Relay
		if err := r.Status(t.Context(), &st); err != nil {
			return err
		}
		if !st.Leading || slices.ContainsFunc(st.Clusters, func(c statuspage.RelayCluster) bool { return !c.API.Synced || c.Nodes == 0 || c.Incomplete != "" }) {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	if n := keeps(t, rec, "gcp", gcp[5:]); n != 3 {
		t.Errorf("%d writes for a changed node, a deleted one, the count and a restart", n)
	}
}

// testKill kills the process several times while nodes come, change and go.
func (b *relayBed) testKill(t *testing.T) {
	stable := b.addNodes(t, b.gcp, "stable", 60)
	rec := b.record(t)
	r := b.run(t, "killed", 8091)
	b.expect(t, "gcp", stable)
	churning, stop := context.WithCancel(t.Context())
	defer stop()
	churned := make(chan []string, 1)
	go func() { churned <- b.churn(churning, t, stable) }()
	kills := 0
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	for began := time.Now(); time.Since(began) < 30*time.Second; kills++ {
		select {
		case <-time.After(time.Duration(500+rng.IntN(4000)) * time.Millisecond):
		case <-t.Context().Done():
		}
		r.Kill()
		must(t, r.Start())
	}
	stop()
	b.expect(t, "gcp", append(slices.Clone(stable), <-churned...))
	r.Kill()
	t.Logf("%d kills, %d versions", kills, keeps(t, rec, "gcp", stable))
}

// churn creates, changes and deletes nodes until ctx ends, changes the stable ones, and returns
// those that are left besides these.
func (b *relayBed) churn(ctx context.Context, t *testing.T, stable []string) (live []string) {
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	step := context.WithoutCancel(ctx)
	for n := 0; ctx.Err() == nil; n++ {
		var err error
		switch {
		case rng.IntN(3) == 0:
			err = annotate(step, b.gcp, stable[rng.IntN(len(stable))], published(rng.IntN(60_000)))
		case len(live) < 100 && rng.IntN(3) > 0:
			live = append(live, fmt.Sprintf("churn-%d", n))
			err = addNode(step, b.gcp, live[len(live)-1], published(n))
		case len(live) > 0:
			i := rng.IntN(len(live))
			err = deleteNode(step, b.gcp, live[i])
			live = slices.Delete(live, i, i+1)
		}
		if err != nil {
			t.Error(err)
			return live
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
	return live
}

// testDrift deletes objects, and edits them.
func (b *relayBed) testDrift(t *testing.T) {
	names := b.addNodes(t, b.gcp, "gcp", 100)
	rec := b.record(t)
	b.run(t, "drift", 8095)
	b.expect(t, "gcp", names)
	list, err := b.objects.List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for i := range list.Items {
		must(t, b.objects.Delete(t.Context(), list.Items[i].Name, metav1.DeleteOptions{}))
		b.expect(t, "gcp", names)
	}
	b.deleteAll(t)
	b.expect(t, "gcp", names)

	// Not even an administrator may edit them.
	list, err = b.objects.List(t.Context(), metav1.ListOptions{LabelSelector: v1alpha1.ClusterLabel + "=gcp"})
	must(t, err)
	for i := range list.Items {
		o := &list.Items[i]
		if o.Spec.Count++; o.Spec.Name != "" {
			o.Spec.Count, o.Spec.Endpoint = 0, "192.0.2.1:1"
		}
		if _, err := b.objects.Update(t.Context(), o, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "only semaphore-relay may write") {
			t.Errorf("an edit of %s: %v", o.Name, err)
		}
	}
	keeps(t, rec, "gcp", names)

	// Without the policy an edit is repaired.
	const edited = "192.0.2.1:1"
	bindings := b.aws.Client().AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	must(t, bindings.Delete(t.Context(), "semaphore-relay-peers", metav1.DeleteOptions{}))
	wait(t, "an edit without the policy", func() error {
		list, err := b.objects.List(t.Context(), metav1.ListOptions{LabelSelector: v1alpha1.ClusterLabel + "=gcp"})
		if err != nil {
			return err
		}
		i := slices.IndexFunc(list.Items, func(o v1alpha1.WireguardPeers) bool { return o.Spec.Name != "" })
		list.Items[i].Spec.Endpoint = edited
		_, err = b.objects.Update(t.Context(), &list.Items[i], metav1.UpdateOptions{})
		return err
	})
	wait(t, "the edit to be repaired", func() error {
		list, err := b.objects.List(t.Context(), metav1.ListOptions{})
		if err == nil && slices.ContainsFunc(list.Items, func(o v1alpha1.WireguardPeers) bool { return o.Spec.Endpoint == edited }) {
			err = errors.New("it is left")
		}
		return err
	})
	b.expect(t, "gcp", names)
	must(t, b.aws.Apply(t.Context(), "../../deploy/relay/admission.yaml"))
}
