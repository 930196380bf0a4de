package peers

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/internal/endpoint"
)

func source(t *testing.T, text string) endpoint.Source {
	t.Helper()
	s, err := endpoint.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestPublishedEndpoint(t *testing.T) {
	const all, gcp = LocationAnnotation, "gcp." + LocationAnnotation
	tests := map[string]struct {
		configured  string
		annotations map[string]string
		want        string // of gcp, whose device listens on 51820, and of merit, 51821
		wrong       string // part of the error
	}{
		"InternalIP":                         {"InternalIP", nil, "10.66.23.31:51820 10.66.23.31:51821", ""},
		"ExternalIP":                         {"ExternalIP", nil, "192.0.2.1:51820 192.0.2.1:51821", ""},
		"an address":                         {"203.0.113.9", nil, "203.0.113.9:51820 203.0.113.9:51821", ""},
		"an IPv6 address":                    {"2001:db8::1", nil, "[2001:db8::1]:51820 [2001:db8::1]:51821", ""},
		"none":                               {"none", nil, " ", ""},
		"an annotation beats the setting":    {"none", map[string]string{all: "203.0.113.9"}, "203.0.113.9:51820 203.0.113.9:51821", ""},
		"one of none":                        {"InternalIP", map[string]string{all: "none"}, " ", ""},
		"one of a word":                      {"none", map[string]string{all: "externalip"}, "192.0.2.1:51820 192.0.2.1:51821", ""},
		"one for a remote beats that of all": {"InternalIP", map[string]string{all: "none", gcp: "203.0.113.9:4000"}, "203.0.113.9:4000 ", ""},
		"another port outside, for each":     {"InternalIP", map[string]string{gcp: "203.0.113.9:4000", "merit." + all: "203.0.113.9:4001"}, "203.0.113.9:4000 203.0.113.9:4001", ""},
		"one port for two devices":           {"203.0.113.9:4000", nil, "203.0.113.9:4000 before", "publish for merit"},
		"an annotation that is nothing":      {"InternalIP", map[string]string{gcp: "gateway.example.com"}, "before 10.66.23.31:51821", gcp},
		"an empty one":                       {"InternalIP", map[string]string{all: ""}, "before before", all},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			n := kubernetesNode("10.66.23.31")
			for _, p := range publications {
				n.Annotations[EndpointAnnotation(p.Remote)] = "before"
			}
			for k, v := range tt.annotations {
				n.Annotations[k] = v
			}
			said := []Publication{publications[0], publications[1]}
			for i := range said {
				said[i].Location = source(t, tt.configured)
			}
			got, err := Annotations(TrimSelf(n), said, nil, nil)
			if tt.wrong == "" && err != nil || tt.wrong != "" && (err == nil || !strings.Contains(err.Error(), tt.wrong)) {
				t.Errorf("%v, want an error with %q", err, tt.wrong)
			}
			if diff := cmp.Diff(tt.want, got[EndpointAnnotation("gcp")]+" "+got[EndpointAnnotation("merit")]); diff != "" {
				t.Errorf("endpoints (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEndpointOfANodeWithoutTheAddress(t *testing.T) {
	n := kubernetesNode("10.66.23.31")
	n.Status.Addresses = n.Status.Addresses[:1]
	said := publications[0]
	said.Location = source(t, "ExternalIP")
	if got, err := Annotations(TrimSelf(n), []Publication{said}, nil, nil); err == nil || len(got) > 0 {
		t.Errorf("%v, %v, want an error", got, err)
	}
}

func TestHidden(t *testing.T) {
	tests := map[string]struct {
		configured  string
		annotations map[string]string
		want        bool
	}{
		"an address":                 {"InternalIP", nil, false},
		"none":                       {"none", nil, true},
		"by annotation":              {"InternalIP", map[string]string{LocationAnnotation: "none"}, true},
		"for this remote alone":      {"InternalIP", map[string]string{"gcp." + LocationAnnotation: "none"}, true},
		"for another remote":         {"InternalIP", map[string]string{"merit." + LocationAnnotation: "none"}, false},
		"nonsense, and it was":       {"InternalIP", map[string]string{LocationAnnotation: "?", EndpointAnnotation("gcp"): ""}, true},
		"nonsense, and it was not":   {"none", map[string]string{LocationAnnotation: "?", EndpointAnnotation("gcp"): "192.0.2.1:51820"}, false},
		"nonsense, and it had never": {"none", map[string]string{LocationAnnotation: "?"}, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			n := kubernetesNode("10.66.23.31")
			for k, v := range tt.annotations {
				n.Annotations[k] = v
			}
			self := TrimSelf(n)
			if got := self.Hidden("gcp", source(t, tt.configured)); got != tt.want {
				t.Errorf("got %t, want %t", got, tt.want)
			}
		})
	}
}
