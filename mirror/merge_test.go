package mirror

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kube-semaphore/kube-semaphore/internal/status"
)

func tcp(name string, port int32) Port {
	return Port{Name: name, Protocol: corev1.ProtocolTCP, Port: port, Target: intstr.FromInt32(port)}
}

func udp(name string, port int32) Port {
	p := tcp(name, port)
	p.Protocol = corev1.ProtocolUDP
	return p
}

func newPart(cluster string, age int, traits Traits, ports ...Port) *part {
	return &part{cluster: cluster, origin: &Origin{Created: time.Unix(int64(age), 0), Spec: Spec{Traits: traits, Ports: ports}}}
}

func TestMerge(t *testing.T) {
	four, six, both := Traits{IPv4: true}, Traits{IPv6: true}, Traits{IPv4: true, IPv6: true}
	for _, c := range []struct {
		name      string
		parts     []*part
		want      Spec
		conflicts []status.Conflict
	}{
		{"one", []*part{newPart("a", 1, four, tcp("http", 80))}, Spec{four, []Port{tcp("http", 80)}}, nil},
		{
			"ports and families are united",
			[]*part{newPart("a", 1, four, tcp("http", 80)), newPart("b", 2, six, tcp("http", 80), tcp("metrics", 9090))},
			Spec{both, []Port{tcp("http", 80), tcp("metrics", 9090)}}, nil,
		},
		{
			"one name, two ports: the oldest decides",
			[]*part{newPart("b", 1, four, tcp("http", 80)), newPart("a", 2, four, tcp("http", 8080), tcp("more", 81))},
			Spec{four, []Port{tcp("http", 80), tcp("more", 81)}},
			[]status.Conflict{{Cluster: "a", What: "port http 8080/TCP: http 80/TCP elsewhere"}},
		},
		{
			"one age: the name of the cluster decides",
			[]*part{newPart("b", 1, four, tcp("http", 80)), newPart("a", 1, four, tcp("http", 81))},
			Spec{four, []Port{tcp("http", 81)}},
			[]status.Conflict{{Cluster: "b", What: "port http 80/TCP: http 81/TCP elsewhere"}},
		},
		{
			"one port, two names",
			[]*part{newPart("a", 1, four, tcp("http", 80)), newPart("b", 2, four, tcp("web", 80))},
			Spec{four, []Port{tcp("http", 80)}},
			[]status.Conflict{{Cluster: "b", What: `port web 80/TCP: named "http" elsewhere`}},
		},
		{
			"only a single port has no name",
			[]*part{newPart("a", 1, four, tcp("", 80)), newPart("b", 2, four, tcp("web", 81))},
			Spec{four, []Port{tcp("", 80)}},
			[]status.Conflict{{Cluster: "b", What: "port web 81/TCP beside 80/TCP"}},
		},
		{
			"headless and not",
			[]*part{newPart("a", 2, Traits{Headless: true, IPv4: true}), newPart("b", 1, four, tcp("http", 80))},
			Spec{four, []Port{tcp("http", 80)}},
			[]status.Conflict{{Cluster: "a", What: "headless or not"}},
		},
		{
			"what is remembered comes before all",
			[]*part{
				newPart("a", 1, four, tcp("http", 80)),
				{origin: &Origin{Created: time.Unix(9, 0), Spec: Spec{four, []Port{tcp("http", 81)}}}, remembered: true},
			},
			Spec{four, []Port{tcp("http", 81)}},
			[]status.Conflict{{Cluster: "a", What: "port http 80/TCP: http 81/TCP elsewhere"}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			for range 5 {
				rand.Shuffle(len(c.parts), func(i, j int) { c.parts[i], c.parts[j] = c.parts[j], c.parts[i] })
				slices.SortFunc(c.parts, compareParts)
				spec, _, conflicts := merge(c.parts, nil)
				if diff := cmp.Diff(c.want, spec); diff != "" {
					t.Errorf("spec (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(c.conflicts, conflicts); diff != "" {
					t.Errorf("conflicts (-want +got):\n%s", diff)
				}
			}
		})
	}
}

// TestExistingServiceKeepsItsType adds clusters whose services are of another type.
func TestExistingServiceKeepsItsType(t *testing.T) {
	yes, no := true, false
	address, none := Traits{IPv4: true}, Traits{IPv4: true, Headless: true}
	for _, c := range []struct {
		name      string
		first     Traits // of the part that would decide
		second    Traits
		running   *bool
		headless  bool
		conflicts []status.Conflict
	}{
		{"nothing runs: the first decides", none, address, nil, true, []status.Conflict{{Cluster: "b", What: "headless or not"}}},
		{"the older joiner is the conflict", none, address, &no, false, []status.Conflict{{Cluster: "a", What: "headless or not"}}},
		{"the other way round", address, none, &yes, true, []status.Conflict{{Cluster: "a", What: "headless or not"}}},
		{"no part agrees with the existing service", none, none, &no, true, nil},
		{"all agree", none, none, &yes, true, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec, _, conflicts := merge([]*part{newPart("a", 1, c.first, tcp("http", 80)), newPart("b", 2, c.second, tcp("http", 80))}, c.running)
			if spec.Headless != c.headless {
				t.Errorf("headless %v", spec.Headless)
			}
			if diff := cmp.Diff(c.conflicts, conflicts); diff != "" {
				t.Errorf("conflicts (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPartsAreLeftOutWhileOthersAreReady(t *testing.T) {
	ready := func(p *part) bool { return p.local }
	for _, c := range []struct {
		name  string
		parts []*part
		want  int
	}{
		{"none is stale", []*part{{}, {}}, 2},
		{"another one is ready", []*part{{stale: true}, {local: true}}, 1},
		{"no other one is ready", []*part{{stale: true, local: true}, {}}, 2},
		{"all are stale", []*part{{stale: true}, {stale: true, local: true}}, 2},
		{"one is drained", []*part{{drained: true, local: true}, {local: true}}, 1},
		{"one is drained, and no other one is ready", []*part{{drained: true, local: true}, {}}, 2},
		{"one is drained and another one stale", []*part{{drained: true, local: true}, {stale: true, local: true}}, 1},
		{"one is drained, one stale and one ready", []*part{{drained: true, local: true}, {stale: true, local: true}, {local: true}}, 1},
		{"one is drained and not ready, another one stale", []*part{{drained: true}, {stale: true, local: true}}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			counting, others := counting(c.parts, ready)
			if len(counting) != c.want || len(others) != len(c.parts)-c.want {
				t.Errorf("%d count, %d are left out, want %d of %d", len(counting), len(others), c.want, len(c.parts))
			}
		})
	}
}

func TestHintsCoverAllZones(t *testing.T) {
	var zones []string
	for _, r := range "abcdefghijklmnopqrst" {
		zones = append(zones, string(r))
	}
	covered := map[string]bool{}
	for i := range 3 {
		h := hints(zones, i)
		if len(h.ForZones) != maxZones {
			t.Errorf("endpoint %d is for %d zones", i, len(h.ForZones))
		}
		for _, z := range h.ForZones {
			covered[z.Name] = true
		}
	}
	if len(covered) != len(zones) {
		t.Errorf("%d of %d zones are covered by three endpoints", len(covered), len(zones))
	}
	if hints(nil, 0) != nil {
		t.Error("hints without zones")
	}
}

// TestUnconfiguredRemoteCausesNoConflicts merges a remembered service of a remote that is no
// longer configured, which differs in all fields.
func TestUnconfiguredRemoteCausesNoConflicts(t *testing.T) {
	k := Key{"shop", "web"}
	spec, _, conflicts := merge([]*part{
		{cluster: "aws", origin: newOrigin(k, 2, 80, Traits{})},
		{origin: newOrigin(k, 1, 81, Traits{Headless: true}), remembered: true, unconfigured: true},
	}, nil)
	if spec.Headless || len(spec.Ports) != 1 || spec.Ports[0].Port != 80 || len(conflicts) > 0 {
		t.Errorf("%v with the conflicts %v", spec, conflicts)
	}
}
