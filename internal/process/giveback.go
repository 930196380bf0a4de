package process

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// How GiveBack decides.
const (
	givePoll = 5 * time.Second
	// worthwhile is how many bytes it must give back.
	worthwhile = 8 << 20
	// giveShare is what part of a processor it may take, one in so many, and giveBurst how
	// much of one at once: after a start there is most to give back.
	giveShare = 100
	giveBurst = time.Second
)

// GiveBack has garbage collected, and what it took given back to the kernel, every few
// seconds where that is worth it, until stop is called; it takes a second and a hundredth of
// a processor at most. The collector alone waits until there is as much garbage as there is
// alive, and counts as alive what was never touched: with thousands of peers of wireguard-go,
// each with queues and buffers that no packet was in, that is hundreds of megabytes.
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

// allowance is how much processor time may be taken.
type allowance struct {
	left time.Duration // negative: taken in advance
	at   time.Time
}

// any reports whether there is some at a time, which is after those before.
func (a *allowance) any(now time.Time) bool {
	a.left = min(a.left+now.Sub(a.at)/giveShare, giveBurst)
	a.at = now
	return a.left > 0
}

// garbage returns about how many bytes could be given back.
func garbage() uint64 {
	samples := []metrics.Sample{
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(samples)
	objects, live, free := samples[0].Value.Uint64(), samples[1].Value.Uint64(), samples[2].Value.Uint64()
	return free + objects - min(live, objects)
}

// collecting returns the processor time that all collections and what gave memory back
// took.
func collecting() time.Duration {
	samples := []metrics.Sample{{Name: "/cpu/classes/gc/total:cpu-seconds"}, {Name: "/cpu/classes/scavenge/total:cpu-seconds"}}
	metrics.Read(samples)
	return time.Duration((samples[0].Value.Float64() + samples[1].Value.Float64()) * float64(time.Second))
}
