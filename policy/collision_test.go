package policy

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNamesThatAreTakenAreCollisions(t *testing.T) {
	const natural = "gcp-a-b-c"
	first, second := Identity{"gcp", "a", "b-c"}, Identity{"gcp", "a-b", "c"}
	elsewhere := Identity{"gcp-a", "b", "c"}
	capital := Identity{"gcp", "a", "B"}
	hashed := second.candidate(1, 1)
	for _, c := range []struct {
		name   string
		object string
		id     Identity
		have   map[string]*Observed
		want   Collision
	}{
		{"a set of the same remote has it", hashed, second, byName(ours(natural, first)), Collision{hashed, natural, second, first}},
		{"a set of another cluster has it", hashed, second, byName(ours(natural, elsewhere)), Collision{hashed, natural, second, elsewhere}},
		{"an object that isn't ours has it", hashed, second, byName(foreign(natural)), Collision{hashed, natural, second, Identity{}}},
		{"free by now", hashed, second, byName(ours(hashed, second)), Collision{}},
		{"a second object of the same set", hashed, second, byName(ours(natural, second)), Collision{}},
		{
			"a second shard", first.candidate(2, 1), first, byName(foreign(natural + "-2")),
			Collision{first.candidate(2, 1), natural + "-2", first, Identity{}},
		},
		{"not valid as a name", capital.candidate(1, 0), capital, byName(foreign("gcp-a-B")), Collision{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, is := collision(c.object, c.id, func(name string) *Observed { return c.have[name] })
			if diff := cmp.Diff(c.want, got); diff != "" || is != (c.want != Collision{}) {
				t.Errorf("%v (-want +got):\n%s", is, diff)
			}
		})
	}
}

func TestCollisionMessages(t *testing.T) {
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
