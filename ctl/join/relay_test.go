package join

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	fakedynamic "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
	"github.com/kube-semaphore/kube-semaphore/ctl/probe"
	"github.com/kube-semaphore/kube-semaphore/internal/reach"
	"github.com/kube-semaphore/kube-semaphore/internal/wireguardpeers/v1alpha1"
)

// TestRelays decides where agents read nodes.
func TestRelays(t *testing.T) {
	for name, c := range map[string]struct {
		flag      string
		installed bool // agents read from semaphore-relay
		nodes     int  // of the other cluster
		relay     bool
		proposed  bool
	}{
		"small":                     {"", false, 99, false, false},
		"large":                     {"", false, 100, false, true},
		"moved before":              {"", true, 3, true, false},
		"moved before, and large":   {"", true, 300, true, false},
		"on":                        {relayOn, false, 3, true, false},
		"off":                       {relayOff, true, 3, false, false},
		"off, and large":            {relayOff, false, 300, false, false},
		"auto, small":               {relayAuto, false, 99, false, false},
		"auto, large":               {relayAuto, false, 100, true, false},
		"auto, small, moved before": {relayAuto, true, 3, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			aws, gcp := healthy(t, "aws", "10.2.0.0/16", "10.102.0.0/16", "10.66.1.2"), healthy(t, "gcp", "10.4.0.0/16", "10.104.0.0/16", "10.66.2.2")
			gcp.Nodes = slices.Repeat(gcp.Nodes, c.nodes)
			aws.Installed.Tools, aws.Installed.Relayed = []string{manifests.WireGuard}, c.installed
			aws.Installed.Settings = inspect.Settings{"SEMAPHORE_CLUSTER_NAME": "aws"}
			if c.installed {
				aws.Installed.Settings[inspect.RemotesFrom] = inspect.RemotesFromRelay
			}
			a := runOf(t, aws, gcp)
			a.Relay = c.flag
			if err := a.render(); err != nil {
				t.Fatal(err)
			}
			if a.wanted[0].Relay != c.relay {
				t.Errorf("semaphore-relay: %v, want %v", a.wanted[0].Relay, c.relay)
			}
			if !c.relay && a.settings[0][inspect.RemotesFrom] != "" {
				t.Errorf("the settings make agents read from %s", a.settings[0][inspect.RemotesFrom])
			}
			proposed := slices.ContainsFunc(a.proposals(), func(f fault) bool {
				return f.cluster == "aws" && f.warning && strings.Contains(f.String(), "--relay=on")
			})
			if proposed != c.proposed {
				t.Errorf("proposed: %v, want %v", proposed, c.proposed)
			}
		})
	}
}

// TestRelayAlone: a relay that agents don't read yet stays, unless --relay says otherwise.
func TestRelayAlone(t *testing.T) {
	for flag, want := range map[string]bool{"": true, relayOff: false, relayOn: false} {
		aws, gcp := healthy(t, "aws", "10.2.0.0/16", "10.102.0.0/16", "10.66.1.2"), healthy(t, "gcp", "10.4.0.0/16", "10.104.0.0/16", "10.66.2.2")
		aws.Installed = inspect.Installed{Tools: []string{manifests.WireGuard}, Relay: true, Settings: inspect.Settings{"SEMAPHORE_CLUSTER_NAME": "aws"}}
		a := runOf(t, aws, gcp)
		a.Relay = flag
		if err := a.render(); err != nil {
			t.Fatal(err)
		}
		if got := a.wanted[0]; got.RelayAlone != want || got.Relay != (flag == relayOn) {
			t.Errorf("--relay=%s: %v, %v", flag, got.RelayAlone, got.Relay)
		}
	}
}

// TestOnePathIsEnough has nodes that don't reach the API server of gcp: with semaphore-relay one
// that does is enough.
func TestOnePathIsEnough(t *testing.T) {
	const first, second = "https://a.gcp.example:6443", "https://b.gcp.example:6443"
	reaches := func(servers ...string) reach.Result {
		r := reach.Result{Servers: map[string]string{first: "connection refused", second: "i/o timeout"}}
		for _, s := range servers {
			r.Servers[s] = ""
		}
		return r
	}
	for name, c := range map[string]struct {
		relay         bool
		nodes         probe.Answers
		have          string // in the settings of aws
		server, fault string
		warning       bool
	}{
		"direct, all":      {false, probe.Answers{"n1": reaches(first), "n2": reaches(first)}, "", first, "", false},
		"direct, one":      {false, probe.Answers{"n1": reaches(first), "n2": reaches()}, "", "", "not reached from node aws/n2: connection refused", false},
		"relay, all":       {true, probe.Answers{"n1": reaches(second), "n2": reaches(second)}, "", second, "", false},
		"relay, one":       {true, probe.Answers{"n1": reaches(second), "n2": reaches()}, "", second, "not reached from node aws/n2: i/o timeout", true},
		"relay, all first": {true, probe.Answers{"n1": reaches(first, second), "n2": reaches(second)}, "", second, "", false},
		"relay, none":      {true, probe.Answers{"n1": reaches(), "n2": reaches()}, "", "", "not reached from node aws/n1", false},
		"relay, as before": {true, probe.Answers{"n1": reaches(second), "n2": reaches()}, second, "", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			aws, gcp := healthy(t, "aws", "10.2.0.0/16", "10.102.0.0/16", "10.66.1.2"), healthy(t, "gcp", "10.4.0.0/16", "10.104.0.0/16", "10.66.2.2")
			gcp.Servers = []string{first, second}
			if c.have != "" {
				aws.Installed.Settings = inspect.Settings{"SEMAPHORE_REMOTES": "gcp", "SEMAPHORE_REMOTE_GCP_API_URL": c.have}
			}
			a := runOf(t, aws, gcp)
			a.Servers = map[string]string{}
			if c.relay {
				a.Relay = relayOn
			}
			if err := a.render(); err != nil {
				t.Fatal(err)
			}
			faults := a.choose(1, gcp, []probe.Answers{c.nodes, {}})
			if a.Servers["gcp"] != c.server || a.stays[[2]string{"aws", "gcp"}] != (c.have != "") {
				t.Errorf("it chooses %q, and keeps what it has: %v", a.Servers["gcp"], a.stays)
			}
			if c.fault == "" && len(faults) > 0 || c.fault != "" && (len(faults) != 1 || !strings.Contains(faults[0].String(), c.fault) || faults[0].warning != c.warning) {
				t.Errorf("faults %v, want %q", faults, c.fault)
			}
		})
	}
}

// TestCertificateOfAnotherAuthority has a remedy of its own for a certificate that doesn't verify.
func TestCertificateOfAnotherAuthority(t *testing.T) {
	aws, gcp := healthy(t, "aws", "10.2.0.0/16", "10.102.0.0/16", "10.66.1.2"), healthy(t, "gcp", "10.4.0.0/16", "10.104.0.0/16", "10.66.2.2")
	gcp.Servers = []string{"https://lb.gcp.example"}
	a := runOf(t, aws, gcp)
	a.Servers = map[string]string{}
	if err := a.render(); err != nil {
		t.Fatal(err)
	}
	for why, want := range map[string]string{
		"tls: failed to verify certificate: x509: certificate signed by unknown authority": "SEMAPHORE_REMOTE_GCP_CA_URL",
		"connection refused": "allow connections",
	} {
		nodes := probe.Answers{"n1": reach.Result{Servers: map[string]string{gcp.Servers[0]: why}}}
		if faults := a.choose(1, gcp, []probe.Answers{nodes, {}}); len(faults) != 1 || !strings.Contains(faults[0].remedy, want) || !strings.Contains(faults[0].remedy, "--api-server gcp=") {
			t.Errorf("%s: %v, want %q", why, faults, want)
		}
	}
	gcp.OtherCA = "CN=Public Root"
	if all := check(gcp, &a.InstallOptions, []string{"aws"}); len(all) != 1 || !all[0].warning || !strings.Contains(all[0].what, "CN=Public Root") {
		t.Errorf("faults %v", all)
	}
}

// object returns an object of semaphore-relay for a cluster: a node, or with a count.
func object(namespace, of string, content any) *unstructured.Unstructured {
	spec, name := map[string]any{"cluster": of}, v1alpha1.CountName(of)
	switch content := content.(type) {
	case string:
		spec["name"], name = content, v1alpha1.NodeName(of, content)
	case int:
		spec["count"] = int64(content)
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion().String(), "kind": v1alpha1.Kind, "spec": spec,
		"metadata": map[string]any{"name": name, "namespace": namespace, "labels": map[string]any{v1alpha1.ClusterLabel: of}},
	}}
}

func objects(all ...*unstructured.Unstructured) []*unstructured.Unstructured { return all }

// relayCluster returns a cluster with WireguardPeers and CRDs, and others.
func relayCluster(t *testing.T, objects []*unstructured.Unstructured, typed ...runtime.Object) *cli.Cluster {
	t.Helper()
	of := map[string]schema.GroupVersionResource{
		v1alpha1.Kind:              v1alpha1.GroupVersion().WithResource(v1alpha1.Resource),
		"CustomResourceDefinition": {Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
	}
	lists := map[schema.GroupVersionResource]string{}
	for kind, r := range of {
		lists[r] = kind + "List"
	}
	client := fakedynamic.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists)
	for _, o := range objects {
		// Its own plural of the kind isn't that of the CRD.
		if err := client.Tracker().Create(of[o.GetKind()], o.DeepCopy(), o.GetNamespace()); err != nil {
			t.Fatal(err)
		}
	}
	clientset := fake.NewClientset(typed...)
	if len(objects) > 0 {
		clientset.Resources = []*metav1.APIResourceList{{GroupVersion: v1alpha1.GroupVersion().String(), APIResources: []metav1.APIResource{{Name: v1alpha1.Resource, Kind: v1alpha1.Kind, Namespaced: true}}}}
	}
	return &cli.Cluster{Name: "aws", Access: cli.Access{Context: "aws"}, Client: clientset, Dynamic: client}
}

func lease(name string, renewed time.Time) *coordinationv1.Lease {
	at := metav1.NewMicroTime(renewed)
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: cli.Namespace, Labels: map[string]string{v1alpha1.ClusterLabel: strings.TrimPrefix(name, "relay-")}},
		Spec:       coordinationv1.LeaseSpec{RenewTime: &at},
	}
}

// TestStored waits for as many objects of a cluster as are counted.
func TestStored(t *testing.T) {
	count, n0, n1 := object(cli.Namespace, "gcp", 2), object(cli.Namespace, "gcp", "n0"), object(cli.Namespace, "gcp", "n1")
	for name, c := range map[string]struct {
		objects []*unstructured.Unstructured
		want    string // empty: it is stored
	}{
		"nothing":              {nil, "no objects"},
		"no count":             {objects(n0, n1), "the count of nodes is missing"},
		"an object is missing": {objects(count, n0), "1 of 2 nodes are missing"},
		"all":                  {objects(count, n0, n1), ""},
		"no nodes":             {objects(object(cli.Namespace, "gcp", 0)), ""},
	} {
		err := stored(t.Context(), relayCluster(t, c.objects), "gcp")
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
}

// TestRemoveRelay removes semaphore-relay with all that it has written, and nothing of others.
func TestRemoveRelay(t *testing.T) {
	labels := map[string]string{manifests.ManagedLabel: manifests.Manager}
	deployment := func(labels map[string]string) *appsv1.Deployment {
		return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: inspect.Relay, Namespace: cli.Namespace, Labels: labels}}
	}
	crd := func(labels map[string]string) *unstructured.Unstructured {
		o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "wireguardpeers.semaphore.uw.io"}}}
		o.SetLabels(labels)
		return o
	}
	node, other := object(cli.Namespace, "gcp", "n0"), object("elsewhere", "gcp", "n0")
	const all = "deployment crd gcp elsewhere relay-gcp semaphore-relay semaphore-policy"
	for name, c := range map[string]struct {
		objects []*unstructured.Unstructured
		typed   []runtime.Object
		want    string // that is left
	}{
		"ours":            {objects(crd(labels), node), []runtime.Object{deployment(labels)}, "semaphore-policy"},
		"interrupted":     {objects(crd(labels), node), nil, "semaphore-policy"},
		"not the CRD":     {objects(crd(nil), node), []runtime.Object{deployment(labels)}, "crd semaphore-policy"},
		"another one":     {objects(crd(labels), node, other), []runtime.Object{deployment(labels)}, "crd elsewhere semaphore-policy"},
		"not ours":        {objects(crd(nil), node, other), []runtime.Object{deployment(nil)}, all},
		"without the CRD": {nil, []runtime.Object{deployment(labels)}, "semaphore-policy"},
		"a CRD of others": {objects(crd(nil), node, other), nil, strings.TrimPrefix(all, "deployment ")},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := relayCluster(t, c.objects, append(c.typed, lease("relay-gcp", time.Now()), lease("semaphore-relay", time.Now()), lease("semaphore-policy", time.Now()))...)
			a := runOf(t)
			f := &inspect.Facts{Name: "aws", Installed: inspect.Installed{Relay: len(c.typed) > 0}}
			if err := a.removeRelay(t.Context(), cluster, f); err != nil {
				t.Fatal(err)
			}
			var left []string
			if _, err := cluster.Client.AppsV1().Deployments(cli.Namespace).Get(t.Context(), inspect.Relay, metav1.GetOptions{}); err == nil {
				left = append(left, "deployment")
			}
			if _, err := crds(cluster).Get(t.Context(), "wireguardpeers.semaphore.uw.io", metav1.GetOptions{}); err == nil {
				left = append(left, "crd")
			}
			if _, err := peers(cluster).Get(t.Context(), node.GetName(), metav1.GetOptions{}); err == nil {
				left = append(left, "gcp")
			}
			elsewhere := cluster.Dynamic.Resource(v1alpha1.GroupVersion().WithResource(v1alpha1.Resource)).Namespace("elsewhere")
			if _, err := elsewhere.Get(t.Context(), other.GetName(), metav1.GetOptions{}); err == nil {
				left = append(left, "elsewhere")
			}
			for _, lease := range []string{"relay-gcp", "semaphore-relay", "semaphore-policy"} {
				if _, err := cluster.Client.CoordinationV1().Leases(cli.Namespace).Get(t.Context(), lease, metav1.GetOptions{}); err == nil {
					left = append(left, lease)
				}
			}
			if got := strings.Join(left, " "); got != c.want {
				t.Errorf("left: %q, want %q", got, c.want)
			}
		})
	}
}

// TestNoRelayNoRights joins where the relay was never installed, with an account that may read
// neither Deployments nor CRDs.
func TestNoRelayNoRights(t *testing.T) {
	cluster := relayCluster(t, nil)
	refuse := func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("forbidden") }
	cluster.Client.(*fake.Clientset).PrependReactor("*", "deployments", refuse)
	cluster.Dynamic.(*fakedynamic.FakeDynamicClient).PrependReactor("*", "*", refuse)
	if err := runOf(t).removeRelay(t.Context(), cluster, &inspect.Facts{Name: "aws"}); err != nil {
		t.Error(err)
	}
}

// runOf returns a run for clusters with these facts.
func runOf(t *testing.T, facts ...*inspect.Facts) *installation {
	t.Helper()
	n := len(facts)
	a := &installation{
		Session: cli.NewSession(nil, t.Output(), t.Output()),
		facts:   facts, settings: make([]inspect.Settings, n), wanted: make([]*manifests.Cluster, n), objects: make([][]*unstructured.Unstructured, n),
		taken: make([]map[int]bool, n), stays: map[[2]string]bool{},
	}
	a.Image = "kube-semaphore:1"
	return a
}
