package join

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	fakedynamic "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
	internalcluster "github.com/kube-semaphore/kube-semaphore/internal/cluster"
)

// TestStrangersStay checks that a cluster with another name, or with programs that
// semaphorectl hasn't installed, isn't changed.
func TestStrangersStay(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*inspect.Facts)
		want   string // of the only fault; empty: none
	}{
		"installed": {func(*inspect.Facts) {}, ""},
		"nothing":   {func(f *inspect.Facts) { f.Installed = inspect.Installed{} }, ""},
		"another cluster's context": {func(f *inspect.Facts) {
			f.Installed.Settings["SEMAPHORE_CLUSTER_NAME"] = "merit"
		}, "it is installed as cluster merit"},
		"by hand":   {func(f *inspect.Facts) { f.Installed.Foreign = []string{"semaphore-wireguard"} }, "join --adopt"},
		"no answer": {func(f *inspect.Facts) { f.Unread = []error{errAway} }, "away"},
	} {
		f := healthy(t, "aws", "10.2.0.0/16", "10.102.0.0/16", "10.66.1.2")
		f.Installed.Settings = map[string]string{"SEMAPHORE_CLUSTER_NAME": "aws", "SEMAPHORE_REMOTES": "gcp"}
		c.change(f)
		faults := strange(f)
		if c.want == "" && len(faults) > 0 || c.want != "" && (len(faults) != 1 || !strings.Contains(faults[0].String(), c.want) || faults[0].warning) {
			t.Errorf("%s: faults %v", name, faults)
		}
	}
}

// TestSetSelector selects the network sets by the labels that semaphore-policy gives them.
func TestSetSelector(t *testing.T) {
	for _, c := range []struct{ mark, domain, remote, want string }{
		{"", "", "", "managed-by=semaphore-policy"},
		{"", "", "gcp", "managed-by=semaphore-policy,policy.semaphore.uw.io/cluster=gcp"},
		{"us", "sets.example", "gcp", "managed-by=us,sets.example/cluster=gcp"},
	} {
		settings := inspect.Settings{"SEMAPHORE_POLICY_MANAGED_BY": c.mark, "SEMAPHORE_POLICY_LABEL_DOMAIN": c.domain}
		if got := setSelector(settings, c.remote); got != c.want {
			t.Errorf("%+v: selected by %s", c, got)
		}
	}
}

// TestCleaned checks that the administrator's endpoint annotation of a node is kept, and
// isn't waited for.
func TestCleaned(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: map[string]string{
		"wireguard.semaphore.uw.io/endpoint-address": "203.0.113.9", "gcp.wireguard.semaphore.uw.io/endpoint-address": "none",
	}}}
	set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: agent, Namespace: cli.Namespace}}
	client := fake.NewClientset(set, node)
	c := &cli.Cluster{Name: "aws", Access: cli.Access{Context: "aws"}, Client: client}
	if err := cleaned(t.Context(), c); err != nil {
		t.Errorf("it waits: %v", err)
	}
	node.Annotations["gcp.wireguard.semaphore.uw.io/pubKey"] = "key"
	if _, err := client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := cleaned(t.Context(), c); err == nil || !strings.Contains(err.Error(), "pubKey") {
		t.Errorf("a key is still published, and it says %v", err)
	}
}

// TestForeign finds objects that semaphorectl hasn't created, or that can't be read.
func TestForeign(t *testing.T) {
	object := func(labels map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "ServiceAccount", "metadata": map[string]any{"name": "s", "namespace": cli.Namespace, "labels": labels},
		}}
	}
	for name, c := range map[string]struct {
		have runtime.Object
		err  error
		want string
	}{
		"none exists":      {nil, nil, ""},
		"ours":             {object(map[string]any{"app.kubernetes.io/managed-by": "semaphorectl"}), nil, ""},
		"of a release":     {object(map[string]any{"app.kubernetes.io/managed-by": "Helm"}), nil, "wasn't created by semaphorectl"},
		"foreign":          {object(nil), nil, "wasn't created by semaphorectl"},
		"it can't be read": {object(nil), errors.New("etcdserver: request timed out"), "request timed out"},
	} {
		var there []runtime.Object
		if c.have != nil {
			there = append(there, c.have)
		}
		client := fakedynamic.NewSimpleDynamicClient(scheme.Scheme, there...)
		if c.err != nil {
			client.PrependReactor("get", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, c.err })
		}
		clientset := fake.NewClientset()
		clientset.Resources = []*metav1.APIResourceList{{GroupVersion: "v1", APIResources: []metav1.APIResource{{Name: "serviceaccounts", Kind: "ServiceAccount", Namespaced: true}}}}
		cluster := &cli.Cluster{Name: "aws", Access: cli.Access{Context: "aws"}, Dynamic: client, Client: clientset}
		faults := foreign(t.Context(), cluster, []*unstructured.Unstructured{object(nil)})
		if c.want == "" && len(faults) > 0 || c.want != "" && (len(faults) != 1 || !strings.Contains(faults[0].String(), c.want)) {
			t.Errorf("%s: faults %v", name, faults)
		}
	}
}

// TestPolicyOfAKilledRun deletes the policy of a killed verify, in a namespace that is kept. One in
// a namespace of others stays, whatever label it has.
func TestPolicyOfAKilledRun(t *testing.T) {
	const version = "crd.projectcalico.org/v1"
	policies := schema.GroupVersionResource{Group: "crd.projectcalico.org", Version: "v1", Resource: "networkpolicies"}
	policy := func(name string, labels map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": version, "kind": "NetworkPolicy", "metadata": map[string]any{"name": name, "namespace": "kube-system", "labels": labels},
		}}
	}
	left := policy("default.semaphorectl-verify", map[string]any{"app.kubernetes.io/managed-by": "semaphorectl", "semaphore.uw.io/temporary": "true"})
	foreign := policy("default.foreign", nil)
	elsewhere := policy("default.elsewhere", map[string]any{"app.kubernetes.io/managed-by": "semaphorectl"})
	elsewhere.SetNamespace("team")
	client := fakedynamic.NewSimpleDynamicClientWithCustomListKinds(scheme.Scheme,
		map[schema.GroupVersionResource]string{policies: "NetworkPolicyList"}, left, foreign, elsewhere)
	clientset := fake.NewClientset()
	clientset.Resources = []*metav1.APIResourceList{{GroupVersion: version, APIResources: []metav1.APIResource{{Name: "networkpolicies", Kind: "NetworkPolicy", Namespaced: true}}}}
	cluster := &cli.Cluster{Name: "aws", Access: cli.Access{Context: "aws"}, Dynamic: client, Client: clientset}
	if err := deleteOwn(t.Context(), cluster); err != nil {
		t.Error(err)
	}
	stays, err := client.Resource(policies).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(stays.Items) != 2 || slices.ContainsFunc(stays.Items, func(p unstructured.Unstructured) bool { return p.GetName() == left.GetName() }) {
		t.Errorf("remaining policies: %v, %v", stays, err)
	}
}

// TestDiscoveryIsNarrow reads all objects that a cluster gets, and lists all that it may have:
// each group version is requested once, and never the list of groups.
func TestDiscoveryIsNarrow(t *testing.T) {
	client := fakedynamic.NewSimpleDynamicClient(scheme.Scheme)
	clientset := fake.NewClientset()
	cluster := &cli.Cluster{Name: "aws", Access: cli.Access{Context: "aws"}, Dynamic: client, Client: clientset}
	objects, err := (&manifests.Cluster{
		Name: "aws", Tools: manifests.Tools(), Remotes: []internalcluster.Name{"gcp"}, Image: "i", Pools: schema.GroupVersion{Group: "projectcalico.org", Version: "v3"},
		Settings: map[string]string{"SEMAPHORE_REMOTE_GCP_API_URL": "https://x", "SEMAPHORE_REMOTE_GCP_POD_SUBNETS": "10.4.0.0/16", "SEMAPHORE_REMOTE_GCP_WG_LISTEN_PORT": "51840"},
	}).Render()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		faults := foreign(t.Context(), cluster, objects)
		if len(faults) != len(objects) || !strings.Contains(faults[0].String(), "it doesn't serve ") {
			t.Errorf("%d objects, faults %v", len(objects), faults)
		}
		rights(t.Context(), cluster, &inspect.Facts{}, objects, false)
		rightsToLeave(t.Context(), cluster, &inspect.Facts{}, objects)
	}
	versions, asked := map[schema.GroupVersion]bool{}, 0
	for _, o := range objects {
		versions[o.GroupVersionKind().GroupVersion()] = true
	}
	for _, action := range clientset.Actions() {
		switch action.GetResource().Resource {
		case "resource":
			asked++
		case "group":
			t.Error("it is asked for all groups")
		}
	}
	if asked != len(versions) || asked > 12 {
		t.Errorf("%d group versions were asked for %d times", len(versions), asked)
	}
}

// TestDeleteAllOfMany deletes more objects than a list may have.
func TestDeleteAllOfMany(t *testing.T) {
	if testing.Short() {
		t.Skip("20,500 objects take seconds")
	}
	const count = 20_500
	all := make([]*unstructured.Unstructured, count)
	for i := range all {
		all[i] = object(cli.Namespace, "gcp", "n"+strconv.Itoa(i))
	}
	c := relayCluster(t, all)
	if err := deleteAll(t.Context(), c, resourceOfPeers(), cli.Namespace, ""); err != nil {
		t.Fatal(err)
	}
	left, err := peers(c).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(left.Items) > 0 {
		t.Errorf("%d objects are left, error %v", len(left.Items), err)
	}
}
