package coredns

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// stubs is the ConfigMap whose key stubDomains NodeLocal DNSCache reads besides its own.
const stubs = "kube-dns"

// NodeLocal is NodeLocal DNSCache: it answers pods on their node, and asks the cluster's
// CoreDNS only for the zones in its own configuration.
type NodeLocal struct {
	Namespace, Name string // of the DaemonSet
	Map, Key        string // its configuration

	servers []Server
	domain  string
	stubs   map[string]bool
}

func isNodeLocal(c *corev1.Container) bool {
	return strings.Contains(image(c), "dns-node-cache") || strings.Contains(image(c), "nodelocaldns") ||
		len(c.Command) > 0 && path.Base(c.Command[0]) == "node-cache" ||
		argument(c, "localip") != "" && argument(c, "conf") != ""
}

// nodeLocal returns the container of a workload that runs NodeLocal DNSCache; nil: none does.
func (w *workload) nodeLocal() *corev1.Container {
	for i := range w.pod.Spec.Containers {
		if c := &w.pod.Spec.Containers[i]; isNodeLocal(c) || w.kind == "DaemonSet" && w.pod.Labels["k8s-app"] == "node-local-dns" && i == 0 {
			return c
		}
	}
	return nil
}

// nodeLocal finds NodeLocal DNSCache among the objects of a namespace; nil: there is none.
func (in *objects) nodeLocal(s *Setup) *NodeLocal {
	for _, w := range in.workloads {
		c := w.nodeLocal()
		if c == nil {
			continue
		}
		n := &NodeLocal{Namespace: in.namespace, Name: w.name, domain: s.Domain, stubs: map[string]bool{}}
		all := files{}
		for _, m := range w.mounts(c) {
			object := in.maps[m.name]
			if object == nil {
				continue
			}
			if text, has := object.Data["Corefile"]; has && n.Map == "" {
				n.Map, n.Key = m.name, "Corefile"
				all["/Corefile"] = text
			}
		}
		n.servers = parse(all, "/Corefile").servers
		if object := in.maps[stubs]; object != nil {
			var domains map[string]json.RawMessage
			if json.Unmarshal([]byte(object.Data["stubDomains"]), &domains) == nil {
				for zone := range domains {
					n.stubs[strings.ToLower(strings.TrimSuffix(zone, "."))] = true
				}
			}
		}
		return n
	}
	return nil
}

// Missing returns those of the zones that the cache doesn't ask the cluster's CoreDNS for.
func (n *NodeLocal) Missing(zones []string) []string {
	if n == nil {
		return nil
	}
	var missing []string
	local, _ := n.nearest(n.domain)
	for _, zone := range zones {
		s, exact := n.nearest(zone)
		if exact || n.stubs[zone] || s != nil && local != nil && slices.Equal(upstream(s), upstream(local)) {
			continue
		}
		missing = append(missing, zone)
	}
	return missing
}

// nearest returns the server block that answers for a zone, and whether it is for exactly that
// one.
func (n *NodeLocal) nearest(zone string) (*Server, bool) {
	for at := zone; ; {
		for i := range n.servers {
			if slices.ContainsFunc(n.servers[i].Zones, func(a Address) bool { return a.Transport == "dns" && a.Zone == at }) {
				return &n.servers[i], at == zone
			}
		}
		_, parent, found := strings.Cut(at, ".")
		switch {
		case at == ".":
			return nil, false
		case found:
			at = parent
		default:
			at = "."
		}
	}
}

// upstream returns where a server block forwards to.
func upstream(s *Server) []string {
	if d := s.directive("forward"); d != nil {
		return d.Args
	}
	return nil
}

// Remedy says how the cache's configuration gets zones: by adding them to the server block of
// the cluster's domain.
func (n *NodeLocal) Remedy(missing []string) string {
	where := fmt.Sprintf("ConfigMap %s/%s", n.Namespace, n.Map)
	if n.Map == "" {
		return "in the configuration of DaemonSet " + n.Namespace + "/" + n.Name + ", add server blocks like that of " + n.domain + " for " + strings.Join(missing, " and ")
	}
	local, exact := n.nearest(n.domain)
	if !exact {
		return "in " + where + ", add server blocks for " + strings.Join(missing, " and ") + " that forward to CoreDNS"
	}
	var have, want []string
	for _, a := range local.Zones {
		have = append(have, a.String())
	}
	for _, zone := range missing {
		want = append(want, Address{"dns", zone, local.plain().Port}.String())
	}
	return fmt.Sprintf("in %s, write %q instead of %q", where, strings.Join(append(slices.Clone(have), want...), " ")+" {", strings.Join(have, " ")+" {")
}
