package published

import (
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/synctest"
)

// endless answers lists of the Service kubernetes with a first part, and the second one with an error.
type endless struct {
	http.RoundTripper
	parts atomic.Int32
}

func (e *endless) RoundTrip(r *http.Request) (*http.Response, error) {
	query := r.URL.Query()
	if !strings.Contains(query.Get("fieldSelector"), "kubernetes") {
		return e.RoundTripper.RoundTrip(r)
	}
	answer := &http.Response{Request: r, Header: http.Header{"Content-Type": {"application/json"}}, StatusCode: http.StatusOK}
	text := `{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"1","continue":"more"},"items":[]}`
	select {
	case <-time.After(time.Second):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	if query.Get("continue") != "" {
		e.parts.Add(1)
		answer.StatusCode, text = http.StatusInternalServerError, "{}"
	}
	answer.Body = io.NopCloser(strings.NewReader(text))
	return answer, nil
}

// TestSourceStaysSynced reads a cluster that never completes the list of its mark of being drained:
// each change of what Read returns costs a look at all services.
func TestSourceStaysSynced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config, never := kubetest.NewAPI().Config(), func(metav1.Object) bool { return false }
		server := &endless{RoundTripper: config.Transport}
		config.Transport = server
		client, err := kube.NewClient(config)
		if err != nil {
			t.Fatal(err)
		}
		src := NewSource(&SourceConfig{
			Set:      NewSet(ID{"aws", Merged}, false, "mirrors", &watcher{placed: map[string]int{}}),
			Client:   func() (kube.Client, error) { return client, nil },
			Server:   kube.NewServer(kube.ServerConfig{Cluster: "aws", Logger: slog.New(slog.DiscardHandler)}),
			Services: labels.Everything(), Slices: labels.Everything(), Made: never, MadeSlice: never, Drained: "drained",
			Count:  func(string) func(watch.EventType) { return func(watch.EventType) {} },
			Notify: func() {}, Logger: slog.New(slog.DiscardHandler),
		})
		kubetest.Run(t, src.Tasks(), nil)
		changes := 0
		for range 600 {
			synced, stale := src.Read(func(bool) {})
			if synced != src.Synced {
				changes++
			}
			src.Synced, src.Stale = synced, stale
			time.Sleep(100 * time.Millisecond)
		}
		if n := server.parts.Load(); n < 3 || changes != 1 || !src.Synced {
			t.Errorf("%d lists, %d changes, synced: %v", n, changes, src.Synced)
		}
	})
}
