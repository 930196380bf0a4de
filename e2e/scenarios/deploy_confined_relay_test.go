package scenarios_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/wireguardpeers/v1alpha1"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

const relayAccount = "semaphore-relay"

// shardObject is a shard like those of semaphore-relay, changed.
func shardObject(shard string, change func(*v1alpha1.WireguardPeers)) *v1alpha1.WireguardPeers {
	o := &v1alpha1.WireguardPeers{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion().String(), Kind: v1alpha1.Kind},
		ObjectMeta: metav1.ObjectMeta{Name: "gcp." + shard, Labels: map[string]string{v1alpha1.ClusterLabel: "gcp"}},
		Spec: v1alpha1.Spec{Cluster: "gcp", Shard: shard, Peers: []v1alpha1.Peer{{
			Name: "gcp-1", Created: metav1.Unix(1_700_000_000, 0), PublicKey: tunnel.Key{1}.String(), Endpoint: "10.66.0.1:51820",
			PodCIDRs: []string{"10.4.1.0/24", v1alpha1.Invalid}, Allocated: []string{"fd00:10:4:1::/64"},
		}}},
	}
	if change != nil {
		change(o)
	}
	return o
}

// invalid fails the test unless the schema has rejected an object.
func invalid(t *testing.T, err error, want string) {
	t.Helper()
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want it to be invalid: %s", err, want)
	}
}

func shardsWith(t *testing.T, cluster *testbed.Cluster, token string) kube.Objects[*v1alpha1.WireguardPeers, *v1alpha1.WireguardPeersList] {
	t.Helper()
	cfg := cluster.RESTConfig()
	if token != "" {
		cfg = rest.AnonymousClientConfig(cfg)
		cfg.BearerToken = token
	}
	client, err := kube.NewClient(cfg)
	must(t, err)
	return client.WireguardPeers(systemNamespace)
}

// TestOnlyTheRelayWritesPeers tests the schema of the objects that agents trust, and the
// admission policies of semaphore-relay: no other account writes these objects, and its account
// writes nothing else.
func TestOnlyTheRelayWritesPeers(t *testing.T) {
	t.Parallel()
	cluster, token, elsewhere := confined(t, "relay", relayAccount)
	own, admin := clientWith(t, cluster, token), cluster.Client()
	relay, all := shardsWith(t, cluster, token), shardsWith(t, cluster, "")
	const onlyRelay, onlyLabel, noOwners = "only semaphore-relay may write what agents read", "may only set the label of the cluster", "neither finalizers nor owners"
	untilRefused(t, func(ctx context.Context) error {
		_, err := all.Create(ctx, shardObject("p0", nil), dryCreate)
		return err
	})
	peer := func(change func(*v1alpha1.Peer)) func(*v1alpha1.WireguardPeers) {
		return func(o *v1alpha1.WireguardPeers) { change(&o.Spec.Peers[0]) }
	}
	for _, c := range []struct {
		name   string
		change func(*v1alpha1.WireguardPeers)
		want   string
	}{
		{"as it is", nil, ""},
		{"with IPv6", peer(func(p *v1alpha1.Peer) { p.Endpoint = "[2001:db8::1]:51820" }), ""},
		{"with nothing published", peer(func(p *v1alpha1.Peer) { *p = v1alpha1.Peer{Name: p.Name} }), ""},
		{"with invalid values", peer(func(p *v1alpha1.Peer) { p.PublicKey, p.Endpoint = v1alpha1.Invalid, v1alpha1.Invalid }), ""},
		{"as an index", func(o *v1alpha1.WireguardPeers) {
			o.Name, o.Spec = "gcp", v1alpha1.Spec{Cluster: "gcp", Shards: []string{"p0", "p1"}}
		}, ""},
		{"as an index without shards", func(o *v1alpha1.WireguardPeers) { o.Name, o.Spec = "gcp", v1alpha1.Spec{Cluster: "gcp"} }, ""},
		{"of nodes of its own", func(o *v1alpha1.WireguardPeers) {
			o.Spec.Peers, o.Spec.Nodes = nil, []v1alpha1.Node{{Name: "a", Addresses: []string{"10.0.0.1", "fd00::1"}, PodCIDRs: []string{"10.2.0.0/24"}}}
		}, ""},
		{"with another name", func(o *v1alpha1.WireguardPeers) { o.Name = "gcp.p1" }, "the name must be"},
		{"of another cluster", func(o *v1alpha1.WireguardPeers) { o.Spec.Cluster = "merit" }, "the name must be"},
		{"of no cluster", func(o *v1alpha1.WireguardPeers) { o.Spec.Cluster = "" }, "spec.cluster"},
		{"with an index's contents", func(o *v1alpha1.WireguardPeers) { o.Spec.Shards = []string{"p0"} }, "a shard has either"},
		{"with nodes of both kinds", func(o *v1alpha1.WireguardPeers) { o.Spec.Nodes = []v1alpha1.Node{{Name: "a"}} }, "a shard has either"},
		{"without nodes", func(o *v1alpha1.WireguardPeers) { o.Spec.Peers = nil }, "a shard has either"},
		{"with too many nodes", func(o *v1alpha1.WireguardPeers) {
			for i := range 64 {
				o.Spec.Peers = append(o.Spec.Peers, v1alpha1.Peer{Name: fmt.Sprintf("n%d", i)})
			}
		}, "must have at most 64 items"},
		{"with a name that is none", peer(func(p *v1alpha1.Peer) { p.Name = "../x" }), "spec.peers[0].name"},
		{"with a short key", peer(func(p *v1alpha1.Peer) { p.PublicKey = p.PublicKey[4:] }), "publicKey"},
		{"with a name for an endpoint", peer(func(p *v1alpha1.Peer) { p.Endpoint = "example.com:51820" }), "endpoint"},
		{"with a zone", peer(func(p *v1alpha1.Peer) { p.Endpoint = "[fe80::1%eth0]:51820" }), "endpoint"},
		{"with a prefix that is none", peer(func(p *v1alpha1.Peer) { p.PodCIDRs = []string{"10.4.1.0/24,"} }), "podCIDRs"},
		{"with a long prefix", peer(func(p *v1alpha1.Peer) { p.PodCIDRs = []string{strings.Repeat("1", 100) + "/1"} }), "podCIDRs"},
		{"with too many prefixes", peer(func(p *v1alpha1.Peer) { p.PodCIDRs = slices.Repeat([]string{"10.4.1.0/24"}, 5002) }), "must have at most 5001 items"},
		{"with many allocated ones", peer(func(p *v1alpha1.Peer) { p.Allocated = []string{"10.4.1.0/24", "10.4.2.0/24", "10.4.3.0/24"} }), "must have at most 2 items"},
		{"without a label", func(o *v1alpha1.WireguardPeers) { o.Labels = nil }, onlyLabel},
		{"with another one's label", func(o *v1alpha1.WireguardPeers) { o.Labels[v1alpha1.ClusterLabel] = "merit" }, onlyLabel},
		{"with another label", func(o *v1alpha1.WireguardPeers) { o.Labels["a"] = "b" }, onlyLabel},
		{"with an annotation", func(o *v1alpha1.WireguardPeers) { o.Annotations = map[string]string{"a": "b"} }, onlyLabel},
		{"with a finalizer", func(o *v1alpha1.WireguardPeers) { o.Finalizers = []string{"example.com/stay"} }, noOwners},
		{"with an owner", func(o *v1alpha1.WireguardPeers) {
			o.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "x", UID: "y"}}
		}, noOwners},
	} {
		t.Run("created "+c.name, func(t *testing.T) {
			_, err := relay.Create(t.Context(), shardObject("p0", c.change), dryCreate)
			if c.want != onlyLabel && c.want != noOwners && c.want != "" {
				invalid(t, err, c.want)
				return
			}
			refused(t, err, c.want)
		})
	}

	made, err := relay.Create(t.Context(), shardObject("p0", nil), metav1.CreateOptions{})
	must(t, err)
	t.Run("by others", func(t *testing.T) {
		for name, objects := range map[string]kube.Objects[*v1alpha1.WireguardPeers, *v1alpha1.WireguardPeersList]{
			"an administrator": all, "the account of that name in another namespace": shardsWith(t, cluster, elsewhere),
		} {
			_, err := objects.Create(t.Context(), shardObject("p1", nil), dryCreate)
			if err == nil || !strings.Contains(err.Error(), onlyRelay) && !strings.Contains(err.Error(), "forbidden") {
				t.Errorf("%s creates one: %v", name, err)
			}
		}
		patch := func(text string) error {
			_, err := all.Patch(t.Context(), made.Name, types.MergePatchType, []byte(text), dryPatch)
			return err
		}
		refused(t, patch(`{"spec":{"peers":[{"name":"x"}]}}`), onlyRelay)
		refused(t, patch(`{"metadata":{"labels":{"semaphore.uw.io/cluster":"merit"}}}`), onlyRelay)
		must(t, patch(`{"metadata":{"annotations":{"note":"x"}}}`))
		must(t, all.Delete(t.Context(), made.Name, dryDelete))
	})
	t.Run("a change of its cluster", func(t *testing.T) {
		o := made.DeepCopy()
		o.Spec.Cluster = "merit"
		_, err := relay.Update(t.Context(), o, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
		invalid(t, err, "an object keeps its cluster")
	})
	o := made.DeepCopy()
	o.Spec.Peers[0].Endpoint = "10.66.0.2:51820"
	_, err = relay.Update(t.Context(), o, metav1.UpdateOptions{})
	must(t, errors.Join(err, relay.Delete(t.Context(), made.Name, metav1.DeleteOptions{})))

	t.Run("leases", func(t *testing.T) {
		leases(t, own, admin, relayAccount, mirrorAccount, "only write its own lease")
		api := own.CoordinationV1().Leases(systemNamespace)
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.LeaseName("gcp"), Labels: map[string]string{v1alpha1.ClusterLabel: "gcp"}}}
		_, err := api.Create(t.Context(), lease, metav1.CreateOptions{})
		must(t, err)
		_, err = api.Patch(t.Context(), lease.Name, types.MergePatchType, []byte(`{"metadata":{"labels":{"semaphore.uw.io/cluster":"merit"}}}`), dryPatch)
		refused(t, err, onlyData)
		must(t, api.Delete(t.Context(), lease.Name, metav1.DeleteOptions{}))
		long := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.LeaseName(strings.Repeat("x", 52))}}
		_, err = api.Create(t.Context(), long, dryCreate)
		must(t, err)
		long.Name += "x"
		_, err = api.Create(t.Context(), long, dryCreate)
		refused(t, err, "a name of at most 58 characters")
		refused(t, api.DeleteCollection(t.Context(), dryDelete, metav1.ListOptions{}), "only write its own lease")
	})
}
