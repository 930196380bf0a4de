package kubetest

import (
	"bytes"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Cluster is an API that listens, for tests of agents where no real API server fits. Of
// server-side apply it knows annotations of Nodes. With Token everything is allowed.
type Cluster struct {
	api     *API
	listen  func() (net.Listener, error)
	cert    tls.Certificate
	config  string // path of a kubeconfig
	address string // where it listens, and listens again

	mu      sync.Mutex
	applied map[string]map[string]any // annotations of the last apply, by node
	server  *httptest.Server          // nil: away
}

// StartCluster starts an API server at an address, as in 192.0.2.1:0. It listens
// with listen, in whichever network namespace that is. It ends with the test.
func StartCluster(t testing.TB, address string, listen func(address string) (net.Listener, error)) *Cluster {
	t.Helper()
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	authority := newAuthority(t)
	c := &Cluster{
		api: NewAPI(), address: address, cert: authority.issue(t, host), applied: map[string]map[string]any{},
	}
	c.listen = func() (net.Listener, error) { return listen(c.address) }
	c.Return(t)
	c.config = filepath.Join(t.TempDir(), "kubeconfig")
	writeKubeconfig(t, c.config, "https://"+c.address, authority.pem)
	return c
}

// Kubeconfig is the path of a file with access to the cluster.
func (c *Cluster) Kubeconfig() string { return c.config }

// Leave ends the API server and all connections to it. What it knows stays.
func (c *Cluster) Leave() {
	c.mu.Lock()
	server := c.server
	c.server = nil
	c.mu.Unlock()
	if server != nil {
		Kill(server)
	}
}

// Return starts the API server after Leave, at the same address.
func (c *Cluster) Return(t testing.TB) {
	t.Helper()
	listener, err := c.listen()
	if err != nil {
		t.Fatal(err)
	}
	server := Serve(t, listener, &tls.Config{Certificates: []tls.Certificate{c.cert}}, http.HandlerFunc(c.serve))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.server, c.address = server, listener.Addr().String()
}

// Put creates or replaces a node.
func (c *Cluster) Put(node *corev1.Node) { _ = c.api.put("nodes", node) } // A Node is always valid JSON.

// Node returns a copy of a node, nil when there is none.
func (c *Cluster) Node(name string) *corev1.Node {
	var node corev1.Node
	if !c.api.Get("nodes", "", name, &node) {
		return nil
	}
	return &node
}

// Annotate sets annotations of a node, as a person does with kubectl.
func (c *Cluster) Annotate(name string, annotations map[string]string) {
	patch, _ := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}}) // which never fails
	c.api.apply(Request{Verb: Patch, Resource: "nodes", Name: name}, patch, false, nil)
}

func (c *Cluster) serve(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "Bearer "+Token {
		refuse(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized)
		return
	}
	if r.Header.Get("Content-Type") == "application/apply-patch+yaml" {
		var patch map[string]any
		// An apply's YAML is JSON here.
		if err := json.NewDecoder(r.Body).Decode(&patch); err != nil {
			refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
			return
		}
		body, _ := json.Marshal(c.merge(path.Base(r.URL.Path), patch)) // which never fails
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	c.api.serve(w, r)
}

// merge returns the merge patch of an apply, which removes the annotations that the last apply
// had and this one lacks.
func (c *Cluster) merge(node string, apply map[string]any) map[string]any {
	c.mu.Lock()
	defer c.mu.Unlock()
	annotations, _, _ := unstructured.NestedMap(apply, "metadata", "annotations")
	merged := map[string]any{}
	for key := range c.applied[node] {
		merged[key] = nil
	}
	maps.Copy(merged, annotations)
	c.applied[node] = annotations
	return map[string]any{"metadata": map[string]any{"annotations": merged}}
}

func answer(w http.ResponseWriter, code int, object any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(object)
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	answer(w, code, Failure(code, reason))
}

// writeKubeconfig writes a kubeconfig with Token.
func writeKubeconfig(t testing.TB, path, server string, authority []byte) {
	t.Helper()
	kubeconfig := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "it",
		"contexts": [{"name": "it", "context": {"cluster": "it", "user": "agent"}}],
		"clusters": [{"name": "it", "cluster": {"server": %q, "certificate-authority-data": %q}}],
		"users": [{"name": "agent", "user": {"token": %q}}]}`,
		server, base64.StdEncoding.EncodeToString(authority), Token)
	if err := os.WriteFile(path, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
}
