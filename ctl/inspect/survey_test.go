package inspect

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
)

// TestHostileNames lists nodes and pods with invalid names: none becomes a word of a printed
// command, where "--kubeconfig=" would be an option.
func TestHostileNames(t *testing.T) {
	for name, valid := range map[string]bool{
		"ip-10-0-0-1.eu-west-1.compute.internal": true, `--kubeconfig=\\evil.example\s\k`: false, "-n": false, "n; reboot '": false, "\x1b[2J": false,
		strings.Repeat("n", 254): false,
	} {
		object := metav1.ObjectMeta{Name: name, Namespace: cli.Namespace}
		pod := metav1.ObjectMeta{Name: "agent", Namespace: cli.Namespace}
		client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, &corev1.Pod{ObjectMeta: object})
		placed := fake.NewClientset(&corev1.Pod{ObjectMeta: pod, Spec: corev1.PodSpec{NodeName: name}})
		nodes, err := (&collector{client: client}).nodes(t.Context())
		pods, errPods := (&collector{client: client}).pods(t.Context())
		on, errPlaced := (&collector{client: placed}).pods(t.Context())
		if valid {
			if len(nodes) != 1 || len(pods) != 1 || len(on) != 1 || err != nil || errPods != nil || errPlaced != nil {
				t.Errorf("%.80q: %v, %v, %v", name, err, errPods, errPlaced)
			}
			continue
		}
		for want, err := range map[string]error{"a Node: metadata.name: ": err, "a Pod: metadata.name: ": errPods, "Pod agent: spec.nodeName: ": errPlaced} {
			if want += fmt.Sprintf("%.80q", name); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("no %s in %v", want, err)
			}
		}
		if len(nodes)+len(pods)+len(on) > 0 {
			t.Errorf("%.80q: a partial list is returned", name)
		}
	}
}

// TestNodesWithoutAgents leaves out nodes on which the DaemonSet puts no pod, so that nothing is
// expected of them.
func TestNodesWithoutAgents(t *testing.T) {
	node := func(name, system string, labels map[string]string) *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{OperatingSystem: system}},
		}
	}
	c := collector{client: fake.NewClientset(
		node("linux", "linux", nil), node("new", "", nil), node("windows", "windows", nil),
		node("virtual", "linux", map[string]string{"type": "virtual-kubelet"}),
		node("fargate", "linux", map[string]string{"eks.amazonaws.com/compute-type": "fargate"}),
		node("ec2", "linux", map[string]string{"eks.amazonaws.com/compute-type": "ec2"}),
	)}
	nodes, err := c.nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, n := range nodes {
		names = append(names, n.Name)
	}
	if got := strings.Join(names, " "); got != "ec2 linux new" {
		t.Errorf("nodes with agents: %s", got)
	}
}

// TestSettingsByTheirName reads the settings of programs that kustomize or Helm has rendered, which
// append a sum to the ConfigMap's name, beside one that is left over.
func TestSettingsByTheirName(t *testing.T) {
	settings := func(name, value string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: cli.Namespace}, Data: map[string]string{MirrorSetting: value}}
	}
	program := corev1.Container{EnvFrom: []corev1.EnvFromSource{
		{SecretRef: &corev1.SecretEnvSource{}},
		{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "semaphore-4f6b2"}}},
	}}
	client := fake.NewClientset(settings("semaphore", "old"), settings("semaphore-4f6b2", "team=a"), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "semaphore-service-mirror", Namespace: cli.Namespace, Labels: map[string]string{"app.kubernetes.io/part-of": "kube-semaphore"}},
		Spec:       appsv1.DeploymentSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{program}}}},
	})
	got := Collect(t.Context(), []*cli.Cluster{{Client: client}}, Programs)[0].Settings.Value
	if got[MirrorSetting] != "team=a" {
		t.Errorf("settings %q", got)
	}
}

// TestKubectl checks that an object's name is one word of a command that people paste into a
// shell.
func TestKubectl(t *testing.T) {
	c := &Cluster{Access: cli.Access{Context: "prod eu"}}
	got := c.Kubectl("-n %s get node %s -o yaml", "sys-semaphore", "n; reboot '")
	if want := `kubectl --context 'prod eu' -n sys-semaphore get node 'n; reboot '\''' -o yaml`; got != want {
		t.Errorf("%s, expected %s", got, want)
	}
	if got := c.Kubectl("describe node %s", `--kubeconfig=\\evil.example\s\k`); strings.Contains(got, "kubeconfig") {
		t.Errorf("a name is an option: %s", got)
	}
}

// TestReportsAreBounded weighs reports of agents with 10,000 peers, with a million, and more
// reports than a cluster may have.
func TestReportsAreBounded(t *testing.T) {
	peer := `{"node":"ip-10-0-0-1.eu-west-1.compute.internal","publicKey":"` + strings.Repeat("k", 44) + `","endpoint":"10.66.0.1:51820","allowedIPs":["10.4.1.0/24","fd00:4::/64","fe80::1/128"],` +
		`"health":"up","path":{"state":"up","since":"2026-01-02T03:04:05Z","sign":"answer","answers":true,"smallOnly":false,"rtt":0.001},` +
		`"lastHandshake":"2026-01-02T03:04:05Z","lastHeard":"2026-01-02T03:04:05Z","rxBytes":1234567,"txBytes":1234567},`
	report := func(peer string, n int) []byte {
		return []byte(`{"version":"v1","remotes":[{"name":"gcp","peers":[` + strings.TrimSuffix(strings.Repeat(peer, n), ",") + `]}]}`)
	}
	var honest collector
	if err := honest.weigh(report(peer, 10_000)); err != nil {
		t.Error(err)
	}
	var hostile collector
	if err := hostile.weigh(report("{},", 1<<20)); err == nil || !strings.Contains(err.Error(), "too much memory") {
		t.Errorf("a million peers: %v", err)
	}
	large := report("{},", 60_000)
	var err error
	for n := 0; err == nil; n++ {
		if err = hostile.weigh(large); n > 1000 {
			t.Fatal("a cluster's reports have no bound")
		}
	}
	if !strings.Contains(err.Error(), "reports of this cluster") {
		t.Error(err)
	}
}

// TestPathsAreBounded surveys clusters with too many pairs of nodes.
func TestPathsAreBounded(t *testing.T) {
	of := func(nodes int) *Cluster {
		c := &Cluster{}
		c.Nodes.Value = make([]Node, nodes)
		return c
	}
	for _, tt := range []struct{ nodes, want []int }{
		{[]int{10_000, 200}, []int{10_000, 200}}, {[]int{1000, 1000}, []int{1000, 1000}}, {[]int{20_000, 0}, []int{20_000, 0}},
		{[]int{20_000, 3}, []int{20_000, 3}}, {[]int{20_000, 500, 400}, []int{0, 500, 400}}, {[]int{400, 20_000, 20_000}, []int{400, 0, 0}},
	} {
		var clusters []*Cluster
		for _, n := range tt.nodes {
			clusters = append(clusters, of(n))
		}
		BoundPaths(clusters)
		for i, c := range clusters {
			if len(c.Nodes.Value) != tt.want[i] || c.Nodes.Known() != (tt.want[i] == tt.nodes[i]) {
				t.Errorf("%d: cluster %d has %d nodes, %s", tt.nodes, i, len(c.Nodes.Value), c.Nodes.Err)
			}
		}
	}
}
