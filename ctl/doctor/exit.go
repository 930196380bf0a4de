package doctor

import (
	"fmt"
	"time"
)

// foreignRuleRule names nodes on which policy rules of other programs lead packets to remote
// pods past the tunnel, where agents drop them.
func foreignRuleRule() Rule {
	return Rule{
		ID:     "foreign-rule",
		Remedy: "add routes to the remote's pod subnets through its device wireguard.<remote> to the table that the rule looks up, or give the rule a priority above 401",
		Find: func(f *Facts, found func(Finding)) {
			for c, a := range f.agents() {
				for i := range a.Value.Remotes {
					r := &a.Value.Remotes[i]
					scope := Scope{Cluster: c.Name, Node: a.Pod.Node, Remote: r.Name}
					var taking []Evidence
					for _, rule := range r.Rules {
						if !rule.Marked || r.Stopping {
							taking = append(taking, Evidence{rule.Rule, statusOf(a)})
						}
					}
					switch {
					case len(taking) > 0:
						found(Finding{scope, fmt.Sprintf("on %s a policy rule of another program leads packets to pods of %s past the tunnel", a.Pod.Node, r.Name), taking})
					case r.Stopping && r.Stopped != nil && r.LastStopped != nil:
						found(Finding{scope, fmt.Sprintf("%s drops packets to pods of %s that would leave in plaintext", a.Pod.Node, r.Name),
							[]Evidence{{fmt.Sprintf("%d packets, the last one at %s", *r.Stopped, r.LastStopped.UTC().Format(time.RFC3339)), statusOf(a)}}})
					}
				}
			}
		},
	}
}
