// Package join joins clusters and takes them apart: it looks at all of them first, says
// all that is in the way, and then changes them step by step. Each step does nothing
// where all is as it must be, so that a run that was interrupted is completed by the
// next one.
package join

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/facts"
	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/manifests"
)

// firstPort is the first listen port: not 51820 and 51821, which Calico and flannel take
// for WireGuard of their own.
const firstPort = 51840

// Wishes are what the administrator has said of clusters, by their names.
type Wishes struct {
	Tools    []string
	Image    string
	Servers  map[string]string
	Pods     map[string][]netip.Prefix
	Machines map[string][]netip.Prefix
}

// side is one of the clusters that are joined, as others are to see it.
type side struct {
	name string
	// server is where its API server is, chosen whether somebody has said so, or it was
	// tried from the others' nodes.
	server         string
	chosen         bool
	pods, machines []netip.Prefix
}

func (w *Wishes) side(f *facts.Facts) side {
	s := side{name: f.Name, server: w.Servers[f.Name], pods: f.Pods, machines: f.Machines}
	if s.chosen = s.server != ""; !s.chosen && len(f.Servers) > 0 {
		s.server = f.Servers[0]
	}
	if given := w.Pods[f.Name]; len(given) > 0 {
		s.pods = given
	}
	if given := w.Machines[f.Name]; len(given) > 0 {
		s.machines = given
	}
	return s
}

// group is what the names of a remote's settings begin with.
func group(remote string) string {
	return "SEMAPHORE_REMOTE_" + strings.ToUpper(strings.ReplaceAll(remote, "-", "_"))
}

// settings are those of a cluster with remotes: what it has stays, unless it is wrong for
// a remote that is joined now. taken are ports that others on the nodes have.
func settings(f *facts.Facts, remotes []side, taken map[int]bool) map[string]string {
	want := maps.Clone(f.Installed.Settings)
	if want == nil {
		want = map[string]string{}
	}
	want["SEMAPHORE_CLUSTER_NAME"] = f.Name
	names := f.Installed.Remotes()
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
		prefix := group(r.name)
		if !slices.Contains(names, r.name) {
			names = append(names, r.name)
		}
		if want[prefix+"_KUBECONFIG"] == "" {
			if r.chosen || want[prefix+"_API_URL"] == "" {
				want[prefix+"_API_URL"] = r.server
			}
			want[prefix+"_TOKEN_FILE"] = "/etc/semaphore/remotes/" + r.name + ".token"
			if want[prefix+"_CA_URL"] == "" {
				want[prefix+"_CA_FILE"] = "/etc/semaphore/remotes/" + r.name + ".ca.crt"
			}
		}
		keep(want, prefix+"_POD_SUBNETS", r.pods)
		keep(want, prefix+"_NODE_SUBNETS", r.machines)
		if want[prefix+"_WG_LISTEN_PORT"] == "" {
			port := firstPort
			for ports[port] {
				port++
			}
			ports[port] = true
			want[prefix+"_WG_LISTEN_PORT"] = strconv.Itoa(port)
		}
	}
	want["SEMAPHORE_REMOTES"] = strings.Join(names, ",")
	// Older API servers don't tell the agents.
	if f.Minor > 0 && f.Minor < 33 && want["SEMAPHORE_LOCAL_SUBNETS"] == "" && len(f.Services) > 0 {
		want["SEMAPHORE_LOCAL_SUBNETS"] = join(f.Services)
	}
	return want
}

// configured adds the ways to API servers that other clusters have already, before those
// that are guessed.
func configured(all []*facts.Facts) {
	for _, f := range all {
		var servers []string
		for _, other := range all {
			server := other.Installed.Settings[group(f.Name)+"_API_URL"]
			if other != f && strings.HasPrefix(server, "https://") && !slices.Contains(servers, server) {
				servers = append(servers, server)
			}
		}
		for _, guessed := range f.Servers {
			if !slices.Contains(servers, guessed) {
				servers = append(servers, guessed)
			}
		}
		f.Servers = servers
	}
}

// keep leaves a list of subnets that has all that is needed, and more.
func keep(settings map[string]string, key string, need []netip.Prefix) {
	have, err := facts.Prefixes(settings[key])
	if err == nil && len(have) > 0 && facts.Cover(have, need) {
		return
	}
	settings[key] = join(need)
}

func join(prefixes []netip.Prefix) string {
	var words []string
	for _, p := range prefixes {
		words = append(words, p.String())
	}
	return strings.Join(words, ",")
}

// without are the settings of a cluster with a remote less.
func without(have map[string]string, remote string) map[string]string {
	want := maps.Clone(have)
	for key := range want {
		if strings.HasPrefix(key, group(remote)+"_") && !belongsToLonger(key, remote, have) {
			delete(want, key)
		}
	}
	names := facts.Installed{Settings: have}.Remotes()
	want["SEMAPHORE_REMOTES"] = strings.Join(slices.DeleteFunc(names, func(n string) bool { return n == remote }), ",")
	return want
}

// belongsToLonger says whether a setting is that of another remote, whose name begins
// with this one's.
func belongsToLonger(key, remote string, have map[string]string) bool {
	for _, other := range (facts.Installed{Settings: have}).Remotes() {
		if len(other) > len(remote) && strings.HasPrefix(key, group(other)+"_") {
			return true
		}
	}
	return false
}

// pools are Calico's for the pod subnets of all remotes in the settings.
func pools(f *facts.Facts, settings map[string]string) []*unstructured.Unstructured {
	if f.Calico.Version == "" {
		return nil
	}
	var all []*unstructured.Unstructured
	for _, remote := range (facts.Installed{Settings: settings}).Remotes() {
		prefixes, err := facts.Prefixes(settings[group(remote)+"_POD_SUBNETS"])
		if err != nil {
			continue // The agents refuse it, and say so.
		}
		count := map[bool]int{}
		for _, p := range prefixes {
			name := "remote-" + remote
			if p.Addr().Is6() {
				name += "-ipv6"
			}
			if count[p.Addr().Is6()]++; count[p.Addr().Is6()] > 1 {
				name += "-" + strconv.Itoa(count[p.Addr().Is6()])
			}
			all = append(all, &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": f.Calico.String(), "kind": "IPPool", "metadata": map[string]any{"name": name},
				"spec": map[string]any{"cidr": p.String(), "disabled": true, "natOutgoing": false, "disableBGPExport": true},
			}})
		}
	}
	return all
}

// prefixes are the service prefixes of the remotes in the settings.
func prefixes(settings map[string]string) (byRemote map[string]string, order []string) {
	byRemote, order = map[string]string{}, facts.Installed{Settings: settings}.Remotes()
	for _, remote := range order {
		byRemote[remote] = remote
		if given := settings[group(remote)+"_SERVICE_PREFIX"]; given != "" {
			byRemote[remote] = given
		}
	}
	return byRemote, order
}

// desired is what a cluster is to have with these settings.
func desired(f *facts.Facts, w *Wishes, settings map[string]string) manifests.Cluster {
	tools := w.Tools
	for _, tool := range f.Installed.Tools {
		if !slices.Contains(tools, tool) {
			tools = append(slices.Clone(tools), tool)
		}
	}
	return manifests.Cluster{
		Name: f.Name, Tools: tools, Remotes: facts.Installed{Settings: settings}.Remotes(), Settings: settings,
		Image: w.Image, Pools: pools(f, settings), Foreign: f.Installed.Namespace && !f.Installed.Ours,
	}
}

// fault is something that is in the way, or should be known.
type fault struct {
	cluster, what, remedy string
	warning               bool
}

func (f fault) String() string {
	if f.remedy == "" {
		return fmt.Sprintf("%s: %s", f.cluster, f.what)
	}
	return fmt.Sprintf("%s: %s: %s", f.cluster, f.what, f.remedy)
}
