package doctor

import (
	"fmt"
	"time"
)

// tolerated is the largest accepted difference of clocks. Tokens and certificates are valid
// for hours; kubelets renew their leases every 10 s, and their nodes are not ready after 40 s.
const tolerated = 5 * time.Minute

// clocksApart compares the API servers' clocks with each other, and each kubelet's clock
// with its API server's: kubelets date the renewals of their leases, and a node that is ready
// has renewed its lease within a minute.
func clocksApart(f *Facts, found func(Finding)) {
	for i, c := range f.Clusters {
		for _, other := range f.Clusters[:i] {
			if !c.Clock.Known() || !other.Clock.Known() {
				continue
			}
			if apart := c.Clock.Value - other.Clock.Value; apart.Abs() > tolerated {
				found(Finding{
					Scope{Cluster: c.Name, Remote: other.Name}, fmt.Sprintf("the clocks of %s and %s are %s apart", c.Name, other.Name, apart.Abs().Round(time.Minute)),
					[]Evidence{{fmt.Sprintf("ahead of ours: %s by %s, %s by %s", c.Name, c.Clock.Value, other.Name, other.Clock.Value), c.Clock.Source}},
				})
			}
		}
		if !c.Clock.Known() {
			continue
		}
		for j := range c.Nodes.Value {
			n := &c.Nodes.Value[j]
			if n.Renewed.IsZero() || n.Ready != "True" {
				continue
			}
			if apart := n.Renewed.Sub(c.Taken.Add(c.Clock.Value)); apart.Abs() > tolerated {
				found(Finding{
					Scope{Cluster: c.Name, Node: n.Name}, fmt.Sprintf("the clock of %s is off by %s", n.Name, apart.Round(time.Minute)),
					[]Evidence{{"its kubelet dates its lease " + n.Renewed.UTC().Format(time.RFC3339), c.Kubectl("-n kube-node-lease get lease %s -o yaml", n.Name)}},
				})
			}
		}
	}
}
