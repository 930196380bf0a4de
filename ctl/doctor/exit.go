package doctor

import (
	"fmt"
	"time"
)

// foreignRuleRule names nodes on which other programs lead packets to remote pods past the
// tunnel, where agents drop them. Temporary pods have sent some, if any run there.
func foreignRuleRule() Rule {
	return Rule{
		ID:     "foreign-rule",
		Remedy: "on that node look for a policy rule with a priority below 400 that takes these packets and the route in its table, or a route of another program in table 115115: ip rule show; ip route show table TABLE; ip route show table 115115. Add routes to the remote's pod subnets through its device wireguard.<remote> to that table, or give the rule a priority above 402; remove such a route",
		Find: func(f *Facts, found func(Finding)) {
			for c, a := range f.agents() {
				report := a.Value
				if later := c.Later[a.Pod.Node]; later != nil {
					report = later
				}
				for i := range report.Remotes {
					if r := &report.Remotes[i]; r.Stopping && r.Stopped != nil && r.LastStopped != nil {
						found(Finding{
							Scope{Cluster: c.Name, Node: a.Pod.Node, Remote: r.Name}, fmt.Sprintf("%s drops packets to pods of %s that another program leads past the tunnel", a.Pod.Node, r.Name),
							[]Evidence{{fmt.Sprintf("%d packets, the last one at %s", *r.Stopped, r.LastStopped.UTC().Format(time.RFC3339)), statusOf(a)}},
						})
					}
				}
			}
		},
	}
}
