package join

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
)

// others returns everything that is rendered for aws and merit if gcp has these settings:
// objects, files and server blocks.
func others(t *testing.T, gcps inspect.Settings, image string) string {
	t.Helper()
	a := &installation{Session: &cli.Session{}, facts: []*inspect.Facts{
		healthy(t, "aws", "10.2.0.0/16", "10.102.0.0/16", "10.66.1.2"),
		healthy(t, "gcp", "10.4.0.0/16", "10.104.0.0/16", "10.66.2.2"),
		healthy(t, "merit", "10.6.0.0/16", "10.106.0.0/16", "10.66.3.2"),
	}}
	a.Image = "registry.example/kube-semaphore:v1"
	n := len(a.facts)
	a.settings, a.wanted, a.taken = make([]inspect.Settings, n), make([]*manifests.Cluster, n), make([]map[int]bool, n)
	a.facts[1].Installed = inspect.Installed{Namespace: true, Settings: gcps, Image: image, Tools: manifests.Tools()}
	a.want()
	var text strings.Builder
	for _, i := range []int{0, 2} {
		wanted, err := json.Marshal(a.wanted[i])
		if err != nil {
			t.Fatal(err)
		}
		all, err := zones(a.wanted[i])
		if err != nil {
			t.Fatal(err)
		}
		blocks, err := a.facts[i].DNS.Blocks(all)
		if err != nil {
			t.Fatal(err)
		}
		text.Write(wanted)
		text.WriteString(blocks)
	}
	return text.String()
}

// FuzzSettingsOfAnother checks that the settings of one cluster don't change a byte of what is
// rendered for others. A line is a variable and its value.
func FuzzSettingsOfAnother(f *testing.F) {
	for _, text := range []string{
		"SEMAPHORE_REMOTES=aws,merit\nSEMAPHORE_REMOTE_MERIT_API_URL=https://evil.example:6443",
		"SEMAPHORE_REMOTES=../aws", "SEMAPHORE_REMOTES=x?ref=--upload-pack=id", "SEMAPHORE_REMOTES=aws\nSEMAPHORE_REMOTE_AWS_POD_SUBNETS=8.0.0.0/7",
		"SEMAPHORE_CLUSTER_NAME=aws", "SEMAPHORE_REMOTE_AWS_SERVICE_PREFIX=x", "SEMAPHORE_REMOTE_AWS_KUBECONFIG=/x", "SEMAPHORE_REMOTE_AWS_WG_LISTEN_PORT=1",
		"SEMAPHORE_REMOTES=one,two\nSEMAPHORE_LOG_LEVEL=# x", "=", "SEMAPHORE_POLICY_LABEL_DOMAIN=a: b",
	} {
		f.Add(text, "x")
	}
	want := ""
	f.Fuzz(func(t *testing.T, text, image string) {
		data := map[string]string{}
		for line := range strings.Lines(text) {
			key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
			data[key] = value
		}
		parsed, err := inspect.ParseSettings("sys-semaphore/semaphore", data)
		if err != nil {
			return // Rejected.
		}
		if want == "" {
			want = others(t, nil, "")
		}
		got := others(t, parsed, image)
		for i := range min(len(got), len(want)) {
			if got[i] != want[i] {
				t.Fatalf("with %q other clusters get ...%.80s... instead of ...%.80s...", text, got[max(0, i-40):], want[max(0, i-40):])
			}
		}
		if len(got) != len(want) {
			t.Errorf("with %q other clusters get %d bytes instead of %d", text, len(got), len(want))
		}
	})
}
