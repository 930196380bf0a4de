package join

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
)

// TestBoundsAreNotWidened joins with a neighbour that reports more than the administrator has
// accepted: 10.4.0.0/16 would become 8.0.0.0/7, which agents would route into the tunnel.
func TestBoundsAreNotWidened(t *testing.T) {
	const pods, nodes = "SEMAPHORE_REMOTE_GCP_POD_SUBNETS", "SEMAPHORE_REMOTE_GCP_NODE_SUBNETS"
	there := inspect.Settings{"SEMAPHORE_REMOTES": "gcp", pods: "10.4.0.0/16", nodes: "10.66.0.0/16"}
	for name, c := range map[string]struct {
		there       inspect.Settings
		pods, nodes string // as gcp reports them
		chosen      InstallOptions
		wantPods    string
		wantNodes   string
		says        string // faults and agreements
	}{
		"as it was": {there, "10.4.0.0/16", "10.66.0.0/16", InstallOptions{}, "10.4.0.0/16", "10.66.0.0/16", ""},
		"less":      {there, "10.4.7.0/24", "10.66.0.0/16", InstallOptions{}, "10.4.0.0/16", "10.66.0.0/16", ""},
		"everything": {there, "8.0.0.0/7", "10.66.0.0/16,192.168.0.0/16", InstallOptions{}, "10.4.0.0/16", "10.66.0.0/16",
			"! aws: it accepts pods of gcp only in 10.4.0.0/16, and gcp has some in 8.0.0.0/7"},
		"another range": {there, "10.8.0.0/16", "10.66.0.0/16", InstallOptions{}, "10.4.0.0/16", "10.66.0.0/16", "--pod-subnets gcp="},
		"by the administrator": {there, "10.8.0.0/16", "10.66.0.0/16", InstallOptions{Pods: map[string][]netip.Prefix{"gcp": subnets(t, "10.8.0.0/16,10.4.0.0/16")}},
			"10.8.0.0/16,10.4.0.0/16", "10.66.0.0/16", "+ aws will accept only these addresses of gcp:\n  pods in 10.8.0.0/16,10.4.0.0/16 (as you specified)"},
		"narrower by the administrator": {there, "10.4.0.0/16", "10.66.0.0/16", InstallOptions{Pods: map[string][]netip.Prefix{"gcp": subnets(t, "10.4.1.0/24")}},
			"10.4.1.0/24", "10.66.0.0/16", "+ aws will accept only these addresses of gcp:\n  pods in 10.4.1.0/24 (as you specified)"},
		"the first time": {nil, "10.4.0.0/16", "10.66.0.0/16", InstallOptions{}, "10.4.0.0/16", "10.66.0.0/16",
			"? aws will accept only these addresses of gcp:\n  pods in 10.4.0.0/16 (as it reports)\n  nodes in 10.66.0.0/16 (as it reports)"},
		"public, the first time": {nil, "10.4.0.0/16", "203.0.113.0/24", InstallOptions{}, "10.4.0.0/16", "203.0.113.0/24", "it reports nodes in 203.0.113.0/24: 203.0.113.0/24 isn't inside a private range"},
		"public, and named": {nil, "10.4.0.0/16", "203.0.113.0/24", InstallOptions{Machines: map[string][]netip.Prefix{"gcp": subnets(t, "203.0.113.0/24")}}, "10.4.0.0/16", "203.0.113.0/24",
			"? aws will accept only these addresses of gcp:\n  pods in 10.4.0.0/16 (as it reports)\n  nodes in 203.0.113.0/24 (as you specified)"},
		"too large, the first time": {nil, "10.0.0.0/8", "10.66.0.0/16", InstallOptions{}, "10.0.0.0/8", "10.66.0.0/16", "these are more addresses than a /11 has: specify the ranges: --pod-subnets gcp="},
		"across, the first time":    {nil, "8.0.0.0/7", "10.66.0.0/16", InstallOptions{}, "8.0.0.0/7", "10.66.0.0/16", "isn't inside a private range"},
		"all, the first time":       {nil, "0.0.0.0/0", "10.66.0.0/16", InstallOptions{}, "0.0.0.0/0", "10.66.0.0/16", "isn't inside a private range"},
		"IPv6 too large":            {nil, "fd00::/32", "10.66.0.0/16", InstallOptions{}, "fd00::/32", "10.66.0.0/16", "more addresses than a /48 has"},
		"many ranges of nodes":      {nil, "10.4.0.0/16", many(9), InstallOptions{}, "10.4.0.0/16", many(9), "these are 9 ranges, more than 8"},
		"many ranges of pods":       {nil, many(17), "10.66.0.0/16", InstallOptions{}, many(17), "10.66.0.0/16", "these are 17 ranges, more than 16"},
		"much in all":               {nil, "10.64.0.0/11,10.128.0.0/24", "10.66.0.0/16", InstallOptions{}, "10.64.0.0/11,10.128.0.0/24", "10.66.0.0/16", "more addresses than a /11 has"},
		"much of nodes in all":      {nil, "10.4.0.0/16", many(5), InstallOptions{}, "10.4.0.0/16", many(5), "more addresses than a /14 has"},
		"nodes without, so far":     {inspect.Settings{"SEMAPHORE_REMOTES": "gcp", pods: "10.4.0.0/16"}, "10.4.0.0/16", "10.66.0.0/16", InstallOptions{}, "10.4.0.0/16", "10.66.0.0/16", "? aws will accept only these addresses of gcp:\n  nodes in 10.66.0.0/16 (as it reports)"},
		"all named, nothing to ask": {nil, "1.0.0.0/8", "2.0.0.0/8", InstallOptions{Pods: map[string][]netip.Prefix{"gcp": subnets(t, "10.4.0.0/16")}, Machines: map[string][]netip.Prefix{"gcp": subnets(t, "10.66.1.0/24")}}, "10.4.0.0/16", "10.66.1.0/24", "+ aws will accept only these addresses of gcp"},
	} {
		t.Run(name, func(t *testing.T) {
			aws := healthy(t, "aws", "10.2.0.0/16", "10.102.0.0/16", "10.66.1.2")
			aws.Installed.Settings = c.there
			gcp := healthy(t, "gcp", c.pods, "10.104.0.0/16", "10.66.2.2")
			gcp.Pods, gcp.Machines = subnets(t, c.pods), subnets(t, c.nodes)
			remotes := []remoteSettings{c.chosen.remoteSettings(gcp)}
			got := settings(aws, remotes, nil)
			if got[pods] != c.wantPods || got[nodes] != c.wantNodes {
				t.Errorf("pods in %s, nodes in %s; expected %s and %s", got[pods], got[nodes], c.wantPods, c.wantNodes)
			}
			var said []string
			agreed, faults := agree(aws, remotes)
			for _, f := range faults {
				mark := ""
				if f.warning {
					mark = "! "
				}
				said = append(said, mark+f.String())
			}
			for _, a := range agreed {
				mark := "+ "
				if a.asked() {
					mark = "? "
				}
				said = append(said, mark+strings.Join(a.lines(), "\n"))
			}
			all := strings.Join(said, "\n")
			if !strings.Contains(all, c.says) || c.says == "" && all != "" {
				t.Errorf("it says\n%s\nexpected %q", all, c.says)
			}
		})
	}
}

// many returns so many /16s that aren't adjacent.
func many(n int) string {
	var words []string
	for i := range n {
		words = append(words, fmt.Sprintf("10.%d.0.0/16", 100+2*i))
	}
	return strings.Join(words, ",")
}

// TestOneClusterHidesNoOther reports very many faults of a cluster, and those of another one.
func TestOneClusterHidesNoOther(t *testing.T) {
	var faults []fault
	for i := range 5000 {
		faults = append(faults, fault{cluster: "gcp", what: fmt.Sprintf("node n-%d isn't ready", i), warning: true})
	}
	faults = append(faults, fault{cluster: "merit", what: "it has no nodes"}, fault{cluster: "merit", what: "it has no nodes"}, fault{cluster: "aws", what: "it is old"})
	got := few(faults)
	if len(got) != maxFaults+3 || got[0].cluster != "aws" || got[len(got)-1].what != "it has no nodes" || got[len(got)-2].what != "and 4960 more" {
		t.Errorf("%d faults: %v", len(got), got)
	}
}

// TestImportNamespaces bounds the exports of gcp in aws.
func TestImportNamespaces(t *testing.T) {
	const key = "SEMAPHORE_REMOTE_GCP_IMPORT_NAMESPACES"
	for name, c := range map[string]struct {
		there inspect.Settings
		given string // "-": the flag isn't given
		want  string // "-": none
		says  string
	}{
		"as by default":   {nil, "-", "-", "all namespaces but kube-*; to restrict that, use --import-namespaces gcp=..."},
		"given":           {nil, "shop team-*", "shop,team-*", "shop, team-*"},
		"none":            {nil, "", "", "no namespace"},
		"all":             {nil, "*", "*", "all namespaces but kube-*; to restrict that, use --import-namespaces gcp=..."},
		"as it was":       {inspect.Settings{"SEMAPHORE_REMOTES": "gcp", "SEMAPHORE_REMOTE_GCP_POD_SUBNETS": "10.4.0.0/16", key: "shop"}, "-", "shop", ""},
		"as it was, none": {inspect.Settings{"SEMAPHORE_REMOTES": "gcp", "SEMAPHORE_REMOTE_GCP_POD_SUBNETS": "10.4.0.0/16", key: ""}, "-", "", ""},
		"changed":         {inspect.Settings{"SEMAPHORE_REMOTES": "gcp", "SEMAPHORE_REMOTE_GCP_POD_SUBNETS": "10.4.0.0/16", key: "shop"}, "*", "*", ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := flags{}
			if c.given != "-" {
				f.imports = map[string]string{"gcp": c.given}
			}
			if err := f.parse([]string{"aws", "gcp"}); err != nil {
				t.Fatal(err)
			}
			aws, gcp := healthy(t, "aws", "10.2.0.0/16", "10.102.0.0/16", "10.66.1.2"), healthy(t, "gcp", "10.4.0.0/16", "10.104.0.0/16", "10.66.2.2")
			aws.Installed.Settings = c.there
			got := settings(aws, []remoteSettings{f.remoteSettings(gcp)}, nil)
			if value, set := got[key]; set != (c.want != "-") || set && value != c.want {
				t.Errorf("%q, %v, want %q", value, set, c.want)
			}
			if says := imports(c.there, got, "gcp"); says != c.says {
				t.Errorf("it says %q, want %q", says, c.says)
			}
		})
	}
	for text, want := range map[string]string{"gcp=Shop": `--import-namespaces gcp=...: "Shop" is neither`, "merit=shop": "cluster merit isn't among the arguments"} {
		remote, namespaces, _ := strings.Cut(text, "=")
		f := flags{imports: map[string]string{remote: namespaces}}
		if err := f.parse([]string{"aws", "gcp"}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
