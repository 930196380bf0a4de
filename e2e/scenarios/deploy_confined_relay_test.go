package scenarios_test

import (
	"context"
	"errors"
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

// peerObject is an object like those of semaphore-relay, changed.
func peerObject(node string, change func(*v1alpha1.WireguardPeers)) *v1alpha1.WireguardPeers {
	o := &v1alpha1.WireguardPeers{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion().String(), Kind: v1alpha1.Kind},
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeName("gcp", node), Labels: map[string]string{v1alpha1.ClusterLabel: "gcp"}},
		Spec: v1alpha1.Spec{
			Cluster: "gcp", Name: node, Created: metav1.Unix(1_700_000_000, 0), PublicKey: tunnel.Key{1}.String(), Endpoint: "10.66.0.1:51820",
			PodCIDRs: []string{"10.4.1.0/24", v1alpha1.Invalid}, Allocated: []string{"fd00:10:4:1::/64"},
		},
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

func peersWith(t *testing.T, cluster *testbed.Cluster, token string) kube.Objects[*v1alpha1.WireguardPeers, *v1alpha1.WireguardPeersList] {
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
	relay, all := peersWith(t, cluster, token), peersWith(t, cluster, "")
	const onlyRelay, onlyLabel, noOwners = "only semaphore-relay may write what agents read", "may only set the label of the cluster", "neither finalizers nor owners"
	untilRefused(t, func(ctx context.Context) error {
		_, err := all.Create(ctx, peerObject("n0", nil), dryCreate)
		return err
	})
	peer := func(change func(*v1alpha1.Spec)) func(*v1alpha1.WireguardPeers) {
		return func(o *v1alpha1.WireguardPeers) { change(&o.Spec) }
	}
	long := strings.Repeat("n", 253)
	count := func(count int) func(*v1alpha1.WireguardPeers) {
		return func(o *v1alpha1.WireguardPeers) {
			o.Name, o.Spec = v1alpha1.CountName("gcp"), v1alpha1.Spec{Cluster: "gcp", Count: count}
		}
	}
	for _, c := range []struct {
		name   string
		change func(*v1alpha1.WireguardPeers)
		want   string
	}{
		{"as it is", nil, ""},
		{"with IPv6", peer(func(s *v1alpha1.Spec) { s.Endpoint = "[2001:db8::1]:51820" }), ""},
		{"with nothing published", peer(func(s *v1alpha1.Spec) { *s = v1alpha1.Spec{Cluster: s.Cluster, Name: s.Name} }), ""},
		{"with invalid values", peer(func(s *v1alpha1.Spec) { s.PublicKey, s.Endpoint = v1alpha1.Invalid, v1alpha1.Invalid }), ""},
		{"as a count", count(5000), ""},
		{"as a count of none", count(0), ""},
		{"as a negative count", count(-1), "spec.count"},
		{"of a node of its own", peer(func(s *v1alpha1.Spec) {
			*s = v1alpha1.Spec{Cluster: s.Cluster, Name: s.Name, Addresses: []string{"10.0.0.1", "fd00::1"}, PodCIDRs: []string{"10.2.0.0/24"}}
		}), ""},
		{"with the longest name", func(o *v1alpha1.WireguardPeers) { o.Name, o.Spec.Name = v1alpha1.NodeName("gcp", long), long }, ""},
		{"with the longest name, and another one's", func(o *v1alpha1.WireguardPeers) { o.Name, o.Spec.Name = v1alpha1.NodeName("gcp", "m"+long[1:]), long }, "the name must be"},
		{"with another name", func(o *v1alpha1.WireguardPeers) { o.Name = "gcp.n1" }, "the name must be"},
		{"with the name of a count", func(o *v1alpha1.WireguardPeers) { o.Name = v1alpha1.CountName("gcp") }, "the name must be"},
		{"of another cluster", func(o *v1alpha1.WireguardPeers) { o.Spec.Cluster = "merit" }, "the name must be"},
		{"of no cluster", func(o *v1alpha1.WireguardPeers) { o.Spec.Cluster = "" }, "spec.cluster"},
		{"with a count", peer(func(s *v1alpha1.Spec) { s.Count = 1 }), "either a node or a count"},
		{"without a node", func(o *v1alpha1.WireguardPeers) { o.Name, o.Spec.Name = v1alpha1.CountName("gcp"), "" }, "either a node or a count"},
		{"with a name that is none", peer(func(s *v1alpha1.Spec) { s.Name = "../x" }), "spec.name"},
		{"with a short key", peer(func(s *v1alpha1.Spec) { s.PublicKey = s.PublicKey[4:] }), "publicKey"},
		{"with a name for an endpoint", peer(func(s *v1alpha1.Spec) { s.Endpoint = "example.com:51820" }), "endpoint"},
		{"with a zone", peer(func(s *v1alpha1.Spec) { s.Endpoint = "[fe80::1%eth0]:51820" }), "endpoint"},
		{"with a prefix that is none", peer(func(s *v1alpha1.Spec) { s.PodCIDRs = []string{"10.4.1.0/24,"} }), "podCIDRs"},
		{"with a long prefix", peer(func(s *v1alpha1.Spec) { s.PodCIDRs = []string{strings.Repeat("1", 100) + "/1"} }), "podCIDRs"},
		{"with too many prefixes", peer(func(s *v1alpha1.Spec) { s.PodCIDRs = slices.Repeat([]string{"10.4.1.0/24"}, 5002) }), "must have at most 5001 items"},
		{"with many allocated ones", peer(func(s *v1alpha1.Spec) { s.Allocated = []string{"10.4.1.0/24", "10.4.2.0/24", "10.4.3.0/24"} }), "must have at most 2 items"},
		{"with too many addresses", peer(func(s *v1alpha1.Spec) { s.Addresses = slices.Repeat([]string{"10.0.0.1"}, 65) }), "must have at most 64 items"},
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
			_, err := relay.Create(t.Context(), peerObject("n0", c.change), dryCreate)
			if c.want != onlyLabel && c.want != noOwners && c.want != "" {
				invalid(t, err, c.want)
				return
			}
			refused(t, err, c.want)
		})
	}

	made, err := relay.Create(t.Context(), peerObject("n0", nil), metav1.CreateOptions{})
	must(t, err)
	t.Run("by others", func(t *testing.T) {
		for name, objects := range map[string]kube.Objects[*v1alpha1.WireguardPeers, *v1alpha1.WireguardPeersList]{
			"an administrator": all, "the account of that name in another namespace": peersWith(t, cluster, elsewhere),
		} {
			_, err := objects.Create(t.Context(), peerObject("n1", nil), dryCreate)
			if err == nil || !strings.Contains(err.Error(), onlyRelay) && !strings.Contains(err.Error(), "forbidden") {
				t.Errorf("%s creates one: %v", name, err)
			}
		}
		patch := func(text string) error {
			_, err := all.Patch(t.Context(), made.Name, types.MergePatchType, []byte(text), dryPatch)
			return err
		}
		refused(t, patch(`{"spec":{"endpoint":"10.66.0.9:51820"}}`), onlyRelay)
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
	o.Spec.Endpoint = "10.66.0.2:51820"
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
