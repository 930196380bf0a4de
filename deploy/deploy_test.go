package deploy_test

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// Containers that use a folder of the host have a type that SELinux lets do that, and no
// others have.
func TestContainersWithHostPathsHaveAnSELinuxType(t *testing.T) {
	content, err := os.ReadFile("wireguard/daemonset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var agents appsv1.DaemonSet
	if err := yaml.UnmarshalStrict(content, &agents); err != nil {
		t.Fatal(err)
	}
	pod := agents.Spec.Template.Spec
	host := map[string]bool{}
	for _, v := range pod.Volumes {
		host[v.Name] = v.HostPath != nil
	}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		kind := ""
		if c.SecurityContext != nil && c.SecurityContext.SELinuxOptions != nil {
			kind = c.SecurityContext.SELinuxOptions.Type
		}
		if uses := slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return host[m.Name] }); !uses || kind != "spc_t" {
			t.Errorf("container %s: host paths %v, SELinux type %q", c.Name, uses, kind)
		}
	}
	for path, document := range documents(t) {
		if path != "wireguard/daemonset.yaml" && strings.Contains(document, "seLinuxOptions") {
			t.Errorf("%s sets an SELinux type", path)
		}
	}
}

// TestPodsGetNodesTheyCanRunOn checks each pod template: it selects Linux, a template that
// tolerates all taints keeps off nodes without a host, and the namespace has a quota for its
// priority class, without which some providers refuse critical pods.
func TestPodsGetNodesTheyCanRunOn(t *testing.T) {
	quotas, err := os.ReadFile("wireguard/quota.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for path, template := range templates(t) {
		pod := template.Spec
		if pod.NodeSelector[corev1.LabelOSStable] != "linux" {
			t.Errorf("%s: the nodes are those with %v", path, pod.NodeSelector)
		}
		if class := pod.PriorityClassName; class == "" || !strings.Contains(string(quotas), "values: ["+class+"]") {
			t.Errorf("%s: no quota for the priority class %q", path, class)
		}
		if !slices.ContainsFunc(pod.Tolerations, func(t corev1.Toleration) bool { return t.Key == "" && t.Operator == corev1.TolerationOpExists }) {
			continue
		}
		var avoided []string
		for _, term := range pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			for _, e := range term.MatchExpressions {
				avoided = append(avoided, e.Key+" "+string(e.Operator)+" "+strings.Join(e.Values, ","))
			}
		}
		if !slices.Equal(avoided, []string{"type NotIn virtual-kubelet", "eks.amazonaws.com/compute-type NotIn fargate"}) {
			t.Errorf("%s: it tolerates all taints, and avoids the nodes %q", path, avoided)
		}
	}
}

// TestCredentialsAreOnNodesOfTheControlPlane checks that all pods with credentials for remotes,
// or with a right to them, prefer these nodes, and may run there: a stolen node yields those of
// its pods. Only the agents are on every node.
func TestCredentialsAreOnNodesOfTheControlPlane(t *testing.T) {
	const role = "node-role.kubernetes.io/control-plane"
	for path, template := range templates(t) {
		if path == "wireguard/daemonset.yaml" {
			continue
		}
		pod := template.Spec
		if want := []corev1.Toleration{{Key: role, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}; !slices.Equal(pod.Tolerations, want) {
			t.Errorf("%s: it tolerates %v", path, pod.Tolerations)
		}
		want := &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
			Weight: 100, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: role, Operator: corev1.NodeSelectorOpExists}}},
		}}}
		if pod.Affinity == nil {
			t.Errorf("%s: no affinity", path)
		} else if diff := cmp.Diff(want, pod.Affinity.NodeAffinity); diff != "" {
			t.Errorf("%s: its preferred nodes (-want +got):\n%s", path, diff)
		}
	}
}

// TestNodesCanBeRemoved checks that no pod but those of DaemonSets, which cluster-autoscaler
// ignores, keeps it from removing a node by its local volumes.
func TestNodesCanBeRemoved(t *testing.T) {
	for path, template := range templates(t) {
		if path == "wireguard/daemonset.yaml" {
			continue
		}
		var local []string
		for _, v := range template.Spec.Volumes {
			if v.EmptyDir != nil || v.HostPath != nil {
				local = append(local, v.Name)
			}
		}
		if got := template.Annotations["cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"]; got != strings.Join(local, ",") {
			t.Errorf("%s: its local volumes are %q, those that may be evicted %q", path, local, got)
		}
	}
}

// TestMountedTokensExpire checks that each pod mounts one token, for an hour, in one container.
// API servers make a year of the lifetime that the kubelet requests by default.
func TestMountedTokensExpire(t *testing.T) {
	for path, template := range templates(t) {
		pod := template.Spec
		if pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken {
			t.Errorf("%s: it mounts the default token", path)
		}
		volumes := map[string]bool{}
		for _, v := range pod.Volumes {
			if v.Projected == nil {
				continue
			}
			for _, source := range v.Projected.Sources {
				if token := source.ServiceAccountToken; token != nil {
					volumes[v.Name] = true
					if token.ExpirationSeconds == nil || *token.ExpirationSeconds != 3600 {
						t.Errorf("%s: the token of volume %s doesn't last 3600 s", path, v.Name)
					}
				}
			}
		}
		var mounts []string
		for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
			for _, m := range c.VolumeMounts {
				if volumes[m.Name] {
					mounts = append(mounts, m.MountPath)
				}
			}
		}
		if !slices.Equal(mounts, []string{"/var/run/secrets/kubernetes.io/serviceaccount"}) {
			t.Errorf("%s: it mounts tokens at %q", path, mounts)
		}
	}
}

// TestVariablesAreNotSubstituted finds texts in which Flux would substitute variables, which
// empties unknown ones: only the dashboard has them, whose ConfigMap opts out.
func TestVariablesAreNotSubstituted(t *testing.T) {
	found := []string{}
	err := fs.WalkDir(os.DirFS("."), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || strings.HasSuffix(path, ".go") {
			return err
		}
		content, err := os.ReadFile(path)
		if strings.Contains(string(content), "${") {
			found = append(found, path)
		}
		return err
	})
	if err != nil || !slices.Equal(found, []string{"chart/files/dashboard.json", "observability/dashboard.json"}) {
		t.Errorf("variables in %q: %v", found, err)
	}
	const optOut = "kustomize.toolkit.fluxcd.io/substitute: disabled\n"
	for path, want := range map[string]string{
		"observability/kustomization.yaml": "\n      annotations:\n        " + optOut, "chart/templates/observability/configmaps.yaml": "\n  annotations:\n    " + optOut,
	} {
		if content, err := os.ReadFile(path); err != nil || !strings.Contains(string(content), want) {
			t.Errorf("%s doesn't opt out of substitution: %v", path, err)
		}
	}
}

// templates yields the pod templates of the bases, by file.
func templates(t *testing.T) func(yield func(path string, template corev1.PodTemplateSpec) bool) {
	return func(yield func(path string, template corev1.PodTemplateSpec) bool) {
		found := 0
		for path, document := range documents(t) {
			var workload struct {
				Kind string
				Spec struct {
					Template    corev1.PodTemplateSpec
					JobTemplate struct {
						Spec struct{ Template corev1.PodTemplateSpec }
					}
				}
			}
			if err := yaml.Unmarshal([]byte(document), &workload); err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			template := workload.Spec.Template
			if workload.Kind == "CronJob" {
				template = workload.Spec.JobTemplate.Spec.Template
			}
			if len(template.Spec.Containers) == 0 {
				continue
			}
			if found++; !yield(path, template) {
				return
			}
		}
		if found != 5 {
			t.Errorf("found %d pod templates", found)
		}
	}
}

// documents yields the objects of the folders for kubectl apply -k, by file.
func documents(t *testing.T) func(yield func(path, document string) bool) {
	return func(yield func(path, document string) bool) {
		for _, folder := range []string{"authenticated", "coredns", "networkd", "policy", "relay", "remote", "service-mirror", "tokens", "wireguard"} {
			err := fs.WalkDir(os.DirFS("."), folder, func(path string, entry fs.DirEntry, err error) error {
				if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".yaml") || strings.HasSuffix(path, "kustomization.yaml") {
					return err
				}
				content, err := os.ReadFile(path)
				for document := range strings.SplitSeq(string(content), "\n---\n") {
					if !yield(path, document) {
						return errEnough
					}
				}
				return err
			})
			if errors.Is(err, errEnough) {
				return
			}
			if err != nil {
				t.Error(err)
			}
		}
	}
}

var errEnough = errors.New("enough")
