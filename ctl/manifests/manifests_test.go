package manifests

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
)

func example() *Cluster {
	return &Cluster{
		Name: "aws", Tools: Tools(), Remotes: []cluster.Name{"gcp", "merit"}, Image: "registry.example:5000/kube-semaphore:v1.2.3",
		Settings: map[string]string{
			"SEMAPHORE_CLUSTER_NAME": "aws", "SEMAPHORE_REMOTES": "gcp,merit",
			"SEMAPHORE_REMOTE_GCP_API_URL": "https://gcp", "SEMAPHORE_REMOTE_GCP_POD_SUBNETS": "10.4.0.0/16", "SEMAPHORE_REMOTE_GCP_WG_LISTEN_PORT": "51840",
			"SEMAPHORE_REMOTE_MERIT_API_URL": "https://merit", "SEMAPHORE_REMOTE_MERIT_POD_SUBNETS": "10.6.0.0/16", "SEMAPHORE_REMOTE_MERIT_WG_LISTEN_PORT": "51841",
		},
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
		if o.GetKind() == "Secret" && (o.Object["data"] != nil || o.Object["stringData"] != nil) {
			t.Errorf("Secret %s has content", o.GetName())
		}
		if o.GetKind() == "DaemonSet" {
			text, _ := o.MarshalJSON()
			if !strings.Contains(string(text), `"image":"registry.example:5000/kube-semaphore:v1.2.3"`) || !strings.Contains(string(text), `"name":"semaphore-`) {
				t.Errorf("%s", text)
			}
		}
	}
	for _, want := range []string{
		"DaemonSet semaphore-wireguard", "Deployment semaphore-service-mirror", "Deployment semaphore-policy",
		"CronJob semaphore-tokens", "ServiceAccount semaphore-wireguard-remote-gcp", "ServiceAccount semaphore-policy-remote-merit",
	} {
		if !slices.Contains(names, want) {
			t.Errorf("no %s in %q", want, names)
		}
	}
}

func TestFewerTools(t *testing.T) {
	c := example()
	c.Tools = []string{Mirror}
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
			{"CustomResourceDefinition wireguardpeers.semaphore.uw.io", `"helm.sh/resource-policy":"keep"`, true},
			{"ValidatingAdmissionPolicy semaphore-relay-peers", "", true},
		} {
			if text := texts[want.object]; text == "" || strings.Contains(text, want.text) != want.has {
				t.Errorf("cleanup %v: %s has %q: want %v:\n%s", cleanup, want.object, want.text, want.has, text)
			}
		}
	}
}

func TestImage(t *testing.T) {
	const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for name, want := range map[string]string{
		"a/b:v1": "a/b:v1", "a:5000/b": "a:5000/b:latest", "a:5000/b:v1": "a:5000/b:v1", "b": "b:latest",
		"a:5000/b@" + digest: "a:5000/b@" + digest, "a/b:v1@" + digest: "a/b:v1@" + digest,
	} {
		c := example()
		c.Image = name
		if got := imageOf(t, c); got != want {
			t.Errorf("%s: %s, expected %s", name, got, want)
		}
	}
}

// imageOf returns the image of the agents.
func imageOf(t *testing.T, c *Cluster) string {
	t.Helper()
	objects, err := c.Render()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if o.GetKind() == "DaemonSet" {
			containers, _, _ := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
			return containers[0].(map[string]any)["image"].(string)
		}
	}
	return ""
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

// TestNothingIsFetched checks that the chart has no dependencies, which Helm could fetch, and no template that
// asks a cluster or a DNS server, or makes a template of a value.
func TestNothingIsFetched(t *testing.T) {
	c, err := Chart()
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Metadata.Dependencies) > 0 || len(c.Dependencies()) > 0 {
		t.Errorf("dependencies %v", c.Metadata.Dependencies)
	}
	function := regexp.MustCompile(`\{\{[^}]*\b(lookup|getHostByName|tpl)\b`)
	for _, f := range c.Templates {
		if found := function.Find(f.Data); found != nil {
			t.Errorf("%s: %s", f.Name, found)
		}
	}
	if len(c.Templates) < 30 {
		t.Errorf("%d templates", len(c.Templates))
	}
}

// TestValues makes values of settings, from which the chart makes the same settings again: under
// another name of their ConfigMap all pods would restart.
func TestValues(t *testing.T) {
	settings := map[string]string{
		"SEMAPHORE_CLUSTER_NAME": "aws", "SEMAPHORE_REMOTES": "gcp,gcp-eu,no", "SEMAPHORE_LOG_LEVEL": "debug",
		"SEMAPHORE_MIRROR_MAX_SERVICES": "10000000", "SEMAPHORE_WG_SOURCE_FILTER": "false", "SEMAPHORE_LOCAL_SUBNETS": "10.102.0.0/16,fd00::/112",
		"SEMAPHORE_DEPARTED_REMOTES": "merit", "SEMAPHORE_REMOVAL_GRACE": "5m", "SEMAPHORE_MCS": "auto",
		"SEMAPHORE_REMOTE_GCP_API_URL": "https://api.gcp.example:6443", "SEMAPHORE_REMOTE_GCP_POD_SUBNETS": "10.4.0.0/16,fd00:10:4::/48",
		"SEMAPHORE_REMOTE_GCP_WG_LISTEN_PORT": "51840", "SEMAPHORE_REMOTE_GCP_TOKEN_FILE": "/etc/semaphore/remotes/gcp.token",
		"SEMAPHORE_REMOTE_GCP_CA_FILE": "/etc/semaphore/remotes/gcp.ca.crt", "SEMAPHORE_REMOTE_GCP_WG_MTU": "auto", "SEMAPHORE_REMOTE_GCP_STALE_AFTER": "0",
		"SEMAPHORE_REMOTE_GCP_BORROWED": "true", "SEMAPHORE_REMOTE_GCP_CA_SHA256": "12", "SEMAPHORE_REMOTE_GCP_IMPORT_NAMESPACES": "shop,team-*",
		"SEMAPHORE_REMOTE_GCP_EU_KUBECONFIG": "/etc/eu", "SEMAPHORE_REMOTE_GCP_EU_POD_SUBNETS": "10.6.0.0/16", "SEMAPHORE_REMOTE_GCP_EU_WG_LISTEN_PORT": "51841",
		"SEMAPHORE_REMOTE_GCP_EU_WG_MAX_ALLOWED_IPS": "9", "SEMAPHORE_REMOTE_GCP_EU_TOKEN_FILE": "/etc/semaphore/remotes/gcp-eu.token",
		"SEMAPHORE_REMOTE_NO_API_URL": "https://no", "SEMAPHORE_REMOTE_NO_CA_URL": "https://ca", "SEMAPHORE_REMOTE_NO_POD_SUBNETS": "10.8.0.0/16",
		"SEMAPHORE_REMOTE_NO_WG_LISTEN_PORT": "51842", "SEMAPHORE_REMOTE_NO_TOKEN_FILE": "/else",
		// These are no values, or are written in another way.
		"HTTPS_PROXY": "http://proxy:3128", "SEMAPHORE_WG_POD_CIDRS": "calico", "SEMAPHORE_LEADER_ELECTION": "1", "SEMAPHORE_MIRROR_SELECTOR": "",
		"SEMAPHORE_REMOTE_GCP_OTHER": "---\nkind: x\n{{ fail \"x\" }}", "SEMAPHORE_WG_PEER_METRICS": "007",
	}
	c := &Cluster{Name: "aws", Tools: Tools(), Remotes: []cluster.Name{"gcp", "gcp-eu", "no"}, Image: "i", Settings: settings}
	values, err := c.Values()
	if err != nil {
		t.Fatal(err)
	}
	if got := len(values["variables"].(map[string]any)); got != 6 {
		t.Errorf("%d variables: %v", got, values["variables"])
	}
	want := map[string]any{
		"apiURL": "https://api.gcp.example:6443", "podSubnets": []any{"10.4.0.0/16", "fd00:10:4::/48"}, "wgListenPort": 51840.0, "wgMTU": "auto",
		"staleAfter": "0", "borrowed": true, "caSHA256": "12", "importNamespaces": []any{"shop", "team-*"},
	}
	if diff := cmp.Diff(want, values["remotes"].(map[string]any)["gcp"]); diff != "" {
		t.Errorf("of gcp (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(settings, settingsOf(t, c)); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
}

// settingsOf returns the content of the rendered ConfigMap.
func settingsOf(t *testing.T, c *Cluster) map[string]string {
	t.Helper()
	objects, err := c.Render()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if o.GetKind() == "ConfigMap" {
			data, _, err := unstructured.NestedStringMap(o.Object, "data")
			if err != nil {
				t.Fatal(err)
			}
			return data
		}
	}
	return nil
}

// TestPodPrefixesOfAPlugin are set where values have none.
func TestPodPrefixesOfAPlugin(t *testing.T) {
	for _, have := range []map[string]any{nil, {"wireguard": map[string]any{"podPrefixes": "", "networkd": true}}} {
		c := example()
		c.Have, c.PodPrefixes = have, "pods"
		values, err := c.Values()
		if err != nil {
			t.Fatal(err)
		}
		if got := values["wireguard"].(map[string]any)["podPrefixes"]; got != "pods" {
			t.Errorf("%v: %v", have, got)
		}
	}
}

// TestValuesAreKept unless others are decided.
func TestValuesAreKept(t *testing.T) {
	c := example()
	c.Have = map[string]any{
		"serviceMirror": map[string]any{"extraEnv": []any{map[string]any{"name": "GOGC"}}, "leaving": []any{"merit"}},
		"remotes":       map[string]any{"left": map[string]any{}}, "settings": map[string]any{"logLevel": "debug"},
		"image": map[string]any{"pullPolicy": "Always", "digest": "sha256:0"}, "networkPolicy": map[string]any{"enabled": false},
		"wireguard": map[string]any{"enabled": false, "podPrefixes": "calico"},
	}
	c.PodPrefixes = "pods"
	values, err := c.Values()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]any{"networkPolicy": values["networkPolicy"], "image": values["image"], "wireguard": values["wireguard"], "settings": values["settings"], "serviceMirror": values["serviceMirror"]}
	if diff := cmp.Diff(map[string]any{
		"networkPolicy": map[string]any{"enabled": false}, "settings": map[string]any{},
		"image":         map[string]any{"registry": "", "repository": "registry.example:5000/kube-semaphore", "tag": "v1.2.3", "digest": "", "pullPolicy": "Always"},
		"wireguard":     map[string]any{"enabled": true, "cleanup": false, "podPrefixes": "calico"},
		"serviceMirror": map[string]any{"enabled": true, "leaving": []any{}, "extraEnv": []any{map[string]any{"name": "GOGC"}}},
	}, got); diff != "" || len(values["remotes"].(map[string]any)) != 2 {
		t.Errorf("%v (-want +got):\n%s", values["remotes"], diff)
	}
}

// TestLeaving lets the mirror alone withdraw endpoints.
func TestLeaving(t *testing.T) {
	c := example()
	c.Leaving = []cluster.Name{"gcp", "merit"}
	objects, err := c.Render()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		text, _ := o.MarshalJSON()
		has := strings.Contains(string(text), `{"name":"SEMAPHORE_DEPARTED_REMOTES","value":"gcp,merit"}`)
		if is := o.GetKind() == "Deployment" && o.GetName() == "semaphore-service-mirror"; has != is {
			t.Errorf("%s %s has it: %v", o.GetKind(), o.GetName(), has)
		}
	}
}

// TestPools renders Calico's IP pools for the pod subnets of all remotes.
func TestPools(t *testing.T) {
	c := example()
	c.Remotes = []cluster.Name{"gcp"}
	c.Settings = map[string]string{"SEMAPHORE_REMOTES": "gcp", "SEMAPHORE_REMOTE_GCP_API_URL": "https://x", "SEMAPHORE_REMOTE_GCP_WG_LISTEN_PORT": "51840",
		"SEMAPHORE_REMOTE_GCP_POD_SUBNETS": "10.4.0.0/16,10.5.0.0/16,fd00:10:4::/48"}
	for _, api := range []schema.GroupVersion{{}, {Group: "projectcalico.org", Version: "v3"}} {
		c.Pools = api
		objects, err := c.Render()
		if err != nil {
			t.Fatal(err)
		}
		var names, want []string
		for _, o := range objects {
			if o.GetKind() != "IPPool" {
				continue
			}
			spec := o.Object["spec"].(map[string]any)
			names = append(names, o.GetAPIVersion()+" "+o.GetName()+" "+spec["cidr"].(string))
			if spec["disabled"] != true || spec["disableBGPExport"] != true || spec["natOutgoing"] != false {
				t.Errorf("pool %v", spec)
			}
		}
		if !api.Empty() {
			want = []string{"projectcalico.org/v3 remote-gcp 10.4.0.0/16", "projectcalico.org/v3 remote-gcp-2 10.5.0.0/16", "projectcalico.org/v3 remote-gcp-ipv6 fd00:10:4::/48"}
		}
		slices.Sort(names)
		if diff := cmp.Diff(want, names); diff != "" {
			t.Errorf("%q (-want +got):\n%s", api, diff)
		}
	}
}

// TestKeptValues: an administrator's further pull secrets stay, and a relay that no agent reads yet.
func TestKeptValues(t *testing.T) {
	c := &Cluster{Name: "aws", Tools: Tools(), Image: "i:1", PullSecret: "a", RelayAlone: true,
		Have: map[string]any{"imagePullSecrets": []any{map[string]any{"name": "a"}, map[string]any{"name": "b"}}}}
	values, err := c.Values()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(c.Have["imagePullSecrets"], values["imagePullSecrets"]); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]any{"enabled": true, "agents": false}, values["relay"]); diff != "" {
		t.Error(diff)
	}
	c.PullSecret = "c"
	if values, err = c.Values(); err != nil || fmt.Sprint(values["imagePullSecrets"]) != "[map[name:c]]" {
		t.Errorf("%v, %v", values["imagePullSecrets"], err)
	}
}
