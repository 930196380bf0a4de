package event

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Bounds of what is told as news: once in a while for each thing to tell, and
// not more than the API server should be bothered with.
const (
	newsRepeat = 30 * time.Minute
	newsRate   = rate.Limit(5)
	newsBurst  = 50
)

// News tells what happens to objects. It is safe for concurrent use.
type News struct {
	writer Writer

	mu   sync.Mutex
	told *told
}

// NewNews returns news that have told nothing yet.
func NewNews(w Writer) *News {
	return &News{writer: w, told: newTold()}
}

// Warn makes an Event of an object, unless it says what the last one of that
// object and reason said, not long ago.
func (n *News) Warn(ctx context.Context, about corev1.ObjectReference, reason, message string) error {
	now := time.Now()
	if !n.isNew(now, newsKey{about.UID, reason}, cut(message)) {
		return nil
	}
	return n.writer.warn(ctx, fmt.Sprintf("%s.%x", about.Name, now.UnixNano()), about, reason, message)
}

func (n *News) isNew(now time.Time, key newsKey, message string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.told.isNew(now, key, message)
}

type newsKey struct {
	uid    types.UID
	reason string
}

type newsTold struct {
	message string
	at      time.Time
}

// told remembers what was told, for as long as it isn't told again.
type told struct {
	limit *rate.Limiter
	last  map[newsKey]newsTold
}

func newTold() *told {
	return &told{limit: rate.NewLimiter(newsRate, newsBurst), last: map[newsKey]newsTold{}}
}

// isNew reports whether a message is to be told now, and remembers that it was.
func (t *told) isNew(now time.Time, key newsKey, message string) bool {
	if last, ok := t.last[key]; ok && last.message == message && now.Sub(last.at) < newsRepeat {
		return false
	}
	if !t.limit.AllowN(now, 1) {
		return false
	}
	for k, last := range t.last {
		if now.Sub(last.at) >= newsRepeat {
			delete(t.last, k)
		}
	}
	t.last[key] = newsTold{message, now}
	return true
}
