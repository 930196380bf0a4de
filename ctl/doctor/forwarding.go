package doctor

import "strings"

// forwardingRule names nodes that don't forward packets of their pods: paths between nodes
// are up there, because probes aren't forwarded.
func forwardingRule() Rule {
	return Rule{
		ID: "forwarding-off", Local: true,
		Remedy: "on that node set with sysctl -w, and in /etc/sysctl.d, each setting that is named to 1, and find out which program sets it to 0",
		Find: func(f *Facts, found func(Finding)) {
			for c, a := range f.agents() {
				if off := strings.Join(a.Value.Forwarding.Off, ", "); off != "" {
					found(Finding{Scope{Cluster: c.Name, Node: a.Pod.Node}, a.Pod.Node + " doesn't forward packets of its pods: " + off, []Evidence{{off, statusOf(a)}}})
				}
			}
		},
	}
}
