package doctor

import (
	"fmt"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/probe"
)

// legs are what temporary pods have tried.
func (f *Facts) legs() []probe.Leg {
	if f.Tried == nil {
		return nil
	}
	return f.Tried.Legs
}

func legScope(l *probe.Leg) Scope {
	return Scope{l.From.Cluster, l.From.Node, l.To.Cluster, l.To.Node}
}

func tryAgain(l *probe.Leg) string {
	return fmt.Sprintf("semaphorectl verify %s %s", l.From.Cluster, l.To.Cluster)
}

// up tells whether nodes reach each other in both directions: what is wrong then is
// between a pod and its node's tunnel.
func (f *Facts) up(s Scope) bool {
	there, back := f.pair(s), f.pair(s.turned())
	return there != nil && back != nil && there.state() == "up" && back.state() == "up"
}

// podRules reason from what pods have tried of each other. Of a pair of nodes whose paths
// are up:
//
//	answered, seen from another address    masqueraded
//	answered, larger packets get lost      pods-mtu
//	no answer                              pods-dropped
//
// Where a path isn't up, that is the cause.
func podRules() []Rule {
	roots := append([]string{
		"port-taken", "peers-outdated", "foreign-route", "udp-one-way", "udp-blocked", "mtu-too-large", "path-down", "calico-pools-missing",
	}, unpeered...)
	rule := func(id, remedy string, after []string, mutual bool, find func(f *Facts, l *probe.Leg) (what, evidence string)) Rule {
		return Rule{ID: id, Remedy: remedy, After: after, Find: func(f *Facts, found func(Finding)) {
			for i := range f.legs() {
				l := &f.legs()[i]
				if what, evidence := find(f, l); what != "" && l.Untried == "" {
					scope := legScope(l)
					if mutual && scope.Cluster > scope.Remote {
						scope = scope.turned() // An answer takes both ways: it is one cause.
					}
					found(Finding{scope, what, []Evidence{{evidence, tryAgain(l)}}})
				}
			}
		}}
	}
	return []Rule{
		rule("pods-masqueraded", "except the remote's pod subnets from masquerading: docs/policy.md, \"IP pools for remote subnets\", says how, for other network plugins as well", roots, false,
			func(_ *Facts, l *probe.Leg) (what, evidence string) {
				if l.Seen == "" {
					return "", ""
				}
				return fmt.Sprintf("packets of pods on %s are masqueraded", l.From.Node), fmt.Sprintf("a pod on %s saw %s, which isn't the asking pod's address", l.To.Node, l.Seen)
			}),
		rule("pods-mtu", "let ICMP \"fragmentation needed\" reach pods, or give them an MTU that isn't larger than the tunnel's", roots, false,
			func(_ *Facts, l *probe.Leg) (what, evidence string) {
				if l.Carries >= l.MTU {
					return "", ""
				}
				return fmt.Sprintf("full-size packets of pods on %s get lost on the way to %s", l.From.Node, l.To.Node), fmt.Sprintf("of %d bytes, as the kernel takes the path to carry, they get lost; of %d they get through", l.MTU, l.Carries)
			}),
		rule("pods-dropped", "let packets between the remote's pod subnets and own pods through on both nodes: the policy and rules of their FORWARD chains (nft list ruleset, iptables -S FORWARD), network policies, and whether something masquerades them to an address that isn't a pod's", append([]string{"pods-masqueraded"}, roots...), true,
			func(f *Facts, l *probe.Leg) (what, evidence string) {
				scope := legScope(l)
				err := strings.TrimSpace(l.Error + l.Datagrams)
				if err == "" || !f.up(scope) {
					return "", ""
				}
				return fmt.Sprintf("packets between pods on %s and %s are dropped on one of these nodes, whose tunnel is up", l.From.Node, l.To.Node), l.Address + ": " + err
			}),
		rule("pods-unreached", "see why the path between their nodes isn't known to be up", append([]string{"pods-masqueraded", "pods-dropped"}, roots...), true,
			func(_ *Facts, l *probe.Leg) (what, evidence string) {
				if l.Error == "" {
					return "", ""
				}
				return fmt.Sprintf("a pod on %s doesn't reach one on %s", l.From.Node, l.To.Node), l.Address + ": " + l.Error
			}),
	}
}
