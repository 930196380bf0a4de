package cli

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestOnlyWhatIsNeededIsDiscovered requests resources of three group versions from a cluster
// that lists 400 groups; it doesn't serve one of them, and fails for another one.
func TestOnlyWhatIsNeededIsDiscovered(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	c, _, _ := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked = append(asked, r.URL.Path)
		mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/apis":
			var groups []string
			for i := range 400 {
				groups = append(groups, fmt.Sprintf(`{"name":"g%d.x","versions":[{"groupVersion":"g%d.x/v1","version":"v1"}]}`, i, i))
			}
			_, _ = io.WriteString(w, `{"kind":"APIGroupList","apiVersion":"v1","groups":[`+strings.Join(groups, ",")+`]}`)
		case "/apis/apps/v1":
			_, _ = io.WriteString(w, `{"kind":"APIResourceList","groupVersion":"g0.x/v1","resources":[
				{"name":"deployments/scale","kind":"Deployment","namespaced":true},{"name":"../deployments","kind":"Deployment"},
				{"name":"deployments","kind":"Deployment","namespaced":true,"group":"g0.x","version":"v1"},{"name":"things","kind":"Thing"}]}`)
		case "/apis/policy/v1":
			w.WriteHeader(http.StatusInternalServerError)
		default:
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
		}
	})
	apps := schema.GroupVersion{Group: "apps", Version: "v1"}
	deployments := Resource{apps.WithResource("deployments"), "Deployment", true}
	for range 2 {
		if got, err := c.ResourceOf(t.Context(), apps.WithKind("Deployment")); err != nil || got != deployments {
			t.Errorf("%+v, %v", got, err)
		}
		if got, err := c.Resource(t.Context(), apps.WithResource("deployments")); err != nil || got != deployments {
			t.Errorf("%+v, %v", got, err)
		}
		if got, err := c.Resource(t.Context(), apps.WithResource("things")); err != nil || got.Kind != "Thing" || got.Namespaced {
			t.Errorf("%+v, %v", got, err)
		}
		for _, kind := range []schema.GroupVersionKind{apps.WithKind("Pod"), {Group: "batch", Version: "v1", Kind: "CronJob"}} {
			if got, err := c.ResourceOf(t.Context(), kind); !meta.IsNoMatchError(err) {
				t.Errorf("%s: %+v, %v", kind, got, err)
			}
		}
		if got, err := c.Resource(t.Context(), apps.WithResource("../deployments")); !meta.IsNoMatchError(err) {
			t.Errorf("%+v, %v", got, err)
		}
	}
	if _, err := c.Resource(t.Context(), schema.GroupVersionResource{Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"}); err == nil || meta.IsNoMatchError(err) {
		t.Errorf("without an answer: %v", err)
	}
	if want := []string{"/apis/apps/v1", "/apis/batch/v1", "/apis/policy/v1"}; !slices.Equal(asked, want) {
		t.Errorf("asked for %q, expected %q", asked, want)
	}
}

// TestResourcesAreBounded discovers a group version with too many resources.
func TestResourcesAreBounded(t *testing.T) {
	c, _, _ := hostile(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"APIResourceList","groupVersion":"v1","resources":[`+strings.Repeat(`{},`, maxResources)+`{}]}`)
	})
	_, err := c.ResourceOf(t.Context(), schema.GroupVersionKind{Version: "v1", Kind: "Pod"})
	if err == nil || !strings.Contains(err.Error(), "more than 1000") {
		t.Error(err)
	}
}
