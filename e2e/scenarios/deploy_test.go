package scenarios_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
)

// deployFolder is the folder with our manifests.
func deployFolder(t *testing.T) string {
	t.Helper()
	root, err := tools.Root(t.Context())
	must(t, err)
	return filepath.Join(root, "deploy")
}

// kustomizations returns every folder below deploy that can be applied: those
// with a kustomization that isn't a component of others.
func kustomizations(t *testing.T) []string {
	t.Helper()
	var folders []string
	must(t, filepath.WalkDir(deployFolder(t), func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Base(path) != "kustomization.yaml" {
			return err
		}
		content, err := os.ReadFile(path)
		if err == nil && !strings.Contains(string(content), "kind: Component") {
			folders = append(folders, filepath.Dir(path))
		}
		return err
	}))
	if len(folders) < 8 {
		t.Fatalf("found only the kustomizations %q", folders)
	}
	return folders
}

// startCluster starts one cluster without nodes that has our namespace.
func startCluster(t *testing.T, args ...string) *testbed.Cluster {
	t.Helper()
	tb := testbed.Start(t, testbed.Config{})
	cluster, err := tb.StartCluster(within(t, 2*time.Minute), testbed.ClusterConfig{Name: "aws", APIServerArgs: args})
	must(t, err)
	must(t, cluster.Apply(t.Context(), filepath.Join(deployFolder(t), "wireguard", "namespace.yaml")))
	return cluster
}

// TestManifestsAreValid has a real API server check every object, unknown fields
// and admission included, and writes none of them.
func TestManifestsAreValid(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	for _, folder := range kustomizations(t) {
		name, err := filepath.Rel(deployFolder(t), folder)
		must(t, err)
		t.Run(name, func(t *testing.T) {
			out, err := cluster.Kubectl(t.Context(), "apply", "--server-side", "--dry-run=server", "--validate=strict", "-k", folder)
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if strings.Contains(out, "Warning") {
				t.Errorf("the API server warns:\n%s", out)
			}
		})
	}
}

// TestExamplesAgree checks that each side of the example is configured for the other one:
// swapping the names makes one out of the other.
func TestExamplesAgree(t *testing.T) {
	swap := strings.NewReplacer("aws", "gcp", "gcp", "aws", "AWS", "GCP", "GCP", "AWS",
		"10.2.", "10.4.", "10.4.", "10.2.", "10:2:", "10:4:", "10:4:", "10:2:",
		"10.66.1.", "10.66.2.", "10.66.2.", "10.66.1.", "66::1:", "66::2:", "66::2:", "66::1:")
	read := func(folder string) string {
		var all []string
		must(t, filepath.WalkDir(filepath.Join(deployFolder(t), "example", folder), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			content, err := os.ReadFile(path)
			all = append(all, string(content))
			return err
		}))
		return strings.Join(all, "\n---\n")
	}
	for _, suffix := range []string{"", "-cleanup", "-moving"} {
		if diff := cmp.Diff(swap.Replace(read("aws"+suffix)), read("gcp"+suffix)); diff != "" {
			t.Errorf("aws%s with the names swapped, and gcp%s (-aws +gcp):\n%s", suffix, suffix, diff)
		}
	}
}

// TestControllersAreRestricted checks that a namespace with the restricted Pod Security
// Standard admits all pods but the agents'.
func TestControllersAreRestricted(t *testing.T) {
	cluster := startCluster(t)
	_, err := cluster.Kubectl(t.Context(), "label", "--overwrite", "namespace", systemNamespace, "pod-security.kubernetes.io/enforce=restricted")
	must(t, err)
	template := func(folder, kind string) *corev1.Pod {
		t.Helper()
		out, err := cluster.Kubectl(t.Context(), "kustomize", filepath.Join(deployFolder(t), folder))
		must(t, err)
		for document := range strings.SplitSeq(out, "\n---\n") {
			if !strings.Contains(document, "\nkind: "+kind+"\n") {
				continue
			}
			var workload struct {
				Spec struct {
					Template    corev1.PodTemplateSpec
					JobTemplate struct {
						Spec struct{ Template corev1.PodTemplateSpec }
					}
				}
			}
			must(t, yaml.Unmarshal([]byte(document), &workload))
			template := workload.Spec.Template
			if kind == "CronJob" {
				template = workload.Spec.JobTemplate.Spec.Template
			}
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "pod-", Labels: template.Labels}, Spec: template.Spec}
		}
		t.Fatalf("%s has no %s", folder, kind)
		return nil
	}
	pods := cluster.Client().CoreV1().Pods(systemNamespace)
	for folder, kind := range map[string]string{"service-mirror": "Deployment", "policy": "Deployment", "relay": "Deployment", "tokens": "CronJob"} {
		_, err := pods.Create(t.Context(), template(folder, kind), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			t.Errorf("%s: %v", folder, err)
		}
	}
	// It refuses the agent, so the standard is enforced.
	_, err = pods.Create(t.Context(), template("wireguard", "DaemonSet"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err == nil || !strings.Contains(err.Error(), "violates PodSecurity") {
		t.Errorf("the agent: %v, expected a violation", err)
	}
}
