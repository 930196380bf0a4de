package mirror

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
)

// TestDetectorRunsOn checks that the detector doesn't end when it has found the API: the
// program would end with it.
func TestDetectorRunsOn(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(metav1.APIResourceList{
			TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
			APIResources: []metav1.APIResource{{Name: v1beta1.ServiceExportPluralName}, {Name: v1beta1.ServiceImportPluralName}},
		})
	}))
	defer server.Close()
	client, err := kube.NewClient(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	d, ended := &detector{client: client, served: newGate(), notify: func() {}}, make(chan error)
	go func() { ended <- d.Run(ctx) }()
	select {
	case <-d.served.opened:
	case err := <-ended:
		t.Fatalf("ended: %v, %v", err, d.Err())
	case <-time.After(time.Minute):
		t.Fatalf("not found: %v", d.Err())
	}
	select {
	case err := <-ended:
		t.Errorf("ended before its context: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
