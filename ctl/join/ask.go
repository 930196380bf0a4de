package join

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/probe"
	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
	"github.com/kube-semaphore/kube-semaphore/internal/printable"
	"github.com/kube-semaphore/kube-semaphore/internal/reach"
)

// probe runs temporary pods on nodes of each cluster, for the checks that only nodes can do.
func (a *installation) probe(ctx context.Context) []fault {
	defer a.sweep(ctx)
	a.Say("checking nodes of %s with temporary pods in %s", names(a.clusters), probe.Namespace)
	found := make([]probe.Answers, len(a.clusters))
	var mu sync.Mutex
	servers, faults := a.servers()
	_ = a.each(func(i int, c *cli.Cluster) error {
		settings := a.facts[i].Installed.Settings
		request := reach.Request{Kernel: true, Proxy: settings["HTTPS_PROXY"], NoProxy: settings["NO_PROXY"]}
		for port := firstPort; port < firstPort+2*len(a.clusters)+8; port++ {
			request.Ports = append(request.Ports, port)
		}
		for j, other := range a.facts {
			if i != j && servers[j] {
				request.Servers = append(request.Servers, reach.Server{URLs: a.candidates(a.facts[i], other), CA: other.CA, Proxy: a.proxy(a.facts[i], other)})
			}
		}
		image := a.image(a.facts[i])
		answers, failed := probe.Ask(ctx, c, a.facts[i].Nodes, image, request)
		mu.Lock()
		defer mu.Unlock()
		found[i] = answers
		faults = append(append(faults, unprobed(c, image, failed)...), unfiltered(c.Name, answers)...)
		return nil
	})
	for i, f := range a.facts {
		a.recordPorts(i, found[i])
		if kernel, userspace := backends(found[i]); kernel+userspace > 0 {
			a.Done("%s: WireGuard in the kernel on %s, in semaphore-engine on %s", f.Name, cli.Count(kernel, "node"), cli.Count(userspace, "node"))
		}
	}
	for j, other := range a.facts {
		if servers[j] {
			faults = append(faults, a.choose(j, other, found)...)
		}
	}
	return faults
}

// image returns that of temporary pods: the installed one, where what installs it isn't semaphorectl.
func (a *installation) image(f *inspect.Facts) string {
	if f.Installed.Owner != "" && !a.Files {
		return f.Installed.Image
	}
	return a.Image
}

// look asks nodes for links of other programs in the range of proposals, if pods are known by
// addresses in it, and decides virtual subnets again.
func (a *installation) look(ctx context.Context) (faults []fault) {
	if !slices.ContainsFunc(a.facts, func(f *inspect.Facts) bool { return len(a.sharing(f)) > 0 }) {
		return nil
	}
	defer a.sweep(ctx)
	a.Say("looking for other networks in %s on nodes of %s with temporary pods in %s", shared, names(a.clusters), probe.Namespace)
	var mu sync.Mutex
	a.links = map[string]string{}
	_ = a.each(func(i int, c *cli.Cluster) error {
		answers, _ := probe.Ask(ctx, c, a.facts[i].Nodes, a.image(a.facts[i]), reach.Request{Within: shared}) // Failures are reported by probe.
		mu.Lock()
		defer mu.Unlock()
		if link := a.foreignLink(a.facts[i], answers); link != "" {
			a.links[c.Name] = link
		}
		return nil
	})
	return append(a.virtualize(a.facts), a.dropped(a.facts)...)
}

// foreignLink describes the first link in the range of proposals that isn't a cluster's own, as nodes
// of clusters whose pods, nodes or services are in this range have; empty: there is none.
func (a *installation) foreignLink(f *inspect.Facts, found probe.Answers) string {
	remote := a.remoteSettings(f)
	own := slices.Concat(remote.pods, f.Services, remote.machines)
	for _, node := range slices.Sorted(maps.Keys(found)) {
		for _, link := range found[node].Links {
			is := func(p netip.Prefix) bool { return p.Contains(link.Address) }
			if shared.Contains(link.Address) && !slices.ContainsFunc(own, is) {
				return fmt.Sprintf("the link %s of node %s with %s", printable.Text(link.Name, longestLink), node, link.Address)
			}
		}
	}
	return ""
}

// longestLink is the maximum length of a link's name on Linux.
const longestLink = 15

// sweep deletes the temporary objects of this and of killed runs.
func (a *installation) sweep(ctx context.Context) {
	if err := probe.Sweep(ctx, a.clusters); err != nil {
		a.Warn("%v", err)
	}
}

// unprobed returns faults for nodes whose temporary pods, with the image, failed: one for each reason.
func unprobed(c *cli.Cluster, image string, failed map[string]error) []fault {
	nodes, reasons := map[string][]string{}, []string(nil)
	for _, node := range slices.Sorted(maps.Keys(failed)) {
		reason := failed[node].Error()
		if nodes[reason] == nil {
			reasons = append(reasons, reason)
		}
		nodes[reason] = append(nodes[reason], node)
	}
	var faults []fault
	for _, reason := range reasons {
		of := nodes[reason]
		what := "a temporary pod on node " + of[0] + " failed: "
		if len(of) > 1 {
			what = "temporary pods on the nodes " + cli.Some(5, of...) + " failed: "
		}
		remedy := "see what " + c.Kubectl("-n %s get events", probe.Namespace) + " says about it; --no-probe skips this check"
		if probe.IsImage(failed[of[0]]) {
			remedy = "check that nodes can pull the image " + image + ", or set another one with --image"
		}
		faults = append(faults, fault{cluster: c.Name, what: what + reason, remedy: remedy})
	}
	return faults
}

const (
	// maxAuthority bounds the certificates of a cluster, in bytes: some kilobytes are common.
	maxAuthority = 16 << 10
	// maxServers bounds the certificates and URLs of all API servers in a pod's request,
	// largestURLs the URLs of one. The request is one argument, of at most 128 KiB on Linux.
	maxServers  = 100 << 10
	largestURLs = 2 << 10
)

// servers selects the clusters whose API servers the others' nodes test, and returns faults
// for those that don't fit into a request.
func (a *installation) servers() ([]bool, []fault) {
	try, total := make([]bool, len(a.facts)), 0
	var faults []fault
	for i, f := range a.facts {
		take := len(f.CA) + largestURLs
		switch {
		case len(f.CA) > maxAuthority:
			faults = append(faults, fault{cluster: f.Name, what: fmt.Sprintf("the CA certificates of its API server have %d bytes, more than %d", len(f.CA), maxAuthority),
				remedy: "remove unused certificates from the ConfigMap kube-system/kube-root-ca.crt; --no-probe skips this check"})
		case total+take > maxServers:
			faults = append(faults, fault{cluster: f.Name, what: "the CA certificates of so many API servers don't fit into the request of a temporary pod", remedy: "join fewer clusters at a time; --no-probe skips this check"})
		default:
			try[i], total = true, total+take
		}
	}
	return try, faults
}

// candidates returns the URLs at which a cluster tests another one's API server.
func (a *installation) candidates(f, other *inspect.Facts) []string {
	if given := a.Servers[other.Name]; given != "" {
		return []string{given}
	}
	if have := configured(f, other); have != "" && !slices.Contains(other.Servers, have) {
		return append([]string{have}, other.Servers...)
	}
	return other.Servers
}

// choose selects the address at which the others' nodes reach an API server. A cluster that
// reaches its configured address keeps it.
func (a *installation) choose(j int, other *inspect.Facts, found []probe.Answers) []fault {
	merged, remaining := probe.Answers{}, make([]probe.Answers, len(found))
	for i, nodes := range found {
		if have := configured(a.facts[i], other); i != j && a.Servers[other.Name] == "" && have != "" && len(nodes) > 0 {
			if server, _ := outside([]string{have}, a.needed(i, have, nodes)); server != "" {
				a.stays[[2]string{a.facts[i].Name, other.Name}] = true
				a.Done("%s: its nodes reach the API server of %s at %s, as configured", a.facts[i].Name, other.Name, have)
				continue
			}
		}
		if i != j {
			remaining[i] = nodes
			maps.Copy(merged, named(a.facts[i].Name, nodes))
		}
	}
	candidates := a.candidates(other, other) // A cluster has no settings for itself.
	if len(merged) == 0 || len(candidates) == 0 {
		return nil // Already reported.
	}
	server, why := outside(candidates, merged)
	if server != "" {
		a.Servers[other.Name] = server
		a.Done("%s: the other clusters' nodes reach its API server at %s", other.Name, server)
		return nil
	}
	for _, s := range candidates {
		needed := probe.Answers{}
		for i, nodes := range remaining {
			maps.Copy(needed, named(a.facts[i].Name, a.needed(i, s, nodes)))
		}
		if server, _ := outside([]string{s}, needed); server == "" {
			continue
		}
		a.Servers[other.Name] = s
		_, why := outside([]string{s}, merged)
		return []fault{{cluster: other.Name, warning: true, what: "its API server: " + strings.Join(why, "; "),
			remedy: "agents don't need it, but let semaphore-relay and the other programs run on nodes that reach it"}}
	}
	remedy := "allow connections from the other clusters' nodes, or set the address at which they reach it: --api-server " + other.Name + "=https://..."
	if strings.Contains(strings.Join(why, " "), "x509: ") {
		remedy = "set an address with a certificate of the cluster's CA, or of the one that verifies the server in its kubeconfig: --api-server " + other.Name +
			"=https://...; for one with a certificate of any other CA set " + cluster.Name(other.Name).Variables() + "_CA_URL in the settings of the other clusters, and use --no-probe"
	}
	return []fault{{cluster: other.Name, what: "its API server: " + strings.Join(why, "; "), remedy: remedy}}
}

// recordPorts records the ports that foreign processes use on any node.
func (a *installation) recordPorts(i int, found probe.Answers) {
	a.taken[i] = map[int]bool{}
	for _, result := range found {
		for port := range result.Taken {
			a.taken[i][port] = true
		}
	}
	for key, value := range a.facts[i].Installed.Settings {
		if port, err := strconv.Atoi(value); err == nil && strings.HasSuffix(key, "_WG_LISTEN_PORT") {
			delete(a.taken[i], port) // Used by our agents.
		}
	}
}

// unfiltered finds nodes whose kernels have no packet filter, without which agents don't start.
func unfiltered(cluster string, found probe.Answers) []fault {
	var nodes []string
	for _, node := range slices.Sorted(maps.Keys(found)) {
		if found[node].NoFilter != "" {
			nodes = append(nodes, node)
		}
	}
	if len(nodes) == 0 {
		return nil
	}
	return []fault{{
		cluster: cluster, what: "agents don't start on " + cli.Some(5, nodes...) + ": " + found[nodes[0]].NoFilter,
		remedy: "modprobe -a nf_tables nft_fib_inet there, and name both in a file of /etc/modules-load.d",
	}}
}

func backends(found probe.Answers) (kernel, userspace int) {
	for _, result := range found {
		switch {
		case result.Kernel == nil:
		case *result.Kernel:
			kernel++
		default:
			userspace++
		}
	}
	return kernel, userspace
}

// needed returns the answers of those of a cluster's nodes that have to reach a server. With
// semaphore-relay some are enough.
func (a *installation) needed(i int, server string, nodes probe.Answers) probe.Answers {
	if a.wanted[i] == nil || !a.wanted[i].Relay {
		return nodes
	}
	reaching := maps.Clone(nodes)
	maps.DeleteFunc(reaching, func(_ string, result reach.Result) bool {
		why, tried := result.Servers[server]
		return !tried || why != ""
	})
	if len(reaching) == 0 {
		return nodes
	}
	return reaching
}

// named returns answers with the cluster before the names of its nodes.
func named(cluster string, nodes probe.Answers) probe.Answers {
	all := probe.Answers{}
	for node, result := range nodes {
		all[cluster+"/"+node] = result
	}
	return all
}

// outside returns the first of a cluster's servers that all nodes reach, or none and why
// not.
func outside(servers []string, found probe.Answers) (server string, faults []string) {
	for _, s := range servers {
		var failed []string
		for _, node := range slices.Sorted(maps.Keys(found)) {
			why, tried := found[node].Servers[s]
			if !tried {
				why = "the temporary pod reports nothing about it"
			}
			if why != "" {
				failed = append(failed, "not reached from node "+node+": "+why)
			}
		}
		if len(failed) == 0 {
			return s, nil
		}
		faults = append(faults, s+" is "+failed[0])
	}
	return "", faults
}
