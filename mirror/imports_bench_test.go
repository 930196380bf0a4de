package mirror

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
	"github.com/kube-semaphore/kube-semaphore/mirror/mcs"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
	"github.com/kube-semaphore/kube-semaphore/mirror/published"
)

// TestWorkPerImportEventIsConstant is TestWorkPerEventIsConstant for imports.
func TestWorkPerImportEventIsConstant(t *testing.T) {
	cost := func(n int) float64 { return testing.AllocsPerRun(50, importEvents(n)) }
	exports := rounds(5000, 1000)
	few, many := cost(50), cost(exports)
	if t.Logf("%.0f allocations with 50 exports, %.0f with %d", few, many, exports); many > few*1.25 {
		t.Errorf("an event costs %.0f allocations with %d exports, and %.0f with 50", many, exports, few)
	}
}

// BenchmarkUnexported reports the memory for the services and slices of a remote of which none
// is exported, with ten endpoints each.
func BenchmarkUnexported(b *testing.B) {
	const n = 10000
	var before, after runtime.MemStats
	for b.Loop() {
		runtime.GC()
		runtime.ReadMemStats(&before)
		w := newExports(0, n)
		runtime.GC()
		runtime.ReadMemStats(&after)
		runtime.KeepAlive(w)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/1e6, "MB")
	}
}

// newExportState returns a state for imports only, with the namespace shop.
func newExportState(configs []clusterConfig) *state {
	var clusters []*cluster
	for _, c := range configs {
		clusters = append(clusters, &cluster{name: c.name, local: c.local, prefix: c.prefix, quota: newQuota(Bounds{})})
	}
	s := newState(clusters, []published.Kind{exported}, home, newLocal(func() {}), newSummer())
	s.importsKnown = true
	s.local.namespaces["shop"] = &namespaceState{}
	return s
}

// plans plans the services that may have changed.
func (s *state) plans(f func(want *Service, have *Observed)) {
	for _, name := range slices.Concat(s.take()) {
		want, have, _ := s.plan(name)
		want.seal(s.sums, &have, &s.local.answers)
		f(&want, &have)
	}
}

// newExports returns a state with exported and unexported services of aws, each with one
// slice of ten endpoints.
func newExports(exports, others int) *state {
	s := newExportState(testClusters())
	for _, id := range s.order {
		s.contact(id, true, false)
	}
	aws := setOf("aws", exported)
	for i := range exports + others {
		k := origin.Key{Namespace: "shop", Name: fmt.Sprintf("web-%05d", i)}
		s.sets[aws].PutService(k, origin.TrimService(kubetest.Service(k.Name, nil, func(s *corev1.Service) { s.Namespace = k.Namespace }), nil))
		s.sets[aws].PutSlice(nil, importBenchSlice(k, i))
		if i < exports {
			s.sets[aws].PutExport(k, &mcs.Export{Created: time.Unix(1, 0)})
		}
	}
	return s
}

func importBenchSlice(k origin.Key, seed int) *origin.Slice {
	of := kubetest.Service(k.Name, nil)
	addresses := make([]string, 0, 10)
	for e := range 10 {
		addresses = append(addresses, fmt.Sprintf("10.4.%d.%d", seed%251, 1+(seed+e)%249))
	}
	sl := kubetest.EndpointSlice(of, k.Name+"-abcde", addresses...)
	sl.Namespace = k.Namespace
	for i := range sl.Endpoints {
		node := fmt.Sprint("node-", i)
		sl.Endpoints[i].NodeName = &node
		sl.Endpoints[i].TargetRef = &corev1.ObjectReference{Kind: "Pod", Name: fmt.Sprint(k.Name, i), UID: types.UID(fmt.Sprint(seed, i))}
	}
	trimmed, _ := origin.TrimSlice(sl, nil)
	return trimmed
}

// importEvents returns what takes in one changed endpoint of so many exports, and computes what
// is written.
func importEvents(n int) (event func()) {
	s, aws := newExports(n, n), setOf("aws", exported)
	write := func() {
		s.plans(func(want *Service, have *Observed) {
			k, _ := importKey(want.Name)
			for _, c := range s.sums.Diff(have, want) {
				s.written(k, want, &c)
			}
		})
		s.local.update(s.now, s.touch)
	}
	write()
	write()
	round := 0
	return func() {
		round++
		k := origin.Key{Namespace: "shop", Name: fmt.Sprintf("web-%05d", round%n)}
		var before *origin.Slice
		for _, sl := range s.sets[aws].Slices(k) {
			before = sl
		}
		s.sets[aws].PutSlice(before, importBenchSlice(k, round+7))
		write()
	}
}

// written records a change of an import as if it was made.
func (s *state) written(k origin.Key, want *Service, c *Change) {
	l := s.local
	switch c.Object {
	case anImport:
		object := want.Imported.object(k)
		object.UID, object.ResourceVersion = types.UID(k.String()), "1"
		o := s.sums.observedImport(object)
		l.imports.Observe([]kube.Change[ObservedImport]{{Key: o.Name, After: o}}, true)
	case aDerived:
		object := want.object(home, types.UID(k.String()))
		object.UID, object.Spec.ClusterIPs = "x", []string{"10.96.0.1"}
		o := s.sums.observedDerived(object)
		l.imported.services.Observe([]kube.Change[ObservedService]{{Key: o.Name, After: o}}, true)
	case aSlice:
		object := c.Slice.object(home, want, types.UID(k.String()))
		o := s.sums.observedImportSlice(object)
		l.imported.slices.Observe([]kube.Change[ObservedSlice]{{Key: o.Name, After: o}}, true)
	}
}
