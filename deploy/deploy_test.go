package deploy_test

import (
	"io/fs"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/kube-semaphore/deploy"
)

// Containers that use a folder of the host have a type that SELinux lets do that, and no
// others have.
func TestContainersWithHostPathsHaveAnSELinuxType(t *testing.T) {
	content, err := fs.ReadFile(deploy.Files, "wireguard/daemonset.yaml")
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
	err = fs.WalkDir(deploy.Files, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || path == "wireguard/daemonset.yaml" {
			return err
		}
		content, err := fs.ReadFile(deploy.Files, path)
		if strings.Contains(string(content), "seLinuxOptions") {
			t.Errorf("%s sets an SELinux type", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestPodsGetNodesTheyCanRunOn checks each pod template: it selects Linux, a template that
// tolerates all taints keeps off nodes without a host, and the namespace has a quota for its
// priority class, without which some providers refuse critical pods.
func TestPodsGetNodesTheyCanRunOn(t *testing.T) {
	quotas, err := fs.ReadFile(deploy.Files, "wireguard/quota.yaml")
	if err != nil {
		t.Fatal(err)
	}
	templates := 0
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
		pod := workload.Spec.Template.Spec
		if workload.Kind == "CronJob" {
			pod = workload.Spec.JobTemplate.Spec.Template.Spec
		}
		if len(pod.Containers) == 0 {
			continue
		}
		templates++
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
	if templates < 4 {
		t.Errorf("found %d pod templates", templates)
	}
}

// documents yields the objects of the bases, by file.
func documents(t *testing.T) func(yield func(path, document string) bool) {
	return func(yield func(path, document string) bool) {
		err := fs.WalkDir(deploy.Files, ".", func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".yaml") || strings.HasSuffix(path, "kustomization.yaml") {
				return err
			}
			content, err := fs.ReadFile(deploy.Files, path)
			for document := range strings.SplitSeq(string(content), "\n---\n") {
				if !yield(path, document) {
					return fs.SkipAll
				}
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}
