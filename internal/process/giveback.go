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
	// giveShare is for how many times as long as it took of the processor it rests then.
	giveShare = 100
)

// GiveBack has garbage collected, and what it took given back to the kernel, every few
// seconds where that is worth it, until stop is called; it takes a hundredth of a processor
// at most. The collector alone waits until there is as much garbage as there is alive,
// and counts as alive what was never touched: with thousands of peers of wireguard-go,
// each with queues and buffers that no packet was in, that is hundreds of megabytes.
func GiveBack() (stop func()) {
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		var due time.Time
		ticker := time.NewTicker(givePoll)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case now := <-ticker.C:
				if now.Before(due) || garbage() < worthwhile {
					continue
				}
				before := collecting()
				debug.FreeOSMemory()
				due = now.Add(giveShare * (collecting() - before))
			}
		}
	}()
	return stop
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
