package virtual

import (
	"strings"

	"github.com/kube-semaphore/kube-semaphore/internal/report"
	"github.com/kube-semaphore/kube-semaphore/internal/status"
)

// Show shows the map of a remote, unless it has none.
func Show(p *report.Page, remote string, m *status.PodSubnetsMap) {
	switch m.State {
	case status.MapUnread:
		p.Watch(remote+": nodes", false, nil, m.Error)
		return
	case status.MapForbidden:
		p.Line("%s: a map of its pod subnets would not be known, as its nodes are forbidden to this account: see deploy/remote", remote)
		return
	case status.MapKnown:
		p.Line("%s: its pods are known by other addresses: %s", remote, listed(m))
	case status.MapDiffers:
		p.Wrong("%s: its nodes have different maps of its pod subnets: %s", remote, listed(m))
	case status.MapBad:
		p.Wrong("%s: the map of pod subnets of a node is not valid: %s", remote, m.Fault)
	}
	p.Failing(remote+": nodes", m.Error)
}

func listed(m *status.PodSubnetsMap) string {
	var all []string
	for _, n := range m.Maps {
		text := n.Map
		if text == "" {
			text = "none"
		}
		all = append(all, text)
	}
	return strings.Join(all, "; ")
}
