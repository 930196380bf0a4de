package inspect

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
)

// TestServerOfAnotherAuthority asks an API server whose certificate isn't of the cluster's own CA,
// as behind a public load balancer.
func TestServerOfAnotherAuthority(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }))
	defer server.Close()
	front := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	own := kubetest.Certificate(t)
	for name, c := range map[string]struct {
		own  string
		tls  rest.TLSClientConfig
		want string
	}{
		"of another CA":     {own, rest.TLSClientConfig{CAData: []byte(front)}, own + front},
		"of the own CA":     {own + front, rest.TLSClientConfig{CAData: []byte(front)}, own + front},
		"not verified":      {own, rest.TLSClientConfig{Insecure: true}, own},
		"of an unknown one": {own, rest.TLSClientConfig{CAData: []byte(own)}, own},
	} {
		config := &rest.Config{Host: server.URL, TLSClientConfig: c.tls}
		got, other := WithServersAuthority(t.Context(), &cli.Cluster{Name: "aws", Server: server.URL, Config: config}, c.own)
		if got != c.want || (other != nil) != (len(got) > len(c.own)) {
			t.Errorf("%s: %d bytes of certificates, want %d; another one: %v", name, len(got), len(c.want), other != nil)
		}
	}
}
