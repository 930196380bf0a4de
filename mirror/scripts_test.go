package mirror

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kube-semaphore/kube-semaphore/internal/pathreport"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/texttest"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
	"github.com/kube-semaphore/kube-semaphore/mirror/withdrawal"
)

// TestScripts runs the cases of testdata/scripts, whose README.md describes their format.
func TestScripts(t *testing.T) {
	texttest.Run(t, "testdata/scripts/*.txt", func(t *testing.T) func([]string) string {
		s := &story{t: t, world: newWorld(), clusters: testClusters(), said: map[setID]map[origin.Key]*saying{}}
		return s.step
	})
}

// story is the state of a case.
type story struct {
	*world
	t        *testing.T
	clusters []clusterConfig
	said     map[setID]map[origin.Key]*saying
	last     *saying // that indented lines belong to
}

// saying is what a cluster has of one service.
type saying struct {
	id     setID
	origin *origin.Service
	slices []*origin.Slice
}

func (s *story) step(lines []string) string {
	for _, line := range lines {
		if strings.HasPrefix(line, "  ") {
			s.last.slices = append(s.last.slices, s.slice(strings.Fields(line)))
			continue
		}
		s.say()
		if !s.do(strings.Fields(line)) {
			s.t.Fatalf("%q: not known", line)
		}
	}
	s.say()
	s.settle(s.t)
	if !slices.ContainsFunc(s.order, func(id setID) bool { return !s.sets[id].Synced }) {
		s.checkFrontends(s.t) // which knows only clusters that are synced
	}
	text, version := s.text(), s.version
	// A restart changes nothing.
	departed, minimum := s.departed, s.localMinimum
	s.again()
	s.departed, s.localMinimum = departed, minimum
	if s.settle(s.t); s.version != version {
		s.t.Errorf("a restart wrote %d objects", s.version-version)
	}
	return text
}

// say makes a cluster say what the last lines describe.
func (s *story) say() {
	if s.last == nil {
		return
	}
	of := s.last
	s.last = nil
	if s.said[of.id] == nil {
		s.said[of.id] = map[origin.Key]*saying{}
	}
	s.said[of.id][of.origin.Key] = of
	s.hear(of)
}

func (s *story) hear(of *saying) {
	k := of.origin.Key
	for _, before := range maps.Clone(s.sets[of.id].Slices(k)) {
		s.world.slice(of.id, before, nil)
	}
	for _, sl := range of.slices {
		s.world.slice(of.id, nil, sl)
	}
	s.origin(of.id, k, of.origin)
}

func (s *story) do(words []string) bool {
	what, rest := words[0], words[1:]
	switch {
	case what == "after":
		d, err := time.ParseDuration(rest[0])
		must(s.t, err)
		s.clock = s.clock.Add(d)
		s.judge(s.clock, nil)
	case what == "restart":
		s.restarts(rest)
	case what == "grace":
		s.setRemoveAt(time.Time{})
	case what == "departed":
		s.departed[rest[0]] = true
	case what == "minimum":
		s.localMinimum = s.number(rest[0])
	case what == "delete":
		delete(s.services, rest[0])
		s.show()
	case what == "cut":
		s.cut(rest[0])
	case what == "strip": // as of an earlier version
		s.strip(rest[0])
	case strings.HasPrefix(what, "local-"):
		s.paths.SetNode(what, true)
		s.paths.Report(what, s.report(what, rest), s.clock)
		s.judge(s.clock, nil)
	default:
		return s.cluster(what, rest[0], rest[1:])
	}
	return true
}

// restarts restarts the process, with other clusters such as "aws=c1" if there are some.
func (s *story) restarts(clusters []string) {
	before := s.state
	if len(clusters) > 0 {
		s.clusters = nil
		for _, text := range clusters {
			name, prefix, remote := strings.Cut(text, "=")
			s.clusters = append(s.clusters, clusterConfig{name: name, prefix: prefix, local: !remote, tier: 1})
		}
	}
	s.restart(s.clusters...)
	s.paths, s.localMinimum = withdrawal.New[string](), before.localMinimum
	if len(clusters) > 0 {
		s.setRemoveAt(time.Unix(1e9, 0))
	}
}

// strip removes the annotations of a Service, or that of the cluster of a slice with an address.
func (s *story) strip(what string) {
	if service := s.services[what]; service != nil {
		service = service.DeepCopy()
		service.Annotations = nil
		s.put(service)
	}
	for _, sl := range s.slices {
		if len(sl.Endpoints) > 0 && sl.Endpoints[0].Addresses[0] == what {
			sl = sl.DeepCopy()
			delete(sl.Annotations, annotCluster)
			s.putSlice(sl)
		}
	}
	s.show()
}

// cut leaves the slice with an address its first port.
func (s *story) cut(address string) {
	for _, sl := range s.slices {
		if len(sl.Endpoints) > 0 && sl.Endpoints[0].Addresses[0] == address {
			sl = sl.DeepCopy()
			sl.Ports = sl.Ports[:1]
			s.putSlice(sl)
		}
	}
	s.show()
}

// report returns the report of a node that others such as "aws/a1" are down; nil: none are.
func (s *story) report(by string, down []string) *pathreport.Report {
	nodes := map[string][]string{}
	for _, text := range down {
		if cluster, node, found := strings.Cut(text, "/"); found {
			nodes[cluster] = append(nodes[cluster], node)
		}
	}
	if len(nodes) == 0 {
		return nil
	}
	r := &pathreport.Report{Node: by, Remotes: map[string]pathreport.Down{}}
	for cluster, of := range nodes {
		r.Remotes[cluster] = pathreport.Down{Nodes: of}
	}
	return r
}

func (s *story) cluster(name, what string, rest []string) bool {
	at := slices.IndexFunc(s.clusters, func(c clusterConfig) bool { return c.name == name })
	if at < 0 {
		return false
	}
	var ids []setID
	for _, id := range s.order {
		if id.Cluster == name {
			ids = append(ids, id)
		}
	}
	switch what {
	case "mirror", "global":
		id := setOf(name, mirrored)
		if what == "global" {
			id.Kind = merged
		}
		s.service(id, rest)
	case "synced", "unsynced", "stale":
		for _, id := range ids {
			for _, of := range s.said[id] {
				if what == "synced" {
					s.hear(of)
				}
			}
			synced := what == "synced" || what == "stale" && s.sets[id].Synced
			s.contact(id, synced, what == "stale")
		}
	case "drained":
		s.drain(name, true)
	case "returned":
		s.drain(name, false)
	case "bounds":
		set := texttest.Fields(strings.Join(rest, " "))
		s.clusters[at].bounds = Bounds{Services: s.number(set["services"]), Slices: s.number(set["slices"]), Addresses: s.number(set["addresses"])}
		s.configure()
	case "tier":
		s.clusters[at].tier = s.number(rest[0])
		s.configure()
	default:
		return false
	}
	return true
}

// configure restarts the process with other settings of clusters, all of which it reads.
func (s *story) configure() {
	s.restart(s.clusters...)
	for _, id := range s.order {
		s.contact(id, true, false)
	}
}

func (s *story) number(text string) int {
	if text == "" {
		return 0
	}
	n, err := strconv.Atoi(text)
	must(s.t, err)
	return n
}

// service takes the words about a service, such as "shop/web http=80 dns=53/UDP headless".
func (s *story) service(id setID, words []string) {
	of := origin.Key{}
	of.Namespace, of.Name, _ = strings.Cut(words[0], "/")
	o := &origin.Service{Key: of, Created: time.Unix(1, 0), Spec: origin.Spec{Traits: origin.Traits{IPv4: true, IPv6: true}}}
	for _, word := range words[1:] {
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case "gone":
			o = nil
		case "headless":
			o.Spec.Headless = true
		case "IPv4":
			o.Spec.IPv6 = false
		case "IPv6":
			o.Spec.IPv4 = false
		case "created":
			o.Created = time.Unix(int64(s.number(value)), 0)
		case "local-first":
			o.LocalFirst = true
		case "local-minimum":
			o.LocalMinimum = s.number(value)
		default:
			number, protocol, _ := strings.Cut(value, "/")
			p := origin.Port{Name: name, Protocol: corev1.ProtocolTCP, Port: int32(s.number(number)), Target: intstr.FromInt(s.number(number))}
			if protocol != "" {
				p.Protocol = corev1.Protocol(protocol)
			}
			o.Spec.Ports = append(o.Spec.Ports, p)
		}
	}
	if o == nil {
		s.hear(&saying{id: id, origin: &origin.Service{Key: of}})
		s.origin(id, of, nil)
		delete(s.said[id], of)
		return
	}
	s.last = &saying{id: id, origin: o}
}

// slice returns a slice of the last service by its ports and endpoints, such as
// "http,dns/UDP 10.4.0.1@a1=pod !10.4.0.2": with node and pod, and "!" for those that are not
// ready.
func (s *story) slice(words []string) *origin.Slice {
	of := s.last
	sl := &origin.Slice{
		Name: fmt.Sprintf("%s-%d", of.origin.Name, len(of.slices)), Service: of.origin.Key, Family: discoveryv1.AddressTypeIPv4,
	}
	for port := range strings.SplitSeq(words[0], ",") {
		if port == "-" {
			continue
		}
		name, protocol, _ := strings.Cut(port, "/")
		p, number := corev1.Protocol(protocol), int32(8080)
		if protocol == "" {
			p = corev1.ProtocolTCP
		}
		sl.Ports = append(sl.Ports, discoveryv1.EndpointPort{Name: &name, Protocol: &p, Port: &number})
	}
	for _, word := range words[1:] {
		word, unready := strings.CutPrefix(word, "!")
		word, target, _ := strings.Cut(word, "=")
		address, node, _ := strings.Cut(word, "@")
		e := origin.Endpoint{Address: netip.MustParseAddr(address), Node: node, Ready: origin.True}
		if target != "" {
			e.Target = origin.TargetOf(&corev1.ObjectReference{Kind: "Pod", Namespace: of.origin.Namespace, Name: target})
		}
		if unready {
			e.Ready = origin.False
		}
		if e.Address.Is6() {
			sl.Family = discoveryv1.AddressTypeIPv6
		}
		sl.Endpoints = append(sl.Endpoints, e)
	}
	return sl
}

// text returns what the mirror namespace has, and what the status says of it.
func (s *story) text() string {
	names := map[string]bool{}
	for name := range s.services {
		names[name] = true
	}
	for _, sl := range s.slices {
		names[sl.Labels[discoveryv1.LabelServiceName]] = true
	}
	for name := range s.survey.services {
		names[name] = true
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(names)) {
		fmt.Fprintf(&b, "%s%s\n", name, describeService(s.services[name]))
		for _, line := range s.endpointsText(name) {
			b.WriteString("  " + line + "\n")
		}
		if of := s.survey.services[name]; of != nil {
			for _, line := range statusText(of) {
				b.WriteString("  " + line + "\n")
			}
		}
	}
	for _, c := range s.clusters {
		if n := len(s.state.clusters[c.name].quota.short); n > 0 {
			fmt.Fprintf(&b, "over the quota of %s: %d\n", c.name, n)
		}
	}
	for _, of := range s.former() {
		fmt.Fprintf(&b, "no longer configured: %s, with %d services and %d slices\n", of.Name, of.Services, of.Slices)
	}
	if b.Len() == 0 {
		return "nothing"
	}
	return b.String()
}

func describeService(s *corev1.Service) string {
	if s == nil {
		return ": no Service"
	}
	text := ""
	for _, p := range s.Spec.Ports {
		text += fmt.Sprintf(" %s=%d", p.Name, p.Port)
		if p.Protocol != corev1.ProtocolTCP {
			text += "/" + string(p.Protocol)
		}
	}
	if s.Spec.ClusterIP == corev1.ClusterIPNone {
		text += " headless"
	}
	for _, of := range []string{annotCluster, annotClusters} {
		if of = s.Annotations[of]; of != "" {
			text += " of " + of
		}
	}
	if first := s.Annotations[annotAccepted]; strings.Contains(first, ",") {
		text += ", accepted " + first
	}
	return text
}

// endpointsText returns the addresses by family and port: "!" for those that are not ready, "+"
// for those that the local zone prefers.
func (s *story) endpointsText(service string) []string {
	found := map[string][]string{}
	for _, sl := range s.slices {
		if sl.Labels[discoveryv1.LabelServiceName] != service {
			continue
		}
		var at []string
		for _, p := range sl.Ports {
			text := string(sl.AddressType) + " " + *p.Name
			if *p.Protocol != corev1.ProtocolTCP {
				text += "/" + string(*p.Protocol)
			}
			at = append(at, text)
		}
		if len(at) == 0 {
			at = []string{string(sl.AddressType)}
		}
		for i := range sl.Endpoints {
			e := &sl.Endpoints[i]
			text := e.Addresses[0]
			if e.Conditions.Ready != nil && !*e.Conditions.Ready {
				text = "!" + text
			}
			if e.Hints != nil && e.Hints.ForZones[0].Name != remoteZone {
				text += "+"
			}
			for _, of := range at {
				found[of] = append(found[of], text)
			}
		}
	}
	var all []string
	for _, at := range slices.Sorted(maps.Keys(found)) {
		slices.Sort(found[at])
		all = append(all, at+": "+strings.Join(found[at], " "))
	}
	return all
}

func statusText(of *surveyed) (all []string) {
	st := &of.status
	add := func(what, detail string) {
		if detail != "" {
			all = append(all, what+": "+detail)
		}
	}
	add("held", st.Held)
	for _, id := range of.want.Refused {
		add("refused", id.String())
	}
	for _, c := range st.Conflicts {
		add("conflict "+c.Cluster, c.What)
	}
	if of.want.Outdated {
		add("stale endpoints", "omitted")
	}
	add("drained", strings.Join(st.Drained, " "))
	for _, cluster := range slices.Sorted(maps.Keys(st.Needed)) {
		add("still needed of "+cluster, strings.Join(st.Needed[cluster], ", "))
	}
	for _, cluster := range slices.Sorted(maps.Keys(st.Refused)) {
		add("refused of "+cluster, st.Refused[cluster])
	}
	return all
}
