package policy

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/texttest"
	"github.com/kube-semaphore/kube-semaphore/internal/virtual"
)

// TestSets runs the cases of testdata/sets, whose README.md describes their format.
func TestSets(t *testing.T) {
	texttest.Run(t, "testdata/sets/*.txt", func(t *testing.T) func([]string) string {
		s := &sets{
			t: t, trim: PodFor(podLabel), pods: map[string]*Pod{}, members: NewMembers(Rules{Cluster: "gcp"}),
			located: newLocated(&virtual.Table{}), remote: map[string]*Pod{},
			objects: map[string]*Observed{}, names: map[Identity]map[int]string{},
		}
		return s.step
	})
}

// sets is the state of a case.
type sets struct {
	t       *testing.T
	trim    func(*corev1.Pod) (Pod, bool)
	pods    map[string]*Pod
	members *Members
	located *located
	remote  map[string]*Pod // pods as the remote says
	objects map[string]*Observed
	names   map[Identity]map[int]string // given to objects that don't exist yet
	size    int
	stale   bool
}

func (s *sets) step(lines []string) string {
	for _, line := range lines {
		word, rest, _ := strings.Cut(line, " ")
		name, rest, _ := strings.Cut(rest, " ")
		switch set := texttest.Fields(rest); word {
		case "pod":
			s.pod(name, set)
		case "node":
			s.node(name, set)
		case "rules":
			s.rules(texttest.Fields(name + " " + rest))
		case "foreign":
			s.objects[name] = foreign(name)
		case "object":
			namespace, of, _ := strings.Cut(set["of"], "/")
			s.objects[name] = ours(name, Identity{cmp.Or(set["cluster"], "gcp"), namespace, of}, commas(set["nets"])...)
		case "delete":
			delete(s.objects, name)
		case "stale":
			s.stale = true
		default:
			s.t.Fatalf("%q: not known", line)
		}
	}
	s.settle()
	return s.text()
}

func commas(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
}

// pod takes in a pod as a remote's API server sends it.
func (s *sets) pod(of string, set map[string]string) {
	var after *Pod
	if _, gone := set["gone"]; !gone {
		namespace, name, _ := strings.Cut(of, "/")
		object := podObject(namespace, name, set["set"], corev1.PodPhase(set["phase"]), commas(set["ips"])...)
		object.UID, object.Status.PodIP = types.UID(of), set["ip"]
		_, object.Spec.HostNetwork = set["host-network"]
		object.Spec.NodeName = set["node"]
		p, _ := s.trim(object)
		after = &p
	}
	c := s.located.change(kube.Change[Pod]{Before: s.remote[of], After: after})
	if s.remote[of] = after; after == nil {
		delete(s.remote, of)
	}
	s.update(of, c)
}

func (s *sets) update(of string, c kube.Change[Pod]) {
	if s.pods[of] != c.Before {
		s.t.Errorf("%s was %v, and is updated from %v", of, s.pods[of], c.Before)
	}
	s.members.Update(c.Before, c.After, time.Time{})
	if s.pods[of] = c.After; c.After == nil {
		delete(s.pods, of)
	}
}

// node takes in a node of the remote, with what its agent publishes.
func (s *sets) node(name string, set map[string]string) {
	annotations := map[string]string{"wireguard.semaphore.uw.io/podCIDRs": ""}
	if text, mapped := set["map"]; mapped {
		annotations[config.SubnetMapAnnotation] = text
	}
	n := virtual.NodeOf(annotations)
	now := &n
	if _, gone := set["gone"]; gone {
		now = nil
	}
	var changed []string
	if s.located.maps.Update(name, now) {
		changed = append(changed, name)
	}
	if s.located.maps.Agree() {
		changed = append(changed, "")
	}
	for _, node := range changed {
		for _, c := range s.located.remap(node) {
			s.update(c.Key, c)
		}
	}
}

func (s *sets) rules(set map[string]string) {
	number := func(name string) int {
		n, _ := strconv.Atoi(set[name])
		return n
	}
	r := Rules{Cluster: "gcp", MaxSets: number("max-sets"), MaxAddresses: number("max-addresses")}
	for _, text := range commas(set["subnets"]) {
		r.Subnets = append(r.Subnets, netip.MustParsePrefix(text))
	}
	_, r.IncludeHostNetwork = set["host-network"]
	s.members, s.size = NewMembers(r), number("size")
}

// ids returns the sets that pods or objects are of.
func (s *sets) ids() []Identity {
	all := map[Identity]bool{}
	for id := range s.members.sets {
		all[id] = true
	}
	for _, o := range s.objects {
		if o.Owned && o.Identity.Cluster == "gcp" {
			all[o.Identity] = true
		}
	}
	return slices.SortedFunc(maps.Keys(all), Identity.compare)
}

// settle writes what differs, until nothing does.
func (s *sets) settle() {
	for range 8 {
		changed := false
		for _, id := range s.ids() {
			have := map[string]*Observed{}
			for name, o := range s.objects {
				if o.Owned && o.Identity == id {
					have[name] = o
				}
			}
			if s.names[id] == nil {
				s.names[id] = map[int]string{}
			}
			objects, err := Desired(&View{
				ID: id, Addrs: s.members.Addrs(id), Stale: s.stale, Have: have, Names: s.names[id], Size: s.size,
				Taken: func(name string) bool { return s.objects[name] != nil && have[name] == nil },
			})
			if err != nil {
				s.t.Error(err)
			}
			eased, _ := Ease(have, objects)
			for _, c := range Diff(have, eased) {
				changed = true
				delete(s.objects, c.Name)
				if c.Want != nil {
					s.objects[c.Name] = ours(c.Name, c.Want.Identity)
					s.objects[c.Name].Addrs = c.Want.Addrs
				}
			}
		}
		if !changed {
			return
		}
	}
	s.t.Error("written objects lead to more changes")
}

func (s *sets) text() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(s.objects)) {
		o := s.objects[name]
		if !o.Owned {
			continue
		}
		fmt.Fprintf(&b, "%s of %s/%s: %s\n", name, o.Identity.Namespace, o.Identity.Name, cmp.Or(strings.Join(nets(o.Addrs), " "), "empty"))
		if c, is := collision(name, o.Identity, func(name string) *Observed { return s.objects[name] }); is {
			fmt.Fprintf(&b, "  %s\n", c.condition().Message)
		}
	}
	skipped := s.members.Skipped()
	for _, reason := range slices.Sorted(maps.Keys(skipped)) {
		fmt.Fprintf(&b, "skipped, %s: %s\n", reason, strings.Join(skipped[reason].Examples, " "))
	}
	if b.Len() == 0 {
		return "nothing"
	}
	return b.String()
}
