// Package event tells operators what they must know, as Kubernetes Events.
//
// News are told once, by the one program that knows of them. A Herald tells what
// many programs see at the same time, so that one Event comes of it.
package event

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

const (
	// maxMessage is how many bytes of a message are told. The API takes 1,024
	// (k8s.io/kubernetes, validation of core/v1 Events).
	maxMessage = 1000
	// ellipsis ends a message that was cut.
	ellipsis = "..."
	// createTimeout bounds one request.
	createTimeout = 10 * time.Second
)

// Writer creates Events. It is safe for concurrent use.
type Writer struct {
	// Client reaches the cluster. The only right that it needs is to create
	// Events in the namespaces of the objects that they are about.
	Client kubernetes.Interface
	// Component is the program that tells.
	Component string
}

// warn creates an Event of type Warning. An Event of that name that is there
// already is as good.
func (w *Writer) warn(ctx context.Context, name string, about corev1.ObjectReference, reason, message string) error {
	ctx, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	now := metav1.Now()
	_, err := w.Client.CoreV1().Events(about.Namespace).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: about.Namespace, Name: name},
		InvolvedObject: about,
		Type:           corev1.EventTypeWarning, Reason: reason, Message: cut(message),
		Source:         corev1.EventSource{Component: w.Component},
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}, metav1.CreateOptions{FieldManager: w.Component})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create event: %w", err)
	}
	return nil
}

// cut makes a message of what the API takes, and of what can be shown.
func cut(message string) string {
	text := printable.Text(message, maxMessage)
	if len(text) <= maxMessage {
		return text
	}
	return text[:maxMessage] + ellipsis
}
