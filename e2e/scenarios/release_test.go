package scenarios_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/join"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

// TestRelease joins two clusters, of which an earlier semaphorectl has joined aws with merit without Helm, and
// gcp was installed with kubectl. It upgrades the release with helm, and leaves: with interruptions after each
// step.
func TestRelease(t *testing.T) {
	t.Parallel()
	nstest.Root(t)
	helm := helm(t)
	tb, clusters := startTwo(t)
	aws := clusters[0]
	for _, c := range clusters {
		// Of others: no controller runs here that would complete a namespace's deletion.
		_, err := c.Client().CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: systemNamespace}}, metav1.CreateOptions{})
		must(t, err)
	}
	before := everything(t, clusters)
	rollOut(t, clusters)
	const image = "registry.example/kube-semaphore:v1.2.3"
	withoutHelm(t, aws, "merit", image, "--server-side", "--field-manager=semaphorectl")
	withoutHelm(t, clusters[1], "aws", image)
	agents := func(c *testbed.Cluster) *appsv1.DaemonSet {
		t.Helper()
		set, err := c.Client().AppsV1().DaemonSets(systemNamespace).Get(t.Context(), "semaphore-wireguard", metav1.GetOptions{})
		must(t, err)
		return set
	}
	old := []*appsv1.DaemonSet{agents(aws), agents(clusters[1])}

	s := &steps{clusters: clusters, options: join.Options{InstallOptions: join.InstallOptions{
		Image: image, Tools: []string{manifests.WireGuard, manifests.Mirror}, MultiCluster: true,
		Pods: map[string][]netip.Prefix{"aws": aws.PodSubnets, "gcp": clusters[1].PodSubnets},
	}, NoProbe: true, Yes: true, Adopt: true}}
	s.each(t, join.Join)
	for i, c := range clusters {
		now, settings := agents(c), regexp.MustCompile(`semaphore-[0-9a-z]{10}`)
		template := func(set *appsv1.DaemonSet) string {
			text, err := yaml.Marshal(set.Spec.Template)
			must(t, err)
			return settings.ReplaceAllString(string(text), "SETTINGS")
		}
		if diff := cmp.Diff(template(old[i]), template(now)); diff != "" || now.UID != old[i].UID {
			t.Errorf("%s: the agents were replaced, or have more than other settings (-before +after):\n%s", c.Name, diff)
		}
		if now.Labels[manifests.ManagedLabel] != "Helm" || now.Annotations["example.com/formerly"] != "" {
			t.Errorf("%s: the agents have the labels %v and the annotations %v", c.Name, now.Labels, now.Annotations)
		}
		for _, e := range now.ManagedFields {
			if e.Manager != "helm" && e.Subresource == "" && e.Manager != "e2e.test" {
				t.Errorf("%s: %s still has fields of the agents: %s", c.Name, e.Manager, e.FieldsV1)
			}
		}
	}
	joined := everything(t, clusters)
	for name, c := range map[string]bool{
		"aws serviceaccounts sys-semaphore/semaphore-wireguard-remote-merit": true, "aws serviceaccounts sys-semaphore/semaphore-wireguard-remote-gcp": true,
		"gcp deployments.apps sys-semaphore/semaphore-service-mirror": true, "aws secrets sys-semaphore/semaphore-wireguard-remotes": true,
		"aws deployments.apps sys-semaphore/semaphore-policy": false,
	} {
		if (joined[name] != nil) != c {
			t.Errorf("%s: %v", name, joined[name])
		}
	}
	configMaps := 0
	for name := range joined {
		if strings.HasPrefix(name, "aws configmaps sys-semaphore/semaphore-") {
			configMaps++
		}
	}
	if configMaps != 1 {
		t.Errorf("%d ConfigMaps with settings", configMaps)
	}
	noTokens(t, clusters)

	t.Run("again, nothing changes", func(t *testing.T) {
		was := revisions(t, clusters)
		must(t, s.run(t, join.Join, ""))
		if diff := cmp.Diff(was, revisions(t, clusters)); diff != "" {
			t.Errorf("changed (-before +after):\n%s", diff)
		}
	})
	t.Run("helm upgrades it, and join keeps its values", func(t *testing.T) {
		out, err := tb.Run(within(t, 2*time.Minute), helm, "upgrade", "semaphore", filepath.Join(deployFolder(t), "chart"), "--namespace", systemNamespace, "--reset-then-reuse-values",
			"--set", "settings.logLevel=debug,variables.HTTPS_PROXY=http://proxy:3128,networkPolicy.enabled=false", "--kubeconfig", aws.AdminKubeconfig())
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		was := revisions(t, clusters)
		must(t, s.run(t, join.Join, ""))
		if diff := cmp.Diff(was, revisions(t, clusters)); diff != "" {
			t.Errorf("join changes (-before +after):\n%s", diff)
		}
		out, err = tb.Run(within(t, time.Minute), helm, "get", "values", "semaphore", "--namespace", systemNamespace, "--kubeconfig", aws.AdminKubeconfig())
		if err != nil || !strings.Contains(out, "logLevel: debug") || !strings.Contains(out, "HTTPS_PROXY: http://proxy:3128") || strings.Contains(out, "eyJ") {
			t.Errorf("%v:\n%s", err, out)
		}
		t.Logf("helm get values\n%s", out)
	})
	t.Run("a deleted object is repaired", func(t *testing.T) {
		must(t, aws.Client().AppsV1().Deployments(systemNamespace).Delete(t.Context(), "semaphore-service-mirror", metav1.DeleteOptions{}))
		must(t, s.run(t, join.Join, ""))
		if _, err := aws.Client().AppsV1().Deployments(systemNamespace).Get(t.Context(), "semaphore-service-mirror", metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	})
	t.Run("changes by hand are repaired", func(t *testing.T) {
		set := agents(aws)
		env := set.Spec.Template.Spec.Containers[0].Env
		i := slices.IndexFunc(env, func(e corev1.EnvVar) bool { return e.Value != "" })
		env[i].Value += "-changed"
		_, err := aws.Client().AppsV1().DaemonSets(systemNamespace).Update(t.Context(), set, metav1.UpdateOptions{FieldManager: "kubectl-edit"})
		must(t, err)
		role, err := aws.Client().RbacV1().ClusterRoles().Get(t.Context(), "semaphore-wireguard", metav1.GetOptions{})
		must(t, err)
		rules := role.Rules
		role.Rules = role.Rules[1:]
		_, err = aws.Client().RbacV1().ClusterRoles().Update(t.Context(), role, metav1.UpdateOptions{FieldManager: "kubectl-edit"})
		must(t, err)
		must(t, s.run(t, join.Join, ""))
		if got := agents(aws).Spec.Template.Spec.Containers[0].Env[i]; got.Value+"-changed" != env[i].Value {
			t.Errorf("the agents have %v", got)
		}
		role, err = aws.Client().RbacV1().ClusterRoles().Get(t.Context(), "semaphore-wireguard", metav1.GetOptions{})
		if diff := cmp.Diff(rules, role.Rules); diff != "" || err != nil {
			t.Errorf("%v (-before +repaired):\n%s", err, diff)
		}
		was := revisions(t, clusters)
		must(t, s.run(t, join.Join, ""))
		if diff := cmp.Diff(was, revisions(t, clusters)); diff != "" {
			t.Errorf("then join changes (-before +after):\n%s", diff)
		}
	})
	t.Run("what an interrupted run has made is removed", func(t *testing.T) {
		was := slices.Sorted(maps.Keys(programsOf(t, clusters)))
		s.options.Relay, s.done = "on", map[string]bool{"revocations": true}
		if err := s.run(t, join.Join, "new"); !errors.Is(err, errStopped) {
			t.Fatal(err)
		}
		if made := slices.Sorted(maps.Keys(programsOf(t, clusters))); slices.Equal(was, made) {
			t.Error("it has made nothing")
		}
		// Another run, which fails as well, doesn't know of it.
		s.options.Relay, s.options.Image, s.done = "", "registry.example/kube-semaphore:v9", map[string]bool{"revocations": true}
		if err := s.run(t, join.Join, "new"); !errors.Is(err, errStopped) {
			t.Fatal(err)
		}
		s.options.Image = image
		must(t, s.run(t, join.Join, ""))
		if diff := cmp.Diff(was, slices.Sorted(maps.Keys(programsOf(t, clusters)))); diff != "" {
			t.Errorf("(-before +after):\n%s", diff)
		}
	})
	t.Run("a cluster of Argo CD", func(t *testing.T) {
		track := func(id any) {
			t.Helper()
			text, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{"argocd.argoproj.io/tracking-id": id}}})
			must(t, err)
			_, err = aws.Client().AppsV1().DaemonSets(systemNamespace).Patch(t.Context(), "semaphore-wireguard", types.MergePatchType, text, metav1.PatchOptions{})
			must(t, err)
		}
		track("mesh:apps/DaemonSet:sys-semaphore/semaphore-wireguard")
		defer track(nil)
		was, now := revisions(t, clusters), s.options
		must(t, s.run(t, join.Join, ""))
		now.Servers = map[string]string{"gcp": "https://192.0.2.9:6443"}
		now.Image = "registry.example/kube-semaphore:v9"
		s.options, now = now, s.options
		defer func() { s.options = now }()
		var printed strings.Builder
		err := s.runAnd(t, join.Join, "", io.MultiWriter(&printed, t.Output()))
		if err == nil || !strings.Contains(err.Error(), "aws: it is installed by Argo CD, which would set changes back: set the values above there") {
			t.Errorf("%v", err)
		}
		if out := printed.String(); !strings.Contains(out, "apiURL: https://192.0.2.9:6443") || strings.Contains(out, "v9") {
			t.Errorf("it prints other values than those that are missing:\n%s", out)
		}
		if diff := cmp.Diff(was, revisions(t, clusters)); diff != "" {
			t.Errorf("join changes (-before +after):\n%s", diff)
		}
	})
	t.Run("an API comes and goes", func(t *testing.T) {
		files := []string{filepath.Join(filepath.Dir(deployFolder(t)), "policy", "testdata", "v3.yaml"), filepath.Join(filepath.Dir(deployFolder(t)), "policy", "testdata", "pools.yaml")}
		for _, file := range files {
			must(t, aws.Apply(t.Context(), file))
		}
		must(t, s.run(t, join.Join, ""))
		if everything(t, clusters)["aws ippools.projectcalico.org /remote-gcp"] == nil {
			t.Error("aws has no IP pool for gcp")
		}
		for _, file := range files {
			out, err := aws.Kubectl(t.Context(), "delete", "-f", file)
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		}
		must(t, s.run(t, join.Join, ""))
	})
	t.Run("a part is left", func(t *testing.T) {
		a := newAdministrator(t, tb)
		if out, code, err := a.run(within(t, 3*time.Minute), "leave", "--gone", "merit", "aws"); err != nil || code != 0 {
			t.Fatalf("exit code %d, %v:\n%s", code, err, out)
		}
		after := everything(t, clusters)
		if after["aws serviceaccounts sys-semaphore/semaphore-wireguard-remote-merit"] != nil || after["aws serviceaccounts sys-semaphore/semaphore-wireguard-remote-gcp"] == nil {
			t.Error("the accounts of merit are left, or those of gcp aren't")
		}
	})
	s.each(t, join.Leave)
	if diff := cmp.Diff(slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(everything(t, clusters)))); diff != "" {
		t.Errorf("left (-before +after):\n%s", diff)
	}
}

// steps runs join or leave with interruptions.
type steps struct {
	clusters []*testbed.Cluster
	options  join.Options
	done     map[string]bool
}

var errStopped = errors.New("interrupted")

// each runs it with an interruption after its first step, then after the next one, until it completes.
func (s *steps) each(t *testing.T, do func(context.Context, *cli.Session, []*cli.Cluster, join.Options) error) {
	t.Helper()
	for s.done = map[string]bool{}; ; {
		stopped := len(s.done)
		err := s.run(t, do, "new")
		if err == nil {
			t.Logf("interrupted after %d steps", len(s.done))
			return
		}
		if !errors.Is(err, errStopped) || len(s.done) == stopped {
			t.Fatalf("after %v: %v", s.done, err)
		}
	}
}

// run runs it once, and stops after a step that is new, if it is to.
func (s *steps) run(t *testing.T, do func(context.Context, *cli.Session, []*cli.Cluster, join.Options) error, stop string) error {
	t.Helper()
	return s.runAnd(t, do, stop, t.Output())
}

// runAnd runs it, and writes what it prints.
func (s *steps) runAnd(t *testing.T, do func(context.Context, *cli.Session, []*cli.Cluster, join.Options) error, stop string, out io.Writer) error {
	t.Helper()
	var joined []*cli.Cluster
	for _, c := range s.clusters {
		joined = append(joined, &cli.Cluster{Name: c.Name, Access: cli.Access{Context: c.Name}, Server: c.APIURL(), Config: c.RESTConfig(), Client: c.Client(), Dynamic: c.Dynamic()})
	}
	var mu sync.Mutex
	options := s.options
	options.AfterStep = func(step string) error {
		mu.Lock()
		defer mu.Unlock()
		if stop == "" || s.done[step] {
			return nil
		}
		s.done[step] = true
		return errStopped
	}
	return do(within(t, 3*time.Minute), cli.NewSession(nil, io.Discard, out), joined, options)
}

// withoutHelm installs what semaphorectl applied before it used Helm, or with no options what a user did: the
// same objects, joined with a remote, and a field that the chart doesn't have.
func withoutHelm(t *testing.T, c *testbed.Cluster, remote cluster.Name, image string, options ...string) {
	t.Helper()
	prefix, file := remote.Variables(), "/etc/semaphore/remotes/"+string(remote)
	settings := map[string]string{
		"SEMAPHORE_CLUSTER_NAME": c.Name, "SEMAPHORE_REMOTES": string(remote), prefix + "_API_URL": "https://192.0.2.1:6443", prefix + "_POD_SUBNETS": "10.6.0.0/16",
		prefix + "_NODE_SUBNETS": "10.66.3.0/24", prefix + "_WG_LISTEN_PORT": "51840", prefix + "_TOKEN_FILE": file + ".token", prefix + "_CA_FILE": file + ".ca.crt",
	}
	objects, err := (&manifests.Cluster{
		Name: cluster.Name(c.Name), Tools: []string{manifests.WireGuard, manifests.Mirror}, Remotes: []cluster.Name{remote}, Settings: settings, Image: image,
	}).Render()
	must(t, err)
	var all []byte
	for _, o := range objects {
		labels := o.GetLabels()
		if labels == nil {
			labels = map[string]string{}
		}
		if len(options) > 0 {
			labels[manifests.ManagedLabel] = manifests.Manager
		}
		o.SetLabels(labels)
		annotations := map[string]string{"example.com/formerly": "set"}
		maps.Copy(annotations, o.GetAnnotations())
		o.SetAnnotations(annotations)
		text, err := yaml.Marshal(o.Object)
		must(t, err)
		all = append(append(all, "---\n"...), text...)
	}
	path := filepath.Join(t.TempDir(), "all.yaml")
	must(t, os.WriteFile(path, all, 0o600))
	if out, err := c.Kubectl(within(t, 2*time.Minute), append([]string{"apply", "-f", path}, options...)...); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// rollOut keeps all workloads rolled out, as if they had pods.
func rollOut(t *testing.T, clusters []*testbed.Cluster) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for _, c := range clusters {
		group.Go(func() {
			for ctx.Err() == nil {
				sets, _ := c.Client().AppsV1().DaemonSets(systemNamespace).List(ctx, metav1.ListOptions{})
				for i := range sets.Items {
					if s := &sets.Items[i]; s.Status.ObservedGeneration < s.Generation {
						patchStatus(func(patch []byte) error {
							_, err := c.Client().AppsV1().DaemonSets(systemNamespace).Patch(ctx, s.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
							return err
						}, map[string]any{"observedGeneration": s.Generation})
					}
				}
				deployments, _ := c.Client().AppsV1().Deployments(systemNamespace).List(ctx, metav1.ListOptions{})
				for i := range deployments.Items {
					if d := &deployments.Items[i]; d.Status.ObservedGeneration < d.Generation {
						patchStatus(func(patch []byte) error {
							_, err := c.Client().AppsV1().Deployments(systemNamespace).Patch(ctx, d.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
							return err
						}, map[string]any{"observedGeneration": d.Generation, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 2})
					}
				}
				select {
				case <-ctx.Done():
				case <-time.After(100 * time.Millisecond):
				}
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		group.Wait()
	})
}

// patchStatus ignores objects that have just been deleted.
func patchStatus(patch func([]byte) error, status map[string]any) {
	if text, err := json.Marshal(map[string]any{"status": status}); err == nil {
		_ = patch(text)
	}
}

// revisions are the resource versions of all objects, of workloads their generations.
func revisions(t *testing.T, clusters []*testbed.Cluster) map[string]string {
	t.Helper()
	all := map[string]string{}
	each(t, clusters, func(name string, o *unstructured.Unstructured) {
		all[name] = o.GetResourceVersion()
	})
	return all
}

// programsOf are all objects but the revisions of releases.
func programsOf(t *testing.T, clusters []*testbed.Cluster) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	each(t, clusters, func(name string, _ *unstructured.Unstructured) {
		if !strings.Contains(name, "sh.helm.release.v1.") {
			all[name] = true
		}
	})
	return all
}

// noTokens checks that no Secret of Helm has a token of another cluster.
func noTokens(t *testing.T, clusters []*testbed.Cluster) {
	t.Helper()
	var tokens []string
	releases := 0
	for _, c := range clusters {
		list, err := c.Client().CoreV1().Secrets(systemNamespace).List(t.Context(), metav1.ListOptions{})
		must(t, err)
		for _, s := range list.Items {
			for key, value := range s.Data {
				if strings.HasSuffix(key, ".token") {
					tokens = append(tokens, string(value))
				}
			}
		}
		for _, s := range list.Items {
			if s.Type != "helm.sh/release.v1" {
				continue
			}
			releases++
			text, err := base64.StdEncoding.DecodeString(string(s.Data["release"]))
			must(t, err)
			unpacked, err := gzip.NewReader(bytes.NewReader(text))
			must(t, err)
			all, err := io.ReadAll(unpacked)
			must(t, err)
			content := string(all)
			for _, token := range tokens {
				if strings.Contains(content, token) {
					t.Errorf("%s: Secret %s has a token", c.Name, s.Name)
				}
			}
			if strings.Contains(content, "eyJhbG") {
				t.Errorf("%s: Secret %s has a token", c.Name, s.Name)
			}
		}
	}
	if releases < 2 || len(tokens) < 2 {
		t.Errorf("%d releases, %d tokens", releases, len(tokens))
	}
}
