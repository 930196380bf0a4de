package mirror

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
	"k8s.io/client-go/kubernetes"
)

// Bounds of what is told in Events: once in a while for each thing to tell,
// and not more than the API server should be bothered with.
const (
	eventRepeat = 30 * time.Minute
	eventRate   = rate.Limit(5)
	eventBurst  = 50
	maxMessage  = 1000 // the API takes 1,024 bytes
)

// events tells operators what they must know, as Events of local services.
type events struct {
	client    kubernetes.Interface
	namespace string
	limit     *rate.Limiter

	mu   sync.Mutex
	told map[eventKey]toldEvent
}

type eventKey struct {
	uid    types.UID
	reason string
}

type toldEvent struct {
	message string
	at      time.Time
}

func newEvents(client kubernetes.Interface, namespace string) *events {
	return &events{
		client: client, namespace: namespace,
		limit: rate.NewLimiter(eventRate, eventBurst), told: map[eventKey]toldEvent{},
	}
}

// warn makes an Event of a service, unless it says what the last one said.
func (e *events) warn(ctx context.Context, of *ownService, reason, message string) error {
	if len(message) > maxMessage {
		message = message[:maxMessage] + "..."
	}
	if of == nil || !e.news(eventKey{of.uid, reason}, message) {
		return nil
	}
	now := metav1.Now()
	_, err := e.client.CoreV1().Events(e.namespace).Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: e.namespace, Name: fmt.Sprintf("%s.%x", of.name, now.UnixNano()),
		},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "v1", Kind: "Service", Namespace: e.namespace, Name: of.name, UID: of.uid,
		},
		Type: corev1.EventTypeWarning, Reason: reason, Message: message,
		Source:         corev1.EventSource{Component: managedBy},
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}, metav1.CreateOptions{FieldManager: fieldManager})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create event: %w", err)
	}
	return nil
}

func (e *events) news(key eventKey, message string) bool {
	now := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	if last, ok := e.told[key]; ok && last.message == message && now.Sub(last.at) < eventRepeat {
		return false
	}
	if !e.limit.Allow() {
		return false
	}
	for k, last := range e.told {
		if now.Sub(last.at) >= eventRepeat {
			delete(e.told, k)
		}
	}
	e.told[key] = toldEvent{message, now}
	return true
}
