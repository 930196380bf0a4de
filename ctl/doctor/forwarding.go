package doctor

import "strings"

// forwardingRule names nodes that don't forward packets of their pods: paths between nodes
// are up there, because probes aren't forwarded.
func forwardingRule() Rule {
	return Rule{
		ID: "forwarding-off", Local: true,
		Remedy: "on that node set with sysctl -w, and in /etc/sysctl.d, each setting that is named to 1, and find out which program sets it to 0; add a rule that accepts packets between pods and wireguard.<remote> to each chain that is named, or let it accept by default",
		Find: func(f *Facts, found func(Finding)) {
			for c, a := range f.agents() {
				forwarding, scope := a.Value.Forwarding, Scope{Cluster: c.Name, Node: a.Pod.Node}
				for _, fact := range []struct {
					what string
					by   []string
				}{
					{" doesn't forward packets of its pods: ", forwarding.Off},
					{" drops all packets of its pods that are forwarded: ", forwarding.Denying},
				} {
					if by := strings.Join(fact.by, ", "); by != "" {
						found(Finding{scope, a.Pod.Node + fact.what + by, []Evidence{{by, statusOf(a)}}})
					}
				}
			}
		},
	}
}
