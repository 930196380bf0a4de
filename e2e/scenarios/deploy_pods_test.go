package scenarios_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/peers"
)

// podsRole is the role of the components in deploy/wireguard/pods.
const podsRole = "semaphore-wireguard-pods"

var (
	nativeAffinities = schema.GroupVersionResource{Group: "projectcalico.org", Version: "v3", Resource: "blockaffinities"}
	ciliumNodes      = schema.GroupVersionResource{Group: "cilium.io", Version: "v2", Resource: "ciliumnodes"}
)

// sourced is a cluster with one node, on which agents run as the example deploys them
// with one of the components for network plugins.
type sourced struct {
	cluster *testbed.Cluster
	node    *testbed.Node
	audit   string
	agent   *runningPod
}

// TestPodComponents adds each component for a network plugin to the example, as documented,
// and checks that the agent publishes the plugin's prefixes and their changes, with the rights
// of the component only.
func TestPodComponents(t *testing.T) {
	t.Parallel()
	s := &sourced{audit: filepath.Join(t.TempDir(), "audit.log")}
	s.cluster = startCluster(t, auditArgs(t, s.audit)...)
	publishAuthority(t, s.cluster)
	var err error
	s.node, err = s.cluster.AddNode(t.Context(), testbed.NodeConfig{})
	must(t, err)
	for _, c := range []struct {
		name, component string
		run             func(*testing.T)
	}{
		{"Calico", "calico", s.calico},
		{"Cilium", "cilium", s.cilium},
		{"the pods themselves", "pods", s.pods},
		{"OVN-Kubernetes", "", s.ovn},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.deploy(t, c.component)
			since := time.Now()
			c.run(t)
			must(t, s.agent.Stop(within(t, time.Minute)))
			others := func(r right, _ bool) bool {
				kind, _, _ := strings.Cut(r.resource, ".")
				return r.account != programs.WireGuard || !slices.Contains([]string{"pods", "blockaffinities", "ciliumnodes"}, kind)
			}
			granted := granted(t, s.cluster)
			maps.DeleteFunc(granted, others)
			var used map[right]bool
			// A watch is in the log a moment after its end.
			eventually(t, repair, "all that the agent asked for to be in the log", func(context.Context) error {
				used = usedSince(t, since, s.audit)
				maps.DeleteFunc(used, others)
				for g := range granted {
					if len(g.namesUsed(used)) == 0 {
						return fmt.Errorf("granted, and not used: %v", g)
					}
				}
				return nil
			})
			if (len(granted) > 0) != (c.component != "") {
				t.Errorf("granted: %v", granted)
			}
			compareRights(t, granted, used)
		})
	}
}

// deploy applies the example with a component, or without one, and waits until the API
// server knows the rights.
func (s *sourced) deploy(t *testing.T, component string) {
	t.Helper()
	root := t.TempDir()
	must(t, os.CopyFS(root, os.DirFS(deployFolder(t))))
	folder := filepath.Join(root, "example", s.cluster.Name)
	if component != "" {
		file, err := os.OpenFile(filepath.Join(folder, "kustomization.yaml"), os.O_APPEND|os.O_WRONLY, 0)
		must(t, err)
		_, err = fmt.Fprintf(file, "components: [../../wireguard/pods/%s]\n", component)
		must(t, errors.Join(err, file.Close()))
	}
	_, err := s.cluster.Kubectl(t.Context(), "delete", "--ignore-not-found", "clusterrole,clusterrolebinding", podsRole)
	must(t, err)
	out, err := s.cluster.Kubectl(t.Context(), "apply", "--server-side", "--force-conflicts", "--validate=strict", "-k", folder)
	if err != nil || strings.Contains(out, "Warning") {
		t.Fatalf("%v\n%s", err, out)
	}
	want := map[string]string{"calico": "blockaffinities.crd.projectcalico.org", "cilium": "ciliumnodes.cilium.io", "pods": "pods"}[component]
	for resource, allowed := range map[string]bool{"nodes": true, want: true, "pods": component == "calico" || component == "pods"} {
		if resource == "" {
			continue
		}
		name, group, _ := strings.Cut(resource, ".")
		must(t, s.cluster.AwaitRight(t.Context(), systemNamespace, programs.WireGuard,
			authorizationv1.ResourceAttributes{Verb: "watch", Group: group, Resource: name}, allowed))
	}
}

// start starts an agent as it is deployed, instead of the previous one, whose published
// annotations are removed.
func (s *sourced) start(t *testing.T) {
	t.Helper()
	if s.agent != nil && s.agent.Running() {
		must(t, s.agent.Stop(within(t, time.Minute)))
	}
	must(t, s.node.Patch(t.Context(), fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, peers.PodCIDRsAnnotation)))
	set, err := s.cluster.Client().AppsV1().DaemonSets(systemNamespace).Get(t.Context(), programs.WireGuard, metav1.GetOptions{})
	must(t, err)
	// The remote doesn't exist.
	k := &kubelet{node: s.node, override: map[string]string{programs.Variable("gcp", "API_URL"): s.cluster.APIURL()}}
	s.agent = k.run(t, fmt.Sprintf("agent-%d", time.Now().UnixNano()), &set.Spec.Template)
}

func (s *sourced) testdata(t *testing.T, file string) string {
	t.Helper()
	return filepath.Join(filepath.Dir(deployFolder(t)), "peers", "pods", "testdata", file)
}

func (s *sourced) create(t *testing.T, resource schema.GroupVersionResource, object *unstructured.Unstructured) {
	t.Helper()
	_, err := s.cluster.Dynamic().Resource(resource).Create(t.Context(), object, metav1.CreateOptions{})
	must(t, err)
}

// pod adds one to the node.
func (s *sourced) pod(t *testing.T, name, address string) {
	t.Helper()
	_, err := s.node.AddPod(t.Context(), testbed.PodConfig{
		Name: name, Addresses: []netip.Addr{netip.MustParseAddr(address)}, Object: &corev1.Pod{},
	})
	must(t, err)
}

// calico serves first only the older one of Calico's API groups, then both, then only the
// newer one, as in a migration.
func (s *sourced) calico(t *testing.T) {
	v1, v3 := blockAffinities, nativeAffinities
	must(t, s.cluster.Apply(t.Context(), s.testdata(t, "calico-v1.yaml")))
	s.create(t, v1, affinity(v1, s.node.Name, "10.2.100.0/26"))
	s.create(t, v1, affinity(v1, "aws-another", "10.2.103.0/26"))
	s.pod(t, "borrowed", "10.2.103.9")
	s.start(t)
	waitPrefixes(t, s.node, "10.2.100.0/26,10.2.103.9/32")
	s.create(t, v1, affinity(v1, s.node.Name, "10.2.101.0/26"))
	waitPrefixes(t, s.node, "10.2.100.0/26,10.2.101.0/26,10.2.103.9/32")
	s.pod(t, "another", "10.2.103.11")
	waitPrefixes(t, s.node, "10.2.100.0/26,10.2.101.0/26,10.2.103.9/32,10.2.103.11/32")

	must(t, s.cluster.Apply(t.Context(), s.testdata(t, "calico-v3.yaml")))
	s.start(t)
	waitPrefixes(t, s.node, "10.2.100.0/26,10.2.101.0/26,10.2.103.9/32,10.2.103.11/32")

	s.create(t, v3, affinity(v3, s.node.Name, "10.2.100.0/26"))
	s.create(t, v3, affinity(v3, s.node.Name, "10.2.103.0/26"))
	s.start(t)
	waitPrefixes(t, s.node, "10.2.100.0/26,10.2.103.0/26")

	_, err := s.cluster.Kubectl(t.Context(), "delete", "-f", s.testdata(t, "calico-v1.yaml"))
	must(t, err)
	s.start(t)
	waitPrefixes(t, s.node, "10.2.100.0/26,10.2.103.0/26")
	s.create(t, v3, affinity(v3, s.node.Name, "10.2.104.0/26"))
	waitPrefixes(t, s.node, "10.2.100.0/26,10.2.103.0/26,10.2.104.0/26")
}

func (s *sourced) cilium(t *testing.T) {
	must(t, s.cluster.Apply(t.Context(), s.testdata(t, "cilium.yaml")))
	node := func(name, ipam string) *unstructured.Unstructured {
		t.Helper()
		u := &unstructured.Unstructured{}
		must(t, u.UnmarshalJSON([]byte(fmt.Sprintf(`{"apiVersion":"cilium.io/v2","kind":"CiliumNode","metadata":{"name":%q},"spec":{"ipam":%s}}`, name, ipam))))
		return u
	}
	s.create(t, ciliumNodes, node("aws-another", `{"podCIDRs":["10.2.150.0/24"]}`))
	s.create(t, ciliumNodes, node(s.node.Name, `{"podCIDRs":["10.2.151.0/24","fd00:10:2:151::/64"]}`))
	s.start(t)
	waitPrefixes(t, s.node, "10.2.151.0/24,fd00:10:2:151::/64")
	_, err := s.cluster.Dynamic().Resource(ciliumNodes).Patch(t.Context(), s.node.Name, "application/merge-patch+json",
		[]byte(`{"spec":{"ipam":{"podCIDRs":null,"pools":{"allocated":[{"pool":"default","cidrs":["10.2.160.0/27","10.2.152.0/27"]}]}}}}`), metav1.PatchOptions{})
	must(t, err)
	waitPrefixes(t, s.node, "10.2.152.0/27,10.2.160.0/27")
}

func (s *sourced) pods(t *testing.T) {
	s.start(t)
	waitPrefixes(t, s.node, "10.2.103.9/32,10.2.103.11/32")
	s.pod(t, "neighbour", "10.2.103.10")
	waitPrefixes(t, s.node, "10.2.103.9/32,10.2.103.10/31")
	finish(t, s.cluster, "neighbour")
	waitPrefixes(t, s.node, "10.2.103.9/32,10.2.103.11/32")
}

// ovn needs no further right, and no setting.
func (s *sourced) ovn(t *testing.T) {
	annotate := func(value string) {
		t.Helper()
		must(t, s.node.Patch(t.Context(), fmt.Sprintf(`{"metadata":{"annotations":{"k8s.ovn.org/node-subnets":%q}}}`, value)))
	}
	annotate(`{"default":["10.2.170.0/23","fd00:10:2:170::/64"],"blue":["10.9.0.0/24"]}`)
	s.start(t)
	waitPrefixes(t, s.node, "10.2.170.0/23,fd00:10:2:170::/64")
	annotate(`{"default":"10.2.172.0/23"}`)
	waitPrefixes(t, s.node, "10.2.172.0/23")
}
