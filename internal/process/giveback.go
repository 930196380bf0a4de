package process

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// Bounds of GiveBack.
const (
	givePoll = 5 * time.Second
	// worthwhile is the minimum of reclaimable memory in bytes.
	worthwhile = 8 << 20
	// GiveBack uses at most 1/giveShare of a processor, with a burst of giveBurst: most
	// memory is reclaimable after the start.
	giveShare = 100
	giveBurst = time.Second
)

// GiveBack collects garbage and returns memory to the OS every few seconds if that is
// worthwhile, until stop is called. It uses at most one second and a hundredth of a
// processor. By default the collector waits until the garbage is as large as the live heap,
// which includes untouched memory: with thousands of peers of wireguard-go, with unused
// queues and buffers, that is hundreds of megabytes. GOMEMLIMIT changes that near the limit only.
func GiveBack() (stop func()) {
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		a := allowance{left: giveBurst, at: time.Now()}
		ticker := time.NewTicker(givePoll)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case now := <-ticker.C:
				if !a.any(now) || garbage() < worthwhile {
					continue
				}
				before := collecting()
				debug.FreeOSMemory()
				a.left -= collecting() - before
			}
		}
	}()
	return stop
}

// allowance is a budget of processor time.
type allowance struct {
	left time.Duration // negative: overdrawn
	at   time.Time
}

// any reports whether the budget isn't used up. Calls are in the order of now.
func (a *allowance) any(now time.Time) bool {
	a.left = min(a.left+now.Sub(a.at)/giveShare, giveBurst)
	a.at = now
	return a.left > 0
}

// garbage returns the approximate number of reclaimable bytes.
func garbage() uint64 {
	samples := []metrics.Sample{
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(samples)
	objects, live, free := samples[0].Value.Uint64(), samples[1].Value.Uint64(), samples[2].Value.Uint64()
	return free + objects - min(live, objects)
}

// collecting returns the total processor time of the garbage collector and the scavenger.
func collecting() time.Duration {
	samples := []metrics.Sample{{Name: "/cpu/classes/gc/total:cpu-seconds"}, {Name: "/cpu/classes/scavenge/total:cpu-seconds"}}
	metrics.Read(samples)
	return time.Duration((samples[0].Value.Float64() + samples[1].Value.Float64()) * float64(time.Second))
}
