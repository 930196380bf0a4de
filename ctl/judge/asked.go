package judge

import (
	"fmt"

	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/probe"
)

// scope returns what was asked and answered without a fault, and what wasn't asked.
func scope(f *Facts) (asked []string, not []Open) {
	asked, not = []string{}, []Open{}
	say := func(n int, one, more string, args ...any) {
		switch n {
		case 0:
		case 1:
			asked = append(asked, "1 "+fmt.Sprintf(one, args...))
		default:
			asked = append(asked, fmt.Sprintf("%d ", n)+fmt.Sprintf(more, args...))
		}
	}
	agents, up := 0, 0
	for range f.agents() {
		agents++
	}
	for p := range f.Pairs() {
		if p.state() == "up" && p.peer.Path != nil && !p.peer.Path.SmallOnly {
			up++
		}
	}
	say(agents, "agent has reported", "agents have reported")
	say(up, "path between nodes is up", "paths between nodes are up")
	compared := 0
	for _, c := range f.Clusters {
		for i := range c.Exports.Value {
			if c.Exports.Value[i].Ready > 0 {
				compared++
			}
		}
	}
	say(compared, "service for mirrors has ready endpoints", "services for mirrors have ready endpoints")
	for _, c := range f.withoutDNS() {
		if f.resolves(c) {
			not = append(not, Open{c.Name + ": the configuration of its DNS", noCoreDNS, c.DNS.Source})
		}
	}
	for _, c := range f.Clusters {
		if _, installed := c.Workload(inspect.ServiceMirror); !installed {
			continue
		}
		for _, selector := range []struct{ setting, what string }{
			{inspect.MirrorSetting, "whether its mirrors are those of their origins"}, {inspect.GlobalSetting, "whether global services have ready endpoints"},
		} {
			if c.Custom(selector.setting) {
				not = append(not, Open{c.Name + ": " + selector.what, selector.setting + " isn't the default, so which services it selects isn't known", c.Settings.Source})
			}
		}
	}
	if f.Results == nil {
		return asked, not
	}
	connections, names, ips, endpoints := 0, 0, 0, 0
	for i := range f.podConnections() {
		if l := &f.podConnections()[i]; l.Skipped == "" && l.Error == "" && l.Datagrams == "" && l.Seen == "" && l.Carries >= l.MTU {
			connections++
		}
	}
	fresh, services, nodes := map[probe.NodeRef]bool{}, map[[2]string]bool{}, map[string]map[string]bool{}
	for i := range f.requests() {
		a := &f.requests()[i]
		if a.Skipped != "" || a.Remote == a.From.Cluster {
			continue
		}
		if a.Fresh && len(a.Result.Failed) == 0 {
			fresh[a.From] = true
		}
		if a.Fresh {
			continue
		}
		services[[2]string{a.From.Cluster, a.Name}] = true
		if a.Name != "" && a.Result.Name == "" && len(a.Result.Found) == 0 {
			names++
		}
		for _, address := range a.Addresses {
			switch failed := a.Result.Failed[address] != ""; {
			case failed:
			case virtual(a, address):
				ips++
			default:
				endpoints++
			}
		}
	}
	for i := range f.podConnections() {
		from := f.podConnections()[i].From
		if nodes[from.Cluster] == nil {
			nodes[from.Cluster] = map[string]bool{}
		}
		nodes[from.Cluster][from.Node] = nodes[from.Cluster][from.Node] || f.podConnections()[i].Skipped == ""
	}
	say(connections, "connection between pods carries full-size packets with their own addresses", "connections between pods carry full-size packets with their own addresses")
	say(names, "name of a service is resolved by pods", "names of services are resolved by pods")
	say(ips, "request of a pod to a ClusterIP is answered", "requests of pods to ClusterIPs are answered")
	say(endpoints, "request of a pod to an endpoint is answered", "requests of pods to endpoints are answered")
	say(len(fresh), "node serves the ClusterIP of a new Service", "nodes serve the ClusterIP of a new Service")
	for _, c := range f.Clusters {
		if more := len(c.Nodes.Value) - len(nodes[c.Name]); more > 0 && c.Kubernetes.Known() {
			not = append(not, Open{fmt.Sprintf("%s: what pods on %d of %d nodes get", c.Name, more, len(c.Nodes.Value)), fmt.Sprintf("temporary pods run on --nodes nodes that are ready, at most %d", probe.MaxNodes), ""})
		}
		more, udp := 0, unaskable(c)
		for i := range c.Imports.Value {
			if s := &c.Imports.Value[i]; s.Ready > 0 && s.Port > 0 && !services[[2]string{c.Name, s.DNS()}] {
				more++
			}
		}
		if more > 0 {
			not = append(not, Open{fmt.Sprintf("%s: %d mirrored or global services", c.Name, more), "each pod asks some", ""})
		}
		if udp > 0 {
			not = append(not, Open{fmt.Sprintf("%s: %d services without a port of TCP", c.Name, udp), "only TCP is asked", ""})
		}
	}
	return asked, not
}
