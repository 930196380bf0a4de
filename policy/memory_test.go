package policy

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestMemoryOfManyPods measures the heap of 100,000 pods of one remote, twice as many as
// fit: each has two addresses, and half of the addresses wait for room.
func TestMemoryOfManyPods(t *testing.T) {
	count, most := rounds(100_000, 5_000), 1048.0 // bytes for each pod
	heap := func() float64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	before := heap()
	bounded := rules()
	if testing.Short() {
		bounded.MaxAddresses = count
	}
	keep, x, q := PodFor(podLabel), newPodIndex(bounded), newQuota(&bounded)
	for i := range count {
		p, _ := keep(podObject(fmt.Sprintf("namespace-%d", i%50), fmt.Sprintf("deployment-%d-5d4f8c7b9d-%05d", i%500, i), fmt.Sprintf("app-%d", i%500),
			corev1.PodRunning, netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}).String(), fmt.Sprintf("fd00:10:4::%x", i)))
		x.update(nil, &p)
	}
	for id := range x.sets {
		q.take(id, len(x.addresses(id)))
	}
	grown := (heap() - before) / float64(count)
	t.Logf("%.0f bytes for each of %d pods of two addresses", grown, count)
	if grown > most {
		t.Errorf("%.0f bytes for each of %d pods, want %.0f at most", grown, count, most)
	}
	want := DefaultMaxAddresses
	if testing.Short() {
		want = count
	}
	if q.addresses != want {
		t.Errorf("%d addresses are in, want %d", q.addresses, want)
	}
	runtime.KeepAlive(x)
}
