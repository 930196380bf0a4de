package relay

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Bounds of writes. Each is sent to all agents: with 5,000 agents, 5 writes a second of 2.3 kB
// take 57 MB/s and a core of the API server.
const (
	// eventsPerSecond limits the events that the writes for one cluster cause, and
	// slowest and fastest the resulting rate.
	eventsPerSecond  = 25_000
	slowest, fastest = rate.Limit(5), rate.Limit(25)
	// writesAtOnce is the number of writes for one cluster without that limit.
	writesAtOnce = 20
	// writeSpacing is the minimum interval between the starts of two writes of one object,
	// on average over objectBurst writes. Changes meanwhile share a write.
	writeSpacing = 250 * time.Millisecond
	objectBurst  = 3
	// shrinkWait delays writes that only remove nodes, so that they come after others.
	shrinkWait = time.Second
)

// limitFor returns the rate of writes for each cluster, with this many nodes of the relay's own
// cluster.
func limitFor(agents int) rate.Limit {
	return min(fastest, max(slowest, rate.Limit(eventsPerSecond)/rate.Limit(max(1, agents))))
}

// pace limits the rate of writes of each object.
type pace struct {
	mu   sync.Mutex
	paid map[Key]time.Time // when all writes are paid off, one in each writeSpacing
}

// wrote records a write.
func (p *pace) wrote(key Key, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paid == nil {
		p.paid = map[Key]time.Time{}
	}
	from := p.paid[key]
	if from.Before(now) {
		from = now
	}
	p.paid[key] = from.Add(writeSpacing)
}

// wait returns the time until an object may be written again.
func (p *pace) wait(key Key, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := p.paid[key].Sub(now)
	if left <= 0 {
		delete(p.paid, key)
		return 0
	}
	return max(0, left-(objectBurst-1)*writeSpacing)
}
