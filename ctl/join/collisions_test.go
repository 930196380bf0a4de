package join

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
)

// TestCollisions joins aws and gcp again with a third cluster, which reports ranges that are
// in aws's settings for gcp, though gcp reports less now.
func TestCollisions(t *testing.T) {
	for name, c := range map[string]struct {
		pods  string // as evil reports them
		given bool
		want  string
	}{
		"apart":                       {"10.20.0.0/16", false, ""},
		"pods that gcp had":           {"10.9.0.0/16", false, "evil: its pods 10.9.0.0/16 overlap the pods of gcp at 10.8.0.0/14, in the settings of aws"},
		"pods, named":                 {"10.9.0.0/16", true, "the pods of gcp"},
		"nodes that gcp had":          {"10.67.128.0/17", false, "the nodes of gcp"},
		"nodes, named":                {"10.67.128.0/17", true, ""},
		"the API server that gcp had": {"10.50.0.0/24", false, "the API server of gcp at 10.50.0.5/32"},
		"the own API server":          {"10.51.0.0/24", false, "the API server 10.51.0.5 of aws is inside the pod subnet 10.51.0.0/24"},
	} {
		aws := healthy(t, "aws", "10.2.0.0/16", "10.102.0.0/16", "10.66.1.2")
		aws.Servers = []string{"https://api.aws.example:6443", "https://10.51.0.5:6443"}
		aws.Installed.Settings = inspect.Settings{
			"SEMAPHORE_REMOTES": "gcp", "SEMAPHORE_REMOTE_GCP_POD_SUBNETS": "10.8.0.0/14",
			"SEMAPHORE_REMOTE_GCP_NODE_SUBNETS": "10.67.0.0/16", "SEMAPHORE_REMOTE_GCP_API_URL": "https://10.50.0.5:6443",
		}
		gcp := healthy(t, "gcp", "10.8.0.0/24", "10.104.0.0/16", "10.66.2.2")
		evil := healthy(t, "evil", c.pods, "10.106.0.0/16", "10.66.3.2")
		var w InstallOptions
		if c.given {
			w.Pods = map[string][]netip.Prefix{"evil": subnets(t, c.pods)}
		}
		remotes := []remoteSettings{w.remoteSettings(gcp), w.remoteSettings(evil)}
		agreed, _ := agree(aws, remotes)
		faults := collisions(aws, settings(aws, remotes, nil), agreed, []*inspect.Facts{aws, gcp, evil})
		only(t, name, faults, c.want)
	}
}

// TestNodesAmongPods joins a cluster whose nodes and API server are inside the pod subnets
// that another one has reported earlier.
func TestNodesAmongPods(t *testing.T) {
	aws := healthy(t, "aws", "10.2.0.0/16", "10.102.0.0/16", "10.66.1.2")
	aws.Installed.Settings = inspect.Settings{"SEMAPHORE_REMOTES": "evil", "SEMAPHORE_REMOTE_EVIL_POD_SUBNETS": "10.66.0.0/16", "SEMAPHORE_REMOTE_EVIL_NODE_SUBNETS": "10.77.0.0/16"}
	evil := healthy(t, "evil", "10.20.0.0/24", "10.106.0.0/16", "10.77.3.2")
	gcp := healthy(t, "gcp", "10.4.0.0/16", "10.104.0.0/16", "10.66.2.2")
	gcp.Servers = []string{"https://10.66.2.3:6443"}
	all := []*inspect.Facts{aws, gcp, evil}
	var w InstallOptions
	remotes := []remoteSettings{w.remoteSettings(gcp), w.remoteSettings(evil)}
	agreed, _ := agree(aws, remotes)
	var said []string
	for _, f := range collisions(aws, settings(aws, remotes, nil), agreed, all) {
		said = append(said, f.String())
	}
	for _, want := range []string{"node n of gcp is inside the pod subnet 10.66.0.0/16 in its settings for evil", "node n of aws is inside", "the API server 10.66.2.3 of gcp is inside"} {
		if !strings.Contains(strings.Join(said, "\n"), want) {
			t.Errorf("no %q in %q", want, said)
		}
	}
	if len(said) != 3 {
		t.Errorf("%d faults: %q", len(said), said)
	}
}

// TestNodesAmongTheirOwnPods joins clusters whose nodes have addresses in the pod subnets of
// their own cluster, which works, unlike an API server there.
func TestNodesAmongTheirOwnPods(t *testing.T) {
	for server, want := range map[string]string{
		"https://api.gcp.example:6443": "",
		"https://10.77.0.9:6443":       "",
		"https://10.4.0.9:6443":        "the API server 10.4.0.9 of gcp is inside the pod subnet 10.4.0.0/16 in its settings for gcp",
	} {
		aws := healthy(t, "aws", "10.2.0.0/16", "10.102.0.0/16", "10.2.0.5")
		gcp := healthy(t, "gcp", "10.4.0.0/16", "10.104.0.0/16", "10.4.0.5")
		gcp.Servers = []string{server}
		all := []*inspect.Facts{aws, gcp}
		var w InstallOptions
		remotes := []remoteSettings{w.remoteSettings(gcp)}
		agreed, _ := agree(aws, remotes)
		faults := append(collisions(aws, settings(aws, remotes, nil), agreed, all), overlaps(all, &w)...)
		only(t, server, faults, want)
	}
}
