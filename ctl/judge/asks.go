package judge

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/probe"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/reach"
)

// maxEndpoints bounds the endpoints of a service that a pod asks, beside its ClusterIPs.
const maxEndpoints = 2

// Asks returns the services to ask from pods, by cluster and remote: the imports of each
// remote, with global services among those of the first one; and of each cluster and itself
// the endpoints that others ask, so that what its own pods get is known as well.
func Asks(clusters []*inspect.Cluster) map[[2]string][]reach.ServiceRequest {
	all := map[[2]string][]reach.ServiceRequest{}
	for _, c := range clusters {
		var remotes []*inspect.Cluster
		for _, other := range clusters {
			if other != c {
				remotes = append(remotes, other)
			}
		}
		services := slices.Concat(c.Imports.Value, c.ClusterSetServices())
		for i := range services {
			s := &services[i]
			at := slices.IndexFunc(remotes, func(r *inspect.Cluster) bool { return r.Name == s.Origin })
			if at < 0 && s.Origin != "" || len(remotes) == 0 || s.Ready == 0 || s.Port == 0 {
				continue
			}
			to := remotes[max(at, 0)].Name
			a := reach.ServiceRequest{Name: s.DNS(), HTTP: s.HTTP}
			if !s.Headless {
				a.Want = s.ClusterIPs
				for _, ip := range s.ClusterIPs[:min(len(s.ClusterIPs), 2)] { // one of each family
					a.Addresses = append(a.Addresses, net.JoinHostPort(ip, strconv.Itoa(int(s.Port))))
				}
			}
			var endpoints []string
			for _, e := range s.Sample[:min(len(s.Sample), maxEndpoints)] {
				endpoints = append(endpoints, e.String())
			}
			a.Addresses = append(a.Addresses, endpoints...)
			all[[2]string{c.Name, to}] = append(all[[2]string{c.Name, to}], a)
			if at >= 0 {
				if own := exported(remotes[at], s, endpoints); len(own) > 0 {
					subnets, _ := remotes[at].SubnetMap()
					for i := range own {
						own[i] = translate(own[i], subnets.Real)
					}
					all[[2]string{to, to}] = append(all[[2]string{to, to}], reach.ServiceRequest{Addresses: own, HTTP: s.HTTP})
				}
			}
		}
	}
	return all
}

// exported returns the endpoints of an import that are endpoints of its origin, too: another
// cluster must not choose what pods of this one request.
func exported(origin *inspect.Cluster, s *inspect.KubeService, endpoints []string) []string {
	at := slices.IndexFunc(origin.Exports.Value, func(e inspect.KubeService) bool { return e.Namespace == s.Namespace && e.Name == s.Name })
	if at < 0 {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(endpoints), func(address string) bool {
		return !slices.ContainsFunc(origin.Exports.Value[at].Sample, func(e netip.AddrPort) bool { return e.String() == address })
	})
}

// unaskable lists imports that pods can't ask, with the reason.
func unaskable(c *inspect.Cluster) (udp int) {
	for i := range c.Imports.Value {
		if s := &c.Imports.Value[i]; s.Ready > 0 && s.Port == 0 {
			udp++
		}
	}
	return udp
}

// requests returns the results of asking services.
func (f *Facts) requests() []probe.ServiceTest {
	if f.Results == nil {
		return nil
	}
	return f.Results.Requests
}

// own returns the results of asking endpoints from pods of their own cluster, by the address at
// which other clusters know them.
func (f *Facts) own() map[string]string {
	all := map[string]string{}
	for i := range f.requests() {
		a := &f.requests()[i]
		if a.Remote != a.From.Cluster || a.Skipped != "" {
			continue
		}
		for _, address := range a.Addresses {
			all[translate(address, f.subnetsOf(a.Remote).Virtual)] = a.Result.Failed[address]
		}
	}
	return all
}

func askScope(a *probe.ServiceTest) Scope {
	return Scope{Cluster: a.From.Cluster, Node: a.From.Node, Remote: a.Remote}
}

// virtual reports whether an address of a service is its ClusterIP.
func virtual(a *probe.ServiceTest, address string) bool {
	host, _, _ := net.SplitHostPort(address)
	return a.Fresh || slices.Contains(a.Want, host)
}

// answers reports whether one of the service's endpoints of the family of its ClusterIP has
// answered, or the pod that is the endpoint of a temporary one.
func (f *Facts) answers(a *probe.ServiceTest, virtualIP string) bool {
	if a.Fresh {
		return slices.ContainsFunc(f.podConnections(), func(l probe.Connection) bool {
			return l.From == a.From && l.To == a.To && l.Skipped == "" && l.Error == "" && isIPv6(l.Address) == isIPv6(virtualIP)
		})
	}
	return slices.ContainsFunc(a.Addresses, func(address string) bool {
		return !virtual(a, address) && a.Result.Failed[address] == "" && isIPv6(address) == isIPv6(virtualIP)
	})
}

// isIPv6 reports whether an address, with a port or without, is one of IPv6.
func isIPv6(address string) bool { return strings.Count(address, ":") > 1 }

func (f *Facts) askAgain(a *probe.ServiceTest) string {
	return fmt.Sprintf("semaphorectl doctor %s %s", a.From.Cluster, a.Remote)
}

// subject names a service.
func subject(a *probe.ServiceTest) string {
	switch {
	case a.Fresh && a.To.Node == "":
		return "a temporary Service for a pod of " + a.Remote
	case a.Fresh:
		return "a temporary Service for a pod on " + a.To.Node
	}
	return cmp.Or(a.Name, "a service of "+a.Remote)
}

// cutOff reports whether no pod of a node has reached any pod of another cluster, which
// podRules report.
func (f *Facts) cutOff(node probe.NodeRef) bool {
	tried := 0
	for i := range f.podConnections() {
		if l := &f.podConnections()[i]; l.From == node && l.Skipped == "" {
			if tried++; l.Error == "" {
				return false
			}
		}
	}
	return tried > 0
}

// nodeOf returns the node of a cluster that has an address among its pods.
func nodeOf(c *inspect.Cluster, address string) string {
	at, err := netip.ParseAddrPort(address)
	for i := range c.Nodes.Value {
		for _, prefix := range c.Nodes.Value[i].Pods {
			if err == nil && prefix.Contains(at.Addr().Unmap()) {
				return c.Nodes.Value[i].Name
			}
		}
	}
	return ""
}

// refused reports whether an admission controller has refused the pod on a node, or the
// temporary Service of a cluster, which is a cause.
func (f *Facts) refused(at probe.NodeRef) bool {
	return f.Results != nil && kube.RefusedByAdmission(f.Results.Refused[at])
}

// refusesPods reports whether a cluster has refused a pod.
func (f *Facts) refusesPods(cluster string) bool {
	for at := range f.Results.Refused {
		if at.Cluster == cluster && at.Node != "" && f.refused(at) {
			return true
		}
	}
	return false
}

// testsRefused finds clusters that don't admit temporary objects.
func testsRefused(f *Facts, found func(Finding)) {
	if f.Results == nil {
		return
	}
	byNode := func(a, b probe.NodeRef) int { return strings.Compare(a.String(), b.String()) }
	for _, at := range slices.SortedFunc(maps.Keys(f.Results.Refused), byNode) {
		if !f.refused(at) {
			continue
		}
		what := "pods of doctor"
		if at.Node == "" {
			what = "a temporary Service of doctor"
		}
		show := ""
		if c := f.cluster(at.Cluster); c != nil {
			show = c.Kubectl("get validatingadmissionpolicies,validatingwebhookconfigurations")
			if strings.Contains(f.Results.Refused[at], "exceeded quota") {
				show = c.Kubectl("-n %s get resourcequotas", probe.Namespace)
			}
		}
		found(Finding{
			Scope: Scope{Cluster: at.Cluster, Node: at.Node}, With: []string{"{what}", what},
			Evidence: says(strings.TrimPrefix(at.Node+": ", ": ")+f.Results.Refused[at], show),
		})
	}
}

// notListening finds endpoints that refuse connections of pods of their own cluster, too.
func notListening(f *Facts, found func(Finding)) {
	own, seen := f.own(), map[string]bool{}
	f.eachDenied(func(a *probe.ServiceTest, _ Scope, address, err string) {
		if !closed(err) || !closed(own[address]) || seen[address] {
			return
		}
		seen[address] = true
		found(Finding{
			Scope: Scope{Cluster: a.Remote}, With: []string{"{service}", subject(a)},
			Evidence: says(fmt.Sprintf("%s: from %s: %s; from a pod of %s: %s", address, a.From, err, a.Remote, own[address]), f.askAgain(a)),
		})
	})
}

// closed reports whether an error is that of a port at which nothing listens.
func closed(err string) bool { return strings.Contains(err, "connection refused") }

// virtualUnanswered and the functions below compare what pods got as clients of services:
//
//	ClusterIP       endpoint         name                          cause
//	no answer       answers          any                           cluster-ip-unanswered
//	any             any              no answer, nor to own names   dns-unanswered
//	any             any              missing, or other addresses   name-wrong
//	any             no answer, and   any                           service-denied
//	                its own pods get one
//	any             refuses, its own any                           endpoint-not-listening
//	                pods as well
//
// Where not even pods of its own cluster get an answer, and none is refused, a policy may deny
// on purpose: that is unknown.
func virtualUnanswered(f *Facts, found func(Finding)) {
	for i := range f.requests() {
		a := &f.requests()[i]
		for _, address := range slices.Sorted(maps.Keys(a.Result.Failed)) {
			if virtual(a, address) && f.answers(a, address) {
				found(Finding{Scope: Scope{Cluster: a.From.Cluster, Node: a.From.Node}, Evidence: says(fmt.Sprintf("%s at %s: %s", subject(a), address, a.Result.Failed[address]), f.askAgain(a))})
			}
		}
	}
}

func dnsUnanswered(f *Facts, found func(Finding)) {
	for i := range f.requests() {
		if a := &f.requests()[i]; a.Result.Name != "" && a.Result.DNS != "" && !f.cutOff(a.From) {
			found(Finding{
				Scope:    Scope{Cluster: a.From.Cluster, Node: a.From.Node},
				Evidence: []Evidence{{"kubernetes.default.svc: " + a.Result.DNS, f.askAgain(a)}, {a.Name + ": " + a.Result.Name, ""}},
			})
		}
	}
}

func nameWrong(f *Facts, found func(Finding)) {
	for i := range f.requests() {
		a := &f.requests()[i]
		silent := a.Result.Name != "" && a.Result.DNS != "" // Names of the own cluster aren't resolved, either.
		if !silent && (a.Result.Name != "" || len(a.Result.Found) > 0) {
			what := cmp.Or(a.Result.Name, "it is "+strings.Join(a.Result.Found, " ")+" instead of "+strings.Join(a.Want, " "))
			found(Finding{Scope: askScope(a), Evidence: says(fmt.Sprintf("%s, on %s: %s", a.Name, a.From.Node, what), f.askAgain(a))})
		}
	}
}

func denied(f *Facts, found func(Finding)) {
	own := f.own()
	f.eachDenied(func(a *probe.ServiceTest, scope Scope, address, err string) {
		if answer, known := own[address]; known && answer == "" {
			found(Finding{Scope: scope, Evidence: says(fmt.Sprintf("%s, from %s: %s", address, a.From.Node, err), f.askAgain(a)), With: []string{"{service}", subject(a)}})
		}
	})
}

// eachDenied calls say for each endpoint that doesn't answer a pod of another cluster, though
// the pods for tests on these nodes reach each other.
func (f *Facts) eachDenied(say func(a *probe.ServiceTest, scope Scope, address, err string)) {
	for i := range f.requests() {
		a := &f.requests()[i]
		if a.Remote == a.From.Cluster || a.Fresh {
			continue
		}
		for _, address := range slices.Sorted(maps.Keys(a.Result.Failed)) {
			if virtual(a, address) {
				continue
			}
			scope := askScope(a)
			if c := f.cluster(a.Remote); c != nil {
				scope.Peer = nodeOf(c, translate(address, f.subnets(c).Real))
			}
			say(a, scope, address, a.Result.Failed[address])
		}
	}
}

// virtual adds the ClusterIPs of a service that don't answer, and can't be compared with an
// endpoint: a temporary Service's own doesn't answer either, or none is at the same port.
func (u *unknown) virtual(f *Facts, a *probe.ServiceTest) {
	for _, address := range slices.Sorted(maps.Keys(a.Result.Failed)) {
		switch {
		case !virtual(a, address) || f.answers(a, address):
		case a.Fresh:
			u.add(askScope(a), "the endpoint of the temporary Service, a pod on "+a.To.Node+", doesn't answer", f.askAgain(a), "whether ClusterIPs are served on %s", a.From.Node)
			return // The text is the same for each of its addresses.
		case !slices.ContainsFunc(a.Addresses, func(other string) bool { return !virtual(a, other) && isIPv6(other) == isIPv6(address) }):
			u.add(askScope(a), address+": "+a.Result.Failed[address]+"; none of its ready endpoints is at this port", f.askAgain(a), "whether %s answers", subject(a))
		}
	}
}

// asked adds what asking services left unknown.
func (u *unknown) asked(f *Facts) {
	own, seen := f.own(), map[string]bool{}
	f.eachDenied(func(a *probe.ServiceTest, scope Scope, address, err string) {
		answer, known := own[address]
		if known && answer == "" || seen[address] || closed(err) && closed(answer) {
			return
		}
		seen[address] = true
		why := address + ": " + err
		if known {
			why += "; pods of its own cluster get no answer either: it doesn't listen, or a network policy denies pods of " + probe.Namespace
		}
		u.add(scope, why, f.askAgain(a), "whether %s answers", subject(a))
	})
	for i := range f.requests() {
		a := &f.requests()[i]
		switch {
		case a.Skipped == "":
			u.virtual(f, a)
		case a.Remote == a.From.Cluster || f.refused(a.From) || a.Fresh && (f.refused(probe.NodeRef{Cluster: a.From.Cluster}) || a.To.Node == "" && f.refusesPods(a.Remote)):
		default:
			u.add(askScope(a), a.Skipped, f.askAgain(a), "whether pods on %s reach %s", a.From.Node, subject(a))
		}
	}
}
