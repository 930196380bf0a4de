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
