package authz

import (
	"crypto/sha256"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/cache"
)

// Bounds of the verdicts that are kept and of the number of reviews.
const (
	allowedFor  = time.Minute      // a revoked right ends after this at the latest
	refusedFor  = 10 * time.Second // a granted right begins after this at the latest
	rememberFor = time.Hour        // how long a token that was allowed uses the lane of known tokens
	maxVerdicts = 256              // of each kind
	maxReviews  = 4                // at once, in each lane
	reviewRate  = 10
	reviewBurst = 20
)

// key is the hash of a token and a path: the verdicts hold no tokens.
type key [sha256.Size]byte

func keyOf(token, path string) key { return sha256.Sum256([]byte(path + "\x00" + token)) }

// verdicts are those of the last reviews. Refusals never evict what was allowed.
type verdicts struct {
	allowed *cache.LRUExpireCache // the times of reviews
	refused *cache.LRUExpireCache
}

func newVerdicts() verdicts {
	return verdicts{allowed: cache.NewLRUExpireCache(maxVerdicts), refused: cache.NewLRUExpireCache(maxVerdicts)}
}

// get returns the last verdict while it is fresh, and whether the token was allowed before.
func (vs verdicts) get(k key) (v verdict, fresh, known bool) {
	if at, ok := vs.allowed.Get(k); ok {
		return allowed, time.Since(at.(time.Time)) < allowedFor, true
	}
	if refusal, ok := vs.refused.Get(k); ok {
		return refusal.(verdict), true, false
	}
	return unknown, false, false
}

func (vs verdicts) put(k key, v verdict) {
	if v == allowed {
		vs.allowed.Add(k, time.Now(), rememberFor)
		return
	}
	vs.allowed.Remove(k)
	vs.refused.Add(k, v, refusedFor)
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
