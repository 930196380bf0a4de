package policy

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestMemoryOfManyPods has a remote make us hold 100,000 pods, twice as many as are
// taken of one: with two addresses each, half of which wait because there are too many.
func TestMemoryOfManyPods(t *testing.T) {
	const count, most = 100_000, 100 // MiB
	heap := func() float64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc) / (1 << 20)
	}
	before := heap()
	keep, m := PodFor(podLabel), NewMembers(rules())
	for i := range count {
		p, _ := keep(podObject(fmt.Sprintf("namespace-%d", i%50), fmt.Sprintf("deployment-%d-5d4f8c7b9d-%05d", i%500, i), fmt.Sprintf("app-%d", i%500),
			corev1.PodRunning, netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}).String(), fmt.Sprintf("fd00:10:4::%x", i)))
		m.Update(nil, &p, time.Time{})
	}
	m.Touched()
	grown := heap() - before
	t.Logf("%.1f MiB for %d pods of two addresses each", grown, count)
	if grown > most {
		t.Errorf("%.1f MiB for %d pods, want %d at most", grown, count, most)
	}
	if m.addresses != DefaultMaxAddresses {
		t.Errorf("%d addresses are in, want %d", m.addresses, DefaultMaxAddresses)
	}
	runtime.KeepAlive(m)
}
