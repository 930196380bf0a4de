package kube

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

func TestDetectCalico(t *testing.T) {
	const v3, v1 = "/apis/projectcalico.org/v3", "/apis/crd.projectcalico.org/v1"
	for name, c := range map[string]struct {
		served  map[string]string // resources by path; empty: the API doesn't answer
		setting string
		want    string
		fails   bool
	}{
		"both":                       {map[string]string{v3: NetworkSets, v1: NetworkSets}, "auto", "projectcalico.org/v3", false},
		"both, the second is wanted": {map[string]string{v3: NetworkSets, v1: NetworkSets}, "v1", "crd.projectcalico.org/v1", false},
		"the first serves others":    {map[string]string{v3: "tiers", v1: NetworkSets}, "auto", "crd.projectcalico.org/v1", false},
		"the first doesn't answer":   {map[string]string{v3: "", v1: NetworkSets}, "auto", "", true},
		"the other one is wanted":    {map[string]string{v1: NetworkSets}, "v3", "", false},
		"none":                       {nil, "auto", "", false},
		"a version that isn't there": {map[string]string{v3: NetworkSets}, "v2", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				resource, served := c.served[r.URL.Path]
				switch {
				case !served:
					w.WriteHeader(http.StatusNotFound)
				case resource == "":
					w.WriteHeader(http.StatusServiceUnavailable)
				default:
					w.Header().Set("Content-Type", "application/json")
					_ = json.NewEncoder(w).Encode(&metav1.APIResourceList{
						TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, APIResources: []metav1.APIResource{{Name: resource}},
					})
				}
			}))
			defer server.Close()
			client, err := discovery.NewDiscoveryClientForConfig(&rest.Config{Host: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			got, err := DetectCalico(t.Context(), client.RESTClient(), CalicoAPIs(c.setting))
			if got.String() != c.want || (err != nil) != c.fails {
				t.Errorf("%q, %v, expected %q", got, err, c.want)
			}
		})
	}
}
