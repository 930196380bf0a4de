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

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/texttest"
)

// TestSets runs the cases of testdata/sets, whose README.md describes their format.
func TestSets(t *testing.T) {
	texttest.Run(t, "testdata/sets/*.txt", func(t *testing.T) func([]string) string {
		return (&script{bench: newBench(t, nil), trim: PodFor(podLabel), pods: map[string]*Pod{}}).step
	})
}

// bench is a controller whose writes are made in memory, one after the other.
type bench struct {
	*Controller
	*remote // gcp
	t       testing.TB
	version int
}

func newBench(t testing.TB, adjust func(*Config)) *bench {
	c := still(t, adjust)
	return &bench{Controller: c, remote: c.remotes["gcp"], t: t}
}

// store makes an object exist, as a watch shows it; nil: it doesn't.
func (b *bench) store(name string, o *Observed) {
	if o != nil {
		b.version++
		stored := *o
		stored.ResourceVersion = fmt.Sprint(b.version)
		o = &stored
	}
	b.ledger.Observe([]kube.Change[Observed]{{Key: name, After: o}}, true)
	b.owned.observe(name, o)
}

// update replaces a pod.
func (b *bench) update(before, after *Pod) { b.pods.update(before, after) }

// write reconciles a set once, and reports whether anything was written.
func (b *bench) write(id Identity) (changes []Change) {
	b.t.Helper()
	have, want, err := b.compare(id)
	if err != nil {
		b.t.Error(err)
	}
	changes, again := Diff(have, want)
	for _, c := range changes {
		if c.Want == nil {
			b.store(c.Name, nil)
			continue
		}
		b.store(c.Name, &Observed{Object: *c.Want, Owned: true, Exact: true, UID: "uid-" + c.Name})
		b.owned.give(c.Name, id)
	}
	if !again {
		b.written(id, want)
	}
	return changes
}

// settle writes what differs, until nothing does.
func (b *bench) settle() {
	b.t.Helper()
	for range 8 {
		existing, others := b.remote.everything()
		ids := slices.Concat(existing, others)
		slices.SortFunc(ids, Identity.compare)
		writes := 0
		for _, id := range slices.Compact(ids) {
			writes += len(b.write(id))
		}
		if writes == 0 {
			return
		}
	}
	b.t.Error("written objects lead to more changes")
}

// script is the state of a case.
type script struct {
	*bench
	trim func(*corev1.Pod) (Pod, bool)
	pods map[string]*Pod
}

func (s *script) step(lines []string) string {
	for _, line := range lines {
		word, rest, _ := strings.Cut(line, " ")
		name, rest, _ := strings.Cut(rest, " ")
		switch set := texttest.Fields(rest); word {
		case "pod":
			s.pod(name, set)
		case "rules":
			s.rules(texttest.Fields(name + " " + rest))
		case "foreign":
			s.store(name, foreign(name))
		case "object":
			namespace, of, _ := strings.Cut(set["of"], "/")
			s.store(name, ours(name, Identity{cmp.Or(set["cluster"], "gcp"), namespace, of}, commas(set["nets"])...))
		case "delete":
			s.store(name, nil)
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
func (s *script) pod(of string, set map[string]string) {
	before := s.pods[of]
	if _, gone := set["gone"]; gone {
		delete(s.pods, of)
	} else {
		namespace, name, _ := strings.Cut(of, "/")
		object := podObject(namespace, name, set["set"], corev1.PodPhase(set["phase"]), commas(set["ips"])...)
		object.UID, object.Status.PodIP = types.UID(of), set["ip"]
		_, object.Spec.HostNetwork = set["host-network"]
		p, _ := s.trim(object)
		s.pods[of] = &p
	}
	s.update(before, s.pods[of])
}

func (s *script) rules(set map[string]string) {
	number := func(name string) int {
		n, _ := strconv.Atoi(set[name])
		return n
	}
	r := Rules{Cluster: "gcp", MaxSets: number("max-sets"), MaxAddresses: number("max-addresses")}
	for _, text := range commas(set["subnets"]) {
		r.Subnets = append(r.Subnets, netip.MustParsePrefix(text))
	}
	if text := set["map"]; text != "" {
		if err := r.Map.Decode(text); err != nil {
			s.t.Fatal(err)
		}
	}
	_, r.IncludeHostNetwork = set["host-network"]
	s.remote.pods, s.quota, s.ShardSize = newPodIndex(r), newQuota(&r), number("size")
}

func (s *script) text() string {
	var b strings.Builder
	all := s.ledger.All()
	slices.SortFunc(all, func(a, b *Observed) int { return cmp.Compare(a.Name, b.Name) })
	for _, o := range all {
		if !o.Owned {
			continue
		}
		fmt.Fprintf(&b, "%s of %s/%s: %s\n", o.Name, o.Identity.Namespace, o.Identity.Name, cmp.Or(strings.Join(nets(o.Addrs), " "), "empty"))
		if c, is := collision(o.Name, o.Identity, s.ledger.Get); is {
			fmt.Fprintf(&b, "  %s\n", c.Message)
		}
	}
	skipped := s.remote.status().Skipped
	for _, reason := range slices.Sorted(maps.Keys(skipped)) {
		fmt.Fprintf(&b, "skipped, %s: %s\n", reason, strings.Join(skipped[reason].Examples, " "))
	}
	if b.Len() == 0 {
		return "nothing"
	}
	return b.String()
}
