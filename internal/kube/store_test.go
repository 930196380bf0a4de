package kube

import (
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func pod(namespace, name, ip string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Status: corev1.PodStatus{PodIP: ip}}
}

func keepIP(obj runtime.Object) (string, bool) {
	p, ok := obj.(*corev1.Pod)
	return p.Status.PodIP, ok && p.Status.PodIP != ""
}

func sameText(a, b string) bool { return a == b }

func newTestStore(equal func(a, b string) bool) (s *store[string], changes *int) {
	changes = new(int)
	return newStore(equal, newQuota("", Bounds{}), func(bool) { *changes++ }), changes
}

// ofPods only trims.
var ofPods = sync.OnceValue(func() *Watch[string] {
	return NewWatch(WatchConfig[string]{Keep: keepIP, Bounds: testBounds, Logger: slog.New(slog.DiscardHandler)})
})

// itemOf trims a pod as a Watch does.
func itemOf(p *corev1.Pod) *item[string] {
	i, err := ofPods().trim(p)
	if err != nil || i == nil {
		panic(fmt.Sprint(p.Name, err))
	}
	return i
}

func itemsOf(pods ...*corev1.Pod) (list []any) {
	for _, p := range pods {
		list = append(list, itemOf(p))
	}
	return list
}

func objectsOf[T any](s *store[T]) map[string]T {
	all := map[string]T{}
	for key, o := range s.objects {
		all[key] = o.value
	}
	return all
}

func TestStoreKeepsNamespacesApart(t *testing.T) {
	s, _ := newTestStore(sameText)
	for _, p := range []*corev1.Pod{pod("a", "x", "1"), pod("b", "x", "2")} {
		if err := s.Add(itemOf(p)); err != nil {
			t.Fatal(err)
		}
	}
	if diff := gocmp.Diff(map[string]string{"a/x": "1", "b/x": "2"}, objectsOf(s)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestStoreIsNotSyncedByEvents(t *testing.T) {
	s, _ := newTestStore(sameText)
	if err := s.Add(itemOf(pod("a", "x", "1"))); err != nil {
		t.Fatal(err)
	}
	if _, synced := s.snapshot(); synced {
		t.Error("synced by an event")
	}
	if err := s.Replace(nil, "1"); err != nil {
		t.Fatal(err)
	}
	if all, synced := s.snapshot(); !synced || len(all) > 0 {
		t.Errorf("after an empty list: %v, synced %v", all, synced)
	}
}

func TestStoreRejectsInvalidObjects(t *testing.T) {
	s, _ := newTestStore(sameText)
	for _, err := range []error{s.Add("text"), s.Update(7), s.Delete(nil), s.Replace([]any{"text"}, "1")} {
		if err == nil {
			t.Error("no error")
		}
	}
	if s.isSynced() {
		t.Error("synced by a list that was refused")
	}
}

func TestStoreWithoutEqualCountsEveryUpdate(t *testing.T) {
	s, changes := newTestStore(nil)
	for range 3 {
		if err := s.Update(itemOf(pod("a", "x", "1"))); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Replace(itemsOf(pod("a", "x", "1")), "1"); err != nil {
		t.Fatal(err)
	}
	if *changes != 4 {
		t.Errorf("%d changes, want 4", *changes)
	}
}

// TestStoreAgainstAPlainMap compares the store with a map after random events: it notifies
// exactly when the map changes.
func TestStoreAgainstAPlainMap(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	s, changes := newTestStore(sameText)
	want := map[string]string{}
	if err := s.Replace(nil, "0"); err != nil {
		t.Fatal(err)
	}
	for step := range 5000 {
		before, count := maps.Clone(want), *changes
		name, ip := strconv.Itoa(random.IntN(8)), strconv.Itoa(random.IntN(3))
		if ip == "0" {
			ip = "" // of no interest
		}
		key := "n/" + name
		var err error
		switch random.IntN(4) {
		case 0:
			err = s.Delete(itemOf(pod("n", name, ip)))
			delete(want, key)
		case 1:
			clear(want)
			var list []any
			for i := range random.IntN(8) {
				ip := strconv.Itoa(random.IntN(3))
				list = append(list, itemOf(pod("n", strconv.Itoa(i), ip)))
				want["n/"+strconv.Itoa(i)] = ip
			}
			err = s.Replace(list, "1")
		default:
			err = s.Update(itemOf(pod("n", name, ip)))
			delete(want, key)
			if ip != "" {
				want[key] = ip
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := objectsOf(s); !maps.Equal(want, got) {
			t.Fatalf("step %d (-want +got):\n%s", step, gocmp.Diff(want, got))
		}
		if notified, changed := *changes > count, !maps.Equal(before, want); notified != changed {
			t.Fatalf("step %d: notified of a change %v, want %v", step, notified, changed)
		}
	}
}
