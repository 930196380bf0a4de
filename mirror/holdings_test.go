package mirror

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

func held(name, service, uid, version string) *ownSlice {
	return &ownSlice{identity: identity{name: name, uid: types.UID(uid), version: version, ours: true}, service: service}
}

func TestShelfTrustsItsWritesUntilTheWatchCatchesUp(t *testing.T) {
	now := time.Unix(0, 0)
	s := newShelf[ownSlice]()
	var told []string
	show := func(all ...*ownSlice) {
		told = nil
		s.update(all, now, func(group string, _, _ *ownSlice) { told = append(told, group) })
	}
	is := func(when, version string) {
		t.Helper()
		got := ""
		if o := s.get("a"); o != nil {
			got = o.version
		}
		if got != version {
			t.Errorf("%s: version %q, want %q", when, got, version)
		}
		if n := len(s.groups["web"]); (n == 1) != (version != "") {
			t.Errorf("%s: %d in the group", when, n)
		}
	}
	first := held("a", "web", "u1", "9")
	s.wrote(first, now)
	is("written", "9")
	show()
	is("not shown yet", "9")
	show(first)
	is("shown", "9")
	s.wrote(held("a", "web", "u1", "100"), now)
	show(held("a", "web", "u1", "99"))
	is("shown what was before", "100")
	show(held("a", "web", "u1", "101"))
	is("shown what came after", "101")
	if len(told) != 1 {
		t.Errorf("told of %v", told)
	}
	last := held("a", "web", "u1", "102")
	show(last)
	s.deleted(last, now)
	is("deleted", "")
	show(held("a", "web", "u1", "102"))
	is("deletion not shown yet", "")
	show(held("a", "web", "u2", "103"))
	is("another one", "103")
}

func TestShelfGivesUpOnWhatIsNeverShown(t *testing.T) {
	now := time.Unix(0, 0)
	s := newShelf[ownSlice]()
	s.wrote(held("a", "web", "u1", "9"), now)
	var told []string
	tell := func(group string, _, _ *ownSlice) { told = append(told, group) }
	s.update(nil, now.Add(trust), tell)
	if s.get("a") == nil || len(told) > 0 {
		t.Errorf("given up at once, told of %v", told)
	}
	s.update(nil, now.Add(trust+1), tell)
	if s.get("a") != nil || len(told) != 1 || told[0] != "web" {
		t.Errorf("still there, or told of %v", told)
	}
}

func TestShelfFollowsObjectsFromServiceToService(t *testing.T) {
	s := newShelf[ownSlice]()
	now := time.Unix(0, 0)
	s.update([]*ownSlice{held("a", "web", "u", "1"), held("b", "web", "u", "1")}, now, nil)
	told := map[string]int{}
	s.update([]*ownSlice{held("a", "api", "u", "2"), held("c", "web", "u", "3")}, now, func(group string, _, _ *ownSlice) { told[group]++ })
	if len(s.groups["web"]) != 1 || len(s.groups["api"]) != 1 {
		t.Errorf("groups %v", s.groups)
	}
	if told["api"] != 1 || told["web"] != 3 {
		t.Errorf("told %v", told)
	}
}
