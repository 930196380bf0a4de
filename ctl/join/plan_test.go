package join

import (
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/coredns"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
	"github.com/kube-semaphore/kube-semaphore/ctl/probe"
	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
	"github.com/kube-semaphore/kube-semaphore/internal/reach"
)

func subnets(t *testing.T, text string) []netip.Prefix {
	t.Helper()
	prefixes, err := inspect.Prefixes(text)
	if err != nil {
		t.Fatal(err)
	}
	return prefixes
}

func remote(t *testing.T, name, pods string) remoteSettings {
	t.Helper()
	return remoteSettings{name: cluster.Name(name), server: "https://api." + name + ".example:6443", pods: subnets(t, pods), machines: subnets(t, "10.66.0.0/16")}
}

func TestSettings(t *testing.T) {
	f := &inspect.Facts{Name: "aws", Minor: 36}
	got := settings(f, []remoteSettings{remote(t, "gcp", "10.4.0.0/16,fd00:10:4::/48")}, map[int]bool{51840: true})
	want := inspect.Settings{
		"SEMAPHORE_CLUSTER_NAME":              "aws",
		"SEMAPHORE_REMOTES":                   "gcp",
		"SEMAPHORE_REMOTE_GCP_API_URL":        "https://api.gcp.example:6443",
		"SEMAPHORE_REMOTE_GCP_CA_FILE":        "/etc/semaphore/remotes/gcp.ca.crt",
		"SEMAPHORE_REMOTE_GCP_TOKEN_FILE":     "/etc/semaphore/remotes/gcp.token",
		"SEMAPHORE_REMOTE_GCP_POD_SUBNETS":    "10.4.0.0/16,fd00:10:4::/48",
		"SEMAPHORE_REMOTE_GCP_NODE_SUBNETS":   "10.66.0.0/16",
		"SEMAPHORE_REMOTE_GCP_WG_LISTEN_PORT": "51841",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
	// Changed settings are kept when another remote is added.
	got["SEMAPHORE_LOG_LEVEL"], got["SEMAPHORE_REMOTE_GCP_POD_SUBNETS"] = "debug", "10.4.0.0/15,fd00:10:4::/48"
	f.Installed.Settings = got
	again := settings(f, []remoteSettings{remote(t, "gcp", "10.4.0.0/16,fd00:10:4::/48")}, nil)
	if diff := cmp.Diff(got, again); diff != "" {
		t.Errorf("again (-want +got):\n%s", diff)
	}
	two := settings(f, []remoteSettings{remote(t, "gcp-eu", "10.6.0.0/16")}, nil)
	if two["SEMAPHORE_REMOTES"] != "gcp,gcp-eu" || two["SEMAPHORE_REMOTE_GCP_EU_WG_LISTEN_PORT"] != "51840" {
		t.Errorf("two remotes: %v", two)
	}
	// It is removed without a trace, also if its name is a prefix of another one's.
	if diff := cmp.Diff(got, without(two, "gcp-eu")); diff != "" {
		t.Errorf("without one (-want +got):\n%s", diff)
	}
	if left := without(two, "gcp"); left["SEMAPHORE_REMOTES"] != "gcp-eu" || left["SEMAPHORE_REMOTE_GCP_EU_API_URL"] == "" || left["SEMAPHORE_REMOTE_GCP_API_URL"] != "" {
		t.Errorf("without the other one: %v", left)
	}
	if diff := cmp.Diff(inspect.Settings{"SEMAPHORE_CLUSTER_NAME": "aws", "SEMAPHORE_REMOTES": "", "SEMAPHORE_LOG_LEVEL": "debug"}, without(got, "gcp")); diff != "" {
		t.Errorf("without any (-want +got):\n%s", diff)
	}
}

// TestServersAreRetained joins again without --api-server: the addresses of API servers in the
// settings are retained.
func TestServersAreRetained(t *testing.T) {
	const own = "https://internal.gcp.example:6443"
	aws := healthy(t, "aws", "10.2.0.0/16", "10.102.0.0/16", "10.66.1.2")
	gcp := healthy(t, "gcp", "10.4.0.0/16", "10.104.0.0/16", "10.66.2.2")
	merit := healthy(t, "merit", "10.6.0.0/16", "10.106.0.0/16", "10.66.3.2")
	first := InstallOptions{Servers: map[string]string{"gcp": own}}
	aws.Installed.Settings = settings(aws, []remoteSettings{first.remoteSettings(gcp)}, nil)
	// The settings of aws apply to aws only, and not to merit.
	const guessed = "https://api.gcp.example:6443"
	for f, want := range map[*inspect.Facts][]string{aws: {own, guessed}, merit: {guessed}} {
		if diff := cmp.Diff(want, (&installation{}).candidates(f, gcp)); diff != "" {
			t.Errorf("candidates of %s (-want +got):\n%s", f.Name, diff)
		}
	}
	if got := settings(merit, []remoteSettings{(&InstallOptions{}).remoteSettings(gcp)}, nil)["SEMAPHORE_REMOTE_GCP_API_URL"]; got != guessed {
		t.Errorf("merit, untested: %s", got)
	}
	var again InstallOptions
	if got := settings(aws, []remoteSettings{again.remoteSettings(gcp)}, nil)["SEMAPHORE_REMOTE_GCP_API_URL"]; got != own {
		t.Errorf("without --api-server, untested: %s", got)
	}
	again.Servers = map[string]string{"gcp": "https://new.gcp.example:6443"}
	if got := settings(aws, []remoteSettings{again.remoteSettings(gcp)}, nil)["SEMAPHORE_REMOTE_GCP_API_URL"]; got != again.Servers["gcp"] {
		t.Errorf("with --api-server: %s", got)
	}
}

// TestProxies joins with, without and again without --proxy-url.
func TestProxies(t *testing.T) {
	const url, key = "http://198.51.100.7:3128", "SEMAPHORE_REMOTE_GCP_PROXY_URL"
	aws := healthy(t, "aws", "10.2.0.0/16", "10.102.0.0/16", "10.66.1.2")
	gcp := healthy(t, "gcp", "10.4.0.0/16", "10.104.0.0/16", "10.66.2.2")
	for _, step := range []struct {
		given map[string]string
		want  string
	}{{nil, ""}, {map[string]string{"gcp": url}, url}, {nil, url}, {map[string]string{"aws": "http://other"}, url}, {map[string]string{"gcp": ""}, ""}} {
		o := InstallOptions{Proxies: step.given}
		if got := o.proxy(aws, gcp); got != step.want {
			t.Errorf("%v: nodes test through %q, want %q", step.given, got, step.want)
		}
		aws.Installed.Settings = settings(aws, []remoteSettings{o.remoteSettings(gcp)}, nil)
		if got, set := aws.Installed.Settings[key]; got != step.want || set != (step.want != "") {
			t.Errorf("%v: %q, want %q", step.given, got, step.want)
		}
	}
	// A kubeconfig has its own.
	aws.Installed.Settings = inspect.Settings{"SEMAPHORE_CLUSTER_NAME": "aws", "SEMAPHORE_REMOTE_GCP_KUBECONFIG": "/etc/gcp"}
	o := InstallOptions{Tools: []string{"wireguard"}, Proxies: map[string]string{"gcp": url}}
	only(t, "by kubeconfig", check(aws, &o, []string{"gcp"}), "it reads gcp with a kubeconfig: set its proxy-url")
	for text, want := range map[string]string{
		"ftp://a": "--proxy-url gcp=...: not the URL of a proxy", "http://me:planted@a": "--proxy-url gcp=...: user and password are not supported", "a:3128": "not the URL",
	} {
		f := flags{proxies: map[string]string{"gcp": text}}
		if err := f.parse([]string{"aws", "gcp"}); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "planted") {
			t.Errorf("%s: %v", text, err)
		}
	}
	f := flags{proxies: map[string]string{"merit": url}}
	if err := f.parse([]string{"aws", "gcp"}); err == nil || !strings.Contains(err.Error(), "--proxy-url merit=...: cluster merit isn't among the arguments") {
		t.Error(err)
	}
}

// TestServersAreChosen has a configured address of gcp in aws that merit can't reach: aws
// keeps it while it works, and merit never uses it.
func TestServersAreChosen(t *testing.T) {
	const own, guessed = "https://internal.gcp.example:6443", "https://api.gcp.example:6443"
	for name, c := range map[string]struct {
		aws, merit map[string]string // errors, by server
		given      string
		want       [2]string // aws and merit
	}{
		"both work":                     {map[string]string{own: "", guessed: ""}, map[string]string{guessed: ""}, "", [2]string{own, guessed}},
		"what aws has doesn't any more": {map[string]string{own: "away", guessed: ""}, map[string]string{guessed: ""}, "", [2]string{guessed, guessed}},
		"the administrator says":        {map[string]string{guessed: ""}, map[string]string{guessed: ""}, guessed, [2]string{guessed, guessed}},
	} {
		t.Run(name, func(t *testing.T) {
			aws, gcp, merit := healthy(t, "aws", "10.2.0.0/16", "10.102.0.0/16", "10.66.1.2"), healthy(t, "gcp", "10.4.0.0/16", "10.104.0.0/16", "10.66.2.2"), healthy(t, "merit", "10.6.0.0/16", "10.106.0.0/16", "10.66.3.2")
			aws.Installed.Settings = settings(aws, []remoteSettings{(&InstallOptions{Servers: map[string]string{"gcp": own}}).remoteSettings(gcp)}, nil)
			a := &installation{Session: cli.NewSession(nil, io.Discard, io.Discard),
				facts: []*inspect.Facts{aws, gcp, merit}, settings: make([]inspect.Settings, 3), wanted: make([]*manifests.Cluster, 3), objects: make([][]*unstructured.Unstructured, 3),
				taken: make([]map[int]bool, 3), stays: map[[2]string]bool{}}
			a.Servers, a.Image = map[string]string{}, "i:1"
			if c.given != "" {
				a.Servers["gcp"] = c.given
			}
			if faults := a.choose(1, gcp, []probe.Answers{{"a": {Servers: c.aws}}, {}, {"m": {Servers: c.merit}}}); len(faults) > 0 {
				t.Fatal(faults)
			}
			if err := a.render(); err != nil {
				t.Fatal(err)
			}
			if got := [2]string{a.settings[0]["SEMAPHORE_REMOTE_GCP_API_URL"], a.settings[2]["SEMAPHORE_REMOTE_GCP_API_URL"]}; got != c.want {
				t.Errorf("they reach it at %q, want %q", got, c.want)
			}
		})
	}
}

// healthy returns facts without faults.
func healthy(t *testing.T, name, pods, services, node string) *inspect.Facts {
	t.Helper()
	return &inspect.Facts{
		Name: name, Version: "v1.36.3", Minor: 36, PodsSure: true, Pods: subnets(t, pods), Services: subnets(t, services), Machines: subnets(t, "10.66.0.0/16"),
		Servers: []string{"https://api." + name + ".example:6443"}, CA: "PEM", DNS: &coredns.Setup{Reloads: true},
		Nodes: []inspect.Node{{Name: "n", OS: "linux", Ready: "True", Addresses: []netip.Addr{netip.MustParseAddr(node)}, Pods: subnets(t, pods)}},
	}
}

func TestCheck(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*inspect.Facts)
		want   string // of the only fault; empty: none
	}{
		"healthy":       {func(*inspect.Facts) {}, ""},
		"too old":       {func(f *inspect.Facts) { f.Minor, f.Version = 29, "v1.29.1" }, "upgrade to 1.30"},
		"no nodes":      {func(f *inspect.Facts) { f.Nodes = nil }, "it has no nodes"},
		"no InternalIP": {func(f *inspect.Facts) { f.Nodes[0].Addresses = nil }, "has no InternalIP"},
		"an ExternalIP": {func(f *inspect.Facts) {
			f.Nodes[0].Addresses, f.Nodes[0].External = nil, true
			f.Installed.Settings = map[string]string{"SEMAPHORE_WG_ENDPOINT": "ExternalIP"}
		}, ""},
		"no ExternalIP": {func(f *inspect.Facts) {
			f.Installed.Settings = map[string]string{"SEMAPHORE_WG_ENDPOINT": "ExternalIP"}
		}, "has no ExternalIP"},
		"speaks first": {func(f *inspect.Facts) {
			f.Nodes[0].Addresses = nil
			f.Installed.Settings = map[string]string{"SEMAPHORE_WG_ENDPOINT": "none"}
		}, ""},
		"an address of its own": {func(f *inspect.Facts) {
			f.Nodes[0].Addresses, f.Nodes[0].Locations = nil, map[string]string{"": "words", "gcp": "203.0.113.9:4000"}
		}, ""},
		"an address for another one": {func(f *inspect.Facts) {
			f.Nodes[0].Addresses, f.Nodes[0].Locations = nil, map[string]string{"merit": "203.0.113.9:4000"}
		}, "has no InternalIP"},
		"an address that is none": {func(f *inspect.Facts) { f.Nodes[0].Locations = map[string]string{"": "words"} }, "its endpoint for other clusters"},
		"no pods":                 {func(f *inspect.Facts) { f.Pods = nil }, "--pod-subnets aws="},
		"loopback":                {func(f *inspect.Facts) { f.Servers = nil }, "--api-server aws="},
		"plain HTTP":              {func(f *inspect.Facts) { f.Servers = []string{"http://a"} }, "doesn't begin with https"},
		"another name":            {func(f *inspect.Facts) { f.Installed.Settings = map[string]string{"SEMAPHORE_CLUSTER_NAME": "x"} }, "it is installed as cluster x"},
		"restricted":              {func(f *inspect.Facts) { f.Installed.Restricted = "baseline" }, "kubectl label namespace sys-semaphore"},
		"maybe more pods":         {func(f *inspect.Facts) { f.PodsSure = false }, "! if future nodes may have other subnets"},
		"masqueraded":             {func(f *inspect.Facts) { f.Masquerade = []string{"do this"} }, "! do this"},
		"Windows":                 {func(f *inspect.Facts) { f.Nodes[0].OS = "windows" }, "! node n runs windows"},
		"a virtual node":          {func(f *inspect.Facts) { f.Nodes[0].Virtual = true }, "! node n has no host, and gets no agent"},
		"no answer":               {func(f *inspect.Facts) { *f = inspect.Facts{Name: "aws", Unread: []error{errAway}} }, "away"},
		"no CA":                   {func(f *inspect.Facts) { f.CA = "" }, "kube-root-ca.crt"},
	} {
		f := healthy(t, "aws", "10.2.0.0/16", "10.102.0.0/16", "10.66.1.2")
		c.change(f)
		faults := check(f, &InstallOptions{Tools: []string{"wireguard", "mirror"}}, []string{"gcp"})
		want, warning := strings.CutPrefix(c.want, "! ")
		switch {
		case want == "" && len(faults) == 0:
		case len(faults) != 1 || !strings.Contains(faults[0].String(), want) || faults[0].warning != warning || want == "":
			t.Errorf("%s: faults %v", name, faults)
		}
	}
}

var errAway = away{}

type away struct{}

func (away) Error() string { return "away" }

// only checks that there is one fault with this text; empty: none.
func only(t *testing.T, name string, faults []fault, want string) {
	t.Helper()
	if want == "" && len(faults) > 0 || want != "" && (len(faults) != 1 || !strings.Contains(faults[0].String(), want)) {
		t.Errorf("%s: faults %v, expected %q", name, faults, want)
	}
}

func TestOverlaps(t *testing.T) {
	for name, c := range map[string]struct {
		pods, services, node string // of gcp
		third                string // pods of a cluster that aws has already
		want                 string
	}{
		"none":                       {"10.4.0.0/16", "10.104.0.0/16", "10.66.2.2", "10.6.0.0/16", ""},
		"services may":               {"10.4.0.0/16", "10.102.0.0/16", "10.66.2.2", "", ""},
		"pods":                       {"10.2.128.0/17", "10.104.0.0/16", "10.66.2.2", "", "pods 10.2.0.0/16 of aws overlap pods 10.2.128.0/17 of gcp"},
		"pods and services":          {"10.102.0.0/20", "10.104.0.0/16", "10.66.2.2", "", "services 10.102.0.0/16 of aws overlap pods 10.102.0.0/20 of gcp"},
		"a node among pods":          {"10.4.0.0/16", "10.104.0.0/16", "10.2.3.4", "", "pods 10.2.0.0/16 of aws overlap node n 10.2.3.4/32 of gcp"},
		"nodes with one address":     {"10.4.0.0/16", "10.104.0.0/16", "10.66.1.2", "", "address translation"},
		"with one that isn't joined": {"10.4.0.0/16", "10.104.0.0/16", "10.66.2.2", "10.4.0.0/16", "of merit"},
	} {
		aws := healthy(t, "aws", "10.2.0.0/16", "10.102.0.0/16", "10.66.1.2")
		if c.third != "" {
			aws.Installed.Settings = map[string]string{"SEMAPHORE_REMOTES": "merit", "SEMAPHORE_REMOTE_MERIT_POD_SUBNETS": c.third}
		}
		faults := overlaps([]*inspect.Facts{aws, healthy(t, "gcp", c.pods, c.services, c.node)}, &InstallOptions{})
		only(t, name, faults, c.want)
	}
}

func TestOutside(t *testing.T) {
	found := probe.Answers{
		"aws/a": {Servers: map[string]string{"https://one": "refused", "https://two": ""}},
		"aws/b": {Servers: map[string]string{"https://one": "", "https://two": ""}},
	}
	if got, _ := outside([]string{"https://one", "https://two"}, found); got != "https://two" {
		t.Errorf("chose %q", got)
	}
	found["aws/c"] = reach.Result{Servers: map[string]string{"https://two": "timeout"}}
	got, why := outside([]string{"https://one", "https://two"}, found)
	want := []string{"https://one is not reached from node aws/a: refused", "https://two is not reached from node aws/c: timeout"}
	if got != "" || !cmp.Equal(want, why) {
		t.Errorf("chose %q, because of %q", got, why)
	}
	// A result that doesn't mention a server doesn't mean that it is reached.
	if got, _ := outside([]string{"https://one"}, probe.Answers{"aws/a": {}}); got != "" {
		t.Errorf("chose %q without a result", got)
	}
}

// TestRequestFitsIntoAnArgument checks that the request to a pod fits into an argument of its
// command, with large certificates and with many clusters.
func TestRequestFitsIntoAnArgument(t *testing.T) {
	for name, c := range map[string]struct {
		bytes  []int // of the certificates of each cluster
		want   []bool
		faults string
	}{
		"as they are":     {[]int{1100, 4000}, []bool{true, true}, ""},
		"as many as fit":  {[]int{maxAuthority, 1100}, []bool{true, true}, ""},
		"one has more":    {[]int{maxAuthority + 1, 1100}, []bool{false, true}, "c0: the CA certificates of its API server have 16385 bytes"},
		"many have many":  {slices.Repeat([]int{maxAuthority}, 6), []bool{true, true, true, true, true, false}, "c5: the CA certificates of so many API servers"},
		"thirty clusters": {slices.Repeat([]int{1300}, 30), slices.Repeat([]bool{true}, 30), ""},
	} {
		a := &installation{}
		request := reach.Request{Kernel: true}
		for i, n := range c.bytes {
			f := &inspect.Facts{Name: fmt.Sprintf("c%d", i), CA: strings.Repeat(strings.Repeat("x", 64)+"\n", n/65+1)[:n]}
			for range 5 {
				f.Servers = append(f.Servers, "https://"+strings.Repeat("x", 290))
			}
			a.facts = append(a.facts, f)
		}
		try, faults := a.servers()
		if !slices.Equal(try, c.want) || (len(faults) > 0) != (c.faults != "") || len(faults) > 0 && (len(faults) > 1 || !strings.HasPrefix(faults[0].String(), c.faults)) {
			t.Errorf("%s: %v, faults %v", name, try, faults)
		}
		for i, f := range a.facts {
			if try[i] {
				request.Servers = append(request.Servers, reach.Server{URLs: f.Servers, CA: f.CA})
			}
		}
		if argument, err := json.Marshal(request); err != nil || len(argument) > 112<<10 {
			t.Errorf("%s: an argument of %d bytes, %v", name, len(argument), err)
		}
	}
}

// TestNodesWithoutAFilter names the nodes on which agents would not start.
func TestNodesWithoutAFilter(t *testing.T) {
	const why = "nf_tables is required: the kernel lacks nf_tables"
	found := probe.Answers{"aws-1": {}, "aws-2": {NoFilter: why}, "aws-3": {NoFilter: why}}
	faults := unfiltered("aws", found)
	if len(faults) != 1 || faults[0].what != "agents don't start on aws-2 and aws-3: "+why || faults[0].warning {
		t.Errorf("%+v", faults)
	}
	if faults := unfiltered("aws", probe.Answers{"aws-1": {}}); len(faults) > 0 {
		t.Errorf("with nf_tables: %+v", faults)
	}
}
