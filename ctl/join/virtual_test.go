package join

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	fakedynamic "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/probe"
	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/reach"
)

// planned returns the settings of clusters that are joined, and what the run says.
func planned(w *InstallOptions, facts ...*inspect.Facts) (set map[string]inspect.Settings, said string) {
	faults := append(w.virtualize(facts), overlaps(facts, w)...)
	a := &installation{Options: Options{InstallOptions: *w}, facts: facts, stays: map[[2]string]bool{}}
	set = map[string]inspect.Settings{}
	for _, f := range facts {
		agreed, refused := agree(f, a.remotesOf(f))
		set[f.Name] = settings(f, a.remotesOf(f), nil)
		a.setMap(f, set[f.Name])
		faults = append(append(faults, refused...), collisions(f, set[f.Name], agreed, facts)...)
		a.agreed = append(a.agreed, agreed...)
	}
	var lines []string
	for _, f := range faults {
		lines = append(lines, f.String())
	}
	lines = append(lines, a.virtualLines()...)
	for _, one := range a.agreed {
		lines = append(lines, one.lines()...)
	}
	return set, strings.Join(lines, "\n")
}

// TestVirtualSubnets joins aws with gcp.
func TestVirtualSubnets(t *testing.T) {
	const pods = "10.2.0.0/16"
	const ofAWS, ofGCP = "SEMAPHORE_REMOTE_AWS_POD_SUBNETS", "SEMAPHORE_REMOTE_GCP_POD_SUBNETS"
	joined := func(f *inspect.Facts, remote, accepted, subnets string) {
		f.Installed.Settings = inspect.Settings{"SEMAPHORE_REMOTES": remote, "SEMAPHORE_REMOTE_" + strings.ToUpper(remote) + "_POD_SUBNETS": accepted, inspect.PodSubnetsMap: subnets}
	}
	for name, c := range map[string]struct {
		aws, gcp string            // pod subnets
		virtual  map[string]string // --virtual-subnets
		change   func(aws, gcp *inspect.Facts)
		// want are the maps of aws and gcp, and what each of them accepts of the other one's pods;
		// empty: faults.
		want []string
		says string
	}{
		"apart": {aws: pods, gcp: "10.4.0.0/16", want: []string{"", "", "10.4.0.0/16", pods}},
		"the same": {aws: pods, gcp: pods, want: []string{"10.2.0.0/16=100.105.0.0/16", "10.2.0.0/16=100.89.0.0/16", "100.89.0.0/16", "100.105.0.0/16"},
			says: "aws: its pods 10.2.0.0/16 overlap pods 10.2.0.0/16 of gcp: other clusters will know them as 100.105.0.0/16 (proposed)"},
		"the same is asked for": {aws: pods, gcp: pods, want: []string{"10.2.0.0/16=100.105.0.0/16", "10.2.0.0/16=100.89.0.0/16", "100.89.0.0/16", "100.105.0.0/16"},
			says: "pods in 100.89.0.0/16 (with the proposed ones)"},
		"a part": {aws: "10.2.0.0/16", gcp: "10.2.128.0/17,10.9.0.0/16", want: []string{"10.2.0.0/16=100.105.0.0/16", "10.2.128.0/17=100.127.0.0/17", "100.127.0.0/17,10.9.0.0/16", "100.105.0.0/16"}},
		"both families": {aws: pods + ",fd00:2::/48", gcp: pods + ",fd00:2::/56",
			want: []string{"10.2.0.0/16=100.105.0.0/16,fd00:2::/48=", "10.2.0.0/16=100.89.0.0/16,fd00:2::/56=", "100.89.0.0/16,fd", "100.105.0.0/16,fd"}},
		"pods among services": {aws: pods, gcp: "10.102.16.0/20", want: []string{"", "10.102.16.0/20=100.116.32.0/20", "100.116.32.0/20", pods}, says: "overlap services 10.102.0.0/16 of aws"},
		"chosen": {aws: pods, gcp: pods, virtual: map[string]string{"aws": "10.201.0.0/16", "gcp": "10.2.0.0/16=10.202.0.0/16"},
			want: []string{"10.2.0.0/16=10.201.0.0/16", "10.2.0.0/16=10.202.0.0/16", "10.202.0.0/16", "10.201.0.0/16"}, says: "aws: other clusters will know its pods 10.2.0.0/16 as 10.201.0.0/16 (as you specified)"},
		"chosen without need":      {aws: pods, gcp: "10.4.0.0/16", virtual: map[string]string{"aws": "10.201.0.0/16"}, want: []string{"10.2.0.0/16=10.201.0.0/16", "", "10.4.0.0/16", "10.201.0.0/16"}},
		"one chosen":               {aws: pods, gcp: pods, virtual: map[string]string{"aws": "100.89.0.0/16"}, want: []string{"10.2.0.0/16=100.89.0.0/16", "10.2.0.0/16=100.90.0.0/16", "100.90.0.0/16", "100.89.0.0/16"}},
		"chosen, in use":           {aws: pods, gcp: pods, virtual: map[string]string{"aws": "10.104.0.0/16"}, says: "aws: the virtual subnet 10.104.0.0/16 overlaps services of gcp at 10.104.0.0/16: choose another one, such as --virtual-subnets aws=10.2.0.0/16=100.105.0.0/16"},
		"chosen, used by itself":   {aws: pods, gcp: pods, virtual: map[string]string{"aws": "10.102.0.0/16"}, says: "overlaps services of aws"},
		"chosen of nodes":          {aws: pods, gcp: pods, virtual: map[string]string{"aws": "10.66.0.0/16"}, says: "overlaps node n of aws at 10.66.1.2/32"},
		"chosen of another's pods": {aws: pods, gcp: "10.4.0.0/16", virtual: map[string]string{"aws": "10.4.0.0/16"}, says: "overlaps pods of gcp at 10.4.0.0/16"},
		"chosen twice":             {aws: pods, gcp: pods, virtual: map[string]string{"aws": "10.201.0.0/16", "gcp": "10.201.0.0/16"}, says: "overlaps virtual subnets of gcp"},
		"of another length":        {aws: pods, gcp: pods, virtual: map[string]string{"aws": "10.201.0.0/17"}, says: "aws: its pods are in 10.2.0.0/16: name the subnet that becomes 10.201.0.0/17, which has the same length"},
		"less than all of it":      {aws: "10.2.0.0/15", gcp: pods, virtual: map[string]string{"aws": "10.2.0.0/16=10.201.0.0/16"}, says: "aws: only a part of 10.2.0.0/15 is in 10.2.0.0/16, which is mapped to 10.201.0.0/16: map all of it"},
		"none, and needed": {aws: pods, gcp: pods, virtual: map[string]string{"aws": ""},
			says: "aws, gcp: pods 10.2.0.0/16 of aws overlap pods 10.2.0.0/16 of gcp: choose virtual subnets, see docs/overlapping-subnets.md: --virtual-subnets aws=..."},
		"too large": {aws: "10.0.0.0/9", gcp: pods, says: "aws: its pods 10.0.0.0/9 overlap pods 10.2.0.0/16 of gcp, and no subnet of this length is free in 100.64.0.0/10: choose one yourself: --virtual-subnets aws=10.0.0.0/9="},
		"future nodes": {aws: pods, gcp: pods, change: func(_, gcp *inspect.Facts) { gcp.PodsSure, gcp.PodsFrom = false, "podCIDRs of the nodes" },
			says: "gcp: its pods need virtual subnets, and podCIDRs of the nodes don't show where those of future nodes will be: specify the whole range, as in --pod-subnets gcp="},
		"a node among pods": {aws: pods, gcp: pods, change: func(_, gcp *inspect.Facts) { gcp.Nodes[0].Addresses[0] = netip.MustParseAddr("10.2.3.4") },
			says: "overlap node n 10.2.3.4/32 of gcp: move one of the clusters to other addresses"},
		// The map of a cluster is kept.
		"one has a map": {aws: pods, gcp: pods, change: func(aws, _ *inspect.Facts) { joined(aws, "merit", "10.6.0.0/16", "10.2.0.0/16=10.99.0.0/16") },
			want: []string{"10.2.0.0/16=10.99.0.0/16", "10.2.0.0/16=100.89.0.0/16", "100.89.0.0/16", "10.99.0.0/16"}, says: "pods in 10.99.0.0/16 (as it reports)"},
		"both have one": {aws: pods, gcp: pods, change: func(aws, gcp *inspect.Facts) {
			joined(aws, "gcp", "10.98.0.0/16", "10.2.0.0/16=10.99.0.0/16")
			joined(gcp, "aws", "10.99.0.0/16", "10.2.0.0/16=10.98.0.0/16")
		}, want: []string{"10.2.0.0/16=10.99.0.0/16", "10.2.0.0/16=10.98.0.0/16", "10.98.0.0/16", "10.99.0.0/16"}},
		"both have the same one": {aws: pods, gcp: pods, change: func(aws, gcp *inspect.Facts) {
			joined(aws, "merit", "10.6.0.0/16", "10.2.0.0/16=10.99.0.0/16")
			joined(gcp, "vsc", "10.8.0.0/16", "10.2.0.0/16=10.99.0.0/16")
		}, says: "virtual subnets 10.99.0.0/16 of aws overlap virtual subnets 10.99.0.0/16 of gcp: choose another one: --virtual-subnets aws=..."},
		"in the way of a map": {aws: pods, gcp: "10.99.0.0/17", change: func(aws, _ *inspect.Facts) { joined(aws, "merit", "10.6.0.0/16", "10.2.0.0/16=10.99.0.0/16") },
			says: "virtual subnets 10.99.0.0/16 of aws overlap pods 10.99.0.0/17 of gcp: choose another one: --virtual-subnets aws=..."},
		"a map of public addresses": {aws: pods, gcp: pods, change: func(_, gcp *inspect.Facts) { joined(gcp, "merit", "10.6.0.0/16", "10.2.0.0/16=9.9.0.0/16") },
			says: "gcp: it reports pods in 9.9.0.0/16: 9.9.0.0/16 isn't inside a private range"},
		"a map into the other one": {aws: pods, gcp: pods, change: func(_, gcp *inspect.Facts) { joined(gcp, "merit", "10.6.0.0/16", "10.2.0.0/16=10.102.0.0/16") },
			says: "services 10.102.0.0/16 of aws overlap virtual subnets 10.102.0.0/16 of gcp"},
		// Remotes.
		"of a remote": {aws: pods, gcp: "10.6.0.0/16", change: func(aws, _ *inspect.Facts) { joined(aws, "merit", "10.6.0.0/16", "") },
			want: []string{"", "10.6.0.0/16=100.78.0.0/16", "100.78.0.0/16", pods}, says: "overlap pods (in the settings of aws) 10.6.0.0/16 of merit"},
		"with a remote that isn't asked": {aws: pods, gcp: pods, change: func(aws, _ *inspect.Facts) { joined(aws, "merit", "10.6.0.0/16", "") },
			says: "aws: the subnets by which other clusters know its pods change, and merit would go on using the former ones: join it with all of its remotes: add merit to the arguments; or, " +
				"to join none of these with new clusters, first run semaphorectl join aws merit --virtual-subnets aws=10.2.0.0/16=100.105.0.0/16"},
		// Runs after others.
		"interrupted": {aws: pods, gcp: pods, change: func(_, gcp *inspect.Facts) { joined(gcp, "aws", "100.105.0.0/16", "10.2.0.0/16=100.89.0.0/16") },
			want: []string{"10.2.0.0/16=100.105.0.0/16", "10.2.0.0/16=100.89.0.0/16", "100.89.0.0/16", "100.105.0.0/16"}},
		"interrupted, joined before": {aws: "10.3.0.0/16", gcp: pods, virtual: map[string]string{"gcp": "10.98.0.0/16"}, change: func(aws, gcp *inspect.Facts) {
			joined(aws, "gcp", pods, "")
			joined(gcp, "aws", "10.3.0.0/16", "10.2.0.0/16=10.98.0.0/16")
		}, want: []string{"", "10.2.0.0/16=10.98.0.0/16", "10.98.0.0/16", "10.3.0.0/16"}, says: "pods in 10.98.0.0/16 (as you specified)"},
		"a map by another program": {aws: "10.3.0.0/16", gcp: pods, change: func(aws, gcp *inspect.Facts) {
			joined(aws, "gcp", pods, "")
			joined(gcp, "aws", "10.3.0.0/16", "10.2.0.0/16=10.98.0.0/16")
		}, want: []string{"", "10.2.0.0/16=10.98.0.0/16", "10.98.0.0/16", "10.3.0.0/16"}, says: "aws will accept only these addresses of gcp:\n  pods in 10.98.0.0/16 (as it reports)"},
		"others": {aws: pods, gcp: pods, virtual: map[string]string{"gcp": "10.97.0.0/16"}, change: func(aws, gcp *inspect.Facts) {
			joined(aws, "gcp", "10.98.0.0/16", "10.2.0.0/16=10.99.0.0/16")
			joined(gcp, "aws", "10.99.0.0/16", "10.2.0.0/16=10.98.0.0/16")
		}, want: []string{"10.2.0.0/16=10.99.0.0/16", "10.2.0.0/16=10.97.0.0/16", "10.97.0.0/16", "10.99.0.0/16"}, says: "gcp: other clusters will no longer know its pods 10.2.0.0/16 as 10.98.0.0/16"},
		"others, interrupted": {aws: pods, gcp: pods, virtual: map[string]string{"gcp": "10.97.0.0/16"}, change: func(aws, gcp *inspect.Facts) {
			joined(aws, "gcp", "10.98.0.0/16", "10.2.0.0/16=10.99.0.0/16")
			joined(gcp, "aws", "10.99.0.0/16", "10.2.0.0/16=10.97.0.0/16")
		}, want: []string{"10.2.0.0/16=10.99.0.0/16", "10.2.0.0/16=10.97.0.0/16", "10.97.0.0/16", "10.99.0.0/16"}, says: "pods in 10.97.0.0/16 (as you specified)"},
		"back": {aws: "10.3.0.0/16", gcp: pods, virtual: map[string]string{"aws": "", "gcp": ""}, change: func(aws, gcp *inspect.Facts) {
			joined(aws, "gcp", "10.98.0.0/16", "")
			joined(gcp, "aws", "10.3.0.0/16", "10.2.0.0/16=10.98.0.0/16")
		}, want: []string{"", "", pods, "10.3.0.0/16"}, says: "pods in 10.2.0.0/16 (as you specified)"},
		"more was accepted": {aws: "10.6.0.0/16", gcp: pods, virtual: map[string]string{"gcp": "10.98.0.0/16"}, change: func(aws, _ *inspect.Facts) { joined(aws, "gcp", "10.2.0.0/15", "") },
			want: []string{"", "10.2.0.0/16=10.98.0.0/16", "10.98.0.0/16", "10.6.0.0/16"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := InstallOptions{Virtual: map[string][]config.Mapping{}}
			for of, text := range c.virtual {
				var err error
				if w.Virtual[of], err = parseVirtual(text); err != nil {
					t.Fatal(err)
				}
			}
			aws, gcp := healthy(t, "aws", c.aws, "10.102.0.0/16", "10.66.1.2"), healthy(t, "gcp", c.gcp, "10.104.0.0/16", "10.66.2.2")
			if c.change != nil {
				c.change(aws, gcp)
			}
			set, said := planned(&w, aws, gcp)
			if !strings.Contains(said, c.says) {
				t.Errorf("no %q in\n%s", c.says, said)
			}
			got := []string{set["aws"][inspect.PodSubnetsMap], set["gcp"][inspect.PodSubnetsMap], set["aws"][ofGCP], set["gcp"][ofAWS]}
			for i, want := range c.want {
				if got[i] != want && (want == "" || !strings.Contains(want, "fd") || !strings.HasPrefix(got[i], want)) {
					t.Errorf("settings %q, expected %q:\n%s", got, c.want, said)
					break
				}
			}
			if strings.Contains(said, ": its pods ") && c.want != nil && !strings.Contains(said, "(proposed)") {
				t.Errorf("faults:\n%s", said)
			}
			// The programs accept the settings.
			for of, settings := range set {
				if _, err := inspect.ParseSettings(of, settings); err != nil {
					t.Error(err)
				}
			}
			if c.want != nil {
				if of := []string{set["gcp"][ofAWS+"_MAP"], set["aws"][ofGCP+"_MAP"]}; of[0] != got[0] || of[1] != got[1] {
					t.Errorf("neighbours have the maps %q, expected %q", of, got[:2])
				}
				accepted(t, set["aws"])
			}
			// A run after this one changes nothing, and asks nothing.
			if c.want == nil {
				return
			}
			aws.Installed.Settings, gcp.Installed.Settings = set["aws"], set["gcp"]
			again, said := planned(&InstallOptions{}, gcp, aws)
			if fmt.Sprint(again) != fmt.Sprint(set) || said != "" {
				t.Errorf("again: %v, then %v:\n%s", set, again, said)
			}
		})
	}
}

// accepted loads settings as the programs do.
func accepted(t *testing.T, settings inspect.Settings) {
	t.Helper()
	t.Setenv("SEMAPHORE_NODE_NAME", "n")
	t.Setenv("SEMAPHORE_REMOTE_MERIT_KUBECONFIG", "/etc/merit")
	for key, value := range settings {
		t.Setenv(key, value)
	}
	if _, _, err := config.LoadWireguard(nil); err != nil {
		t.Errorf("agents refuse %v: %v", settings, err)
	}
}

// TestMoved moves what a cluster accepts of gcp.
func TestMoved(t *testing.T) {
	before, now := config.SubnetMap{}, config.SubnetMap{}
	for text, m := range map[string]*config.SubnetMap{"10.2.0.0/16=10.98.0.0/16": &before, "10.2.0.0/16=10.97.0.0/16,fd00:2::/48=fd00:97::/48": &now} {
		if err := m.Decode(text); err != nil {
			t.Fatal(err)
		}
	}
	for accepted, want := range map[string]string{
		"":                            "",
		"10.98.0.0/16":                "10.97.0.0/16",
		"10.98.7.0/24,10.98.9.128/25": "10.97.7.0/24,10.97.9.128/25",
		"10.2.7.0/24":                 "10.97.7.0/24",
		"10.97.7.0/24":                "10.97.7.0/24",
		"10.50.0.0/16":                "10.50.0.0/16",
		"10.2.0.0/15,10.50.0.0/16":    "10.97.0.0/16,10.3.7.0/24,10.50.0.0/16",
		"fd00:2::/32":                 "fd00:97::/48",
		"10.98.0.0/15":                "10.97.0.0/16",
		"10.96.0.0/14":                "10.97.0.0/16",
		"10.96.0.0/15":                "10.97.0.0/16",
	} {
		s := mapped{before: before, now: now}
		if got := join(s.moved(subnets(t, accepted), subnets(t, "10.2.0.0/16,10.3.7.0/24,fd00:2::/48"))); got != want {
			t.Errorf("%s becomes %s, expected %s", accepted, got, want)
		}
	}
}

// TestForeignLinks joins aws with gcp, where a node has a link in the range of proposals.
func TestForeignLinks(t *testing.T) {
	const pods, link = "10.2.0.0/16", "the link tailscale0 of node n with 100.101.102.103"
	tailscale := []reach.Link{{Name: "tailscale0", Address: netip.MustParseAddr("100.101.102.103")}}
	for name, c := range map[string]struct {
		virtual string // of aws; "-": not given
		aws     string // pods of aws
		links   []reach.Link
		want    string // the map of aws
		says    []string
	}{
		"none":             {"-", pods, nil, "10.2.0.0/16=100.105.0.0/16", []string{"links of nodes that weren't looked at"}},
		"of its own pods":  {"-", pods, []reach.Link{{Name: "eth1", Address: netip.MustParseAddr("100.70.3.4")}}, "10.2.0.0/16=100.105.0.0/16", nil},
		"no address in it": {"-", pods, []reach.Link{{Name: "eth1", Address: netip.MustParseAddr("10.9.9.9")}, {Name: "eth2"}}, "10.2.0.0/16=100.105.0.0/16", nil},
		"of a VPN": {"-", pods, tailscale, "10.2.0.0/16=10.233.0.0/16", []string{
			"other clusters will know them as 10.233.0.0/16 (proposed)",
			"nothing is proposed from 100.64.0.0/10: gcp has " + link + ", and programs such as Tailscale drop what a host gets from this range by other links"}},
		"chosen": {"100.77.0.0/16", pods, tailscale, "10.2.0.0/16=100.77.0.0/16", []string{
			"gcp: " + link + ": if that is Tailscale, its filter drops, without a counter of ours, what such a node gets from 100.64.0.0/10 by another link: its host, not its pods, loses the pods of aws, which are known as 100.77.0.0/16: choose subnets outside"}},
		"chosen elsewhere": {"10.201.0.0/16", pods, tailscale, "10.2.0.0/16=10.201.0.0/16", nil},
		"real addresses":   {"-", "100.99.0.0/16", tailscale, "", []string{"loses the pods of aws, which are known as 100.99.0.0/16"}},
		"hostile":          {"-", pods, []reach.Link{{Name: "\x1b[2Ja long name of a link", Address: netip.MustParseAddr("100.101.1.1")}}, "10.2.0.0/16=10.233.0.0/16", []string{`gcp has the link \x1b[2Ja long na`}},
	} {
		t.Run(name, func(t *testing.T) {
			aws, gcp := healthy(t, "aws", c.aws, "10.102.0.0/16", "10.66.1.2"), healthy(t, "gcp", pods+",100.70.0.0/16", "10.104.0.0/16", "10.66.2.2")
			w := &InstallOptions{}
			if c.virtual != "-" {
				w.Virtual = map[string][]config.Mapping{"aws": {{Virtual: netip.MustParsePrefix(c.virtual)}}}
			}
			facts := []*inspect.Facts{aws, gcp}
			a := &installation{Options: Options{InstallOptions: *w}, facts: facts}
			a.virtualize(facts)
			if link := a.foreignLink(gcp, probe.Answers{"n": {Links: c.links}}); link != "" {
				w.links = map[string]string{"gcp": link}
			}
			set, said := planned(w, facts...)
			for _, f := range w.dropped(facts) {
				said += "\n" + f.String()
			}
			if got := set["aws"][inspect.PodSubnetsMap]; got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			for _, text := range c.says {
				if !strings.Contains(said, text) {
					t.Errorf("it doesn't say %q:\n%s", text, said)
				}
			}
			if c.virtual != "100.77.0.0/16" && c.aws == pods && strings.Contains(said, "if that is Tailscale") {
				t.Errorf("it warns:\n%s", said)
			}
		})
	}
}

// TestFree finds free subnets until none is left, the same at each run.
func TestFree(t *testing.T) {
	for _, pods := range []string{"10.0.0.0/10", "10.0.0.0/11", "10.2.0.0/16", "10.2.3.0/24", "fd00:2::/48", "fd00:2::/64"} {
		p := netip.MustParsePrefix(pods)
		uses := []use{{netip.MustParsePrefix("100.120.7.0/24"), "nodes"}, {p, "pods"}}
		var found []netip.Prefix
		for range 100 {
			got, ok := free("aws", p, shared, uses)
			if again, _ := free("aws", p, shared, uses); again != got {
				t.Fatalf("%s, then %s", got, again)
			}
			if !ok {
				break
			}
			if got.Bits() != p.Bits() || got != got.Masked() || got.Addr().Is4() && !shared.Overlaps(got) || got.Addr().Is6() && got.Addr().As16()[0] != 0xfd {
				t.Errorf("%s for %s", got, p)
			}
			for _, u := range append(uses, use{avoided[0], ""}, use{avoided[1], ""}, use{avoided[2], ""}) {
				if u.Overlaps(got) {
					t.Errorf("%s for %s overlaps %s", got, p, u.Prefix)
				}
			}
			found, uses = append(found, got), append(uses, use{got, "found"})
		}
		// A /10 has 64 of /16.
		if want := map[int]int{10: 0, 11: 0, 16: 64 - 5}[p.Bits()]; p.Bits() < 20 && len(found) != want {
			t.Errorf("%d are free for %s, expected %d", len(found), p, want)
		} else if p.Addr().Is6() && len(found) != 16 || p.Bits() == 24 && len(found) != 100 {
			t.Errorf("%d are free for %s", len(found), p)
		}
	}
}

// TestParseVirtual parses --virtual-subnets.
func TestParseVirtual(t *testing.T) {
	for text, want := range map[string]string{
		"":                                       "[]",
		"10.201.0.0/16":                          "[invalid Prefix=10.201.0.0/16]",
		"10.201.3.4/16 fd00:c9::/48":             "[invalid Prefix=10.201.0.0/16 invalid Prefix=fd00:c9::/48]",
		"10.2.0.0/16=10.201.0.0/16,fd00:c9::/48": "[10.2.0.0/16=10.201.0.0/16 invalid Prefix=fd00:c9::/48]",
		"10.2.0.0/16=":                           `"10.2.0.0/16=" is neither a subnet nor a pair such as 10.0.0.0/16=100.64.0.0/16`,
		"=10.2.0.0/16":                           `"=10.2.0.0/16" is neither`,
		"10.2.0.0/16=10.3.0.0/16=10.4.0.0/16":    "is not a subnet",
		"10.2.0.0":                               "is not a subnet such as",
	} {
		got, err := parseVirtual(text)
		if said := fmt.Sprint(got); err == nil && said != want || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v, expected %s", text, got, err, want)
		}
	}
}

// TestUnchosen asks about proposed subnets, and never takes them without an answer.
func TestUnchosen(t *testing.T) {
	for name, c := range map[string]struct {
		yes, terminal bool
		typed, says   string
	}{
		"yes":         {false, true, "y\n", ""},
		"no":          {false, true, "n\n", "nothing was changed"},
		"no terminal": {false, false, "", "nothing was changed: choose the virtual subnets above, or others, with --virtual-subnets aws=10.2.0.0/16=100.105.0.0/16 --virtual-subnets gcp=10.2.0.0/16=100.89.0.0/16"},
		"in a script": {true, false, "", "--virtual-subnets aws="},
		"--yes":       {true, true, "y\n", "--virtual-subnets aws="},
	} {
		s, _ := printed()
		s.In, s.Interactive = strings.NewReader(c.typed), c.terminal
		a := &installation{Session: s, Options: Options{Yes: c.yes}, facts: []*inspect.Facts{
			healthy(t, "aws", "10.2.0.0/16", "10.102.0.0/16", "10.66.1.2"), healthy(t, "gcp", "10.2.0.0/16", "10.104.0.0/16", "10.66.2.2"),
		}}
		if faults := a.virtualize(a.facts); len(faults) > 0 {
			t.Fatal(faults)
		}
		if err := a.confirm(t.Context()); c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: error %v, expected %q", name, err, c.says)
		}
	}
}

// TestRemoteMovesNoBound joins again with a remote that has got a map by itself: --yes doesn't
// accept other subnets than before.
func TestRemoteMovesNoBound(t *testing.T) {
	s, _ := printed()
	aws, gcp := healthy(t, "aws", "10.3.0.0/16", "10.102.0.0/16", "10.66.1.2"), healthy(t, "gcp", "10.2.0.0/16", "10.104.0.0/16", "10.66.2.2")
	aws.Installed.Settings = inspect.Settings{"SEMAPHORE_REMOTES": "gcp", "SEMAPHORE_REMOTE_GCP_POD_SUBNETS": "10.2.0.0/16", "SEMAPHORE_REMOTE_GCP_NODE_SUBNETS": "10.66.0.0/16"}
	gcp.Installed.Settings = inspect.Settings{inspect.PodSubnetsMap: "10.2.0.0/16=192.168.0.0/16"}
	a := &installation{Session: s, Options: Options{Yes: true}, facts: []*inspect.Facts{aws, gcp}, stays: map[[2]string]bool{}}
	if faults := a.virtualize(a.facts); len(faults) > 0 {
		t.Fatal(faults)
	}
	a.agreed, _ = agree(aws, a.remotesOf(aws))
	if err := a.confirm(t.Context()); err == nil || !strings.Contains(err.Error(), "--virtual-subnets gcp=10.2.0.0/16=192.168.0.0/16") {
		t.Errorf("error %v", err)
	}
	a.Virtual = map[string][]config.Mapping{"gcp": gcp.Installed.Settings.SubnetMap()}
	if faults := a.virtualize(a.facts); len(faults) > 0 {
		t.Fatal(faults)
	}
	a.agreed, _ = agree(aws, a.remotesOf(aws))
	if err := a.confirm(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestPoolIsReplaced deletes a pool with another subnet, before it is applied: Calico's API server changes none.
func TestPoolIsReplaced(t *testing.T) {
	pool := func(cidr string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "projectcalico.org/v3", "kind": "IPPool", "metadata": map[string]any{"name": "remote-gcp"}, "spec": map[string]any{"cidr": cidr, "disabled": true},
		}}
	}
	for cidr, want := range map[string]string{"10.4.0.0/16": "get", "100.89.0.0/16": "get delete"} {
		client := fakedynamic.NewSimpleDynamicClientWithCustomListKinds(scheme.Scheme,
			map[schema.GroupVersionResource]string{{Group: "projectcalico.org", Version: "v3", Resource: "ippools"}: "IPPoolList"}, pool("10.4.0.0/16"))
		clientset := fake.NewClientset()
		clientset.Resources = []*metav1.APIResourceList{{GroupVersion: "projectcalico.org/v3", APIResources: []metav1.APIResource{{Name: "ippools", Kind: "IPPool"}}}}
		if _, err := drifted(t.Context(), &cli.Cluster{Name: "aws", Access: cli.Access{Context: "aws"}, Dynamic: client, Client: clientset}, []*unstructured.Unstructured{pool(cidr)}, true); err != nil {
			t.Errorf("%s: %v", cidr, err)
		}
		var verbs []string
		for _, action := range client.Actions() {
			verbs = append(verbs, action.GetVerb())
		}
		if got := strings.Join(verbs, " "); got != want {
			t.Errorf("%s: %s, expected %s", cidr, got, want)
		}
	}
}
