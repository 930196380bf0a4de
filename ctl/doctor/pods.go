package doctor

import (
	"fmt"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/ctl/probe"
)

// podConnections returns the connections that temporary pods have tested.
func (f *Facts) podConnections() []probe.Connection {
	if f.Results == nil {
		return nil
	}
	return f.Results.Connections
}

func legScope(l *probe.Connection) Scope {
	return Scope{l.From.Cluster, l.From.Node, l.To.Cluster, l.To.Node}
}

func tryAgain(l *probe.Connection) string {
	return fmt.Sprintf("semaphorectl verify %s %s", l.From.Cluster, l.To.Cluster)
}

// up reports whether the paths between two nodes are up in both directions: a fault is then
// between a pod and its node's tunnel.
func (f *Facts) up(s Scope) bool {
	there, back := f.pair(s), f.pair(s.turned())
	return there != nil && back != nil && there.state() == "up" && back.state() == "up"
}

// podRules derive causes from the connections of temporary pods. Where the paths of their
// nodes are up:
//
//	response, real source address       not-translated
//	response, other source address      pods-masqueraded
//	response, larger packets lost       pods-mtu
//	no response                         pods-dropped
//
// Where a path is down, the path is the cause.
func podRules() []Rule {
	roots := append([]string{
		"port-taken", "peers-outdated", "foreign-route", "foreign-rule", "repairs-undone", "forwarding-off", "not-translated", "udp-one-way", "udp-blocked", "mtu-too-large", "path-down", "calico-pools-missing",
	}, unpeered...)
	rule := func(id, remedy string, after []string, mutual bool, find func(f *Facts, l *probe.Connection) (what, evidence string)) Rule {
		return Rule{ID: id, Remedy: remedy, After: after, Find: func(f *Facts, found func(Finding)) {
			for i := range f.podConnections() {
				l := &f.podConnections()[i]
				if what, evidence := find(f, l); what != "" && l.Skipped == "" {
					scope := legScope(l)
					if mutual && scope.Cluster > scope.Remote {
						scope = scope.turned() // A response needs both directions: they are one cause.
					}
					found(Finding{scope, what, []Evidence{{evidence, tryAgain(l)}}})
				}
			}
		}}
	}
	return []Rule{
		rule("pods-masqueraded", "exclude the remote's pod subnets from masquerading on that node: with Calico by a disabled IP pool without BGP export for them, with ip-masq-agent in nonMasqueradeCIDRs, with Cilium in ipv4NativeRoutingCIDR, else by a rule before the one that masquerades (nft list ruleset, iptables -t nat -S POSTROUTING)", roots, false,
			func(f *Facts, l *probe.Connection) (what, evidence string) {
				subnets, own := f.subnetsOf(l.From.Cluster), "own"
				if l.Seen == "" || subnets.real(l.Seen) {
					return "", ""
				}
				if len(subnets.SubnetMap) > 0 {
					own = "virtual"
				}
				return fmt.Sprintf("packets of pods on %s are masqueraded", l.From.Node), fmt.Sprintf("a pod on %s received them from %s instead of the pod's %s address", l.To.Node, l.Seen, own)
			}),
		rule("pods-mtu", "allow ICMP \"fragmentation needed\" to pods, or set their MTU to that of the tunnel at most", roots, false,
			func(_ *Facts, l *probe.Connection) (what, evidence string) {
				if l.Carries >= l.MTU {
					return "", ""
				}
				return fmt.Sprintf("full-size packets of pods on %s to %s are lost", l.From.Node, l.To.Node), fmt.Sprintf("packets of %d bytes, the kernel's path MTU, are lost; packets of %d bytes get through", l.MTU, l.Carries)
			}),
		rule("pods-dropped", "on the node that is named look for what drops packets between the remote's pod subnets and own pods: nft list ruleset, iptables -S FORWARD, ip6tables -S FORWARD. It is a rule or the policy of a chain of forwarded packets, which network policies become as well, or masquerading to an address outside of the node's pod prefixes (iptables -t nat -S POSTROUTING)", append([]string{"pods-masqueraded"}, roots...), true,
			func(f *Facts, l *probe.Connection) (what, evidence string) {
				scope := legScope(l)
				err := strings.TrimSpace(l.Error + l.Datagrams)
				if err == "" || !f.up(scope) {
					return "", ""
				}
				where, counted := f.end(l)
				return fmt.Sprintf("the tunnel between %s and %s is up, and packets between their pods are dropped %s", l.From.Node, l.To.Node, where), l.Address + ": " + err + counted
			}),
		rule("pods-unreached", "find out why the path between their nodes isn't reported as up", append([]string{"pods-masqueraded", "pods-dropped"}, roots...), true,
			func(_ *Facts, l *probe.Connection) (what, evidence string) {
				if l.Error == "" {
					return "", ""
				}
				return fmt.Sprintf("a pod on %s can't reach a pod on %s", l.From.Node, l.To.Node), l.Address + ": " + l.Error
			}),
	}
}
