package keep

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/synctest"
)

// thing is an object of the tests.
type thing struct{ Name, UID, Version, Text string }

func (o *thing) String() string {
	if o == nil {
		return "none"
	}
	return o.Name + "/" + o.UID + "@" + o.Version
}

func metaOf(o *thing) Meta { return Meta{Name: o.Name, UID: o.UID, ResourceVersion: o.Version} }

func newThings() *Ledger[thing] { return NewLedger(LedgerConfig[thing]{Meta: metaOf}) }

// at is an object a of one UID in a version.
func at(version string) *thing { return &thing{Name: "a", UID: "1", Version: version} }

func (l *Ledger[T]) shows(objects ...*T) {
	changes := make([]kube.Change[T], 0, len(objects))
	for _, o := range objects {
		changes = append(changes, kube.Change[T]{Key: l.cfg.Meta(o).Name, After: o})
	}
	l.Observe(changes, true)
}

func (l *Ledger[T]) loses(names ...string) {
	changes := make([]kube.Change[T], 0, len(names))
	for _, name := range names {
		changes = append(changes, kube.Change[T]{Key: name})
	}
	l.Observe(changes, true)
}

func TestWritesOverlayTheWatchUntilItHasPassedThem(t *testing.T) {
	other := &thing{Name: "b", UID: "2", Version: "12"}
	for _, c := range []struct {
		name string
		do   func(l *Ledger[thing])
		want string
	}{
		{"nothing", func(*Ledger[thing]) {}, "none"},
		{"what the watch shows", func(l *Ledger[thing]) { l.shows(at("9")) }, "a/1@9"},
		{"what was created", func(l *Ledger[thing]) { l.Wrote(at("10")) }, "a/1@10"},
		{"what was changed", func(l *Ledger[thing]) { l.shows(at("9")); l.Wrote(at("10")) }, "a/1@10"},
		{"versions are numbers", func(l *Ledger[thing]) { l.shows(at("9")); l.Wrote(at("10")); l.shows(at("9")) }, "a/1@10"},
		{"what came after the write", func(l *Ledger[thing]) { l.Wrote(at("10")); l.shows(at("11")) }, "a/1@11"},
		{"the watch shows it first", func(l *Ledger[thing]) { l.shows(at("11")); l.Wrote(at("10")) }, "a/1@11"},
		{"the watch lags", func(l *Ledger[thing]) { l.shows(at("8")); l.Wrote(at("10")); l.shows(at("9")) }, "a/1@10"},
		{"a later answer that was overtaken", func(l *Ledger[thing]) { l.Wrote(at("10")); l.Wrote(at("9")) }, "a/1@10"},
		{
			"created, and gone before the answer was there",
			func(l *Ledger[thing]) { l.shows(at("10")); l.loses("a"); l.Wrote(at("10")) }, "none",
		},
		{
			"created and gone between two looks at the watch",
			func(l *Ledger[thing]) { l.shows(other); l.Wrote(at("10")) }, "none",
		},
		{
			"another object shows that the watch has come as far",
			func(l *Ledger[thing]) { l.Wrote(at("10")); l.shows(other) }, "none",
		},
		{"what was deleted", func(l *Ledger[thing]) { l.shows(at("9")); l.Deleted(at("9")) }, "none"},
		{
			"deleted before the watch showed it",
			func(l *Ledger[thing]) {
				l.Wrote(at("10"))
				l.Deleted(at("10"))
				l.shows(&thing{Name: "b", Version: "3"})
			}, "none",
		},
		{
			"deleted, and the watch still shows what was before",
			func(l *Ledger[thing]) { l.shows(at("8")); l.Deleted(at("9")); l.shows(at("9")) }, "none",
		},
		{
			"deleted, but a finalizer keeps it",
			func(l *Ledger[thing]) { l.shows(at("9")); l.Deleted(at("9")); l.shows(at("10")) }, "a/1@10",
		},
		{
			"deleted, and another client created a new one",
			func(l *Ledger[thing]) {
				l.shows(at("9"))
				l.Deleted(at("9"))
				l.shows(&thing{Name: "a", UID: "2", Version: "12"})
			}, "a/2@12",
		},
		{
			"deleted and made again",
			func(l *Ledger[thing]) {
				l.shows(at("9"))
				l.Deleted(at("9"))
				l.Wrote(&thing{Name: "a", UID: "2", Version: "12"})
			}, "a/2@12",
		},
		{"a version that is no number", func(l *Ledger[thing]) { l.shows(at("x")); l.Wrote(at("y")) }, "a/1@y"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newThings()
			c.do(l)
			if got := l.Get("a").String(); got != c.want {
				t.Errorf("Get = %s, want %s", got, c.want)
			}
		})
	}
}

func TestWritesThatTheWatchNeverShowsExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newThings()
		l.shows(&thing{Name: "b", UID: "2", Version: "5"})
		l.Wrote(at("10"))
		l.Deleted(&thing{Name: "b", UID: "2", Version: "5"})
		l.Changes()
		if due := l.Due(); time.Until(due) != DefaultExpiry {
			t.Errorf("due in %v", time.Until(due))
		}
		time.Sleep(DefaultExpiry)
		want := []kube.Change[thing]{
			{Key: "a", Before: at("10")},
			{Key: "b", After: &thing{Name: "b", UID: "2", Version: "5"}},
		}
		if diff := cmp.Diff(want, l.Changes()); diff != "" {
			t.Errorf("changes (-want +got):\n%s", diff)
		}
		if due := l.Due(); !due.IsZero() {
			t.Errorf("due at %v with nothing to wait for", due)
		}
	})
}

// Each own write is returned, also if it was reverted before the call.
func TestLedgerReturnsEachOwnWriteAsAChange(t *testing.T) {
	relabelled := &thing{Name: "a", UID: "1", Version: "11", Text: "another one's"}
	for _, c := range []struct {
		name string
		do   func(*Ledger[thing])
		want []kube.Change[thing]
	}{
		{"it stands", func(l *Ledger[thing]) { l.Wrote(at("10")) }, []kube.Change[thing]{{Key: "a", After: at("10")}}},
		{"the watch shows it, too", func(l *Ledger[thing]) { l.Wrote(at("10")); l.shows(at("10")) }, []kube.Change[thing]{{Key: "a", After: at("10")}}},
		{"the watch showed it first", func(l *Ledger[thing]) { l.shows(at("10")); l.Wrote(at("10")) }, []kube.Change[thing]{{Key: "a", After: at("10")}}},
		{
			"another client changed it", func(l *Ledger[thing]) { l.Wrote(at("10")); l.shows(relabelled) },
			[]kube.Change[thing]{{Key: "a", After: at("10")}, {Key: "a", Before: at("10"), After: relabelled}},
		},
		{
			"another client changed it, and the response came last", func(l *Ledger[thing]) { l.shows(relabelled); l.Wrote(at("10")) },
			[]kube.Change[thing]{{Key: "a", After: at("10")}, {Key: "a", Before: at("10"), After: relabelled}},
		},
		{
			"changed, and returned before the response", func(l *Ledger[thing]) { l.shows(relabelled); l.Changes(); l.Wrote(at("10")) },
			[]kube.Change[thing]{{Key: "a", Before: relabelled, After: at("10")}, {Key: "a", Before: at("10"), After: relabelled}},
		},
		{
			"another client deleted it", func(l *Ledger[thing]) { l.Wrote(at("10")); l.shows(at("10")); l.loses("a") },
			[]kube.Change[thing]{{Key: "a", After: at("10")}, {Key: "a", Before: at("10")}},
		},
		{
			"deleted, and another client recreated it",
			func(l *Ledger[thing]) { l.shows(at("9")); l.Changes(); l.Deleted(at("9")); l.shows(relabelled) },
			[]kube.Change[thing]{{Key: "a", Before: at("9")}, {Key: "a", After: relabelled}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newThings()
			c.do(l)
			if diff := cmp.Diff(c.want, l.Changes()); diff != "" {
				t.Errorf("changes (-want +got):\n%s", diff)
			}
			if again := l.Changes(); len(again) > 0 {
				t.Errorf("returned twice: %v", again)
			}
		})
	}
}

func TestLedgerNotifiesOfWrites(t *testing.T) {
	notified := 0
	l := NewLedger(LedgerConfig[thing]{Meta: metaOf, Notify: func() { notified++ }})
	if l.Synced() {
		t.Error("synced before anything was read")
	}
	l.Observe(nil, true)
	l.Wrote(at("1"))
	l.Deleted(at("1"))
	if notified != 2 || !l.Synced() {
		t.Errorf("notified %d times, synced %v", notified, l.Synced())
	}
}

// server is an API server, whose watch lags behind.
type server struct {
	version int
	uids    int
	objects map[string]*thing
	behind  []kube.Change[thing] // what the watch has not shown
}

func (s *server) put(name string) *thing {
	s.version++
	o := &thing{Name: name, Version: strconv.Itoa(s.version)}
	if old := s.objects[name]; old != nil {
		o.UID = old.UID
	} else {
		s.uids++
		o.UID = strconv.Itoa(s.uids)
	}
	s.objects[name] = o
	s.behind = append(s.behind, kube.Change[thing]{Key: name, After: o})
	return o
}

func (s *server) delete(name string) *thing {
	was := s.objects[name]
	if was != nil {
		s.version++
		delete(s.objects, name)
		s.behind = append(s.behind, kube.Change[thing]{Key: name})
	}
	return was
}

// show passes the first n unseen events to the ledger, with the last state of each name.
func (s *server) show(l *Ledger[thing], n int) {
	batch := map[string]kube.Change[thing]{}
	for _, c := range s.behind[:n] {
		batch[c.Key] = c
	}
	s.behind = s.behind[n:]
	l.Observe(slices.Collect(maps.Values(batch)), true)
}

func TestLedgerConverges(t *testing.T) {
	for seed := range uint64(500) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { converges(t, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func converges(t *testing.T, random *rand.Rand) {
	s, l := &server{objects: map[string]*thing{}}, newThings()
	followed := map[string]*thing{} // what Changes made of nothing
	follow := func() {
		for _, c := range l.Changes() {
			if diff := cmp.Diff(followed[c.Key], c.Before); diff != "" {
				t.Fatalf("%s was something else before (-followed +Before):\n%s", c.Key, diff)
			}
			if followed[c.Key] = c.After; c.After == nil {
				delete(followed, c.Key)
			}
		}
	}
	answered := map[string]*thing{} // the last answer to a write
	until := map[string]time.Time{} // when that counts no more
	var late []func()
	for range 80 {
		name := string(rune('a' + random.IntN(3)))
		switch random.IntN(11) {
		case 0, 1: // a write whose answer comes later
			o := s.put(name)
			late = append(late, func() { l.Wrote(o); answered[name], until[name] = o, time.Now().Add(DefaultExpiry) })
		case 2:
			if was := s.delete(name); was != nil {
				late = append(late, func() { l.Deleted(was); delete(answered, name) })
			}
		case 3: // another client
			s.put(name)
		case 4:
			s.delete(name)
			delete(answered, name)
		case 5, 6, 7:
			s.show(l, random.IntN(len(s.behind)+1))
		case 8:
			follow()
		case 9:
			time.Sleep(time.Duration(random.IntN(3)) * time.Second)
		case 10:
			if len(late) > 0 {
				late[0]()
				late = late[1:]
			}
		}
		for name, o := range answered {
			got := l.Get(name)
			if s.objects[name] == o && time.Now().Before(until[name]) && (got == nil || older(got.Version, o.Version)) {
				t.Fatalf("%v was written, and the ledger knows %v", o, got)
			}
		}
	}
	for _, answer := range late {
		answer()
	}
	s.show(l, len(s.behind))
	time.Sleep(DefaultExpiry)
	follow()
	got := map[string]*thing{}
	for _, o := range l.All() {
		got[o.Name] = o
	}
	if diff := cmp.Diff(s.objects, got); diff != "" {
		t.Errorf("All (-server +ledger):\n%s", diff)
	}
	if diff := cmp.Diff(s.objects, followed); diff != "" {
		t.Errorf("Changes (-server +followed):\n%s", diff)
	}
}
