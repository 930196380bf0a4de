// Package join joins and separates clusters: it checks all of them first, reports all
// faults, and then changes them step by step. Steps are idempotent, so that the next run
// completes an interrupted one.
package join

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/ctl/coredns"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
	"github.com/kube-semaphore/kube-semaphore/internal/config"
)

// firstPort is the first listen port: not 51820 and 51821, which WireGuard of Calico and
// flannel uses.
const firstPort = 51840

// InstallOptions are the administrator's choices; the maps are by cluster.
type InstallOptions struct {
	Tools []string
	Image string
	// PullSecret is the name of the Secret with the registry's credentials; nil: the installed
	// one.
	PullSecret *string
	// MultiCluster is whether the mirror implements the Multi-Cluster Services API, unless the
	// settings say that it doesn't.
	MultiCluster bool
	// MultiClusterGiven is whether the administrator has said so.
	MultiClusterGiven bool
	// Relay is the value of --relay; empty: not given.
	Relay string
	// nodes is the number of nodes of the largest of the joined clusters.
	nodes   int
	Servers map[string]string
	// Proxies are those through which others reach a cluster's API server; empty: none.
	Proxies  map[string]string
	Pods     map[string][]netip.Prefix
	Machines map[string][]netip.Prefix
	Services map[string][]netip.Prefix
	// Imports are the namespaces in which others import what a cluster exports.
	Imports map[string]config.Namespaces
	// Virtual are virtual subnets, some without the real one; an empty list: none.
	Virtual map[string][]config.Mapping

	mapped map[string]*mapped // see virtualize
	// links describes a link of another program in the range of proposals, by the cluster that
	// has a node with it, see look.
	links map[string]string
}

// remoteSettings is a cluster in the settings of the others.
type remoteSettings struct {
	name cluster.Name
	// server is the URL of its API server, chosen whether it comes from the administrator
	// or was tested from the others' nodes.
	server         string
	chosen         bool
	pods, machines []netip.Prefix
	// podsGiven and machinesGiven are whether these come from the administrator.
	podsGiven, machinesGiven bool
	// mapped has those by which others know its pods.
	mapped *mapped
	// imports are the namespaces in which others import what it exports, proxy the one through which
	// they reach its API server; nil: not given.
	imports *config.Namespaces
	proxy   *string
}

func (w *InstallOptions) remoteSettings(f *inspect.Facts) remoteSettings {
	s := remoteSettings{name: cluster.Name(f.Name), server: w.Servers[f.Name], pods: f.Pods, machines: f.Machines, mapped: w.mappedOf(f)}
	if s.chosen = s.server != ""; !s.chosen && len(f.Servers) > 0 {
		s.server = f.Servers[0]
	}
	if given := w.Pods[f.Name]; len(given) > 0 {
		s.pods, s.podsGiven = given, true
	}
	if given := w.Machines[f.Name]; len(given) > 0 {
		s.machines, s.machinesGiven = given, true
	}
	if given, is := w.Imports[f.Name]; is {
		s.imports = &given
	}
	if given, is := w.Proxies[f.Name]; is {
		s.proxy = &given
	}
	return s
}

// settings returns the settings of a cluster with these remotes. Existing settings are kept,
// including bounds of remotes that report more now, unless the administrator has specified
// others. taken are ports that foreign processes use on the nodes.
func settings(f *inspect.Facts, remotes []remoteSettings, taken map[int]bool) inspect.Settings {
	want := maps.Clone(f.Installed.Settings)
	if want == nil {
		want = inspect.Settings{}
	}
	want["SEMAPHORE_CLUSTER_NAME"] = f.Name
	names := f.Installed.Settings.Remotes()
	ports := maps.Clone(taken)
	if ports == nil {
		ports = map[int]bool{}
	}
	for key, value := range want {
		if port, err := strconv.Atoi(value); err == nil && strings.HasSuffix(key, "_WG_LISTEN_PORT") {
			ports[port] = true
		}
	}
	for _, r := range remotes {
		prefix := r.name.Variables()
		want.Return(r.name)
		if !slices.Contains(names, r.name) {
			names = append(names, r.name)
		}
		if want[prefix+"_KUBECONFIG"] == "" {
			if r.chosen || want[prefix+"_API_URL"] == "" {
				want[prefix+"_API_URL"] = r.server
			}
			want[prefix+"_TOKEN_FILE"] = "/etc/semaphore/remotes/" + string(r.name) + ".token"
			if want[prefix+"_CA_URL"] == "" {
				want[prefix+"_CA_FILE"] = "/etc/semaphore/remotes/" + string(r.name) + ".ca.crt"
			}
			if r.proxy != nil {
				delete(want, prefix+inspect.ProxyURL)
				if *r.proxy != "" {
					want[prefix+inspect.ProxyURL] = *r.proxy
				}
			}
		}
		for _, b := range r.bounds(f.Installed.Settings) {
			if b.given || b.moved || want[prefix+b.key] == "" {
				want[prefix+b.key] = join(b.prefixes)
			}
		}
		if r.imports != nil {
			want[prefix+inspect.ImportNamespaces] = r.imports.String()
		}
		if delete(want, prefix+inspect.SubnetMap); r.mapped != nil {
			if m := r.mapped.accepted(want.Prefixes(r.name, inspect.PodSubnets)); len(m) > 0 {
				want[prefix+inspect.SubnetMap] = m.String()
			}
		}
		if want[prefix+"_WG_LISTEN_PORT"] == "" {
			port := firstPort
			for ports[port] {
				port++
			}
			ports[port] = true
			want[prefix+"_WG_LISTEN_PORT"] = strconv.Itoa(port)
		}
	}
	slices.Sort(names) // as the chart has them
	want["SEMAPHORE_REMOTES"] = list(names)
	// Older API servers have no ServiceCIDRs, from which agents read them.
	if f.Minor > 0 && f.Minor < servesCIDRs && want["SEMAPHORE_LOCAL_SUBNETS"] == "" && len(f.Services) > 0 {
		want["SEMAPHORE_LOCAL_SUBNETS"] = join(f.Services)
	}
	if most := maxServices(f.Services); most > 0 && want[inspect.MaxServices] == "" {
		want[inspect.MaxServices] = strconv.Itoa(most)
	}
	return want
}

// configured returns the address of another cluster's API server in the settings of f, or
// none. It must be used for f only: otherwise one cluster could redirect others' tokens for
// a third one.
func configured(f, other *inspect.Facts) string {
	if server := f.Installed.Settings[cluster.Name(other.Name).Variables()+"_API_URL"]; strings.HasPrefix(server, "https://") {
		return server
	}
	return ""
}

// proxy returns the proxy through which a cluster reaches another one's API server, or none.
func (w *InstallOptions) proxy(f, other *inspect.Facts) string {
	if given, is := w.Proxies[other.Name]; is {
		return given
	}
	return f.Installed.Settings[cluster.Name(other.Name).Variables()+inspect.ProxyURL]
}

// list formats names for settings.
func list(names []cluster.Name) string {
	var words []string
	for _, n := range names {
		words = append(words, string(n))
	}
	return strings.Join(words, ",")
}

func join(prefixes []netip.Prefix) string {
	var words []string
	for _, p := range prefixes {
		words = append(words, p.String())
	}
	return strings.Join(words, ",")
}

// without returns the settings of a cluster without a remote.
func without(have inspect.Settings, remote cluster.Name) inspect.Settings {
	want, remotes := maps.Clone(have), append(have.Remotes(), remote)
	maps.DeleteFunc(want, func(key, _ string) bool { return manifests.RemoteOf(key, remotes) == remote })
	want["SEMAPHORE_REMOTES"] = list(slices.DeleteFunc(have.Remotes(), func(n cluster.Name) bool { return n == remote }))
	return want
}

// zones returns the DNS zones of a cluster's remotes, and that of imports.
func zones(wanted *manifests.Cluster) ([]coredns.Zone, error) {
	var all []coredns.Zone
	for _, remote := range wanted.Remotes {
		prefix, err := inspect.Settings(wanted.Settings).ServicePrefix(remote)
		if err != nil {
			return nil, err
		}
		all = append(all, coredns.Zone{Remote: remote, Prefix: prefix})
	}
	if m := wanted.MultiCluster; m != nil && m.DNS.Name != "" {
		all = append(all, coredns.Zone{})
	}
	return all, nil
}

// desired returns the manifests of a cluster with these settings.
func desired(f *inspect.Facts, w *InstallOptions, settings inspect.Settings) *manifests.Cluster {
	tools := w.Tools
	for _, tool := range f.Installed.Tools {
		if !slices.Contains(tools, tool) {
			tools = append(slices.Clone(tools), tool)
		}
	}
	c := &manifests.Cluster{
		Name: cluster.Name(f.Name), Tools: tools, Remotes: settings.Remotes(), Settings: settings,
		Image: w.Image, PullSecret: f.Installed.PullSecret, Pools: f.Calico,
	}
	if w.PullSecret != nil {
		c.PullSecret = *w.PullSecret
	}
	if w.implements(f, tools, settings) {
		c.MultiCluster = multiCluster(f)
	}
	if settings["SEMAPHORE_WG_POD_CIDRS"] == "" {
		c.PodPrefixes = f.PodPrefixes
	}
	c.Relay = slices.Contains(tools, manifests.WireGuard) && w.relays(f)
	c.RelayAlone = f.Installed.Relay && !c.Relay && w.Relay == ""
	return c
}

// fault prevents the operation, unless it is a warning.
type fault struct {
	cluster, what, remedy string
	warning               bool
	forbidden             bool // the administrator lacks a right
}

func (f fault) String() string {
	if f.remedy == "" {
		return fmt.Sprintf("%s: %s", f.cluster, f.what)
	}
	return fmt.Sprintf("%s: %s: %s", f.cluster, f.what, f.remedy)
}
