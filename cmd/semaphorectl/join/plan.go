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
	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
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
	name cluster.Name
	// server is where its API server is, chosen whether somebody has said so, or it was
	// tried from the others' nodes.
	server         string
	chosen         bool
	pods, machines []netip.Prefix
	// podsGiven and machinesGiven say that the administrator has named them.
	podsGiven, machinesGiven bool
}

func (w *Wishes) side(f *facts.Facts) side {
	s := side{name: cluster.Name(f.Name), server: w.Servers[f.Name], pods: f.Pods, machines: f.Machines}
	if s.chosen = s.server != ""; !s.chosen && len(f.Servers) > 0 {
		s.server = f.Servers[0]
	}
	if given := w.Pods[f.Name]; len(given) > 0 {
		s.pods, s.podsGiven = given, true
	}
	if given := w.Machines[f.Name]; len(given) > 0 {
		s.machines, s.machinesGiven = given, true
	}
	return s
}

// settings are those of a cluster with remotes: what it has stays, bounds of a remote also
// where the remote has more by now, unless the administrator says otherwise. taken are
// ports that others on the nodes have.
func settings(f *facts.Facts, remotes []side, taken map[int]bool) facts.Settings {
	want := maps.Clone(f.Installed.Settings)
	if want == nil {
		want = facts.Settings{}
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
		}
		for _, b := range r.bounds() {
			if b.given || want[prefix+b.key] == "" {
				want[prefix+b.key] = join(b.prefixes)
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
	want["SEMAPHORE_REMOTES"] = list(names)
	// Older API servers don't tell the agents.
	if f.Minor > 0 && f.Minor < 33 && want["SEMAPHORE_LOCAL_SUBNETS"] == "" && len(f.Services) > 0 {
		want["SEMAPHORE_LOCAL_SUBNETS"] = join(f.Services)
	}
	return want
}

// configured is the address of another cluster's API server that a cluster has already,
// "": none. It counts for that cluster alone: by it one cluster would say where others send
// their tokens for a third one.
func configured(f, other *facts.Facts) string {
	if server := f.Installed.Settings[cluster.Name(other.Name).Variables()+"_API_URL"]; strings.HasPrefix(server, "https://") {
		return server
	}
	return ""
}

// list is how names are written into settings.
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

// without are the settings of a cluster with a remote less.
func without(have facts.Settings, remote cluster.Name) facts.Settings {
	want := maps.Clone(have)
	for key := range want {
		if strings.HasPrefix(key, remote.Variables()+"_") && !belongsToLonger(key, remote, have) {
			delete(want, key)
		}
	}
	want["SEMAPHORE_REMOTES"] = list(slices.DeleteFunc(have.Remotes(), func(n cluster.Name) bool { return n == remote }))
	return want
}

// belongsToLonger says whether a setting is that of another remote, whose name begins
// with this one's.
func belongsToLonger(key string, remote cluster.Name, have facts.Settings) bool {
	for _, other := range have.Remotes() {
		if len(other) > len(remote) && strings.HasPrefix(key, other.Variables()+"_") {
			return true
		}
	}
	return false
}

// pools are Calico's for the pod subnets of all remotes in the settings.
func pools(f *facts.Facts, settings facts.Settings) []*unstructured.Unstructured {
	if f.Calico.Version == "" {
		return nil
	}
	var all []*unstructured.Unstructured
	for _, remote := range settings.Remotes() {
		count := map[bool]int{}
		for _, p := range settings.Prefixes(remote, facts.PodSubnets) {
			name := "remote-" + string(remote)
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

// zones are those of the remotes in the settings.
func zones(settings facts.Settings) ([]manifests.Zone, error) {
	var all []manifests.Zone
	for _, remote := range settings.Remotes() {
		prefix, err := settings.ServicePrefix(remote)
		if err != nil {
			return nil, err
		}
		all = append(all, manifests.Zone{Remote: remote, Prefix: prefix})
	}
	return all, nil
}

// blocks are the server blocks for CoreDNS that go with the settings.
func blocks(settings facts.Settings, corefile string) (string, error) {
	all, err := zones(settings)
	if err != nil {
		return "", err
	}
	return manifests.Blocks(all, corefile)
}

// desired is what a cluster is to have with these settings.
func desired(f *facts.Facts, w *Wishes, settings facts.Settings) *manifests.Cluster {
	tools := w.Tools
	for _, tool := range f.Installed.Tools {
		if !slices.Contains(tools, tool) {
			tools = append(slices.Clone(tools), tool)
		}
	}
	return &manifests.Cluster{
		Name: cluster.Name(f.Name), Tools: tools, Remotes: settings.Remotes(), Settings: settings,
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
