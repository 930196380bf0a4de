package policy

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNamesThatAreTakenAreCollisions(t *testing.T) {
	const natural = "gcp-a-b-c"
	first, second := Identity{"gcp", "a", "b-c"}, Identity{"gcp", "a-b", "c"}
	elsewhere := Identity{"gcp-a", "b", "c"}
	capital := Identity{"gcp", "a", "B"}
	object := func(name string, id Identity) Object { return Object{Name: name, Identity: id} }
	hashed := second.candidate(1, 1)
	for _, c := range []struct {
		name    string
		objects []Object
		have    map[string]Observed
		want    []Collision
	}{
		{"natural names", []Object{object(natural, first)}, byName(ours(natural, first)), nil},
		{"two new sets", []Object{object(natural, first), object(hashed, second)}, nil, []Collision{{hashed, natural, second, first}}},
		{"two that are there", []Object{object(natural, first), object(hashed, second)}, byName(ours(natural, first), ours(hashed, second)),
			[]Collision{{hashed, natural, second, first}}},
		{"a set of another cluster has it", []Object{object(hashed, second)}, byName(ours(natural, elsewhere)), []Collision{{hashed, natural, second, elsewhere}}},
		{"an object that isn't ours has it", []Object{object(hashed, second)}, byName(foreign(natural)), []Collision{{hashed, natural, second, Identity{}}}},
		{"free by now", []Object{object(hashed, second)}, byName(ours(hashed, second)), nil},
		{"goes to another set by now", []Object{object(natural, first), object(hashed, second)}, byName(ours(natural, elsewhere)),
			[]Collision{{hashed, natural, second, first}}},
		{"a second object of the same set", []Object{object(hashed, second)}, byName(ours(natural, second)), nil},
		{"a second shard", []Object{object(natural, first), object(first.candidate(2, 1), first)}, byName(foreign(natural + "-2")),
			[]Collision{{first.candidate(2, 1), natural + "-2", first, Identity{}}}},
		{"not valid as a name", []Object{object(capital.candidate(1, 0), capital)}, byName(foreign("gcp-a-B")), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, Collisions(c.objects, c.have)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestCollisionsAreToldInWords(t *testing.T) {
	c := Collision{Object: "gcp-a-b-c-1234567890", Natural: "gcp-a-b-c", Identity: Identity{"gcp", "a-b", "c"}, Holder: Identity{"gcp", "a", "b-c"}}
	got := []string{c.condition().Message}
	c.Holder = Identity{}
	got = append(got, c.condition().Message)
	want := []string{
		"the network set of gcp/a-b/c is gcp-a-b-c-1234567890: gcp/a/b-c has the name gcp-a-b-c",
		"the network set of gcp/a-b/c is gcp-a-b-c-1234567890: an object that isn't ours has the name gcp-a-b-c",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestCollisionsOfAPlan has Plan make the objects, of sets of all kinds.
func TestCollisionsOfAPlan(t *testing.T) {
	first, second, third := Identity{"gcp", "a", "b-c"}, Identity{"gcp", "a-b", "c"}, Identity{"gcp", "x", "y"}
	have := byName(foreign("gcp-x-y"))
	one := addrs("10.4.0.1")
	objects, err := Plan("gcp", map[Identity][]netip.Addr{first: one, second: one, third: one}, have, 0)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range Collisions(objects, have) {
		got = append(got, strings.Join([]string{c.Identity.String(), c.Natural, c.Holder.String()}, " "))
	}
	want := []string{"gcp/a-b/c gcp-a-b-c gcp/a/b-c", "gcp/x/y gcp-x-y //"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
