package mirror

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
)

// fakeAPI is an API server in memory: UIDs, versions, preconditions, finalizers and
// watches as in a real one, and failures at will. Of what objects may be it knows
// nothing, but that headless or not is for life.
type fakeAPI struct {
	server *httptest.Server

	mu      sync.Mutex
	version int
	objects map[string]*unstructured.Unstructured // by resource, namespace and name
	history []fakeEvent
	changed chan struct{} // closed and replaced at each change
	// fail has requests that write fail; nil: none.
	fail     func(verb, resource, name string) *metav1.Status
	silent   func(verb, resource, name string) bool // has requests never be answered; nil: none
	requests []string                               // verb, resource and name of those that write
	lists    []string                               // the versions that those are at least at that are asked for
}

type fakeEvent struct {
	version  int
	kind     watch.EventType
	resource string
	object   *unstructured.Unstructured
}

func newFakeAPI(t *testing.T) *fakeAPI {
	t.Helper()
	f := &fakeAPI{objects: map[string]*unstructured.Unstructured{}, changed: make(chan struct{}), version: 1}
	f.server = httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(func() {
		f.server.CloseClientConnections()
		f.server.Close()
	})
	return f
}

func (f *fakeAPI) client(t *testing.T) kube.Client {
	t.Helper()
	client, err := kube.NewClient(&rest.Config{
		Host: f.server.URL, QPS: -1, WarningHandler: rest.NoWarnings{},
		ContentConfig: rest.ContentConfig{ContentType: "application/json"},
	})
	must(t, err)
	return client
}

// target is what a path names: /api/v1/namespaces/x/services/y and the like.
func target(path string) (resource, namespace, name string) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	parts = parts[map[bool]int{true: 2, false: 3}[parts[0] == "api"]:]
	if parts[0] == "namespaces" && len(parts) > 2 {
		namespace, parts = parts[1], parts[2:]
	}
	resource = parts[0]
	if len(parts) > 1 {
		name = parts[1]
	}
	return resource, namespace, name
}

func key(resource, namespace, name string) string { return resource + " " + namespace + "/" + name }

func answer(w http.ResponseWriter, code int, object any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(object)
}

func failure(code int32, reason metav1.StatusReason) *metav1.Status {
	return &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: code, Reason: reason, Message: string(reason)}
}

func (f *fakeAPI) serve(w http.ResponseWriter, r *http.Request) {
	resource, namespace, name := target(r.URL.Path)
	if r.Method == http.MethodGet {
		if r.URL.Query().Get("watch") == "" {
			f.list(w, r, resource, namespace)
		} else {
			f.watch(w, r, resource, namespace)
		}
		return
	}
	body, _ := io.ReadAll(r.Body)
	verb := map[string]string{http.MethodPost: verbCreate, http.MethodPut: verbUpdate, http.MethodPatch: verbPatch, http.MethodDelete: verbDelete}[r.Method]
	object := &unstructured.Unstructured{}
	if r.Method == http.MethodPost || r.Method == http.MethodPut {
		_ = json.Unmarshal(body, &object.Object)
		name = object.GetName()
	}
	f.mu.Lock()
	silent := f.silent != nil && f.silent(verb, resource, name)
	f.mu.Unlock()
	if silent {
		<-r.Context().Done()
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests = append(f.requests, verb+" "+resource+" "+name)
	if f.fail != nil {
		if status := f.fail(verb, resource, name); status != nil {
			answer(w, int(status.Code), status)
			return
		}
	}
	have := f.objects[key(resource, namespace, name)]
	if verb != verbCreate && have == nil {
		answer(w, http.StatusNotFound, failure(http.StatusNotFound, metav1.StatusReasonNotFound))
		return
	}
	switch verb {
	case verbCreate:
		if have != nil {
			answer(w, http.StatusConflict, failure(http.StatusConflict, metav1.StatusReasonAlreadyExists))
			return
		}
		object.SetNamespace(namespace)
	case verbPatch:
		before, _ := json.Marshal(have.Object)
		after, err := jsonpatch.MergePatch(before, body)
		if err == nil {
			err = json.Unmarshal(after, &object.Object)
		}
		if err != nil {
			answer(w, http.StatusBadRequest, failure(http.StatusBadRequest, metav1.StatusReasonBadRequest))
			return
		}
	case verbDelete:
		var options metav1.DeleteOptions
		_ = json.Unmarshal(body, &options)
		if p := options.Preconditions; p != nil && (p.UID != nil && *p.UID != have.GetUID() || p.ResourceVersion != nil && *p.ResourceVersion != have.GetResourceVersion()) {
			answer(w, http.StatusConflict, failure(http.StatusConflict, metav1.StatusReasonConflict))
			return
		}
		answer(w, http.StatusOK, have)
		f.remove(resource, have)
		return
	}
	if have != nil && (object.GetUID() != have.GetUID() || object.GetResourceVersion() != have.GetResourceVersion()) {
		answer(w, http.StatusConflict, failure(http.StatusConflict, metav1.StatusReasonConflict))
		return
	}
	f.store(resource, object)
	answer(w, http.StatusOK, object)
}

// store stores an object; mu is held.
func (f *fakeAPI) store(resource string, o *unstructured.Unstructured) {
	k, kind := key(resource, o.GetNamespace(), o.GetName()), watch.Added
	f.version++
	if have := f.objects[k]; have != nil {
		kind = watch.Modified
	} else {
		o.SetUID(types.UID(fmt.Sprintf("uid-%d", f.version)))
	}
	o.SetResourceVersion(strconv.Itoa(f.version))
	if resource == "services" {
		if ip, _, _ := unstructured.NestedString(o.Object, "spec", "clusterIP"); ip == "" {
			_ = unstructured.SetNestedField(o.Object, fmt.Sprintf("10.96.0.%d", f.version), "spec", "clusterIP")
		}
		_ = unstructured.SetNestedStringSlice(o.Object, []string{"IPv4"}, "spec", "ipFamilies")
		_ = unstructured.SetNestedField(o.Object, "SingleStack", "spec", "ipFamilyPolicy")
	}
	f.objects[k] = o
	f.tell(kind, resource, o)
}

// remove removes an object, or marks it where something has a finalizer; mu is held.
func (f *fakeAPI) remove(resource string, o *unstructured.Unstructured) {
	o = o.DeepCopy()
	if len(o.GetFinalizers()) > 0 {
		now := metav1.Now()
		o.SetDeletionTimestamp(&now)
		f.store(resource, o)
		return
	}
	f.version++
	o.SetResourceVersion(strconv.Itoa(f.version))
	delete(f.objects, key(resource, o.GetNamespace(), o.GetName()))
	f.tell(watch.Deleted, resource, o)
}

func (f *fakeAPI) tell(kind watch.EventType, resource string, o *unstructured.Unstructured) {
	f.history = append(f.history, fakeEvent{f.version, kind, resource, o.DeepCopy()})
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeAPI) list(w http.ResponseWriter, r *http.Request, resource, namespace string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lists = append(f.lists, r.URL.Query().Get("resourceVersion"))
	if from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion")); from > f.version {
		f.tooLarge(w)
		return
	}
	answer(w, http.StatusOK, &unstructured.UnstructuredList{
		Object: map[string]any{"kind": kinds()[resource] + "List", "apiVersion": versions()[resource], "metadata": map[string]any{"resourceVersion": strconv.Itoa(f.version)}},
		Items:  f.all(resource, namespace),
	})
}

// tooLarge answers a request for a version that the server isn't at yet.
func (f *fakeAPI) tooLarge(w http.ResponseWriter) {
	status := failure(http.StatusGatewayTimeout, metav1.StatusReasonTimeout)
	status.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}}}
	answer(w, http.StatusGatewayTimeout, status)
}

// backup is what there was at one moment.
type backup struct {
	version int
	objects map[string]*unstructured.Unstructured
}

func (f *fakeAPI) save() backup {
	f.mu.Lock()
	defer f.mu.Unlock()
	return backup{f.version, maps.Clone(f.objects)}
}

// restore has the server be at an earlier moment, and breaks all connections.
func (f *fakeAPI) restore(b backup) {
	f.mu.Lock()
	f.version, f.objects, f.history = b.version, b.objects, nil
	f.mu.Unlock()
	f.server.CloseClientConnections()
}

func kinds() map[string]string {
	return map[string]string{"services": "Service", "endpointslices": "EndpointSlice", "endpoints": "Endpoints", "nodes": "Node", "events": "Event", "leases": "Lease"}
}

func versions() map[string]string {
	return map[string]string{"services": "v1", "endpointslices": "discovery.k8s.io/v1", "endpoints": "v1", "nodes": "v1", "events": "v1", "leases": "coordination.k8s.io/v1"}
}

// all returns the objects of a resource; mu is held.
func (f *fakeAPI) all(resource, namespace string) (all []unstructured.Unstructured) {
	for k, o := range f.objects {
		if strings.HasPrefix(k, resource+" "+namespace) {
			all = append(all, *o.DeepCopy())
		}
	}
	return all
}

func (f *fakeAPI) watch(w http.ResponseWriter, r *http.Request, resource, namespace string) {
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	send := func(kind watch.EventType, o *unstructured.Unstructured) {
		o.SetKind(kinds()[resource])
		o.SetAPIVersion(versions()[resource])
		raw, _ := json.Marshal(o)
		_, _ = fmt.Fprintf(w, "{\"type\":%q,\"object\":%s}\n", kind, raw)
	}
	f.mu.Lock()
	ahead := from > f.version
	f.mu.Unlock()
	if ahead {
		f.tooLarge(w)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		f.mu.Lock()
		f.lists = append(f.lists, r.URL.Query().Get("resourceVersion"))
		from = f.version
		all := f.all(resource, namespace)
		f.mu.Unlock()
		for i := range all {
			send(watch.Added, &all[i])
		}
		end := &unstructured.Unstructured{Object: map[string]any{}}
		end.SetResourceVersion(strconv.Itoa(from))
		end.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		send(watch.Bookmark, end)
	}
	for {
		f.mu.Lock()
		var events []fakeEvent
		for _, e := range f.history {
			if e.version > from && e.resource == resource && (namespace == "" || e.object.GetNamespace() == namespace) {
				events = append(events, fakeEvent{e.version, e.kind, e.resource, e.object.DeepCopy()})
			}
		}
		from = f.version
		changed := f.changed
		f.mu.Unlock()
		for _, e := range events {
			send(e.kind, e.object)
		}
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		}
	}
}

// put stores an object as somebody else would.
func (f *fakeAPI) put(t *testing.T, resource string, object metav1.Object) {
	t.Helper()
	raw, err := json.Marshal(object)
	must(t, err)
	o := &unstructured.Unstructured{}
	must(t, json.Unmarshal(raw, &o.Object))
	f.mu.Lock()
	defer f.mu.Unlock()
	if have := f.objects[key(resource, o.GetNamespace(), o.GetName())]; have != nil {
		o.SetUID(have.GetUID())
	}
	f.store(resource, o)
}

// take removes an object as somebody else would.
func (f *fakeAPI) take(resource, namespace, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o := f.objects[key(resource, namespace, name)]; o != nil {
		f.remove(resource, o)
	}
}

// get reads an object, and reports whether it is there.
func (f *fakeAPI) get(resource, namespace, name string, into any) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	o := f.objects[key(resource, namespace, name)]
	if o == nil {
		return false
	}
	raw, _ := json.Marshal(o.Object)
	return json.Unmarshal(raw, into) == nil
}

// leads returns the addresses that a service in the mirror namespace leads to.
func (f *fakeAPI) leads(service string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := []string{}
	for _, o := range f.all("endpointslices", home) {
		var s discoveryv1.EndpointSlice
		raw, _ := json.Marshal(o.Object)
		if json.Unmarshal(raw, &s) == nil && s.Labels[discoveryv1.LabelServiceName] == service {
			for i := range s.Endpoints {
				all = append(all, s.Endpoints[i].Addresses...)
			}
		}
	}
	slices.Sort(all)
	return all
}

// written returns how many requests to write there were of which a text is part.
func (f *fakeAPI) written(text string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.requests {
		if strings.Contains(r, text) {
			n++
		}
	}
	return n
}

// fails sets what fails.
func (f *fakeAPI) fails(fail func(verb, resource, name string) *metav1.Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = fail
}

// fakes are three clusters of that kind, and a controller that leads in gcp.
type fakes struct {
	gcp, aws, merit *fakeAPI
}

func newFakes(t *testing.T) *fakes {
	t.Helper()
	return &fakes{newFakeAPI(t), newFakeAPI(t), newFakeAPI(t)}
}

func (f *fakes) start(t *testing.T, adjust func(*Config)) *instance {
	t.Helper()
	return launch(t, f.controller(t, adjust))
}

// controller returns one that doesn't run.
func (f *fakes) controller(t *testing.T, adjust func(*Config)) *Controller {
	t.Helper()
	cfg := Config{
		Cluster: "gcp", Namespace: home, Client: f.gcp.client(t),
		MirrorSelector: selector(t, mirrorMark+"=true"),
		Logger:         slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	for name, api := range map[string]*fakeAPI{"aws": f.aws, "merit": f.merit} {
		client := api.client(t)
		cfg.Remotes = append(cfg.Remotes, Remote{Name: name, Prefix: name, Client: func() (kube.Client, error) { return client, nil }})
	}
	slices.SortFunc(cfg.Remotes, func(a, b Remote) int { return strings.Compare(a.Name, b.Name) })
	if adjust != nil {
		adjust(&cfg)
	}
	return New(cfg)
}

// has puts a service and its slices into a cluster.
func (f *fakeAPI) has(t *testing.T, namespace string, s *corev1.Service, all ...*discoveryv1.EndpointSlice) {
	t.Helper()
	s = s.DeepCopy()
	s.Namespace = namespace
	f.put(t, "services", s)
	for _, sl := range all {
		sl = sl.DeepCopy()
		sl.Namespace = namespace
		f.put(t, "endpointslices", sl)
	}
}

// comes waits for a service in the mirror namespace to lead to these addresses.
func (f *fakeAPI) comes(t *testing.T, service string, want ...string) *corev1.Service {
	t.Helper()
	var s corev1.Service
	wait(t, service, func() error {
		if got := f.leads(service); !f.get("services", home, service, &s) || !slices.Equal(got, want) {
			return fmt.Errorf("%v, want %v", got, want)
		}
		return nil
	})
	return &s
}
