package kubetest

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// Cluster is an API server that has nothing but Nodes, for tests of agents where
// no real one fits. It serves lists, watches, streamed lists and what agents write:
// annotations, with server-side apply and merge patches. Everybody with Token may
// do everything.
type Cluster struct {
	listen  func() (net.Listener, error)
	cert    tls.Certificate
	config  string // path of a kubeconfig
	address string // where it listens, and listens again

	mu      sync.Mutex
	changed chan struct{} // closed and replaced at each change
	version int
	nodes   map[string]*corev1.Node
	applied map[string]map[string]string // annotations of the last apply, by node
	history []change
	server  *httptest.Server // nil: away
}

type change struct {
	version int
	kind    watch.EventType
	node    *corev1.Node
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
		address: address, cert: authority.issue(t, host),
		changed: make(chan struct{}), version: 1, nodes: map[string]*corev1.Node{}, applied: map[string]map[string]string{},
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
func (c *Cluster) Put(node *corev1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.put(node)
}

// Node returns a copy of a node, nil when there is none.
func (c *Cluster) Node(name string) *corev1.Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[name].DeepCopy()
}

// Annotate sets annotations of a node, as somebody with kubectl does.
func (c *Cluster) Annotate(name string, annotations map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	node := c.nodes[name].DeepCopy()
	if node.Annotations == nil {
		node.Annotations = map[string]string{}
	}
	maps.Copy(node.Annotations, annotations)
	c.put(node)
}

// put stores a node and tells all watches; the caller holds the lock.
func (c *Cluster) put(node *corev1.Node) {
	kind := watch.Added
	if c.nodes[node.Name] != nil {
		kind = watch.Modified
	}
	c.version++
	node = node.DeepCopy()
	node.TypeMeta = metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}
	node.ResourceVersion = strconv.Itoa(c.version)
	c.nodes[node.Name] = node
	c.history = append(c.history, change{c.version, kind, node})
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *Cluster) serve(w http.ResponseWriter, r *http.Request) {
	name, one := strings.CutPrefix(r.URL.Path, "/api/v1/nodes/")
	query := r.URL.Query()
	only, _ := strings.CutPrefix(query.Get("fieldSelector"), "metadata.name=")
	switch {
	case r.Header.Get("Authorization") != "Bearer "+Token:
		refuse(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized)
	case r.URL.Path == "/apis/networking.k8s.io/v1/servicecidrs":
		answer(w, http.StatusOK, map[string]any{
			"kind": "ServiceCIDRList", "apiVersion": "networking.k8s.io/v1", "metadata": metav1.ListMeta{}, "items": []any{},
		})
	case r.URL.Path == "/api/v1/pods":
		answer(w, http.StatusOK, &corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}})
	case r.URL.Path == "/api/v1/nodes" && query.Get("watch") == "true":
		c.watch(w, r, only)
	case r.URL.Path == "/api/v1/nodes":
		c.list(w, only)
	case one && c.Node(name) == nil:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	case one && r.Method == http.MethodGet:
		answer(w, http.StatusOK, c.Node(name))
	case one && r.Method == http.MethodPatch:
		c.patch(w, r, name)
	default:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	}
}

// patch applies what agents patch: annotations. Applied ones that an apply no
// longer has are removed, as server-side apply does it for one field manager.
func (c *Cluster) patch(w http.ResponseWriter, r *http.Request, name string) {
	var patch struct {
		Metadata struct {
			Annotations map[string]*string `json:"annotations"`
		} `json:"metadata"`
	}
	// An apply's YAML is JSON here.
	if err := json.NewDecoder(r.Body).Decode(&patch); err != nil {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	node := c.nodes[name].DeepCopy()
	if node.Annotations == nil {
		node.Annotations = map[string]string{}
	}
	apply := r.Header.Get("Content-Type") == "application/apply-patch+yaml"
	if apply {
		for key := range c.applied[name] {
			delete(node.Annotations, key)
		}
		c.applied[name] = map[string]string{}
	}
	for key, value := range patch.Metadata.Annotations {
		if value == nil {
			delete(node.Annotations, key)
			continue
		}
		node.Annotations[key] = *value
		if apply {
			c.applied[name][key] = *value
		}
	}
	if !maps.Equal(node.Annotations, c.nodes[name].Annotations) {
		c.put(node)
	}
	answer(w, http.StatusOK, c.nodes[name])
}

// chosen returns the nodes in the order of their names; only: that one. The
// caller holds the lock.
func (c *Cluster) chosen(only string) (nodes []*corev1.Node) {
	for _, name := range slices.Sorted(maps.Keys(c.nodes)) {
		if only == "" || name == only {
			nodes = append(nodes, c.nodes[name])
		}
	}
	return nodes
}

func (c *Cluster) list(w http.ResponseWriter, only string) {
	c.mu.Lock()
	list := &corev1.NodeList{
		TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"},
		ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(c.version)},
	}
	for _, node := range c.chosen(only) {
		list.Items = append(list.Items, *node)
	}
	c.mu.Unlock()
	answer(w, http.StatusOK, list)
}

func (c *Cluster) watch(w http.ResponseWriter, r *http.Request, only string) {
	send := func(kind watch.EventType, node *corev1.Node) {
		raw, _ := json.Marshal(node)
		_ = json.NewEncoder(w).Encode(&metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: raw}})
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		c.mu.Lock()
		from = c.version
		nodes := c.chosen(only)
		c.mu.Unlock()
		for _, node := range nodes {
			send(watch.Added, node)
		}
		send(watch.Bookmark, &corev1.Node{
			TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"},
			ObjectMeta: metav1.ObjectMeta{
				ResourceVersion: strconv.Itoa(from), Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
			},
		})
	}
	for {
		c.mu.Lock()
		changed := c.changed
		var news []change
		for _, n := range c.history {
			if n.version > from && (only == "" || n.node.Name == only) {
				news = append(news, n)
			}
		}
		c.mu.Unlock()
		for _, n := range news {
			send(n.kind, n.node)
			from = n.version
		}
		if http.NewResponseController(w).Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		}
	}
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
		"contexts": [{"name": "it", "context": {"cluster": "it", "user": "somebody"}}],
		"clusters": [{"name": "it", "cluster": {"server": %q, "certificate-authority-data": %q}}],
		"users": [{"name": "somebody", "user": {"token": %q}}]}`,
		server, base64.StdEncoding.EncodeToString(authority), Token)
	if err := os.WriteFile(path, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
}
