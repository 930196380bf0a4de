package scenarios_test

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/join"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

// TestFilesOfJoin installs the chart with the values of "semaphorectl join --output yaml" in empty
// clusters, hands over tokens, and then runs join itself, which must change nothing.
func TestFilesOfJoin(t *testing.T) {
	t.Parallel()
	nstest.Root(t)
	tb, clusters := startTwo(t)
	for _, file := range []string{"v3.yaml", "pools.yaml"} {
		must(t, clusters[0].Apply(t.Context(), "../../policy/testdata/"+file))
	}
	// Calico's address management of gcp is in use.
	must(t, clusters[1].Apply(t.Context(), "../../peers/pods/testdata/calico-v1.yaml"))
	_, err := clusters[1].Dynamic().Resource(blockAffinities).Create(t.Context(), affinity(blockAffinities, "node", "10.4.100.0/26"), metav1.CreateOptions{})
	must(t, err)
	a := newAdministrator(t, tb)
	run := func(args ...string) {
		t.Helper()
		if out, code, err := a.run(within(t, 2*time.Minute), args...); err != nil || code != 0 {
			t.Fatalf("%q ended with code %d, %v:\n%s", args, code, err, out)
		}
	}
	const image, virtual = "registry.example/kube-semaphore:v1.2.3", "10.2.0.0/16=100.77.0.0/16"
	t.Run("as kustomize makes them", func(t *testing.T) { rendersAsKustomize(t, clusters[0], false, false) })
	t.Run("as kustomize makes them, with semaphore-relay", func(t *testing.T) { rendersAsKustomize(t, clusters[0], true, false) })
	t.Run("as kustomize makes them, with virtual subnets", func(t *testing.T) { rendersAsKustomize(t, clusters[0], false, true) })
	before := everything(t, clusters)
	folder := filepath.Join(t.TempDir(), "files")
	run("join", "--output", "yaml", "--directory", folder, "--image", image, "--virtual-subnets", "aws="+virtual, "aws", "gcp")
	if diff := cmp.Diff(before, everything(t, clusters)); diff != "" {
		t.Errorf("writing files has changed (-before +after):\n%s", diff)
	}
	noSecretFiles(t, folder)
	helm := helm(t)
	for _, c := range clusters {
		out, err := tb.Run(within(t, 2*time.Minute), helm, "upgrade", "--install", "semaphore", filepath.Join(deployFolder(t), "chart"), "--namespace", systemNamespace, "--create-namespace",
			"--values", filepath.Join(folder, c.Name, "values.yaml"), "--kubeconfig", c.AdminKubeconfig())
		if err != nil {
			t.Fatalf("%s: %v\n%s", c.Name, err, out)
		}
	}
	run("tokens", "aws", "gcp")
	applied := everything(t, clusters)

	var joined []*cli.Cluster
	for _, c := range clusters {
		joined = append(joined, &cli.Cluster{
			Name: c.Name, Access: cli.Access{Context: c.Name}, Server: c.APIURL(), Config: c.RESTConfig(), Client: c.Client(), Dynamic: c.Dynamic(),
		})
	}
	// No pods run here, so join can't wait for the rollout.
	stopped := errors.New("programs are installed")
	err = join.Join(within(t, 2*time.Minute), cli.NewSession(nil, io.Discard, t.Output()), joined, join.Options{
		InstallOptions: join.InstallOptions{Image: image, Virtual: map[string][]config.Mapping{"aws": {{Real: clusters[0].PodSubnets[0], Virtual: netip.MustParsePrefix("100.77.0.0/16")}}}},
		NoProbe:        true, Yes: true, AfterStep: func(step string) error {
			if step == "programs" {
				return stopped
			}
			return nil
		},
	})
	if !errors.Is(err, stopped) {
		t.Fatal(err)
	}
	if diff := cmp.Diff(applied, everything(t, clusters)); diff != "" {
		t.Errorf("join makes something else (-files +join):\n%s", diff)
	}
	t.Logf("%d objects, %d of them there before", len(applied), len(before))
	for _, want := range []string{
		"aws daemonsets.apps sys-semaphore/semaphore-wireguard", "aws deployments.apps sys-semaphore/semaphore-policy",
		"gcp deployments.apps sys-semaphore/semaphore-service-mirror", "aws ippools.projectcalico.org /remote-gcp",
		"aws clusterroles.rbac.authorization.k8s.io /semaphore-wireguard-map",
		"gcp clusterroles.rbac.authorization.k8s.io /semaphore-wireguard-pods",
		"gcp secrets sys-semaphore/semaphore-service-mirror-remotes", "aws secrets sys-semaphore/semaphore-wireguard-remotes",
	} {
		if applied[want] == nil {
			t.Errorf("there is no %s", want)
		}
	}
}

// rendersAsKustomize compares the objects that semaphorectl renders from the bases of deploy/
// with those that kubectl renders from the example, which uses the same bases, or from one with
// semaphore-relay or with virtual subnets.
func rendersAsKustomize(t *testing.T, cluster *testbed.Cluster, relay, virtual bool) {
	t.Helper()
	folder := deployFolder(t)
	if relay || virtual {
		folder = t.TempDir()
		must(t, os.CopyFS(folder, os.DirFS(deployFolder(t))))
		file := filepath.Join(folder, "example", "aws", "kustomization.yaml")
		content, err := os.ReadFile(file)
		must(t, err)
		const agents = "resources:\n  - ../../wireguard\n"
		if strings.Count(string(content), agents) != 1 {
			t.Fatalf("the example doesn't begin its resources with the agents:\n%s", content)
		}
		with := strings.Replace(string(content), agents, "components:\n  - ../../wireguard/relay\n"+agents+"  - ../../relay\n", 1)
		if virtual {
			with = strings.Replace(string(content), agents, "components:\n  - ../../wireguard/map\n"+agents, 1)
			with = strings.Replace(with, "    literals:\n", "    literals:\n      - SEMAPHORE_POD_SUBNETS_MAP=10.2.0.0/16=100.77.0.0/16,fd00:10:2::/48=fd00:77::/48\n", 1)
		}
		must(t, os.WriteFile(file, []byte(with), 0o644))
	}
	out, err := cluster.Kubectl(within(t, time.Minute), "kustomize", filepath.Join(folder, "example", "aws"))
	must(t, err)
	want, settings := map[string]map[string]any{}, map[string]string{}
	for document := range strings.SplitSeq(out, "\n---\n") {
		var o unstructured.Unstructured
		must(t, yaml.Unmarshal([]byte(document), &o.Object))
		if o.GetKind() == "ConfigMap" {
			settings, _, err = unstructured.NestedStringMap(o.Object, "data")
			must(t, err)
		}
		if sortNamed(o.Object); o.GetKind() != "Namespace" {
			want[o.GetKind()+" "+o.GetName()] = o.Object
		}
	}
	c := manifests.Cluster{
		Name: "aws", Tools: manifests.Tools(), Remotes: inspect.Settings(settings).Remotes(), Settings: settings, Image: "kube-semaphore:v0.1.0",
		Relay: relay,
	}
	objects, err := c.Render()
	must(t, err)
	got := map[string]map[string]any{}
	for _, o := range objects {
		text, err := o.MarshalJSON()
		must(t, err)
		var plain map[string]any
		must(t, yaml.Unmarshal(text, &plain))
		sortNamed(plain)
		got[o.GetKind()+" "+o.GetName()] = plain
	}
	if diff := cmp.Diff(want, got); diff != "" || len(want) < 50 {
		t.Errorf("%d objects (-kustomize +semaphorectl):\n%s", len(want), diff)
	}
}

// noSecretFiles checks that files for a repository contain no secrets.
func noSecretFiles(t *testing.T, folder string) {
	t.Helper()
	must(t, filepath.WalkDir(folder, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if strings.Contains(string(content), "eyJ") || strings.Contains(string(content), "PRIVATE KEY") {
			t.Errorf("%s has a secret", path)
		}
		return err
	}))
}

// everything returns all objects of clusters by name, without fields that the API server sets,
// managedFields and values of Secrets.
func everything(t *testing.T, clusters []*testbed.Cluster) map[string]map[string]any {
	t.Helper()
	all := map[string]map[string]any{}
	each(t, clusters, func(name string, o *unstructured.Unstructured) { all[name] = bare(o) })
	return all
}

// each calls do for all objects of clusters, except those that change by themselves.
func each(t *testing.T, clusters []*testbed.Cluster, do func(name string, o *unstructured.Unstructured)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, c := range clusters {
		lists, err := c.Client().Discovery().ServerPreferredResources()
		must(t, err)
		for _, list := range lists {
			version, err := schema.ParseGroupVersion(list.GroupVersion)
			must(t, err)
			for _, r := range list.APIResources {
				if !slices.Contains(r.Verbs, "list") || slices.Contains([]string{"events", "leases", "componentstatuses", "apiservices", "endpoints", "endpointslices"}, r.Name) {
					continue
				}
				of := version.WithResource(r.Name)
				found, err := c.Dynamic().Resource(of).List(ctx, metav1.ListOptions{})
				if apierrors.IsNotFound(err) {
					continue // Its CRD has just been deleted.
				}
				must(t, err)
				for i := range found.Items {
					o := &found.Items[i]
					do(c.Name+" "+of.GroupResource().String()+" "+o.GetNamespace()+"/"+o.GetName(), o)
				}
			}
		}
	}
}

func bare(o *unstructured.Unstructured) map[string]any {
	annotations := o.GetAnnotations()
	delete(annotations, "kubectl.kubernetes.io/last-applied-configuration")
	o.SetAnnotations(annotations)
	for _, field := range []string{"managedFields", "resourceVersion", "generation"} {
		unstructured.RemoveNestedField(o.Object, "metadata", field)
	}
	unstructured.RemoveNestedField(o.Object, "status")
	if data, _, err := unstructured.NestedMap(o.Object, "data"); err == nil && o.GetKind() == "Secret" {
		for key := range data {
			data[key] = "secret"
		}
		o.Object["data"] = data
	}
	return o.Object
}
