// Package event creates Kubernetes Events, which "kubectl describe" shows.
package event

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

const (
	// maxMessage is the maximum length of a message in bytes. The API allows 1,024
	// (k8s.io/kubernetes, validation of core/v1 Events).
	maxMessage = 1000
	// createTimeout bounds one request.
	createTimeout = 10 * time.Second
	// Warn writes a message that stays the same once per warnRepeat.
	warnRepeat = 30 * time.Minute
	warnRate   = rate.Limit(5)
	warnBurst  = 50
)

// Recorder creates Events of type Warning: Warn for what happens to an object and is
// known to one process, Loop for conditions that hold for a time and that many processes
// may see at once. It is safe for concurrent use.
//
// client-go's tools/record counts repetitions by patching Events, which takes a right that the
// programs don't have, gives each a name of its own, and returns no error.
type Recorder struct {
	Config

	mu      sync.Mutex
	limit   *rate.Limiter
	warned  map[warningKey]*warning
	remotes map[string]*schedule // used by Loop alone
}

// Config describes a Recorder. Only Loop uses About and Spread.
type Config struct {
	// Client must be allowed to create Events in the namespaces of the objects that they
	// are about.
	Client kube.Client
	// Component is the name of the program.
	Component string
	// About is the object that conditions are about, usually the program's own pod.
	About corev1.ObjectReference
	// Spread is the maximum of the random delay before a condition is written.
	Spread time.Duration
}

// NewRecorder returns a Recorder.
func NewRecorder(cfg Config) *Recorder {
	return &Recorder{
		Config: cfg, limit: rate.NewLimiter(warnRate, warnBurst),
		warned: map[warningKey]*warning{}, remotes: map[string]*schedule{},
	}
}

// Pod returns a reference to a pod.
func Pod(namespace, name, uid string) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: name, UID: types.UID(uid)}
}

type warningKey struct {
	uid    types.UID
	reason string
}

// warning is the last Event of an object and a reason, written or in flight.
type warning struct {
	message string
	at      time.Time
}

// Warn creates an Event about an object, unless the last one of that object and reason
// has the same message and is younger than warnRepeat. A failed request doesn't count as
// the last one.
func (r *Recorder) Warn(ctx context.Context, about corev1.ObjectReference, reason, message string) error {
	now, key := time.Now(), warningKey{about.UID, reason}
	w := r.claim(now, key, cut(message))
	if w == nil {
		return nil
	}
	err := r.create(ctx, fmt.Sprintf("%s.%x", about.Name, now.UnixNano()), about, reason, message)
	if err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.warned[key] == w {
			delete(r.warned, key)
		}
	}
	return err
}

// claim returns the warning to write now, or nil for a repetition or an exceeded rate.
func (r *Recorder) claim(now time.Time, key warningKey, message string) *warning {
	r.mu.Lock()
	defer r.mu.Unlock()
	if last := r.warned[key]; last != nil && last.message == message && now.Sub(last.at) < warnRepeat {
		return nil
	}
	if !r.limit.AllowN(now, 1) {
		return nil
	}
	for k, last := range r.warned {
		if now.Sub(last.at) >= warnRepeat {
			delete(r.warned, k)
		}
	}
	w := &warning{message: message, at: now}
	r.warned[key] = w
	return w
}

// create writes an Event, and succeeds if one of that name exists.
func (r *Recorder) create(ctx context.Context, name string, about corev1.ObjectReference, reason, message string) error {
	ctx, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	now := metav1.Now()
	_, err := r.Client.Events(about.Namespace).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: about.Namespace, Name: name},
		InvolvedObject: about,
		Type:           corev1.EventTypeWarning, Reason: reason, Message: cut(message),
		Source:         corev1.EventSource{Component: r.Component},
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}, metav1.CreateOptions{FieldManager: r.Component})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create event: %w", err)
	}
	return nil
}

// cut makes a message printable and shortens it to what the API allows.
func cut(message string) string {
	text := printable.Text(message, maxMessage)
	if len(text) <= maxMessage {
		return text
	}
	return text[:maxMessage] + "..."
}
