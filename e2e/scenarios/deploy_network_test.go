package scenarios_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// TestStrangersReachNoProbe checks the ports in the manifests: those that the NetworkPolicies
// of the two Deployments admit, those of the kubelet's probes, and that all of them exist.
func TestStrangersReachNoProbe(t *testing.T) {
	read := func(name string, object any) {
		t.Helper()
		file, err := os.Open(filepath.Join(deployFolder(t), name))
		must(t, err)
		defer func() { _ = file.Close() }() // Only read.
		must(t, yaml.NewYAMLOrJSONDecoder(file, 4096).Decode(object))
	}
	ports := func(c *corev1.Container) map[string]int32 {
		byName := map[string]int32{}
		for _, p := range c.Ports {
			byName[p.Name] = p.ContainerPort
		}
		return byName
	}
	probed := func(c *corev1.Container, host string) {
		t.Helper()
		for _, probe := range []*corev1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
			if probe != nil && (probe.HTTPGet.Port.StrVal != "probe" || probe.HTTPGet.Host != host) {
				t.Errorf("%s is probed at %q port %s", c.Command, probe.HTTPGet.Host, &probe.HTTPGet.Port)
			}
		}
	}
	for _, name := range []string{"service-mirror", "policy"} {
		var deployment appsv1.Deployment
		var policy networkingv1.NetworkPolicy
		read(name+"/deployment.yaml", &deployment)
		read(name+"/networkpolicy.yaml", &policy)
		container := &deployment.Spec.Template.Spec.Containers[0]
		probed(container, "")
		if diff := cmp.Diff(map[string]int32{"status": 8080, "probe": 8081}, ports(container)); diff != "" {
			t.Errorf("%s: ports (-want +got):\n%s", name, diff)
		}
		selector, err := metav1.LabelSelectorAsSelector(&policy.Spec.PodSelector)
		must(t, err)
		if !selector.Matches(labels.Set(deployment.Spec.Template.Labels)) || policy.Namespace != deployment.Namespace {
			t.Errorf("%s: its policy selects %s in %s, which it isn't", name, selector, policy.Namespace)
		}
		if !slices.Equal(policy.Spec.PolicyTypes, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}) || len(policy.Spec.Ingress) != 1 {
			t.Fatalf("%s: policy %+v", name, policy.Spec)
		}
		rule := policy.Spec.Ingress[0]
		if len(rule.Ports) != 1 || rule.Ports[0].Port.StrVal != "status" {
			t.Errorf("%s: lets in to %v", name, rule.Ports)
		}
		want := []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"semaphore.uw.io/scrape": "true"}}}}
		if diff := cmp.Diff(want, rule.From); diff != "" {
			t.Errorf("%s: lets in (-want +got):\n%s", name, diff)
		}
	}
	// A host port would block the next agent during a rollout, and a port on the loopback
	// could belong to either agent.
	var agents appsv1.DaemonSet
	read("wireguard/daemonset.yaml", &agents)
	agent := &agents.Spec.Template.Spec.Containers[0]
	if len(agent.Ports) > 0 {
		t.Errorf("the agent declares %v", agent.Ports)
	}
	for path, probe := range map[string]*corev1.Probe{"/healthz": agent.LivenessProbe, "/readyz": agent.ReadinessProbe} {
		if want := append(slices.Clone(agent.Command), "probe", path); probe.Exec == nil || !slices.Equal(probe.Exec.Command, want) {
			t.Errorf("the agent is probed by %v, expected %q", probe.ProbeHandler, want)
		}
	}
}
