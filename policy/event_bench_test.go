package policy

import (
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
)

// BenchmarkEvent is all that is computed when one pod of many gets another address,
// until its set has been written and the watch has shown that, in sets of 50.
func BenchmarkEvent(b *testing.B) {
	for _, pods := range []int{500, 5_000, 50_000} {
		b.Run(fmt.Sprint(pods, " pods"), func(b *testing.B) { benchmarkEvent(b, pods) })
	}
}

func benchmarkEvent(b *testing.B, count int) {
	c := New(Config{
		Cluster: "aws", Labels: domain(), Calico: access(b, kubetest.NewAPI()), Metrics: NewMetrics(), Logger: slog.New(slog.DiscardHandler),
		Remotes: []RemoteConfig{{Rules: rules("10.0.0.0/8"), Client: func() (kube.Client, error) { return nil, nil }}},
	})
	r := c.remotes["gcp"]
	r.synced = true
	pods := make([]*Pod, count)
	for i := range pods {
		p := podWith(fmt.Sprint("pod-", i), fmt.Sprint("app-", i/50))
		p.UID, p.V4 = uint64(1+i), netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		pods[i] = &p
		r.members.Update(nil, &p, time.Now())
	}
	version := 0
	write := func(id Identity) (writes int) {
		have, want, err := r.state(id)
		if err != nil {
			b.Fatal(err)
		}
		eased, _ := Ease(have, want)
		for _, change := range Diff(have, eased) {
			version++
			o := &Observed{Object: *change.Want, Owned: true, Exact: true, UID: "u", ResourceVersion: fmt.Sprint(version)}
			c.ledger.Wrote(o)
			c.ledger.Observe([]kube.Change[Observed]{{Key: o.Name, After: o}}, true)
			r.setsChanged(c.ledger.Changes())
			writes++
		}
		return writes
	}
	for _, id := range r.members.Touched() {
		write(id)
	}
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		i := n * 7919 % count
		after := *pods[i]
		after.V4 = netip.AddrFrom4([4]byte{10, 100 + byte(n>>16), byte(n >> 8), byte(n)})
		r.members.Update(pods[i], &after, time.Now())
		pods[i] = &after
		writes := 0
		for _, id := range r.members.Touched() {
			writes += write(id)
		}
		if writes != 1 {
			b.Fatalf("%d writes for one event", writes)
		}
	}
}
