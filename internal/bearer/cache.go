package bearer

import (
	"crypto/sha256"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Bounds of the cache and of the number of reviews.
const (
	allowedFor  = time.Minute      // a revoked right ends after this at the latest
	refusedFor  = 10 * time.Second // a granted right begins after this at the latest
	rememberFor = time.Hour        // how long a token that was allowed uses the lane of known tokens
	maxVerdicts = 256
	maxReviews  = 4 // at once, in each lane
	reviewRate  = 10
	reviewBurst = 20
)

// key is the hash of a token and a path: the cache holds no tokens.
type key [sha256.Size]byte

func keyOf(token, path string) key { return sha256.Sum256([]byte(path + "\x00" + token)) }

type entry struct {
	verdict verdict
	at      time.Time
}

// cache holds at most maxVerdicts verdicts.
type cache struct {
	mu      sync.Mutex
	entries map[key]entry
}

func newCache() *cache { return &cache{entries: map[key]entry{}} }

// get returns the last verdict, whether it is fresh, and whether there was one.
func (c *cache) get(k key, now time.Time) (v verdict, fresh, before bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, before := c.entries[k]
	limit := refusedFor
	if e.verdict == allowed {
		limit = allowedFor
	}
	return e.verdict, before && now.Sub(e.at) < limit, before
}

// put stores a verdict. A full cache evicts what has expired, then the oldest refusal,
// then the oldest entry.
func (c *cache) put(k key, v verdict, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, there := c.entries[k]; !there && len(c.entries) >= maxVerdicts {
		c.shrink(now)
	}
	c.entries[k] = entry{verdict: v, at: now}
}

func (c *cache) shrink(now time.Time) {
	var victim key
	var worst entry
	found := false
	for k, e := range c.entries {
		limit := refusedFor
		if e.verdict == allowed {
			limit = rememberFor
		}
		if now.Sub(e.at) >= limit {
			delete(c.entries, k)
			continue
		}
		refused, worstRefused := e.verdict != allowed, worst.verdict != allowed
		if !found || refused && !worstRefused || refused == worstRefused && e.at.Before(worst.at) {
			victim, worst, found = k, e, true
		}
	}
	if len(c.entries) >= maxVerdicts {
		delete(c.entries, victim)
	}
}

// lane bounds reviews, in number at once and in rate.
type lane struct {
	slots chan struct{}
	rate  *rate.Limiter
}

func newLane() lane {
	return lane{slots: make(chan struct{}, maxReviews), rate: rate.NewLimiter(reviewRate, reviewBurst)}
}

// enter takes a slot, which leave releases; ok is false if the lane is full.
func (l lane) enter() (leave func(), ok bool) {
	select {
	case l.slots <- struct{}{}:
	default:
		return nil, false
	}
	if !l.rate.Allow() {
		<-l.slots
		return nil, false
	}
	return func() { <-l.slots }, true
}
