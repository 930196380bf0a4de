package judge

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/inspecttest"
)

// twins are aws and gcp with two nodes each, whose pods have the same addresses and other
// virtual ones.
func twins() (aws, gcp *inspect.Cluster) {
	clusters := inspecttest.Pair(2)
	aws, gcp = clusters[0], clusters[1]
	for i, c := range clusters {
		own, remote := []string{"100.77", "100.78"}[i], []string{"100.78.0.0/16", "100.77.0.0/16"}[i]
		c.Settings.Value = map[string]string{inspect.PodSubnetsMap: "10.0.0.0/16=" + own + ".0.0/16"}
		for n := range c.Nodes.Value {
			node := &c.Nodes.Value[n]
			node.Pods = []netip.Prefix{netip.MustParsePrefix([]string{"10.0.1.0/24", "10.0.2.0/24"}[n])}
			node.Map = c.Settings.Value[inspect.PodSubnetsMap]
			node.Annotations[inspect.AnnotationGroup+"/podCIDRs"] = own + []string{".1.0/24", ".2.0/24"}[n]
			agent := c.Agents[n].Value
			agent.Pods = &statuspage.Pods{Known: true, Prefixes: []string{node.Pods[0].String()}}
			agent.Remotes[0].PodSubnets, agent.Remotes[0].PodSubnetsMap = []string{remote}, "10.0.0.0/16="+remote
		}
	}
	return aws, gcp
}

func TestVirtualSubnets(t *testing.T) {
	unmap := func(c, other *inspect.Cluster) {
		c.Settings.Value = map[string]string{}
		for i := range other.Agents {
			other.Agents[i].Value.Remotes[0].PodSubnetsMap = ""
		}
		for i := range c.Nodes.Value {
			c.Nodes.Value[i].Map = ""
		}
	}
	for name, c := range map[string]struct {
		change func(aws, gcp *inspect.Cluster)
		want   string
	}{
		"all is well": {func(_, _ *inspect.Cluster) {}, "well\n"},
		"one has no map": {func(aws, gcp *inspect.Cluster) { unmap(gcp, aws) },
			"virtual-subnets-missing: gcp to aws: pods of aws and gcp have the same addresses, and gcp has no virtual subnet for them\n  pods of aws are in 10.0.1.0/24, those of gcp in 10.0.1.0/24\n"},
		"none has one, and agents refuse": {func(aws, gcp *inspect.Cluster) {
			unmap(aws, gcp)
			unmap(gcp, aws)
			aws.Agents[0].Value.Remotes[0].Refused = "10.0.0.0/16 contains pods of this node"
		}, "virtual-subnets-missing: aws to gcp: pods of aws and gcp have the same addresses, and aws has no virtual subnet for them\n  pods of aws are in 10.0.1.0/24, those of gcp in 10.0.1.0/24\n" +
			"virtual-subnets-missing: gcp to aws: pods of aws and gcp have the same addresses, and gcp has no virtual subnet for them\n  pods of aws are in 10.0.1.0/24, those of gcp in 10.0.1.0/24\n"},
		"other pods, no maps": {func(aws, gcp *inspect.Cluster) {
			unmap(aws, gcp)
			unmap(gcp, aws)
			for i := range gcp.Nodes.Value {
				// What agents report is right, not the Node.
				gcp.Agents[i].Value.Pods.Prefixes = []string{[]string{"10.4.1.0/24", "10.4.2.0/24"}[i]}
			}
		}, "well\n"},
		"a node has another map": {func(aws, _ *inspect.Cluster) {
			more := aws.Nodes.Value[1]
			more.Name, more.Map = "aws-3", "10.0.0.0/16=100.99.0.0/16"
			aws.Nodes.Value = append(aws.Nodes.Value, more)
		}, "virtual-subnets-differ: aws/aws-3: aws-3 has other virtual subnets than the settings of aws\n  it publishes 10.0.0.0/16=100.99.0.0/16, the setting is 10.0.0.0/16=100.77.0.0/16\n"},
		"a remote has the real subnet": {func(aws, _ *inspect.Cluster) {
			for i := range aws.Agents {
				aws.Agents[i].Value.Remotes[0].PodSubnets = []string{"10.0.0.0/16"}
			}
		}, "virtual-subnets-differ: aws to gcp: aws-1 doesn't know pods of gcp by their virtual subnets\n  it accepts 10.0.0.0/16, and gcp maps 10.0.0.0/16=100.78.0.0/16\n  aws-2 doesn't know pods of gcp by their virtual subnets\n" +
			"  it accepts 10.0.0.0/16, and gcp maps 10.0.0.0/16=100.78.0.0/16\n"},
		"a remote has no map": {func(aws, _ *inspect.Cluster) { aws.Agents[0].Value.Remotes[0].PodSubnetsMap = "" },
			"virtual-subnets-differ: aws/aws-1 to gcp: aws-1 doesn't know pods of gcp by their virtual subnets\n  its map of gcp is none, and that of gcp itself is 10.0.0.0/16=100.78.0.0/16\n"},
		"a remote has another map": {func(aws, _ *inspect.Cluster) {
			aws.Agents[0].Value.Remotes[0].PodSubnetsMap = "10.9.0.0/16=100.78.0.0/16"
		}, "virtual-subnets-differ: aws/aws-1 to gcp: aws-1 doesn't know pods of gcp by their virtual subnets\n  its map of gcp is 10.9.0.0/16=100.78.0.0/16, and that of gcp itself is 10.0.0.0/16=100.78.0.0/16\n"},
		"settings that can't be read": {func(_, gcp *inspect.Cluster) { gcp.Settings.Value = nil }, "well\n"},
		"a remote has another subnet, and rejects nodes": {func(aws, _ *inspect.Cluster) {
			remote := &aws.Agents[0].Value.Remotes[0]
			remote.PodSubnets, remote.Rejected = []string{"100.99.0.0/16"}, []statuspage.Rejection{{Node: "gcp-1", Reason: "pod_cidr", Detail: "100.78.1.0/24"}}
		}, "virtual-subnets-differ: aws/aws-1 to gcp: aws-1 doesn't know pods of gcp by their virtual subnets\n  it accepts 100.99.0.0/16, and gcp maps 10.0.0.0/16=100.78.0.0/16\n"},
		"a node doesn't translate": {func(aws, _ *inspect.Cluster) {
			aws.Agents[0].Value.Translation = &statuspage.Translation{Filter: statuspage.Filter{State: statuspage.FilterNotEnforced, Error: "the kernel has no nf_tables"}}
			down(&aws.Agents[0].Value.Remotes[0].Peers[0], "no_answer", 0)
		}, "not-translated: aws/aws-1: aws-1 doesn't translate addresses of its pods\n  the kernel has no nf_tables\n"},
		"whether a node translates isn't known": {func(aws, _ *inspect.Cluster) {
			aws.Agents[0].Value.Translation = &statuspage.Translation{Filter: statuspage.Filter{State: statuspage.FilterUnknown, Error: "netlink"}}
		}, "unknown\n  aws: whether aws-1 translates addresses of its pods: netlink\n"},
		"a part of it is enough": {func(aws, _ *inspect.Cluster) {
			aws.Agents[0].Value.Remotes[0].PodSubnets = []string{"100.78.0.0/18", "10.9.0.0/16"}
		}, "well\n"},
	} {
		aws, gcp := twins()
		c.change(aws, gcp)
		got := findings(t, diagnose(t, []*inspect.Cluster{aws, gcp}, nil, false))
		if !strings.HasSuffix(got, c.want) || got != c.want && !strings.Contains(name, "another map") {
			t.Errorf("%s:\n%sexpected:\n%s", name, got, c.want)
		}
	}
}

// TestSourcesOfVirtualPods has sources that pods of another cluster have seen.
func TestSourcesOfVirtualPods(t *testing.T) {
	for seen, want := range map[string]string{
		"":            "",
		"10.0.1.7":    "not-translated: aws/aws-1 to gcp: aws-1 doesn't translate addresses of its pods\n  a pod on gcp-1 received packets from the real address 10.0.1.7\n",
		"10.66.0.1":   "pods-masqueraded: aws/aws-1 to gcp/gcp-1: packets of pods on aws-1 are masqueraded\n  a pod on gcp-1 received them from 10.66.0.1 instead of the pod's virtual address\n",
		"100.77.0.99": "pods-masqueraded: aws/aws-1 to gcp/gcp-1: packets of pods on aws-1 are masqueraded\n  a pod on gcp-1 received them from 100.77.0.99 instead of the pod's virtual address\n",
	} {
		aws, gcp := twins()
		results := tries()
		results.Requests, results.Connections[0].Address, results.Connections[1].Address = nil, "100.78.1.7", "100.77.1.7"
		results.Connections[0].Seen = seen
		if got := findings(t, diagnose(t, []*inspect.Cluster{aws, gcp}, results, true)); want == "" && !strings.HasPrefix(got, "well") && !strings.HasPrefix(got, "unknown") || want != "" && got != want {
			t.Errorf("from %q:\n%sexpected:\n%s", seen, got, want)
		}
	}
}

// TestOwnPodsAskRealAddresses asks endpoints of a service in gcp from aws at the virtual address,
// and from gcp's own pods at the real one.
func TestOwnPodsAskRealAddresses(t *testing.T) {
	aws, gcp := twins()
	web := inspect.KubeService{Namespace: "shop", Name: "web", Port: 80, ClusterIPs: []string{"10.96.0.7"}, Endpoints: inspect.Endpoints{Ready: 1, All: 1, Digest: "now", Sample: []netip.AddrPort{netip.MustParseAddrPort("100.78.1.9:8080")}}}
	gcp.Exports.Value = []inspect.KubeService{web}
	web.Object, web.Origin = "gcp-shop-73736d-web", "gcp"
	aws.Imports.Value = []inspect.KubeService{web}
	all := Asks([]*inspect.Cluster{aws, gcp})
	if got := all[[2]string{"aws", "gcp"}]; len(got) != 1 || strings.Join(got[0].Addresses, " ") != "10.96.0.7:80 100.78.1.9:8080" {
		t.Errorf("aws asks %+v", got)
	}
	if got := all[[2]string{"gcp", "gcp"}]; len(got) != 1 || strings.Join(got[0].Addresses, " ") != "10.0.1.9:8080" {
		t.Errorf("gcp asks %+v", got)
	}
	results := tries()
	results.Connections = nil
	results.Requests = results.Requests[:1]
	results.Requests[0].ServiceRequest = all[[2]string{"gcp", "gcp"}][0]
	results.Requests[0].From.Cluster, results.Requests[0].From.Node = "gcp", "gcp-1"
	results.Requests[0].Result.Failed = map[string]string{"10.0.1.9:8080": "connect: connection refused"}
	f := &Facts{Clusters: []*inspect.Cluster{aws, gcp}, Results: results}
	if got := f.own(); got["100.78.1.9:8080"] != "connect: connection refused" {
		t.Errorf("its own pods got %v", got)
	}
}
