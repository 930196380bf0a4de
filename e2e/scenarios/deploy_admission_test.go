package scenarios_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/peers"
	"github.com/kube-semaphore/kube-semaphore/peers/pods"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

const (
	systemNamespace = "sys-semaphore"
	agentAccount    = "semaphore-wireguard"
)

// agentToken returns a token of the agents' account, bound to a pod on the node, like those
// that the kubelet requests; unbound if the node is empty.
func agentToken(t *testing.T, cluster *testbed.Cluster, node string) string {
	t.Helper()
	return accountToken(t, cluster, systemNamespace, agentAccount, node)
}

// accountToken returns a token of an account that is bound to a pod, agent-NODE for
// the agents', on a node; unbound if the node is empty.
func accountToken(t *testing.T, cluster *testbed.Cluster, namespace, account, node string) string {
	t.Helper()
	request := &authenticationv1.TokenRequest{}
	if node != "" {
		name := account + "-" + node
		if account == agentAccount {
			name = "agent-" + node
		}
		pod, err := cluster.Client().CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PodSpec{
				ServiceAccountName: account,
				NodeName:           node,
				Containers:         []corev1.Container{{Name: "program", Image: "kube-semaphore"}},
			},
		}, metav1.CreateOptions{})
		must(t, err)
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{
			APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID,
		}
	}
	token, err := cluster.Client().CoreV1().ServiceAccounts(namespace).
		CreateToken(t.Context(), account, request, metav1.CreateOptions{})
	must(t, err)
	return token.Status.Token
}

// clientWith returns a client with a token only.
func clientWith(t *testing.T, cluster *testbed.Cluster, token string) kubernetes.Interface {
	t.Helper()
	cfg := rest.AnonymousClientConfig(cluster.RESTConfig())
	cfg.BearerToken = token
	client, err := kubernetes.NewForConfig(cfg)
	must(t, err)
	return client
}

// TestNodeSpeaksOnlyForItself tests the admission policy with tokens of agents on two nodes.
// The account gets every right on nodes first, so that the policy refuses and not RBAC.
func TestNodeSpeaksOnlyForItself(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	must(t, cluster.Apply(t.Context(), filepath.Join(deployFolder(t), "wireguard")))
	must(t, cluster.Grant(t.Context(), systemNamespace, agentAccount,
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes", "nodes/status"}, Verbs: []string{"*"}}))
	nodes := cluster.Client().CoreV1().Nodes()
	for _, name := range []string{"aws-1", "aws-2"} {
		_, err := nodes.Create(t.Context(), &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name:        name,
				Labels:      map[string]string{"zone": "a"},
				Annotations: map[string]string{"foreign": "value"},
			},
			Spec: corev1.NodeSpec{PodCIDR: "10.2.1.0/24", PodCIDRs: []string{"10.2.1.0/24"}},
		}, metav1.CreateOptions{FieldManager: "e2e"})
		must(t, err)
	}
	own := clientWith(t, cluster, agentToken(t, cluster, "aws-1")).CoreV1().Nodes()
	unbound := clientWith(t, cluster, agentToken(t, cluster, "")).CoreV1().Nodes()

	const published = `{"metadata":{"annotations":{"gcp.wireguard.semaphore.uw.io/pubKey":"key"}}}`
	merge := func(ctx context.Context, client clientcorev1.NodeInterface, node, patch string, subresources ...string) error {
		_, err := client.Patch(ctx, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...)
		return err
	}
	untilRefused(t, func(ctx context.Context) error { return merge(ctx, own, "aws-2", published) })

	t.Run("an agent publishes and withdraws", func(t *testing.T) {
		// The original tool owns a field that our agent writes.
		must(t, merge(t.Context(), nodes, "aws-1", published))
		self := func() (peers.Self, bool) {
			node, err := nodes.Get(t.Context(), "aws-1", metav1.GetOptions{})
			must(t, err)
			node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.66.1.1"}}
			return peers.TrimSelf(node), true
		}
		publisher := peers.NewPublisher(peers.PublisherConfig{
			Nodes: own, Self: self, Logger: slog.New(slog.DiscardHandler),
			Pods: func() *pods.Known {
				return &pods.Known{Publish: true, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.2.1.0/24")}}
			},
			Publications: func() []peers.Publication {
				return []peers.Publication{{Remote: "gcp", PublicKey: tunnel.Key{1}, ListenPort: 51820}, {Remote: "a-b1", PublicKey: tunnel.Key{2}, ListenPort: 51821}}
			},
		})
		must(t, publisher.Reconcile(t.Context()))
		if !publisher.Published() {
			t.Error("not published")
		}
		if self, _ := self(); self.Annotations[peers.PodCIDRsAnnotation] != "10.2.1.0/24" {
			t.Errorf("the annotations are %v", self.Annotations)
		}
		must(t, publisher.Withdraw(t.Context(), "aws-1"))
		node, err := nodes.Get(t.Context(), "aws-1", metav1.GetOptions{})
		must(t, err)
		if len(node.Annotations) != 1 {
			t.Errorf("annotations after all were withdrawn: %v", node.Annotations)
		}
	})

	patches := []struct {
		name, patch string
		want        string // part of the refusal; empty: goes through
	}{
		{"own annotation", published, ""},
		{"own annotation, changed", `{"metadata":{"annotations":{"gcp.wireguard.semaphore.uw.io/pubKey":"other"}}}`, ""},
		{"own annotation, removed", `{"metadata":{"annotations":{"gcp.wireguard.semaphore.uw.io/pubKey":null}}}`, ""},
		{"prefixes of its pods", prefixesPatch("10.2.1.0/24"), ""},
		{"prefixes of its pods, none", prefixesPatch(""), ""},
		{"prefixes that it wasn't given", prefixesPatch("10.2.9.0/24"), "may not publish 10.2.9.0/24, which this node was not given"},
		{"prefixes that it wasn't given beside its own", prefixesPatch("10.2.1.0/24,10.2.9.0/26"), "may not publish 10.2.9.0/26"},
		{"all prefixes of the cluster", prefixesPatch("10.2.0.0/16"), "may not publish 10.2.0.0/16"},
		{"an address of another node's pod", prefixesPatch("10.2.2.7/32"), "may not publish 10.2.2.7/32"},
		{"prefixes of its pods, removed", `{"metadata":{"annotations":{"wireguard.semaphore.uw.io/podCIDRs":null}}}`, ""},
		{"prefixes of pods, of a cluster", `{"metadata":{"annotations":{"gcp.wireguard.semaphore.uw.io/podCIDRs":"10.2.9.0/26"}}}`, "podCIDRs"},
		{"a key of no cluster", `{"metadata":{"annotations":{"wireguard.semaphore.uw.io/pubKey":"x"}}}`, "pubKey"},
		{"own endpoint, empty", `{"metadata":{"annotations":{"gcp.wireguard.semaphore.uw.io/endpoint":""}}}`, ""},
		{"own endpoint, removed", `{"metadata":{"annotations":{"gcp.wireguard.semaphore.uw.io/endpoint":null}}}`, ""},
		{"where the node is", `{"metadata":{"annotations":{"wireguard.semaphore.uw.io/endpoint-address":"none"}}}`, "may not change the annotation wireguard.semaphore.uw.io/endpoint-address"},
		{"where the node is for one remote", `{"metadata":{"annotations":{"gcp.wireguard.semaphore.uw.io/endpoint-address":"none"}}}`, "may not change the annotation gcp.wireguard.semaphore.uw.io/endpoint-address"},
		{"all annotations of the node, removed", `{"metadata":{"annotations":null}}`, "may not change the annotation foreign"},
		{"foreign annotation, added", `{"metadata":{"annotations":{"more":"x"}}}`, "may not change the annotation more"},
		{"foreign annotation, changed", `{"metadata":{"annotations":{"foreign":"x"}}}`, "may not change the annotation foreign"},
		{"foreign annotation, removed", `{"metadata":{"annotations":{"foreign":null}}}`, "may not change the annotation foreign"},
		{"foreign annotation beside an own one", `{"metadata":{"annotations":{"gcp.wireguard.semaphore.uw.io/endpoint":"x","foreign":"x"}}}`, "foreign"},
		{"annotation that looks like an own one", `{"metadata":{"annotations":{"gcp.wireguard.semaphore.uw.io.evil/pubKey":"x"}}}`, "evil"},
		{"annotation of a name below an own one", `{"metadata":{"annotations":{"a.gcp.wireguard.semaphore.uw.io/pubKey":"x"}}}`, "a.gcp"},
		{"other name in the own domain", `{"metadata":{"annotations":{"gcp.wireguard.semaphore.uw.io/more":"x"}}}`, "more"},
		{"label, added", `{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`, "only change annotations"},
		{"labels, removed", `{"metadata":{"labels":null}}`, "only change annotations"},
		{"finalizer", `{"metadata":{"finalizers":["example.com/stay"]}}`, "only change annotations"},
		{"owner", `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"x","uid":"y"}]}}`, "only change annotations"},
		{"taint", `{"spec":{"taints":[{"key":"x","effect":"NoExecute"}]}}`, "only change annotations"},
		{"who owns which fields, forgotten", `{"metadata":{"managedFields":[{}]}}`, "may not change which fields e2e owns"},
		{"who owns which fields, forgotten beside an own annotation", `{"metadata":{"managedFields":[{}],"annotations":{"gcp.wireguard.semaphore.uw.io/pubKey":"key"}}}`, "may not change which fields"},
		{"who owns which fields, claimed", `{"metadata":{"managedFields":[{"manager":"e2e","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:unschedulable":{}}}}]}}`, "may not change which fields e2e owns"},
		{"unschedulable", `{"spec":{"unschedulable":true}}`, "only change annotations"},
		{"a long endpoint", `{"metadata":{"annotations":{"gcp.wireguard.semaphore.uw.io/endpoint":"` + strings.Repeat("x", 65) + `"}}}`, "keys and endpoints of at most 64 characters"},
		{"a long key beside others", publishedFor(2, strings.Repeat("x", 65)), "keys and endpoints of at most 64 characters"},
		{"keys of that length", publishedFor(2, strings.Repeat("x", 64)), ""},
		{"for a cluster with a long name", `{"metadata":{"annotations":{"` + strings.Repeat("a", 53) + `.wireguard.semaphore.uw.io/pubKey":"x"}}}`, "may not change the annotation aaa"},
		{"for a cluster with a name of that length", `{"metadata":{"annotations":{"` + strings.Repeat("a", 52) + `.wireguard.semaphore.uw.io/pubKey":"x"}}}`, ""},
		{"for a cluster with a name of that length, removed", `{"metadata":{"annotations":{"` + strings.Repeat("a", 52) + `.wireguard.semaphore.uw.io/pubKey":null}}}`, ""},
		{"for too many clusters", publishedFor(129, "x"), "for at most 128 clusters"},
		{"for as many clusters as may be", publishedFor(128, "x"), ""},
		{"for one more", `{"metadata":{"annotations":{"gcp.wireguard.semaphore.uw.io/pubKey":"x"}}}`, "for at most 128 clusters"},
		{"a change for one of many", `{"metadata":{"annotations":{"c1.wireguard.semaphore.uw.io/pubKey":"y"}}}`, ""},
		{"for as many clusters, removed", strings.ReplaceAll(publishedFor(128, "x"), `"x"`, "null"), ""},
	}
	for _, p := range patches {
		t.Run(p.name, func(t *testing.T) { refused(t, merge(t.Context(), own, "aws-1", p.patch), p.want) })
	}

	t.Run("who owns which fields, claimed for fields that don't exist", func(t *testing.T) {
		node, err := nodes.Get(t.Context(), "aws-1", metav1.GetOptions{})
		must(t, err)
		claim := func(entries int, fields string) error {
			all := slices.Clone(node.ManagedFields)
			for i := range entries {
				all = append(all, metav1.ManagedFieldsEntry{
					Manager: fmt.Sprintf("x%d", i), Operation: metav1.ManagedFieldsOperationApply, APIVersion: "v1",
					FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{` + fields + `}}}`),
				})
			}
			patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"managedFields": all}})
			must(t, err)
			_, err = own.Patch(t.Context(), "aws-1", types.MergePatchType, patch, dryPatch)
			return err
		}
		many := func(n int, cluster string) string {
			fields := make([]string, n)
			for i := range fields {
				fields[i] = fmt.Sprintf(`"f:%s%d.wireguard.semaphore.uw.io/pubKey":{}`, cluster, i)
			}
			return strings.Join(fields, ",")
		}
		must(t, claim(1, many(258, "c")))
		refused(t, claim(1, many(259, "c")), "with at most 258 annotations each")
		refused(t, claim(1, many(1, strings.Repeat("c", 52))), "may not change which fields x0 owns")
		must(t, claim(32-len(node.ManagedFields), many(1, "c")))
		refused(t, claim(33-len(node.ManagedFields), many(1, "c")), "field managers up to 32")
	})
	t.Run("what OVN-Kubernetes has given it", func(t *testing.T) {
		for annotation, prefixes := range map[string]string{
			`{"default":["10.2.7.0/24","fd00:2:7::/64"]}`: "10.2.7.0/24,fd00:2:7::/64", `{"default":"10.2.7.0/24"}`: "10.2.7.0/24", "10.2.7.0/24": "10.2.7.0/24",
		} {
			must(t, merge(t.Context(), nodes, "aws-1", fmt.Sprintf(`{"metadata":{"annotations":{"k8s.ovn.org/node-subnets":%q}}}`, annotation)))
			must(t, merge(t.Context(), own, "aws-1", prefixesPatch(prefixes)))
			refused(t, merge(t.Context(), own, "aws-1", prefixesPatch("10.2.7.0/25")), "may not publish 10.2.7.0/25")
		}
		refused(t, merge(t.Context(), own, "aws-1", `{"metadata":{"annotations":{"k8s.ovn.org/node-subnets":"10.2.0.0/16"}}}`), "may not change the annotation k8s.ovn.org/node-subnets")
		must(t, merge(t.Context(), nodes, "aws-1", `{"metadata":{"annotations":{"k8s.ovn.org/node-subnets":null}}}`))
	})
	t.Run("prefixes in virtual subnets", func(t *testing.T) { publishVirtually(t, cluster, own, nodes) })
	t.Run("prefixes that are from elsewhere", func(t *testing.T) {
		must(t, cluster.Apply(t.Context(), filepath.Join(deployFolder(t), "wireguard", "pods", "prefixes", "rbac.yaml")))
		must(t, cluster.AwaitRight(t.Context(), systemNamespace, agentAccount,
			authorizationv1.ResourceAttributes{Verb: "publish", Group: "semaphore.uw.io", Resource: "prefixes"}, true))
		many := func(n int) string {
			all := make([]string, n)
			for i := range all {
				all[i] = fmt.Sprintf("fd00:2222:3333:4444:5555:6666:7777:%04x/128", i)
			}
			return strings.Join(all, ",")
		}
		for _, p := range []struct{ prefixes, want string }{
			{"10.2.9.0/26,10.2.2.7/32,fd00:2:9::/64", ""},
			{"10.2.0.0/16,fd00:2::/48", ""},
			{many(pods.MaxPrefixes), ""},
			{many(pods.MaxPrefixes + 1), "may publish at most 3000 pod prefixes"},
			{strings.Repeat("1", 132001), "may publish at most 3000 pod prefixes"},
			{"10.0.0.0/8", "of at most /16 for IPv4 and /48 for IPv6"},
			{"0.0.0.0/0", "of at most /16 for IPv4 and /48 for IPv6"},
			{"::/0", "of at most /16 for IPv4 and /48 for IPv6"},
			{"fd00::/47", "of at most /16 for IPv4 and /48 for IPv6"},
			{"10.2.9.0", "may publish comma-separated prefixes"},
			{"10.2.9.0/26,", "may publish comma-separated prefixes"},
			{"10.2.9.0/26\n", "may publish comma-separated prefixes"},
		} {
			refused(t, merge(t.Context(), own, "aws-1", prefixesPatch(p.prefixes)), p.want)
		}
		must(t, merge(t.Context(), own, "aws-1", `{"metadata":{"annotations":{"wireguard.semaphore.uw.io/podCIDRs":null}}}`))
	})
	t.Run("own annotation on another node", func(t *testing.T) {
		refused(t, merge(t.Context(), own, "aws-2", published), "on node aws-1 may not patch node aws-2")
	})
	t.Run("token that is bound to no node", func(t *testing.T) {
		refused(t, merge(t.Context(), unbound, "aws-1", published), "not bound to a node")
		status := `{"status":{"addresses":[{"type":"InternalIP","address":"10.66.9.9"}]}}`
		refused(t, merge(t.Context(), unbound, "aws-1", status, "status"), "may only patch nodes")
		refused(t, unbound.Delete(t.Context(), "aws-1", metav1.DeleteOptions{}), "may only patch nodes")
		_, err := unbound.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "aws-3"}}, metav1.CreateOptions{})
		refused(t, err, "may only patch nodes")
	})
	t.Run("own status", func(t *testing.T) {
		refused(t, merge(t.Context(), own, "aws-1", `{"status":{"addresses":[{"type":"InternalIP","address":"10.66.9.9"}]}}`, "status"), "may only patch nodes")
	})
	t.Run("deletion of the own node", func(t *testing.T) {
		refused(t, own.Delete(t.Context(), "aws-1", metav1.DeleteOptions{}), "may only patch nodes")
	})
	t.Run("creation of a node", func(t *testing.T) {
		_, err := own.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "aws-3"}}, metav1.CreateOptions{})
		refused(t, err, "may only patch nodes")
	})
	t.Run("everybody else goes on", func(t *testing.T) {
		must(t, merge(t.Context(), nodes, "aws-1", `{"metadata":{"labels":{"more":"x"},"annotations":{"more":"x"}},"spec":{"unschedulable":true}}`))
	})
}

// publishedFor is a patch of the annotations for n clusters.
func publishedFor(n int, value string) string {
	var all []string
	for i := range n {
		for _, name := range []string{"pubKey", "endpoint"} {
			all = append(all, fmt.Sprintf(`"c%d.wireguard.semaphore.uw.io/%s":%q`, i, name, value))
		}
	}
	return `{"metadata":{"annotations":{` + strings.Join(all, ",") + `}}}`
}

// publishVirtually tests the admission policy with maps of pod subnets, in a cluster that has one
// by deploy/wireguard/map. Node aws-1 has the podCIDR 10.2.1.0/24, and another one of OVN's.
func publishVirtually(t *testing.T, cluster *testbed.Cluster, own, nodes clientcorev1.NodeInterface) {
	const has = "10.2.0.0/15=100.66.0.0/15,10.9.0.0/17=100.65.128.0/17,fd00:2::/49=fd00:c9:0:8000::/49"
	merge := func(client clientcorev1.NodeInterface, patch string) error {
		_, err := client.Patch(t.Context(), "aws-1", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	patch := func(subnets, prefixes string) string {
		return fmt.Sprintf(`{"metadata":{"annotations":{%q:%s,%q:%s}}}`, config.SubnetMapAnnotation, subnets, peers.PodCIDRsAnnotation, prefixes)
	}
	must(t, merge(nodes, `{"metadata":{"annotations":{"k8s.ovn.org/node-subnets":"{\"default\":[\"10.9.100.0/23\",\"fd00:2:0:1f::/64\"]}"}}}`))
	refused(t, merge(own, patch(`"`+has+`"`, `"100.66.1.0/24"`)), "may not publish the map of pod subnets "+has+", which its cluster does not have")
	text, err := os.ReadFile(filepath.Join(deployFolder(t), "wireguard", "map", "rbac.yaml"))
	must(t, err)
	file := filepath.Join(t.TempDir(), "rbac.yaml")
	must(t, os.WriteFile(file, bytes.ReplaceAll(text, []byte(`["SEMAPHORE_POD_SUBNETS_MAP"]`), []byte(`["`+has+`"]`)), 0o600))
	must(t, cluster.Apply(t.Context(), file))
	must(t, cluster.AwaitRight(t.Context(), systemNamespace, agentAccount,
		authorizationv1.ResourceAttributes{Verb: "publish", Group: "semaphore.uw.io", Resource: "podsubnetsmaps", Name: has}, true))
	for _, c := range []struct{ subnets, prefixes, want string }{
		{has, "100.66.1.0/24", ""},
		{has, "", ""},
		{has, "100.65.228.0/23,100.66.1.0/24,fd00:c9:0:801f::/64", ""},
		{has, "10.2.1.0/24,fd00:c9:0:801f::/64", ""},
		{has, "fd00:c9:0000:801f::/64", ""}, // Readers parse it.
		{has, "100.67.1.0/24", "may not publish 100.67.1.0/24"},
		{has, "100.66.1.0/25", "may not publish 100.66.1.0/25"},
		{has, "100.66.2.0/24", "may not publish 100.66.2.0/24"},
		{has, "100.66.0.0/16", "may not publish 100.66.0.0/16"},
		{has, "100.65.1.0/24", "may not publish 100.65.1.0/24"},
		{has, "100.65.228.0/24", "may not publish 100.65.228.0/24"},
		{has, "100.66.1.0/24,100.66.2.0/24", "may not publish 100.66.1.0/24"},
		{has, "fd00:c9::1f:0:0:0/64", "may not publish fd00:c9::1f:0:0:0/64"},
		{has, "fd00:c9:0:801e::/64", "may not publish fd00:c9:0:801e::/64"},
		{has, "::/64", "may not publish ::/64"},
		{has, "1.1.1/24", "may not publish 1.1.1/24"},
		{has, "100.66.1.0/24,100.66.1.0/24,100.66.1.0/24,100.66.1.0/24,100.66.1.0/24", "may not publish 100.66.1.0/24"},
		{"10.2.1.0/24=100.66.9.0/24", "100.66.9.0/24", "may not publish the map of pod subnets 10.2.1.0/24=100.66.9.0/24"},
		{"10.2.0.0/15=100.66.0.0/15", "100.66.1.0/24", "may not publish the map of pod subnets 10.2.0.0/15=100.66.0.0/15"},
		{"10.2.0.0/15", "10.2.1.0/24", "may not publish the map of pod subnets 10.2.0.0/15"},
		{"*", "", "may not publish the map of pod subnets *"},
	} {
		refused(t, merge(own, patch(`"`+c.subnets+`"`, `"`+c.prefixes+`"`)), c.want)
	}
	must(t, merge(own, patch(`"`+has+`"`, `"100.66.1.0/24"`)))
	// An agent that is confined to one node keeps its key while its map is none of the cluster's.
	must(t, merge(nodes, patch(`"10.2.1.0/24=100.66.9.0/24"`, `"100.66.9.0/24"`)))
	must(t, merge(own, `{"metadata":{"annotations":{"gcp.wireguard.semaphore.uw.io/endpoint":""}}}`))
	refused(t, merge(own, prefixesPatch("100.66.1.0/24")), "may not publish the map of pod subnets 10.2.1.0/24=100.66.9.0/24")
	// Without the map, its prefixes are those that it was given.
	refused(t, merge(own, patch("null", `"100.66.1.0/24"`)), "may not publish 100.66.1.0/24, which this node was not given")
	refused(t, merge(own, fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, config.SubnetMapAnnotation)), "may not publish 100.66.9.0/24")
	must(t, merge(own, patch("null", "null")))
	must(t, merge(nodes, `{"metadata":{"annotations":{"k8s.ovn.org/node-subnets":null}}}`))
}

// prefixesPatch is a patch with which a node publishes pod prefixes.
func prefixesPatch(prefixes string) string {
	return fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, peers.PodCIDRsAnnotation, prefixes)
}

// TestAgentEventsOnlyAboutItself tests the admission policy for Events, with agents that may
// create any Event by RBAC.
func TestAgentEventsOnlyAboutItself(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	must(t, cluster.Apply(t.Context(), filepath.Join(deployFolder(t), "wireguard")))
	must(t, cluster.Grant(t.Context(), systemNamespace, agentAccount,
		rbacv1.PolicyRule{APIGroups: []string{"", "events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"*"}}))
	own := clientWith(t, cluster, agentToken(t, cluster, "aws-1"))
	unbound := clientWith(t, cluster, agentToken(t, cluster, ""))
	pod, err := cluster.Client().CoreV1().Pods(systemNamespace).Get(t.Context(), "agent-aws-1", metav1.GetOptions{})
	must(t, err)
	itself := corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: systemNamespace, Name: pod.Name, UID: pod.UID}
	const honest = "semaphore-wireguard.gcp.node.public-key.gcp-1"
	// event is an Event of an agent about itself, changed.
	event := func(change func(*corev1.Event)) *corev1.Event {
		e := &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Name: honest}, InvolvedObject: itself,
			Type: corev1.EventTypeWarning, Reason: "NodeRejected", Message: `node "gcp-1" of gcp is rejected, public_key: not a key`,
			Source: corev1.EventSource{Component: agentAccount}, FirstTimestamp: metav1.Now(),
		}
		if change != nil {
			change(e)
		}
		return e
	}
	dryRun := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	create := func(ctx context.Context, client kubernetes.Interface, e *corev1.Event) error {
		_, err := client.CoreV1().Events(systemNamespace).Create(ctx, e, dryRun)
		return err
	}
	another := func(e *corev1.Event) {
		e.InvolvedObject.Name, e.InvolvedObject.UID = "agent-aws-2", "another"
	}
	const refusal, inItsName, asItSays = "only create events about its own pod", "only create warnings, in its own name", "must match its name"
	untilRefused(t, func(ctx context.Context) error { return create(ctx, own, event(another)) })
	eventsWith(t, own, event(nil))
	named := func(name, reason, message string) func(*corev1.Event) {
		return func(e *corev1.Event) { e.Name, e.Reason, e.Message = name, reason, message }
	}
	long := strings.Repeat("n", 120)
	for _, c := range []struct {
		name   string
		change func(*corev1.Event)
		want   string
	}{
		{"of itself", nil, ""},
		{"of another pod", another, refusal},
		{"of another pod, with its own UID", func(e *corev1.Event) { e.InvolvedObject.Name = "agent-aws-2" }, refusal},
		{"of another object, with its own UID", func(e *corev1.Event) { e.InvolvedObject.Kind = "Node" }, refusal},
		{"of another pod of its name", func(e *corev1.Event) { e.InvolvedObject.UID = "another" }, refusal},
		{"of its node", func(e *corev1.Event) {
			e.InvolvedObject = corev1.ObjectReference{Kind: "Node", Namespace: systemNamespace, Name: "aws-1", UID: "aws-1"}
		}, refusal},
		{"of nothing", func(e *corev1.Event) { e.InvolvedObject.UID = "" }, refusal},
		{"that is none to worry about", func(e *corev1.Event) { e.Type = corev1.EventTypeNormal }, inItsName},
		{"in the name of another program", func(e *corev1.Event) { e.Source.Component = "kubelet" }, inItsName},
		{"in the name of another host", func(e *corev1.Event) { e.Source.Host = "aws-2" }, inItsName},
		{"under the name of another program's", named("semaphore-policy.gcp.node.public-key.gcp-1", "NodeRejected", `node "gcp-1" of gcp is rejected, public_key: x`), inItsName},
		{"with another message", func(e *corev1.Event) { e.Message = "all is well" }, asItSays},
		{"with no message", func(e *corev1.Event) { e.Message = "" }, asItSays},
		{"with the message of another node", func(e *corev1.Event) { e.Message = `node "gcp-2" of gcp is rejected, public_key: x` }, asItSays},
		{"with the message of a node with a longer name", func(e *corev1.Event) { e.Message = `node "gcp-10" of gcp is rejected, public_key: x` }, asItSays},
		{"with the message of another remote", func(e *corev1.Event) { e.Message = `node "gcp-1" of merit is rejected, public_key: x` }, asItSays},
		{"with another reason in the message", func(e *corev1.Event) { e.Message = `node "gcp-1" of gcp is rejected, endpoint: x` }, asItSays},
		{"with another reason", func(e *corev1.Event) { e.Reason = "PrefixRejected" }, asItSays},
		{"under any name", func(e *corev1.Event) { e.Name = "semaphore-wireguard.gcp.0123456789abcdef" }, asItSays},
		{"under a name that says nothing", func(e *corev1.Event) { e.Name = "semaphore-wireguard" }, asItSays},
		{"of a prefix", named("semaphore-wireguard.gcp.prefix.pod-cidr.gcp-1.example", "PrefixRejected",
			`a prefix of node "gcp-1.example" of gcp is rejected, pod_cidr: x`), ""},
		{"of a node with a long name", named("semaphore-wireguard.gcp.node.public-key."+long, "NodeRejected",
			`node "`+long+`more" of gcp is rejected, public_key: x`), ""},
		{"of a node with another long name", named("semaphore-wireguard.gcp.node.public-key."+long, "NodeRejected",
			`node "other" of gcp is rejected, public_key: x`), asItSays},
		{"of a node with a name that none can have", named("semaphore-wireguard.gcp.node.public-key", "NodeRejected",
			`node "a\nb" of gcp is rejected, public_key: x`), ""},
		{"of many", named("semaphore-wireguard.gcp.all", "NodesRejected",
			"12 nodes of gcp are rejected, or prefixes of them: public_key 12; semaphore-wireguard status names all"), ""},
		{"of many, with another message", named("semaphore-wireguard.gcp.all", "NodesRejected", "all is well"), asItSays},
	} {
		t.Run(c.name, func(t *testing.T) { refused(t, create(t.Context(), own, event(c.change)), c.want) })
	}
	t.Run("with a token that is bound to no pod", func(t *testing.T) { refused(t, create(t.Context(), unbound, event(nil)), refusal) })
	t.Run("of itself, through the other API", func(t *testing.T) {
		_, err := own.EventsV1().Events(systemNamespace).Create(t.Context(), &eventsv1.Event{
			ObjectMeta: metav1.ObjectMeta{Name: honest}, EventTime: metav1.NowMicro(), Regarding: itself,
			Type: corev1.EventTypeWarning, Reason: "NodeRejected", Action: "Reject",
			ReportingController: "semaphore.uw.io/wireguard", ReportingInstance: "agent",
		}, dryRun)
		refused(t, err, refusal)
	})
	t.Run("a change of the message", func(t *testing.T) {
		_, err := own.CoreV1().Events(systemNamespace).Create(t.Context(), event(nil), metav1.CreateOptions{})
		must(t, err)
		patch := []byte(`{"message":"all is well"}`)
		_, err = own.CoreV1().Events(systemNamespace).Patch(t.Context(), honest, types.MergePatchType, patch, metav1.PatchOptions{})
		refused(t, err, refusal)
	})
	t.Run("everybody else goes on", func(t *testing.T) {
		refused(t, create(t.Context(), cluster.Client(), event(func(e *corev1.Event) {
			another(e)
			e.Name = "other"
		})), "")
	})
}

// ofOurPolicy is part of the API server's error if one of our policies refused a request.
const ofOurPolicy = "ValidatingAdmissionPolicy 'semaphore-"

// refused checks that our policy refused a request with a message, or, with an empty one,
// that the request succeeded.
func refused(t *testing.T, err error, message string) {
	t.Helper()
	if message == "" {
		must(t, err)
		return
	}
	if err == nil {
		t.Fatalf("went through, expected a refusal with %q", message)
	}
	for _, part := range []string{ofOurPolicy, message} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("refused with %q, expected %q", err, part)
		}
	}
}
