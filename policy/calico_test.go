package policy

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
)

// TestStatusDoesNotWaitForCalico requests the status while the response about Calico's API
// is delayed, as by an aggregated API server that is down.
func TestStatusDoesNotWaitForCalico(t *testing.T) {
	t.Parallel()
	asked, answer := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case asked <- struct{}{}:
		case <-r.Context().Done():
			return
		}
		select {
		case <-answer:
		case <-r.Context().Done():
			return
		}
		w.Header().Set("Content-Type", "application/json")
		// A client that is gone needs no answer.
		_ = json.NewEncoder(w).Encode(&metav1.APIResourceList{
			TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
			GroupVersion: "projectcalico.org/v3", APIResources: []metav1.APIResource{{Name: kube.NetworkSets}},
		})
	}))
	t.Cleanup(server.Close)
	access, err := NewCalico(&rest.Config{Host: server.URL}, "auto")
	if err != nil {
		t.Fatal(err)
	}
	controller := New(Config{
		Cluster: "aws", Calico: access, Labels: domain(), Logger: slog.New(slog.DiscardHandler),
		Metrics: NewMetrics(), Watches: kube.NewMetrics("test", "test_failures_total"),
	})
	found := make(chan error, 1)
	go func() {
		_, err := access.Sets(t.Context())
		found <- err
	}()
	select {
	case <-asked:
	case err := <-found:
		t.Fatalf("no request was made: %v", err)
	}

	// Had any of this waited for the answer, asking would have been given up.
	if api := controller.Status().CalicoAPI; api != "" {
		t.Errorf("uses %q before an answer", api)
	}
	access.Forget()
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := access.Sets(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("another caller that gives up: %v", err)
	}
	close(answer)
	if err := <-found; err != nil {
		t.Errorf("after the answer: %v", err)
	}
	if api := controller.Status().CalicoAPI; api != "projectcalico.org/v3" {
		t.Errorf("uses %q after the answer", api)
	}
}
