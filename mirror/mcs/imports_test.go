package mcs

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/texttest"
)

// TestImports runs the cases of testdata/imports, whose README.md describes their format.
func TestImports(t *testing.T) {
	texttest.Run(t, "testdata/imports/*.txt", func(t *testing.T) func([]string) string {
		s := &clusterset{t: t, clock: time.Unix(1.8e9, 0)}
		for _, name := range []string{"aws", "gcp", "merit"} {
			s.members = append(s.members, &member{name: name, unread: map[string]bool{}})
		}
		return s.step
	})
}

// clusterset has clusters that compute the import of one name, each by itself.
type clusterset struct {
	t       *testing.T
	clock   time.Time
	members []*member
}

// member is one of the clusters.
type member struct {
	name   string
	offer  *Offer                 // nil: it exports nothing
	unread map[string]bool        // clusters that it can't read since its restart
	object *v1beta1.ServiceImport // nil: none
	left   []Place                // of the import that is gone
	// slices are the names of the ports in those of the import, by cluster.
	slices   map[string][]string
	conflict Conflict
}

func (s *clusterset) member(name string) *member {
	return s.members[slices.IndexFunc(s.members, func(m *member) bool { return m.name == name })]
}

func (s *clusterset) step(lines []string) string {
	for _, line := range lines {
		words := strings.Fields(line)
		if words[0] == "after" {
			d, err := time.ParseDuration(words[1])
			if err != nil {
				s.t.Fatal(err)
			}
			s.clock = s.clock.Add(d)
			continue
		}
		m := s.member(words[0])
		switch words[1] {
		case "exports":
			m.offer = s.offer(m.name, words[2:])
		case "withdraws":
			m.offer = nil
		case "restarts": // without ...
			for _, other := range words[3:] {
				m.unread[other] = true
			}
		case "reads":
			for _, other := range words[2:] {
				delete(m.unread, other)
			}
		default:
			s.t.Fatalf("%q: not known", line)
		}
		for _, m := range s.members {
			s.settle(m)
		}
	}
	var all []string
	texts := map[string][]string{}
	for _, m := range s.members {
		text := m.text()
		if texts[text] = append(texts[text], m.name); len(texts[text]) == 1 {
			all = append(all, text)
		}
	}
	for i, text := range all {
		all[i] = strings.Join(texts[text], " ") + text
	}
	return strings.Join(all, "\n")
}

// settle computes the import of a cluster. To do it again, of what is in its object, changes
// nothing.
func (s *clusterset) settle(m *member) {
	s.compute(m)
	before, conflict := m.object.DeepCopy(), m.conflict
	s.compute(m)
	if diff := cmp.Diff(before, m.object); diff != "" {
		s.t.Errorf("%s computes something else from its own import (-before +after):\n%s", m.name, diff)
	}
	if diff := cmp.Diff(conflict, m.conflict); diff != "" {
		s.t.Errorf("%s computes another conflict from its own import (-before +after):\n%s", m.name, diff)
	}
}

func (s *clusterset) compute(m *member) {
	e := Exports{Local: m.name, Places: m.left, Now: s.clock}
	if m.object != nil {
		running := ParseImport(&m.object.Spec, m.object.Labels, m.object.Annotations)
		e.Running, e.Places = &running, running.Places
	}
	for _, cluster := range Exporting(e.Places) {
		if m.unread[cluster] {
			e.Unknown = append(e.Unknown, cluster)
		}
	}
	for _, o := range s.members {
		if o.offer != nil && !m.unread[o.name] {
			e.Offers = append(e.Offers, *o.offer)
		}
	}
	if len(e.Offers) == 0 && len(e.Unknown) == 0 {
		m.left, m.object, m.slices, m.conflict = Leave(e.Places, s.clock), nil, nil, Conflict{}
		return
	}
	next, conflict := e.Merge()
	names := map[string][]string{}
	for n := range e.Offers {
		o := &e.Offers[n]
		for _, p := range o.Ports {
			if name, served := next.Name(o, p.Name); served {
				names[o.Cluster] = append(names[o.Cluster], name)
			}
		}
	}
	for _, cluster := range e.Unknown {
		now := e.Running.Names(&next, cluster)
		for _, was := range m.slices[cluster] {
			if name, served := now[was]; served {
				names[cluster] = append(names[cluster], name)
			}
		}
	}
	if len(e.Unknown) > 0 {
		conflict = Conflict{} // conditions stay as they are
	}
	m.object, m.left, m.slices, m.conflict = next.Object("shop", "web", nil, families(&next)), nil, names, conflict
}

func families(i *Import) (all []corev1.IPFamily) {
	if i.IPv4 {
		all = append(all, corev1.IPv4Protocol)
	}
	if i.IPv6 {
		all = append(all, corev1.IPv6Protocol)
	}
	return all
}

// offer returns what the words describe, such as "http=80 dns=53/UDP headless".
func (s *clusterset) offer(cluster string, words []string) *Offer {
	o := &Offer{Cluster: cluster, Export: &Export{Created: s.clock}, Spec: Spec{Traits: Traits{IPv4: true}}}
	for _, word := range words {
		name, value, _ := strings.Cut(word, "=")
		value, protocol, _ := strings.Cut(value, "/")
		number, _ := strconv.Atoi(value)
		switch name {
		case "headless":
			o.Headless = true
		case "affinity":
			o.AffinityTimeout = int32(number)
		case "IPv6":
			o.IPv6 = true
		case "label":
			o.Labels = map[string]string{"team": value}
		case "created":
			o.Created = time.Unix(int64(number), 0)
		case "ports":
			for n := range number {
				o.Ports = append(o.Ports, tcp(fmt.Sprintf("%s-%d", cluster, n), int32(10000+n)))
			}
		default:
			p := tcp(strings.Trim(name, "-"), int32(number))
			if protocol != "" {
				p.Protocol = corev1.Protocol(protocol)
			}
			o.Ports = append(o.Ports, p)
		}
	}
	return o
}

// text returns the import: its ports with the clusters that serve them, what else it has, the
// order of the exports, and the conflict of the local one.
func (m *member) text() string {
	if m.object == nil {
		return ": no import"
	}
	spec := &m.object.Spec
	text := ": " + string(spec.Type)
	if c := spec.SessionAffinityConfig; c != nil {
		text += fmt.Sprintf(" affinity=%d", *c.ClientIP.TimeoutSeconds)
	}
	if team := m.object.Labels["team"]; team != "" {
		text += " label=" + team
	}
	if len(spec.IPFamilies) > 1 {
		text += " IPv6"
	}
	for _, p := range spec.Ports {
		var from []string
		for _, cluster := range []string{"aws", "gcp", "merit"} {
			if slices.Contains(m.slices[cluster], p.Name) {
				from = append(from, cluster)
			}
		}
		if len(spec.Ports) > 10 && p.Name != spec.Ports[0].Name && p.Name != spec.Ports[len(spec.Ports)-1].Name {
			continue
		}
		text += "\n  " + strings.TrimSpace(fmt.Sprintf("%s %d/%s", p.Name, p.Port, p.Protocol)) + ": " + strings.Join(from, " ")
	}
	exports := m.object.Annotations[AnnotExports]
	if len(exports) > 200 {
		exports = exports[:100] + " ... " + exports[len(exports)-60:]
	}
	text += "\n  exports: " + exports
	if m.offer != nil && len(m.conflict.Reasons) > 0 {
		reasons := make([]string, 0, len(m.conflict.Reasons))
		for _, r := range m.conflict.Reasons {
			reasons = append(reasons, string(r))
		}
		text += "\n  conflict: " + strings.Join(reasons, ",")
		for _, d := range m.conflict.Differences {
			text += "\n    " + d.Cluster + ": " + d.What
		}
	}
	return text
}
