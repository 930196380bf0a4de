package kube

import (
	"crypto/tls"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
)

// apiServer speaks what client-go needs of Kubernetes' protocol for nodes:
// lists, watches, streamed lists, bookmarks, expired versions.
type apiServer struct {
	http *httptest.Server

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced at each change
	version  int
	oldest   int // watches from versions before this one have expired
	nodes    map[string]*corev1.Node
	history  []change
	cert     tls.Certificate
	token    string // "": any
	stream   bool   // whether lists can be streamed
	lists    bool   // whether lists are allowed
	hangUp   bool   // whether watches end as they begin
	requests []*http.Request
}

type change struct {
	version int
	kind    watch.EventType
	node    *corev1.Node
}

func newAPIServer(t *testing.T, a *authority) *apiServer {
	t.Helper()
	s := &apiServer{changed: make(chan struct{}), version: 1, nodes: map[string]*corev1.Node{}, cert: a.issue(), stream: true, lists: true}
	s.start(t, "127.0.0.1:0")
	return s
}

// start listens on an address, which after a stop may be the same again.
func (s *apiServer) start(t *testing.T, address string) {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	s.http = kubetest.Serve(t, listener, &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return &tls.Config{Certificates: []tls.Certificate{s.cert}, NextProtos: []string{"h2", "http/1.1"}}, nil
	}}, http.HandlerFunc(s.serve))
}

func (s *apiServer) stop() { kubetest.Kill(s.http) }

func (s *apiServer) address() string { return s.http.Listener.Addr().String() }

func (s *apiServer) url() string { return "https://" + s.address() }

// set changes the server under its lock.
func (s *apiServer) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	s.wake()
}

// wake wakes all watches. Callers hold mu.
func (s *apiServer) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// apply creates or updates a node whose kubelet annotation stands for what is
// read of it, and whose heartbeat stands for what isn't.
func (s *apiServer) apply(name, kubelet, heartbeat string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kind := watch.Added
	if s.nodes[name] != nil {
		kind = watch.Modified
	}
	s.version++
	node := nodeAt(s.version, name, kubelet, heartbeat)
	s.nodes[name] = node
	s.history = append(s.history, change{s.version, kind, node})
	s.wake()
}

func nodeAt(version int, name, kubelet, heartbeat string) *corev1.Node {
	return &corev1.Node{
		TypeMeta:   metav1.TypeMeta{Kind: "Node", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: strconv.Itoa(version), Annotations: map[string]string{"kubelet": kubelet, "heartbeat": heartbeat}},
	}
}

func (s *apiServer) remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	node := s.nodes[name].DeepCopy()
	node.ResourceVersion = strconv.Itoa(s.version)
	delete(s.nodes, name)
	s.history = append(s.history, change{s.version, watch.Deleted, node})
	s.wake()
}

// compact forgets the history.
func (s *apiServer) compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.oldest, s.history = s.version, nil
}

// restore sets the server to other nodes of earlier versions, as from a backup with "etcdutl
// snapshot restore --bump-revision --mark-compacted".
func (s *apiServer) restore(nodes ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version += 1_000_000
	s.oldest, s.history = s.version, nil
	clear(s.nodes)
	for _, name := range nodes {
		s.nodes[name] = nodeAt(10, name, "restored", "")
	}
}

// bookmark sends the current version to all watches.
func (s *apiServer) bookmark() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.history = append(s.history, change{s.version, watch.Bookmark, bookmarkAt(s.version)})
	s.wake()
}

func bookmarkAt(version int) *corev1.Node {
	return &corev1.Node{
		TypeMeta:   metav1.TypeMeta{Kind: "Node", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{ResourceVersion: strconv.Itoa(version)},
	}
}

// seen returns the requests up to now.
func (s *apiServer) seen() []*http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

func (s *apiServer) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests = append(s.requests, r)
	token, hangUp, stream, lists := s.token, s.hangUp, s.stream, s.lists
	s.mu.Unlock()
	query := r.URL.Query()
	switch {
	case r.URL.Path != "/api/v1/nodes":
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	case token != "" && r.Header.Get("Authorization") != "Bearer "+token:
		refuse(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized)
	case query.Get("watch") == "" && !lists:
		refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden)
	case query.Get("watch") == "" || query.Get("watch") == "false":
		s.list(w, query.Get("resourceVersion"))
	case query.Get("sendInitialEvents") == "true" && !stream:
		refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	case hangUp:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
	default:
		s.watch(w, r)
	}
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(status(code, reason))
}

func status(code int, reason metav1.StatusReason) *metav1.Status {
	return &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: http.StatusText(code),
	}
}

// tooLarge responds to a request for a future version.
func tooLarge(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusGatewayTimeout)
	answer := status(http.StatusGatewayTimeout, metav1.StatusReasonTimeout)
	answer.Message = "Too large resource version"
	answer.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}}}
	_ = json.NewEncoder(w).Encode(answer)
}

func (s *apiServer) list(w http.ResponseWriter, atLeast string) {
	if version, _ := strconv.Atoi(atLeast); version > s.current() {
		tooLarge(w)
		return
	}
	s.mu.Lock()
	list := &corev1.NodeList{
		TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"},
		ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(s.version)},
	}
	for _, node := range s.nodes {
		list.Items = append(list.Items, *node)
	}
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(list)
}

func (s *apiServer) current() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version
}

func (s *apiServer) watch(w http.ResponseWriter, r *http.Request) {
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	if r.URL.Query().Get("sendInitialEvents") == "true" && from > s.current() {
		tooLarge(w)
		return
	}
	send := func(kind watch.EventType, object runtime.Object) {
		raw, _ := json.Marshal(object)
		_ = json.NewEncoder(w).Encode(&metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: raw}})
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		s.mu.Lock()
		from = s.version
		for _, node := range s.nodes {
			send(watch.Added, node)
		}
		end := bookmarkAt(from)
		end.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
		s.mu.Unlock()
		send(watch.Bookmark, end)
	}
	for {
		s.mu.Lock()
		changed, expired := s.changed, from < s.oldest
		var news []change
		for _, c := range s.history {
			if c.version > from {
				news = append(news, c)
			}
		}
		s.mu.Unlock()
		if expired {
			send(watch.Error, status(http.StatusGone, metav1.StatusReasonExpired))
			return
		}
		for _, c := range news {
			send(c.kind, c.node)
			from = c.version
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

// newTLSServer serves over HTTP/2 with a certificate of an authority.
func newTLSServer(t *testing.T, a *authority, handler http.Handler) *httptest.Server {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	return kubetest.Serve(t, listener, tlsConfig(a.issue()), handler)
}
