package join

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
)

// TestOverlapsWithRemotes joins aws, which is joined with merit, with gcp.
func TestOverlapsWithRemotes(t *testing.T) {
	const merit = "SEMAPHORE_REMOTE_MERIT_"
	for name, c := range map[string]struct {
		pods, services string // of gcp
		key, value     string // of merit, in aws
		want           string // of the only fault; empty: none
	}{
		"none":                       {"10.4.0.0/16", "10.104.0.0/16", "NODE_SUBNETS", "10.77.0.0/16", ""},
		"pods":                       {"10.4.0.0/16", "10.104.0.0/16", "POD_SUBNETS", "10.4.0.0/17", "pods 10.4.0.0/16 of gcp overlap pods (in the settings of aws) 10.4.0.0/17 of merit"},
		"nodes among pods":           {"10.77.0.0/16", "10.104.0.0/16", "NODE_SUBNETS", "10.77.0.0/16", "join aws merit --node-subnets merit="},
		"nodes among services":       {"10.4.0.0/16", "10.77.128.0/20", "NODE_SUBNETS", "10.76.0.0/15", "services 10.77.128.0/20 of gcp overlap nodes (in the settings of aws) 10.76.0.0/15 of merit"},
		"the API server among pods":  {"10.77.0.0/16", "10.104.0.0/16", "API_URL", "https://10.77.0.1:6443", "pods 10.77.0.0/16 of gcp overlap API server (in the settings of aws) 10.77.0.1/32 of merit"},
		"of IPv6":                    {"fd00:77::/48", "10.104.0.0/16", "API_URL", "https://[fd00:77::1]:6443", "API server (in the settings of aws) fd00:77::1/128 of merit"},
		"the API server has a name":  {"10.77.0.0/16", "10.104.0.0/16", "API_URL", "https://api.merit.example:6443", ""},
		"nodes beside nodes":         {"10.4.0.0/16", "10.104.0.0/16", "NODE_SUBNETS", "10.66.0.0/16", ""},
		"nodes among pods of aws":    {"10.4.0.0/16", "10.104.0.0/16", "NODE_SUBNETS", "10.2.0.0/16", ""},
		"its pods among gcp's nodes": {"10.4.0.0/16", "10.104.0.0/16", "POD_SUBNETS", "10.66.2.0/24", "node n 10.66.2.2/32 of gcp overlap pods (in the settings of aws) 10.66.2.0/24 of merit"},
	} {
		aws, gcp := healthy(t, "aws", "10.2.0.0/16", "10.102.0.0/16", "10.66.1.2"), healthy(t, "gcp", c.pods, c.services, "10.66.2.2")
		aws.Installed.Settings = map[string]string{"SEMAPHORE_REMOTES": "merit", merit + c.key: c.value}
		for order, all := range map[string][]*inspect.Facts{"first": {aws, gcp}, "last": {gcp, aws}} {
			faults := overlaps(all, &InstallOptions{})
			only(t, name+", aws "+order, faults, c.want)
		}
		// gcp's settings for merit don't hide those of aws.
		gcp.Installed.Settings = map[string]string{"SEMAPHORE_REMOTES": "merit", merit + c.key: "192.168.7.0/24"}
		if faults := overlaps([]*inspect.Facts{gcp, aws}, &InstallOptions{}); len(faults) > 0 != (c.want != "") {
			t.Errorf("%s, gcp has others for it: faults %v", name, faults)
		}
	}
}

// TestOverlapsAreBounded joins a cluster with the same node addresses as another one.
func TestOverlapsAreBounded(t *testing.T) {
	aws, gcp := healthy(t, "aws", "10.2.0.0/16", "10.102.0.0/16", "10.66.1.2"), healthy(t, "gcp", "10.4.0.0/16", "10.104.0.0/16", "10.66.1.2")
	for i := range 29 {
		n := inspect.Node{Name: fmt.Sprintf("n%d", i), Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 66, 7, byte(i)})}}
		aws.Nodes, gcp.Nodes = append(aws.Nodes, n), append(gcp.Nodes, n)
	}
	faults := overlaps([]*inspect.Facts{aws, gcp, healthy(t, "merit", "10.2.0.0/16", "10.106.0.0/16", "10.66.3.2")}, &InstallOptions{})
	var gcps []string
	for _, f := range faults {
		if f.cluster == "aws, gcp" {
			gcps = append(gcps, f.what)
		}
	}
	if len(gcps) != maxOverlaps+1 || gcps[maxOverlaps] != "and 20 more of their ranges overlap" || len(faults) != maxOverlaps+2 {
		t.Errorf("faults %v", faults)
	}
}

// TestOverlapsOfManyNodes joins two clusters of 20,000 nodes, each with 16 addresses inside
// the pod subnets of a third cluster and of 250 remotes.
func TestOverlapsOfManyNodes(t *testing.T) {
	aws, gcp, merit := healthy(t, "aws", "10.2.0.0/16", "10.102.0.0/16", "10.66.1.2"), healthy(t, "gcp", "10.4.0.0/16", "10.104.0.0/16", "10.66.2.2"), healthy(t, "merit", "fd00::/16", "10.106.0.0/16", "10.66.3.2")
	nodes := make([]inspect.Node, 20_000)
	if testing.Short() {
		nodes = nodes[:2_000]
	}
	for i := range nodes {
		for k := range 16 {
			nodes[i].Addresses = append(nodes[i].Addresses, netip.AddrFrom16([16]byte{0xfd, 0, byte(k), byte(i >> 8), byte(i), 15: 1}).WithZone(fmt.Sprint(k%2)))
		}
	}
	aws.Nodes, gcp.Nodes = nodes, nodes
	merit.Installed.Settings = inspect.Settings{}
	var names []string
	for i := range 250 {
		names = append(names, fmt.Sprintf("c%d", i))
		merit.Installed.Settings[fmt.Sprintf("SEMAPHORE_REMOTE_C%d_POD_SUBNETS", i)] = "fd00::/16"
	}
	merit.Installed.Settings["SEMAPHORE_REMOTES"] = strings.Join(names, ",")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := make(chan int, 1)
	go func() { done <- len(overlaps([]*inspect.Facts{aws, gcp, merit}, &InstallOptions{})) }()
	select {
	case n := <-done:
		// Three pairs, and each of them with merit's remotes.
		if want := (3 + 3) * (maxOverlaps + 1); n != want {
			t.Errorf("%d faults, expected %d", n, want)
		}
	case <-ctx.Done():
		t.Fatal("not done within a minute")
	}
}
