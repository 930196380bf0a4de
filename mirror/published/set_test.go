package published

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/mirror/mcs"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// watcher records what changes in a set.
type watcher struct {
	changed []string
	placed  map[string]int // by key and node
}

func (w *watcher) Changed(_ *Set, k origin.Key) { w.changed = append(w.changed, k.String()) }

func (w *watcher) Replaced(*Set, *origin.Slice, *origin.Slice) {}

func (w *watcher) Placed(_ *Set, node string, k origin.Key, change int) {
	at := fmt.Sprint(k, "@", node)
	if w.placed[at] += change; w.placed[at] == 0 {
		delete(w.placed, at)
	}
}

// TestServicesAreExportedByTheirExport: a Service and its slices count while there is an export.
func TestServicesAreExportedByTheirExport(t *testing.T) {
	w := &watcher{placed: map[string]int{}}
	s, web := NewSet(ID{"aws", Exported}, false, "mirrors", w), origin.Key{Namespace: "shop", Name: "web"}
	sl := &origin.Slice{Name: "web-1", Service: web}
	for i, node := range []string{"a1", "a1", "a2"} {
		sl.Endpoints = append(sl.Endpoints, origin.Endpoint{Address: netip.AddrFrom4([4]byte{10, 4, 0, byte(i)}), Node: node})
	}
	step := func(what string, do func(), changed []string, placed map[string]int, published bool) {
		t.Helper()
		w.changed = nil
		do()
		if diff := cmp.Diff(changed, w.changed); diff != "" {
			t.Errorf("%s: changed (-want +got):\n%s", what, diff)
		}
		if diff := cmp.Diff(placed, w.placed); diff != "" {
			t.Errorf("%s: placed (-want +got):\n%s", what, diff)
		}
		if got := s.Service(web); s.Has(web) != (got != nil) || published != (got != nil && got.Reject == "") {
			t.Errorf("%s: %+v", what, got)
		}
	}
	on := map[string]int{"shop/web@a1": 1, "shop/web@a2": 1}
	step("a Service", func() { s.PutService(web, &origin.Service{Key: web}); s.PutSlice(nil, sl) }, nil, map[string]int{}, false)
	step("an export", func() { s.PutExport(web, &mcs.Export{}) }, []string{"shop/web"}, on, true)
	step("a cluster with another name", func() { s.PutExport(web, &mcs.Export{Cluster: "gcp"}) }, []string{"shop/web"}, on, false)
	step("another export", func() { s.PutExport(web, &mcs.Export{Cluster: "aws"}) }, []string{"shop/web"}, on, true)
	step("no Service", func() { s.PutService(web, nil) }, []string{"shop/web"}, on, false)
	step("no export", func() { s.PutExport(web, nil); s.PutExport(web, nil) }, []string{"shop/web"}, map[string]int{}, false)
	step("no slice", func() { s.PutSlice(sl, nil) }, nil, map[string]int{}, false)
}

func TestWhatIsNotExported(t *testing.T) {
	s := NewSet(ID{"aws", Exported}, false, "mirrors", &watcher{placed: map[string]int{}})
	s.Imports = func(namespace string) bool { return namespace != "kube-system" }
	for k, want := range map[origin.Key]string{
		{Namespace: "shop", Name: "web"}:                ``,
		{Namespace: "mirrors", Name: "web"}:             RejectHome,
		{Namespace: "kube-system", Name: "web"}:         RejectNamespace,
		{Namespace: "shop", Name: "derived-0123456789"}: RejectDerived,
	} {
		s.PutService(k, &origin.Service{Key: k})
		s.PutExport(k, &mcs.Export{})
		if got := s.Service(k).Reject; got != want {
			t.Errorf("%v: %q, want %q", k, got, want)
		}
	}
	if got := s.Service(origin.Key{Namespace: "shop", Name: "other"}); got != nil {
		t.Errorf("%+v", got)
	}
}
