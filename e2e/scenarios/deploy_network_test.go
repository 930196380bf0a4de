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

// TestStrangersReachNoProbe checks the manifests: the ports that the NetworkPolicies of the two
// Deployments admit, and that the kubelet probes over a Unix socket inside each pod.
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
	// A port on the loopback could belong to another agent of the node, and clients can exhaust
	// any port.
	probed := func(pod *corev1.PodSpec) {
		t.Helper()
		c := &pod.Containers[0]
		for path, probe := range map[string]*corev1.Probe{"/healthz": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
			if want := append(slices.Clone(c.Command), "probe", path); probe.Exec == nil || !slices.Equal(probe.Exec.Command, want) {
				t.Errorf("%s is probed by %v, expected %q", c.Command, probe.ProbeHandler, want)
			}
		}
		socket := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "SEMAPHORE_PROBE_SOCKET" })
		mount := slices.IndexFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
			return socket >= 0 && m.MountPath == filepath.Dir(c.Env[socket].Value) && !m.ReadOnly
		})
		if mount < 0 || !slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool {
			return v.Name == c.VolumeMounts[mount].Name && v.EmptyDir != nil
		}) {
			t.Errorf("%s has no folder of its own for its socket", c.Command)
		}
	}
	for _, name := range []string{"service-mirror", "policy", "relay"} {
		var deployment appsv1.Deployment
		var policy networkingv1.NetworkPolicy
		read(name+"/deployment.yaml", &deployment)
		read(name+"/networkpolicy.yaml", &policy)
		container := &deployment.Spec.Template.Spec.Containers[0]
		probed(&deployment.Spec.Template.Spec)
		if diff := cmp.Diff(map[string]int32{"status": 8080}, ports(container)); diff != "" {
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
	// A host port would block the next agent during a rollout.
	var agents appsv1.DaemonSet
	read("wireguard/daemonset.yaml", &agents)
	agent := &agents.Spec.Template.Spec.Containers[0]
	if len(agent.Ports) > 0 {
		t.Errorf("the agent declares %v", agent.Ports)
	}
	probed(&agents.Spec.Template.Spec)
}
