package event

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/kube-semaphore/internal/reconcile"
)

const (
	// heraldPeriod is how often a Herald looks at the facts.
	heraldPeriod = 2 * time.Second
	// heraldRetry is how long it waits at least after a failure.
	heraldRetry = 5 * time.Second
	// heraldTimeout bounds one pass, so that a slow API server doesn't make the
	// program seem stuck.
	heraldTimeout = 30 * time.Second
)

// Topic is what facts are about. One with a great many facts doesn't keep those
// of others from being told.
type Topic struct {
	// Name is part of the Events' names: a DNS label.
	Name string
	// Facts are all that are so now, in an order that is the same in all programs
	// that see them.
	Facts []Fact
	// Summary returns what to tell beside the first facts when they are many.
	Summary func(all []Fact) Fact
}

// Herald tells facts that many programs see at the same time. The name of an
// Event is made of what it tells, so that whoever comes second finds it told.
type Herald struct {
	writer Writer
	about  corev1.ObjectReference
	spread time.Duration
	topics map[string]*schedule
}

// NewHerald returns a Herald whose Events are about one object, as a rule the
// pod that it is in. It waits up to spread, at random, before it tells a fact.
func NewHerald(w Writer, about corev1.ObjectReference, spread time.Duration) *Herald {
	return &Herald{writer: w, about: about, spread: spread, topics: map[string]*schedule{}}
}

// Loop describes the loop in which a Herald works. Topics are read at each of its
// passes. The caller completes it by a logger, which is told about failures when
// they begin, change and end.
func (h *Herald) Loop(topics func() []Topic) reconcile.Config {
	return reconcile.Config{
		Name: "events", Trigger: reconcile.NewTrigger(), Resync: heraldPeriod, BackoffMin: heraldRetry,
		Reconcile: func(ctx context.Context) error { return h.tell(ctx, time.Now(), topics()) },
	}
}

// tell tells what is due of each topic, up to its first failure: as a rule the API
// server that doesn't take one Event takes no other.
func (h *Herald) tell(ctx context.Context, now time.Time, topics []Topic) error {
	ctx, cancel := context.WithTimeout(ctx, heraldTimeout)
	defer cancel()
	var errs []error
	for i := range topics {
		topic := &topics[i]
		s := h.topics[topic.Name]
		if s == nil {
			s = newSchedule(h.spread)
			h.topics[topic.Name] = s
		}
		for _, f := range s.due(now, topic.Facts, topic.Summary) {
			if err := h.writer.warn(ctx, h.name(topic.Name, f), h.about, f.Reason, f.Message); err != nil {
				errs = append(errs, err)
				break
			}
			s.told(now, f)
		}
	}
	return errors.Join(errs...)
}

// name returns the name of the Event of a fact: the same in all programs.
func (h *Herald) name(topic string, f Fact) string {
	end := f.Name
	if end == "" {
		sum := sha256.Sum256(fmt.Appendf(nil, "%q %q", topic, f.ID))
		end = hex.EncodeToString(sum[:8])
	}
	return fmt.Sprintf("%s.%s.%s", h.writer.Component, topic, end)
}

// Pod returns a reference to a pod.
func Pod(namespace, name, uid string) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: name, UID: types.UID(uid)}
}
