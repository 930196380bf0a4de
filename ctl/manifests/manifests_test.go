package manifests

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
)

func example() *Cluster {
	return &Cluster{
		Name: "aws", Tools: Tools(), Remotes: []cluster.Name{"gcp", "merit"}, Image: "registry.example:5000/kube-semaphore:v1.2.3",
		Settings: map[string]string{"SEMAPHORE_CLUSTER_NAME": "aws", "SEMAPHORE_REMOTES": "gcp,merit"},
	}
}

// TestRender checks the rendered objects.
func TestRender(t *testing.T) {
	objects, err := example().Render()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, o := range objects {
		names = append(names, o.GetKind()+" "+o.GetName())
		if o.GetLabels()[ManagedLabel] != Manager {
			t.Errorf("%s %s has the labels %v", o.GetKind(), o.GetName(), o.GetLabels())
		}
		if o.GetKind() == "Secret" && (o.Object["data"] != nil || o.Object["stringData"] != nil) {
			t.Errorf("Secret %s has content", o.GetName())
		}
		if o.GetKind() == "DaemonSet" {
			text, _ := o.MarshalJSON()
			if !strings.Contains(string(text), `"image":"registry.example:5000/kube-semaphore:v1.2.3"`) || !strings.Contains(string(text), `"name":"semaphore-`) {
				t.Errorf("%s", text)
			}
			if strings.Contains(string(text), `"`+Manager+`"`) && strings.Count(string(text), `"`+Manager+`"`) > 1 {
				t.Errorf("the label is in selectors or templates: %s", text)
			}
		}
	}
	for _, want := range []string{
		"Namespace sys-semaphore", "DaemonSet semaphore-wireguard", "Deployment semaphore-service-mirror", "Deployment semaphore-policy",
		"CronJob semaphore-tokens", "ServiceAccount semaphore-wireguard-remote-gcp", "ServiceAccount semaphore-policy-remote-merit",
	} {
		if !slices.Contains(names, want) {
			t.Errorf("no %s in %q", want, names)
		}
	}
}

func TestFewerTools(t *testing.T) {
	c := example()
	c.Tools, c.Foreign, c.Cleanup = []string{Mirror}, true, false
	objects, err := c.Render()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		switch o.GetKind() + " " + o.GetName() {
		case "Namespace sys-semaphore", "DaemonSet semaphore-wireguard", "Deployment semaphore-policy":
			t.Errorf("there is a %s %s", o.GetKind(), o.GetName())
		}
	}
}

// TestPodSubnetsMap grants the agents to publish the map, and no other.
func TestPodSubnetsMap(t *testing.T) {
	const subnets = "10.0.0.0/16=10.201.0.0/16,fd00:4::/48=fd00:c9::/48"
	for text, want := range map[string]int{"": 0, subnets: 2} {
		c := example()
		c.Settings[PodSubnetsMap] = text
		objects, err := c.Render()
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for _, o := range objects {
			if o.GetName() == "semaphore-wireguard-map" {
				found++
				content, _ := o.MarshalJSON()
				if o.GetKind() == "ClusterRole" && !strings.Contains(string(content), `"resourceNames":["`+subnets+`"]`) {
					t.Errorf("%s", content)
				}
			}
		}
		if found != want {
			t.Errorf("%d objects for the map %q", found, text)
		}
	}
}

// TestPullSecret checks that all pods, and nothing else, have the registry's credentials.
func TestPullSecret(t *testing.T) {
	c := example()
	c.PullSecret = "registry"
	objects, err := c.Render()
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, o := range objects {
		text, _ := o.MarshalJSON()
		_, isAccount := o.Object["imagePullSecrets"]
		pods := strings.Contains(string(text), `"containers"`)
		if has := strings.Contains(string(text), `"imagePullSecrets":[{"name":"registry"}]`); has != pods || isAccount {
			t.Errorf("%s %s: it has pods: %v, and the Secret: %v", o.GetKind(), o.GetName(), pods, has)
		}
		if pods {
			found++
		}
	}
	if found != 4 {
		t.Errorf("%d objects have pods", found)
	}
}

// TestRelay renders agents that read semaphore-relay's objects, also where they clean up.
func TestRelay(t *testing.T) {
	for _, cleanup := range []bool{false, true} {
		c := example()
		c.Relay, c.Cleanup = true, cleanup
		objects, err := c.Render()
		if err != nil {
			t.Fatal(err)
		}
		texts := map[string]string{}
		for _, o := range objects {
			text, _ := o.MarshalJSON()
			texts[o.GetKind()+" "+o.GetName()] = string(text)
		}
		for _, want := range []struct {
			object, text string
			has          bool
		}{
			{"DaemonSet semaphore-wireguard", `{"name":"SEMAPHORE_REMOTES_FROM","value":"relay"}`, true},
			{"DaemonSet semaphore-wireguard", "semaphore-wireguard-remotes", false},
			{"DaemonSet semaphore-wireguard", `"-cleanup"`, cleanup},
			{"ClusterRole semaphore-wireguard", `"verbs":["get","patch"]`, true},
			{"Role semaphore-wireguard-relay", "wireguardpeers", true},
			{"Deployment semaphore-relay", "semaphore-wireguard-remotes", true},
			{"Deployment semaphore-relay", `"image":"registry.example:5000/kube-semaphore:v1.2.3"`, true},
			{"CustomResourceDefinition wireguardpeers.semaphore.uw.io", ManagedLabel, true},
			{"ValidatingAdmissionPolicy semaphore-relay-peers", "", true},
		} {
			if text := texts[want.object]; text == "" || strings.Contains(text, want.text) != want.has {
				t.Errorf("cleanup %v: %s has %q: want %v:\n%s", cleanup, want.object, want.text, want.has, text)
			}
		}
	}
}

func TestImage(t *testing.T) {
	for name, want := range map[string]string{
		"a/b:v1": "a/b:v1", "a:5000/b": "a:5000/b:latest", "a:5000/b:v1": "a:5000/b:v1", "b": "b:latest", "a:5000/b@sha256:012": "a:5000/b@sha256:012",
	} {
		if got := withTag(name); got != want {
			t.Errorf("%s: %s, expected %s", name, got, want)
		}
	}
}

// TestNamesAreChecked renders nothing for invalid names.
func TestNamesAreChecked(t *testing.T) {
	for _, name := range []cluster.Name{"", "..", "a/b", "a\nb", "x?ref=--upload-pack=id", "https://x.example/y", "local"} {
		for _, c := range []*Cluster{{Name: name, Image: "x"}, {Name: "aws", Remotes: []cluster.Name{name}, Image: "x"}} {
			if objects, err := c.Render(); err == nil || objects != nil {
				t.Errorf("%q: %d objects", name, len(objects))
			}
		}
	}
}

// TestFilesAreTheObjects reads back the files for a Git repository.
func TestFilesAreTheObjects(t *testing.T) {
	c := example()
	c.Settings["SEMAPHORE_X"] = "---\nkind: ClusterRoleBinding\n# \"'\n"
	want, err := c.Render()
	if err != nil {
		t.Fatal(err)
	}
	files, err := c.Files()
	if err != nil {
		t.Fatal(err)
	}
	got, err := Decode(files["semaphore.yaml"])
	if err != nil || len(got) != len(want) {
		t.Fatalf("%d objects of %d, error %v", len(got), len(want), err)
	}
	for i := range got {
		if diff := cmp.Diff(want[i].Object, got[i].Object); diff != "" {
			t.Errorf("object %d (-want +got):\n%s", i, diff)
		}
	}
}

// TestNothingIsFetched checks that kustomize isn't linked: it treats a resource that isn't a
// file as the URL of a repository, and runs git.
func TestNothingIsFetched(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl").Output()
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.Lines(string(out)) {
		if strings.Contains(name, "kustomize") || strings.Contains(name, "go-getter") {
			t.Errorf("semaphorectl links %s", name)
		}
	}
}
