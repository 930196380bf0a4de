package join

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/cli"
	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/facts"
	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/probe"
	"github.com/kube-semaphore/kube-semaphore/internal/reach"
)

// probe asks from nodes of each cluster what only they can find out.
func (a *all) probe(ctx context.Context) []fault {
	defer func() {
		if err := probe.Sweep(ctx, a.clusters); err != nil {
			a.Warn("%v", err)
		}
	}()
	a.Say("asking nodes of %s, with temporary pods in %s", names(a.clusters), probe.Namespace)
	found := make([]probe.Answers, len(a.clusters))
	var mu sync.Mutex
	servers, faults := a.servers()
	_ = a.each(func(i int, c *cli.Cluster) error {
		request := reach.Request{Kernel: true}
		for port := firstPort; port < firstPort+2*len(a.clusters)+8; port++ {
			request.Ports = append(request.Ports, port)
		}
		for j, other := range a.facts {
			if i != j && servers[j] {
				request.Servers = append(request.Servers, reach.Server{URLs: a.candidates(a.facts[i], other), CA: other.CA})
			}
		}
		answers, failed := probe.Ask(ctx, c, a.facts[i], a.Image, request)
		mu.Lock()
		defer mu.Unlock()
		found[i] = answers
		for _, node := range slices.Sorted(maps.Keys(failed)) {
			faults = append(faults, fault{cluster: c.Name, what: "a pod on node " + node + " finds nothing out: " + failed[node].Error(),
				remedy: "see that nodes can pull the image " + a.Image + ", or say --image; --no-probe leaves this out"})
		}
		return nil
	})
	for i, f := range a.facts {
		a.takePorts(i, found[i])
		kernel, userspace := backends(found[i])
		a.Done("%s: WireGuard of the kernel on %d nodes, of semaphore-engine on %d", f.Name, kernel, userspace)
	}
	for j, other := range a.facts {
		if servers[j] {
			faults = append(faults, a.choose(j, other, found)...)
		}
	}
	return faults
}

const (
	// mostAuthority is how many bytes of certificates a pod gets of one cluster: some
	// kilobytes are common.
	mostAuthority = 16 << 10
	// mostServers is how many bytes a pod gets of all clusters' API servers, and largestURLs
	// what the addresses of one take. All is one argument, and Linux takes 128 KiB.
	mostServers = 100 << 10
	largestURLs = 2 << 10
)

// servers says which clusters' API servers the others' nodes are to try, and which can't be
// tried.
func (a *all) servers() ([]bool, []fault) {
	try, total := make([]bool, len(a.facts)), 0
	var faults []fault
	for i, f := range a.facts {
		take := len(f.CA) + largestURLs
		switch {
		case len(f.CA) > mostAuthority:
			faults = append(faults, fault{cluster: f.Name, what: fmt.Sprintf("its API server's certificates have %d bytes, and temporary pods take %d", len(f.CA), mostAuthority),
				remedy: "see that the ConfigMap kube-system/kube-root-ca.crt has those alone that are needed; --no-probe leaves this out"})
		case total+take > mostServers:
			faults = append(faults, fault{cluster: f.Name, what: "temporary pods don't take certificates of so many API servers", remedy: "join fewer clusters at a time; --no-probe leaves this out"})
		default:
			try[i], total = true, total+take
		}
	}
	return try, faults
}

// candidates are where a cluster is to try another one's API server.
func (a *all) candidates(f, other *facts.Facts) []string {
	if given := a.Servers[other.Name]; given != "" {
		return []string{given}
	}
	if have := configured(f, other); have != "" && !slices.Contains(other.Servers, have) {
		return append([]string{have}, other.Servers...)
	}
	return other.Servers
}

// choose takes the address of an API server that the others' nodes reach, but for those
// that reach the one that they have.
func (a *all) choose(j int, other *facts.Facts, found []probe.Answers) []fault {
	merged := probe.Answers{}
	for i, nodes := range found {
		if have := configured(a.facts[i], other); i != j && a.Servers[other.Name] == "" && have != "" && len(nodes) > 0 {
			if server, _ := outside([]string{have}, nodes); server != "" {
				a.stays[[2]string{a.facts[i].Name, other.Name}] = true
				a.Done("%s: it reaches the API server of %s at %s, as before", a.facts[i].Name, other.Name, have)
				continue
			}
		}
		for node, result := range nodes {
			if i != j {
				merged[a.facts[i].Name+"/"+node] = result
			}
		}
	}
	candidates := a.candidates(other, other) // It has no settings for itself.
	if len(merged) == 0 || len(candidates) == 0 {
		return nil // That has been told.
	}
	server, why := outside(candidates, merged)
	if server != "" {
		a.Servers[other.Name] = server
		a.Done("%s: the others reach its API server at %s", other.Name, server)
		return nil
	}
	return []fault{{cluster: other.Name, what: "its API server: " + strings.Join(why, "; "),
		remedy: "let the other clusters' nodes through to it, or say where they reach it: --api-server " + other.Name + "=https://..."}}
}

// takePorts remembers ports that others have, on any node.
func (a *all) takePorts(i int, found probe.Answers) {
	a.taken[i] = map[int]bool{}
	for _, result := range found {
		for port := range result.Taken {
			a.taken[i][port] = true
		}
	}
	for key, value := range a.facts[i].Installed.Settings {
		if port, err := strconv.Atoi(value); err == nil && strings.HasSuffix(key, "_WG_LISTEN_PORT") {
			delete(a.taken[i], port) // By our own agents.
		}
	}
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

// outside says which of a cluster's servers its neighbour's nodes reach: the first one
// that all of them do, "" for none, and why not.
func outside(servers []string, found probe.Answers) (server string, faults []string) {
	for _, s := range servers {
		var failed []string
		for _, node := range slices.Sorted(maps.Keys(found)) {
			why, tried := found[node].Servers[s]
			if !tried {
				why = "the temporary pod doesn't say"
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
