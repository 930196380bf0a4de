package kubetest

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// API is an API server in memory, for tests of controllers. It has UIDs, resource versions,
// preconditions, finalizers, selectors, streamed lists and watches as a real one, in JSON. It
// validates nothing and defaults only what Services need.
//
// Clients of Config reach it without sockets, so that a test may run in a bubble of
// testing/synctest. A Cluster serves it over TLS.
type API struct {
	mu          sync.Mutex
	version     int
	objects     map[string]*unstructured.Unstructured // by objectKey
	history     []event
	compacted   int           // watches from earlier versions have expired
	changed     chan struct{} // closed and replaced at each change
	connections map[*connection]struct{}
	down        bool
	hooks       Hooks
	requests    []Request
	lists       []string // resourceVersion of each request for a list
}

// Request is a request for one object.
type Request struct{ Verb, Resource, Namespace, Name string }

// Verbs of requests that write.
const (
	Create = "create"
	Update = "update"
	Patch  = "patch"
	Delete = "delete"
	// DryRun is that of all that aren't stored. Hooks see the verb of the write.
	DryRun = "dry-run"
)

// String returns verb, resource and name.
func (r Request) String() string { return r.Verb + " " + r.Resource + " " + r.Name }

// writes reports whether the request may change the object.
func (r Request) writes() bool { return r.Verb != "get" }

// Hooks interfere with requests; a nil one doesn't. An API calls them without its lock,
// so they may call its methods.
type Hooks struct {
	// Fail returns the error of a write; nil: it succeeds.
	Fail func(Request) *metav1.Status
	// Admit is called with each object that is created or changed, before it is stored, and
	// may change it or return an error, as an admission webhook. It must not call methods of
	// the API.
	Admit func(Request, *unstructured.Unstructured) *metav1.Status
	// Silent reports whether a write is never answered.
	Silent func(Request) bool
	// Before is called before each write that doesn't fail, Answer before its answer.
	Before, Answer func(Request)
	// Mute makes watches omit changes that are made while it is set.
	Mute bool
	// Opening is how long it takes to open a watch.
	Opening time.Duration
	// Read returns the error of a list or watch; nil: it succeeds.
	Read func(resource string) *metav1.Status
}

// Failure returns an error for Hooks.Fail.
func Failure(code int, reason metav1.StatusReason) *metav1.Status {
	return &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: string(reason),
	}
}

// event is one change of an object.
type event struct {
	version       int
	resource      string
	object        *unstructured.Unstructured
	before, after labels.Set // nil: no object
}

// NewAPI returns an API server without objects.
func NewAPI() *API {
	return &API{
		version: 1, objects: map[string]*unstructured.Unstructured{}, changed: make(chan struct{}),
		connections: map[*connection]struct{}{},
	}
}

// Config returns a configuration for clients of the API server.
func (a *API) Config() *rest.Config {
	return &rest.Config{
		Host: "http://api", Transport: a, QPS: -1, WarningHandler: rest.NoWarnings{},
		ContentConfig: rest.ContentConfig{ContentType: "application/json"},
	}
}

// Hook calls change with the hooks, under the lock.
func (a *API) Hook(change func(*Hooks)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change(&a.hooks)
}

// Stop breaks all connections, and refuses others until Start.
func (a *API) Stop() {
	a.mu.Lock()
	a.down = true
	a.mu.Unlock()
	a.disconnect()
}

// Start makes the API serve requests again, after Stop.
func (a *API) Start() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.down = false
}

func (a *API) disconnect() {
	a.mu.Lock()
	open := slices.Collect(maps.Keys(a.connections))
	a.mu.Unlock()
	for _, c := range open {
		c.end(syscall.ECONNRESET)
	}
}

// Backup is the state of an API server at one moment.
type Backup map[string]*unstructured.Unstructured

// Save returns a backup.
func (a *API) Save() Backup {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.objects)
}

// Restore goes back to a backup as "etcdutl snapshot restore --bump-revision --mark-compacted"
// does: objects have the versions that they had, new ones are higher than any before, and watches
// from these have expired. It breaks all connections.
func (a *API) Restore(b Backup) {
	a.mu.Lock()
	a.version += 1_000_000
	a.compacted, a.objects, a.history = a.version, maps.Clone(b), nil
	a.mu.Unlock()
	a.disconnect()
}

// kinds are those that the API server serves, by resource.
func kinds() map[string]metav1.TypeMeta {
	return map[string]metav1.TypeMeta{
		"endpointslices":    {Kind: "EndpointSlice", APIVersion: "discovery.k8s.io/v1"},
		"events":            {Kind: "Event", APIVersion: "v1"},
		"globalnetworksets": {Kind: "GlobalNetworkSet", APIVersion: "projectcalico.org/v3"},
		"leases":            {Kind: "Lease", APIVersion: "coordination.k8s.io/v1"},
		"namespaces":        {Kind: "Namespace", APIVersion: "v1"},
		"nodes":             {Kind: "Node", APIVersion: "v1"},
		"pods":              {Kind: "Pod", APIVersion: "v1"},
		"servicecidrs":      {Kind: "ServiceCIDR", APIVersion: "networking.k8s.io/v1"},
		"serviceexports":    {Kind: "ServiceExport", APIVersion: "multicluster.x-k8s.io/v1beta1"},
		"serviceimports":    {Kind: "ServiceImport", APIVersion: "multicluster.x-k8s.io/v1beta1"},
		"services":          {Kind: "Service", APIVersion: "v1"},
		"wireguardpeers":    {Kind: "WireguardPeers", APIVersion: "semaphore.uw.io/v1alpha1"},
	}
}

func objectKey(resource, namespace, name string) string {
	return resource + " " + namespace + "/" + name
}

// locate returns what a path such as /api/v1/namespaces/x/services/y names.
func locate(path string) (version, resource, namespace, name string) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	length := 3 // of apis/group/version
	if parts[0] == "api" {
		length = 2
	}
	if len(parts) < length {
		return "", "", "", ""
	}
	version, parts = strings.Join(parts[1:length], "/"), parts[length:]
	if len(parts) > 2 && parts[0] == "namespaces" {
		namespace, parts = parts[1], parts[2:]
	}
	if len(parts) > 0 {
		resource = parts[0]
	}
	if len(parts) > 1 {
		name = parts[1]
	}
	return version, resource, namespace, name
}

func (a *API) serve(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/version" {
		answer(w, http.StatusOK, map[string]string{"gitVersion": "v0.0.0"})
		return
	}
	version, resource, namespace, name := locate(r.URL.Path)
	_, served := kinds()[resource]
	switch query := r.URL.Query(); {
	case resource == "" && version != "":
		discover(w, version)
	case !served || kinds()[resource].APIVersion != version:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	case r.Method == http.MethodGet && name != "":
		a.get(w, Request{"get", resource, namespace, name})
	case r.Method == http.MethodGet && query.Get("watch") != "":
		a.watch(w, r, resource, namespace)
	case r.Method == http.MethodGet:
		a.list(w, r, resource, namespace)
	default:
		a.write(w, r, Request{Resource: resource, Namespace: namespace, Name: name})
	}
}

// discover answers which resources a group has.
func discover(w http.ResponseWriter, version string) {
	list := &metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: version}
	for resource, of := range kinds() {
		if of.APIVersion == version {
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: resource, Kind: of.Kind})
		}
	}
	if len(list.APIResources) == 0 {
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	}
	answer(w, http.StatusOK, list)
}

func (a *API) get(w http.ResponseWriter, request Request) {
	a.mu.Lock()
	a.requests = append(a.requests, request)
	object := a.objects[objectKey(request.Resource, request.Namespace, request.Name)]
	a.mu.Unlock()
	if object == nil {
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	}
	answer(w, http.StatusOK, object)
}

func (a *API) write(w http.ResponseWriter, r *http.Request, request Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	request.Verb = map[string]string{http.MethodPost: Create, http.MethodPut: Update, http.MethodPatch: Patch, http.MethodDelete: Delete}[r.Method]
	if request.Verb == Create {
		var named metav1.PartialObjectMetadata
		_ = json.Unmarshal(body, &named) // apply complains.
		request.Name = named.Name
	}
	a.mu.Lock()
	hooks := a.hooks
	a.mu.Unlock()
	if hooks.Silent != nil && hooks.Silent(request) {
		<-r.Context().Done()
		return
	}
	made, dryRun := request, r.URL.Query().Get("dryRun") != ""
	if dryRun {
		made.Verb = DryRun
	}
	a.mu.Lock()
	a.requests = append(a.requests, made)
	a.mu.Unlock()
	if hooks.Fail != nil {
		if status := hooks.Fail(request); status != nil {
			answer(w, int(status.Code), status)
			return
		}
	}
	if hooks.Before != nil {
		hooks.Before(request)
	}
	object, code, reason := a.apply(request, body, dryRun, hooks.Admit)
	a.mu.Lock()
	hooks = a.hooks
	a.mu.Unlock()
	if code == http.StatusOK && hooks.Answer != nil {
		hooks.Answer(request)
	}
	if code != http.StatusOK {
		refuse(w, code, reason)
		return
	}
	answer(w, http.StatusOK, object)
}

// apply makes a change. It returns the object as it is then, or would be without dryRun.
func (a *API) apply(request Request, body []byte, dryRun bool, admit func(Request, *unstructured.Unstructured) *metav1.Status) (object *unstructured.Unstructured, code int, reason metav1.StatusReason) {
	a.mu.Lock()
	defer a.mu.Unlock()
	have := a.objects[objectKey(request.Resource, request.Namespace, request.Name)]
	switch {
	case request.Verb == Create && have != nil:
		return nil, http.StatusConflict, metav1.StatusReasonAlreadyExists
	case request.Verb != Create && have == nil:
		return nil, http.StatusNotFound, metav1.StatusReasonNotFound
	case request.Verb == Delete && dryRun:
		return have, http.StatusOK, ""
	case request.Verb == Delete:
		var options metav1.DeleteOptions
		_ = json.Unmarshal(body, &options) // No options are none.
		if p := options.Preconditions; p != nil && (p.UID != nil && *p.UID != have.GetUID() || p.ResourceVersion != nil && *p.ResourceVersion != have.GetResourceVersion()) {
			return nil, http.StatusConflict, metav1.StatusReasonConflict
		}
		a.remove(request.Resource, have)
		return have, http.StatusOK, ""
	case request.Verb == Patch:
		before, err := json.Marshal(have.Object)
		if err == nil {
			body, err = jsonpatch.MergePatch(before, body)
		}
		if err != nil {
			return nil, http.StatusBadRequest, metav1.StatusReasonBadRequest
		}
	}
	object = &unstructured.Unstructured{}
	if err := json.Unmarshal(body, &object.Object); err != nil {
		return nil, http.StatusBadRequest, metav1.StatusReasonBadRequest
	}
	object.SetNamespace(request.Namespace)
	if have != nil && (object.GetUID() != have.GetUID() || object.GetResourceVersion() != have.GetResourceVersion()) {
		return nil, http.StatusConflict, metav1.StatusReasonConflict
	}
	if admit != nil {
		if status := admit(request, object); status != nil {
			return nil, int(status.Code), status.Reason
		}
	}
	if dryRun {
		complete(request.Resource, object, a.version)
	} else if have == nil || !reflect.DeepEqual(have.Object, object.Object) {
		a.store(request.Resource, object)
	}
	return object, http.StatusOK, ""
}

// complete sets what an API server sets of a Service.
func complete(resource string, o *unstructured.Unstructured, version int) {
	if resource != "services" {
		return
	}
	if ip, _, _ := unstructured.NestedString(o.Object, "spec", "clusterIP"); ip == "" {
		ip = fmt.Sprintf("10.96.0.%d", version)
		_ = unstructured.SetNestedField(o.Object, ip, "spec", "clusterIP")
		_ = unstructured.SetNestedStringSlice(o.Object, []string{ip}, "spec", "clusterIPs")
	}
	_ = unstructured.SetNestedStringSlice(o.Object, []string{"IPv4"}, "spec", "ipFamilies")
	_ = unstructured.SetNestedField(o.Object, "SingleStack", "spec", "ipFamilyPolicy")
}

// store stores an object; the caller holds the lock.
func (a *API) store(resource string, o *unstructured.Unstructured) {
	k := objectKey(resource, o.GetNamespace(), o.GetName())
	a.version++
	have := a.objects[k]
	if have == nil {
		o.SetUID(types.UID(fmt.Sprintf("uid-%d", a.version)))
	}
	o.SetResourceVersion(strconv.Itoa(a.version))
	o.SetKind(kinds()[resource].Kind)
	o.SetAPIVersion(kinds()[resource].APIVersion)
	complete(resource, o, a.version)
	a.objects[k] = o
	a.record(resource, o, have, o)
}

// remove removes an object, or marks one with finalizers; the caller holds the lock.
func (a *API) remove(resource string, have *unstructured.Unstructured) {
	o := have.DeepCopy()
	if len(o.GetFinalizers()) > 0 {
		now := metav1.Now()
		o.SetDeletionTimestamp(&now)
		a.store(resource, o)
		return
	}
	a.version++
	o.SetResourceVersion(strconv.Itoa(a.version))
	delete(a.objects, objectKey(resource, o.GetNamespace(), o.GetName()))
	a.record(resource, o, have, nil)
}

// record notes an event, in which watches show the object; before and after are nil where there
// is none. The caller holds the lock.
func (a *API) record(resource string, object, before, after *unstructured.Unstructured) {
	if a.hooks.Mute {
		return
	}
	e := event{version: a.version, resource: resource, object: object.DeepCopy()}
	if before != nil {
		e.before = labels.Merge(before.GetLabels(), nil)
	}
	if after != nil {
		e.after = labels.Merge(after.GetLabels(), nil)
	}
	a.history = append(a.history, e)
	close(a.changed)
	a.changed = make(chan struct{})
}

// selection is which objects of a resource a request asks for.
type selection struct {
	resource, namespace, name string // "": any namespace or name
	labels                    labels.Selector
}

func (a *API) selected(w http.ResponseWriter, r *http.Request, resource, namespace string) (selection, bool) {
	a.mu.Lock()
	read := a.hooks.Read
	a.mu.Unlock()
	if read != nil {
		if status := read(resource); status != nil {
			answer(w, int(status.Code), status)
			return selection{}, false
		}
	}
	selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	fields := r.URL.Query().Get("fieldSelector")
	name, named := strings.CutPrefix(fields, "metadata.name=")
	if err != nil || !named && fields != "" {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return selection{}, false
	}
	return selection{resource, namespace, name, selector}, true
}

// covers reports whether an object is of the selection, but for its labels.
func (s selection) covers(resource string, o *unstructured.Unstructured) bool {
	return resource == s.resource && (s.namespace == "" || o.GetNamespace() == s.namespace) && (s.name == "" || o.GetName() == s.name)
}

// of returns how a watch of the selection shows an event; "": not at all.
func (s selection) of(e event) watch.EventType {
	if !s.covers(e.resource, e.object) {
		return ""
	}
	was, is := e.before != nil && s.labels.Matches(e.before), e.after != nil && s.labels.Matches(e.after)
	switch {
	case was && is:
		return watch.Modified
	case was:
		return watch.Deleted
	case is:
		return watch.Added
	}
	return ""
}

// all returns the objects of a selection; the caller holds the lock.
func (a *API) all(s selection) []unstructured.Unstructured {
	all := []unstructured.Unstructured{}
	for _, k := range slices.Sorted(maps.Keys(a.objects)) {
		o := a.objects[k]
		if of, _, _ := strings.Cut(k, " "); s.covers(of, o) && s.labels.Matches(labels.Set(o.GetLabels())) {
			all = append(all, *o.DeepCopy())
		}
	}
	return all
}

func (a *API) list(w http.ResponseWriter, r *http.Request, resource, namespace string) {
	s, valid := a.selected(w, r, resource, namespace)
	if !valid {
		return
	}
	version := r.URL.Query().Get("resourceVersion")
	from, _ := strconv.Atoi(version)
	a.mu.Lock()
	a.lists = append(a.lists, version)
	at, all := a.version, a.all(s)
	a.mu.Unlock()
	if from > at {
		refuseVersion(w)
		return
	}
	of := kinds()[resource]
	if partial(r) {
		of = metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: "meta.k8s.io/v1"}
		for i := range all {
			reduce(&all[i])
		}
	}
	answer(w, http.StatusOK, &unstructured.UnstructuredList{
		Object: map[string]any{"kind": of.Kind + "List", "apiVersion": of.APIVersion, "metadata": map[string]any{"resourceVersion": strconv.Itoa(at)}},
		Items:  all,
	})
}

// partial reports whether a request asks for metadata only.
func partial(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata")
}

// reduce removes all but the metadata of an object.
func reduce(o *unstructured.Unstructured) {
	o.Object = map[string]any{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": o.Object["metadata"]}
}

// refuseVersion answers a request for a version that the server has not reached.
func refuseVersion(w http.ResponseWriter) {
	status := Failure(http.StatusGatewayTimeout, metav1.StatusReasonTimeout)
	status.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}}}
	answer(w, http.StatusGatewayTimeout, status)
}

func (a *API) watch(w http.ResponseWriter, r *http.Request, resource, namespace string) {
	s, valid := a.selected(w, r, resource, namespace)
	if !valid {
		return
	}
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	a.mu.Lock()
	opening, ahead, expired := a.hooks.Opening, from > a.version, from > 0 && from < a.compacted
	a.mu.Unlock()
	switch {
	case ahead:
		refuseVersion(w)
		return
	case expired:
		answer(w, http.StatusGone, Failure(http.StatusGone, metav1.StatusReasonExpired))
		return
	}
	select {
	case <-r.Context().Done():
		return
	case <-time.After(opening):
	}
	send := func(kind watch.EventType, o *unstructured.Unstructured) {
		if partial(r) {
			o = &unstructured.Unstructured{Object: o.Object}
			reduce(o)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"type": kind, "object": o.Object})
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		a.mu.Lock()
		a.lists = append(a.lists, r.URL.Query().Get("resourceVersion"))
		from = a.version
		all := a.all(s)
		a.mu.Unlock()
		for i := range all {
			send(watch.Added, &all[i])
		}
		of := kinds()[resource]
		end := &unstructured.Unstructured{Object: map[string]any{"kind": of.Kind, "apiVersion": of.APIVersion}}
		end.SetResourceVersion(strconv.Itoa(from))
		end.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		send(watch.Bookmark, end)
	}
	for r.Context().Err() == nil {
		a.mu.Lock()
		first, _ := slices.BinarySearchFunc(a.history, from+1, func(e event, version int) int { return e.version - version })
		events := slices.Clone(a.history[first:])
		from = a.version
		changed := a.changed
		a.mu.Unlock()
		for _, e := range events {
			if kind := s.of(e); kind != "" {
				send(kind, e.object)
			}
		}
		_ = http.NewResponseController(w).Flush() // which a connection in memory doesn't need
		select {
		case <-r.Context().Done():
		case <-changed:
		}
	}
}

// Put creates or replaces an object, as another client would.
func (a *API) Put(t testing.TB, resource string, object metav1.Object) {
	t.Helper()
	if err := a.put(resource, object); err != nil {
		t.Fatal(err)
	}
}

func (a *API) put(resource string, object metav1.Object) error {
	raw, err := json.Marshal(object)
	o := &unstructured.Unstructured{}
	if err == nil {
		err = json.Unmarshal(raw, &o.Object)
	}
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if have := a.objects[objectKey(resource, o.GetNamespace(), o.GetName())]; have != nil {
		o.SetUID(have.GetUID())
	}
	a.store(resource, o)
	return nil
}

// Remove deletes an object, as another client would.
func (a *API) Remove(resource, namespace, name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if o := a.objects[objectKey(resource, namespace, name)]; o != nil {
		a.remove(resource, o)
	}
}

// Get reads an object, and reports whether there is one.
func (a *API) Get(resource, namespace, name string, into any) bool {
	a.mu.Lock()
	o := a.objects[objectKey(resource, namespace, name)]
	a.mu.Unlock()
	if o == nil {
		return false
	}
	raw, err := json.Marshal(o.Object)
	return err == nil && json.Unmarshal(raw, into) == nil
}

// All returns the objects of a resource in a namespace, or in all of them for "", in the
// order of their names.
func All[T any](a *API, resource, namespace string) []T {
	a.mu.Lock()
	objects := a.all(selection{resource: resource, namespace: namespace, labels: labels.Everything()})
	a.mu.Unlock()
	all := make([]T, len(objects))
	for i := range objects {
		raw, err := json.Marshal(objects[i].Object)
		if err != nil || json.Unmarshal(raw, &all[i]) != nil {
			panic(fmt.Sprintf("%s %s is no %T", resource, objects[i].GetName(), all[i]))
		}
	}
	return all
}

// Version returns the version of the last change.
func (a *API) Version() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.version
}

// Requests returns the requests for single objects so far.
func (a *API) Requests() []Request {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.requests)
}

// Writes returns the requests so far that write.
func (a *API) Writes() []Request {
	return slices.DeleteFunc(a.Requests(), func(r Request) bool { return !r.writes() })
}

// Lists returns the resourceVersion of each request for a list so far.
func (a *API) Lists() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.lists)
}
