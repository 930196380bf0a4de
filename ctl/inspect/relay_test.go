package inspect

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	fakedynamic "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/wireguardpeers/v1alpha1"
)

// TestStored reads the newest resource version of each cluster's objects.
func TestStored(t *testing.T) {
	resource := v1alpha1.GroupVersion().WithResource(v1alpha1.Resource)
	client := fakedynamic.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{resource: "WireguardPeersList"})
	for _, o := range [][3]string{{"aws", "aws-nodes", "7"}, {"gcp", "gcp-nodes", "98"}, {"gcp", "gcp.n0", "100"}, {"gcp", "gcp.n1", "99"}, {"merit", "merit-nodes", "x"}, {"\x1b[2J", "x", "12"}} {
		object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": v1alpha1.GroupVersion().String(), "kind": v1alpha1.Kind, "metadata": map[string]any{
			"namespace": cli.Namespace, "name": o[1], "resourceVersion": o[2], "labels": map[string]any{v1alpha1.ClusterLabel: o[0]},
		}}}
		if err := client.Tracker().Create(resource, object, cli.Namespace); err != nil {
			t.Fatal(err)
		}
	}
	got, err := (&collector{access: &cli.Cluster{Dynamic: client}}).stored(t.Context())
	if diff := cmp.Diff(map[string]string{"aws": "7", "gcp": "100", "merit": "x"}, got); err != nil || diff != "" {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
}

// TestBehind compares what an agent has read with what was stored before.
func TestBehind(t *testing.T) {
	stored := map[string]string{"aws": "12", "gcp": "100"}
	for name, c := range map[string]struct {
		from   string
		read   map[string]string
		stored map[string]string
		want   []string
	}{
		"all":                 {RemotesFromRelay, map[string]string{"aws": "12", "gcp": "100"}, stored, nil},
		"written since":       {RemotesFromRelay, map[string]string{"aws": "12", "gcp": "1000"}, stored, nil},
		"older":               {RemotesFromRelay, map[string]string{"aws": "12", "gcp": "99"}, stored, []string{"gcp"}},
		"none":                {RemotesFromRelay, map[string]string{"aws": "", "gcp": ""}, stored, []string{"aws", "gcp"}},
		"nothing is stored":   {RemotesFromRelay, map[string]string{"aws": "12", "gcp": "100"}, nil, nil},
		"no number":           {RemotesFromRelay, map[string]string{"aws": "12", "gcp": "x"}, stored, nil},
		"direct reading":      {"api", nil, stored, nil},
		"a remote that isn't": {RemotesFromRelay, map[string]string{"aws": "12", "merit": ""}, stored, nil},
	} {
		agent := &statuspage.Agent{RemotesFrom: c.from, Relay: map[string]statuspage.RelayContact{}}
		for of, revision := range c.read {
			agent.Relay[of] = statuspage.RelayContact{Revision: revision}
		}
		if got := (&Cluster{Stored: Fact[map[string]string]{Value: c.stored}}).Behind(agent); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestRelayed finds out where installed agents read nodes.
func TestRelayed(t *testing.T) {
	program := func(name string, env ...corev1.EnvVar) corev1.PodTemplateSpec {
		return corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{programLabel: name}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{
				Env:     env,
				EnvFrom: []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "semaphore"}}}},
			}}},
		}
	}
	from := func(where string) corev1.EnvVar { return corev1.EnvVar{Name: RemotesFrom, Value: where} }
	for name, c := range map[string]struct {
		agents         corev1.PodTemplateSpec
		settings       map[string]string
		program        bool
		relay, relayed bool
	}{
		"direct":                       {program(WireGuard), nil, false, false, false},
		"the relay, not used":          {program(WireGuard), nil, true, true, false},
		"the component":                {program(WireGuard, from("relay")), nil, true, true, true},
		"the settings":                 {program(WireGuard), map[string]string{RemotesFrom: "relay"}, true, true, true},
		"the settings, and not agents": {program(WireGuard, from("api")), map[string]string{RemotesFrom: "relay"}, true, true, false},
		"the relay is gone":            {program(WireGuard, from("relay")), nil, false, false, true},
	} {
		labels := map[string]string{manifests.ManagedLabel: manifests.Manager}
		objects := []runtime.Object{
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: cli.Namespace}},
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "semaphore", Namespace: cli.Namespace}, Data: c.settings},
			&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: WireGuard, Namespace: cli.Namespace, Labels: labels}, Spec: appsv1.DaemonSetSpec{Template: c.agents}},
		}
		if c.program {
			objects = append(objects, &appsv1.Deployment{
				ObjectMeta: metav1.ObjectMeta{Name: Relay, Namespace: cli.Namespace}, Spec: appsv1.DeploymentSpec{Template: program(Relay, from("api"))},
			})
		}
		f := &Facts{}
		err := f.readInstalled(t.Context(), &cli.Cluster{Name: "aws", Client: fake.NewClientset(objects...)})
		got := f.Installed
		if err != nil || got.Relay != c.relay || got.Relayed != c.relayed || !slices.Equal(got.Tools, []string{manifests.WireGuard}) || (len(got.Foreign) > 0) != c.program {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}
