package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	calico "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	restfake "k8s.io/client-go/rest/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/kube/clientset"
	"github.com/kube-semaphore/kube-semaphore/internal/logtest"
)

// fakeSets is an API server's network sets in memory: versions, conflicts and
// preconditions as in a real one, watches, and failures at will.
type fakeSets struct {
	mu       sync.Mutex
	version  int
	sets     map[string]*calico.GlobalNetworkSet
	requests []string                          // verb and name
	fail     func(verb, name string) error     // nil: never
	meddle   func(f *fakeSets, verb, n string) // called before a write is made; with mu held
	hurry    func(f *fakeSets, verb, n string) // called before a write is answered; with mu held
	mute     bool                              // watches show nothing
	opening  time.Duration                     // that it takes to open a watch
	watches  []*watch.FakeWatcher
	history  []fakeEvent // since the last restore
}

// fakeEvent is what a watch shows that was opened at an earlier version.
type fakeEvent struct {
	version int
	kind    watch.EventType
	set     *calico.GlobalNetworkSet
}

func newFakeSets() *fakeSets {
	return &fakeSets{sets: map[string]*calico.GlobalNetworkSet{}}
}

func resource() schema.GroupResource {
	return schema.GroupResource{Group: "projectcalico.org", Resource: kube.NetworkSets}
}

// begin notes a request and returns its failure; mu stays held.
func (f *fakeSets) begin(verb, name string) error {
	f.mu.Lock()
	f.requests = append(f.requests, verb+" "+name)
	if f.fail != nil {
		if err := f.fail(verb, name); err != nil {
			return err
		}
	}
	if f.meddle != nil {
		f.meddle(f, verb, name)
	}
	return nil
}

func (f *fakeSets) store(set *calico.GlobalNetworkSet) *calico.GlobalNetworkSet {
	f.version++
	set.ResourceVersion = strconv.Itoa(f.version)
	kind := watch.Added
	if f.sets[set.Name] != nil {
		kind = watch.Modified
	}
	f.sets[set.Name] = set
	f.tell(kind, set)
	return set.DeepCopy()
}

// put stores a set as somebody else would.
func (f *fakeSets) put(set *calico.GlobalNetworkSet) {
	if set.UID == "" {
		set.UID = types.UID(fmt.Sprintf("uid-%d", f.version))
	}
	f.store(set)
}

// Create implements SetClient.
func (f *fakeSets) Create(_ context.Context, set *calico.GlobalNetworkSet, _ metav1.CreateOptions) (*calico.GlobalNetworkSet, error) {
	err := f.begin(verbCreate, set.Name)
	defer f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if f.sets[set.Name] != nil {
		return nil, apierrors.NewAlreadyExists(resource(), set.Name)
	}
	set = set.DeepCopy()
	set.UID = types.UID(fmt.Sprintf("uid-%d", f.version))
	return f.answer(verbCreate, f.store(set)), nil
}

// Patch implements SetClient.
func (f *fakeSets) Patch(_ context.Context, name string, _ types.PatchType, data []byte, _ metav1.PatchOptions, _ ...string) (*calico.GlobalNetworkSet, error) {
	err := f.begin(verbPatch, name)
	defer f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	existing := f.sets[name]
	if existing == nil {
		return nil, apierrors.NewNotFound(resource(), name)
	}
	var patch calico.GlobalNetworkSet
	if err := json.Unmarshal(data, &patch); err != nil {
		return nil, err
	}
	if patch.ResourceVersion != existing.ResourceVersion {
		return nil, apierrors.NewConflict(resource(), name, nil)
	}
	set := existing.DeepCopy()
	if set.Labels == nil {
		set.Labels = map[string]string{}
	}
	maps.Copy(set.Labels, patch.Labels)
	set.Spec = patch.Spec
	return f.answer(verbPatch, f.store(set)), nil
}

// answer lets somebody do something before a write is answered; mu is held.
func (f *fakeSets) answer(verb string, set *calico.GlobalNetworkSet) *calico.GlobalNetworkSet {
	if f.hurry != nil {
		f.hurry(f, verb, set.Name)
	}
	return set
}

// Delete implements SetClient.
func (f *fakeSets) Delete(_ context.Context, name string, opts metav1.DeleteOptions) error {
	err := f.begin(verbDelete, name)
	defer f.mu.Unlock()
	if err != nil {
		return err
	}
	existing := f.sets[name]
	if existing == nil {
		return apierrors.NewNotFound(resource(), name)
	}
	if p := opts.Preconditions; p == nil || *p.UID != existing.UID || *p.ResourceVersion != existing.ResourceVersion {
		return apierrors.NewConflict(resource(), name, nil)
	}
	f.gone(name)
	return nil
}

// gone removes a set as anybody would; mu is held.
func (f *fakeSets) gone(name string) {
	set := f.sets[name].DeepCopy()
	delete(f.sets, name)
	f.version++
	set.ResourceVersion = strconv.Itoa(f.version)
	f.tell(watch.Deleted, set)
}

// tell has the watches show an event; mu is held.
func (f *fakeSets) tell(kind watch.EventType, set *calico.GlobalNetworkSet) {
	if f.mute {
		return
	}
	f.history = append(f.history, fakeEvent{f.version, kind, set.DeepCopy()})
	for _, w := range f.watches {
		w.Action(kind, set.DeepCopy())
	}
}

// restore puts a backup back: versions go on from that one, and watches end.
func (f *fakeSets) restore(version int, sets map[string]*calico.GlobalNetworkSet) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version, f.sets, f.history = version, maps.Clone(sets), nil
	for _, w := range f.watches {
		w.Action(watch.Error, &metav1.Status{Status: metav1.StatusFailure, Code: 410, Reason: metav1.StatusReasonExpired})
	}
	f.watches = nil
}

// Get implements SetClient.
func (f *fakeSets) Get(_ context.Context, name string, _ metav1.GetOptions) (*calico.GlobalNetworkSet, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests = append(f.requests, "get "+name)
	if set := f.sets[name]; set != nil {
		return set.DeepCopy(), nil
	}
	return nil, apierrors.NewNotFound(resource(), name)
}

// List implements SetClient.
func (f *fakeSets) List(context.Context, metav1.ListOptions) (*calico.GlobalNetworkSetList, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := &calico.GlobalNetworkSetList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(f.version)}}
	for _, set := range f.sets {
		list.Items = append(list.Items, *set.DeepCopy())
	}
	return list, nil
}

// Watch implements SetClient. It shows what has happened since the version that it is
// opened at, however long that takes.
func (f *fakeSets) Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	if err := plain(options); err != nil {
		return nil, err
	}
	from, err := strconv.Atoi(options.ResourceVersion)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	f.mu.Lock()
	opening := f.opening
	f.mu.Unlock()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(opening):
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	w := watch.NewFakeWithChanSize(10_000, false)
	for _, e := range f.history {
		if e.version > from {
			w.Action(e.kind, e.set.DeepCopy())
		}
	}
	f.watches = append(f.watches, w)
	return w, nil
}

// content returns the sets as text, by name.
func (f *fakeSets) content() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := map[string]string{}
	for name, set := range f.sets {
		all[name] = strings.Join(set.Spec.Nets, " ")
	}
	return all
}

// seen returns the requests so far.
func (f *fakeSets) seen() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.requests)
}

// take stores a set as somebody else would, at any time.
func (f *fakeSets) take(set *calico.GlobalNetworkSet) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.put(set)
}

// rig is a controller that leads, between fakes: the local cluster's network sets and
// the pods of remotes.
type rig struct {
	*Controller
	sets *fakeSets
	pods map[string]*fakePods // by remote
	log  *logtest.Buffer
	stop func()
}

// fakePods is the API server of a remote.
type fakePods struct {
	*fake.Clientset

	mu      sync.Mutex
	away    bool
	watches []*cutWatch
}

func newFakePods() *fakePods {
	// Nobody asks who owns a field, for which NewClientset makes a REST mapper at each write.
	f := &fakePods{Clientset: fake.NewSimpleClientset()} //nolint:staticcheck // See above.
	f.PrependWatchReactor("pods", func(action clienttesting.Action) (bool, watch.Interface, error) {
		asked, ok := action.(clienttesting.WatchActionImpl)
		if !ok {
			return false, nil, nil
		}
		if err := plain(asked.ListOptions); err != nil {
			return true, nil, err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.away {
			return true, nil, apierrors.NewServiceUnavailable("restoring")
		}
		in, err := f.Tracker().Watch(asked.GetResource(), asked.GetNamespace(), asked.ListOptions)
		if err != nil {
			return true, nil, err
		}
		w := &cutWatch{in: in, out: make(chan watch.Event), cut: make(chan struct{}), done: make(chan struct{})}
		f.watches = append(f.watches, w)
		go w.run()
		return true, w, nil
	})
	f.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.away {
			return true, nil, apierrors.NewServiceUnavailable("restoring")
		}
		return false, nil, nil
	})
	return f
}

// stop ends all watches, whose version is in the future, and answers no more until the
// function that it returns is called.
func (f *fakePods) stop() (start func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away = true
	for _, w := range f.watches {
		close(w.cut)
	}
	f.watches = nil
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.away = false
	}
}

// cutWatch is a watch that a server ends with an error.
type cutWatch struct {
	in        watch.Interface
	out       chan watch.Event
	cut, done chan struct{}
	stop      sync.Once
}

func (w *cutWatch) run() {
	defer close(w.out)
	for {
		var event watch.Event
		var cut bool
		select {
		case <-w.done:
			return
		case event = <-w.in.ResultChan():
		case <-w.cut:
			cut = true
			event = watch.Event{Type: watch.Error, Object: &metav1.Status{Status: metav1.StatusFailure, Code: 410, Reason: metav1.StatusReasonExpired}}
		}
		select {
		case <-w.done:
			return
		case w.out <- event:
		}
		if cut {
			return
		}
	}
}

// Stop implements watch.Interface.
func (w *cutWatch) Stop() {
	w.stop.Do(func() { close(w.done); w.in.Stop() })
}

// ResultChan implements watch.Interface.
func (w *cutWatch) ResultChan() <-chan watch.Event { return w.out }

// silent gives no sign of life: the fake has nothing that answers for its version.
type silent struct{ kube.Client }

func (silent) REST() rest.Interface {
	return &restfake.RESTClient{Err: errors.New("no version to tell"), NegotiatedSerializer: scheme.Codecs}
}

// startRig runs a controller of the remotes gcp and merit until the test ends.
func startRig(t *testing.T, sets *fakeSets, adjust func(*Config)) *rig {
	t.Helper()
	r := &rig{sets: sets, pods: map[string]*fakePods{}, log: &logtest.Buffer{}}
	cfg := Config{
		Cluster: "aws", Labels: domain(), Calico: &Calico{client: sets}, Metrics: NewMetrics(),
		RemovalGrace: 10 * time.Minute, Logger: slog.New(slog.NewTextHandler(r.log, nil)),
	}
	for _, name := range []string{"gcp", "merit"} {
		pods := newFakePods()
		r.pods[name] = pods
		cfg.Remotes = append(cfg.Remotes, RemoteConfig{
			Rules: Rules{Cluster: name}, Client: func() (kube.Client, error) { return silent{clientset.Client(pods)}, nil },
		})
	}
	if adjust != nil {
		adjust(&cfg)
	}
	r.Controller = New(cfg)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	for _, task := range r.Watches() {
		wg.Go(func() {
			if err := task.Run(ctx); err != nil {
				t.Errorf("%v: %v", task, err)
			}
		})
	}
	wg.Go(func() {
		if err := r.Lead(ctx); err != nil {
			t.Errorf("lead: %v", err)
		}
	})
	r.stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	t.Cleanup(r.stop)
	elapse(time.Second)
	return r
}

// plain refuses to stream lists, as API servers before 1.34 do.
func plain(options metav1.ListOptions) error {
	if options.SendInitialEvents != nil {
		return apierrors.NewInvalid(schema.GroupKind{}, "", nil)
	}
	return nil
}

// put has a pod be there in gcp.
func (r *rig) put(t *testing.T, name, set string, ips ...string) {
	t.Helper()
	r.putOf(t, "gcp", name, "uid-"+name, set, ips...)
}

func (r *rig) putOf(t *testing.T, remote, name, uid, set string, ips ...string) {
	t.Helper()
	pod := podObject("ns", name, set, corev1.PodRunning, ips...)
	pod.UID = types.UID(uid)
	api := r.pods[remote].CoreV1().Pods("ns")
	_, err := api.Update(t.Context(), pod, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = api.Create(t.Context(), pod, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (r *rig) drop(t *testing.T, remote, name string) {
	t.Helper()
	if err := r.pods[remote].CoreV1().Pods("ns").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// elapse lets time go by in the bubble, and everything happen that is due.
func elapse(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// wantSets fails the test unless the sets hold this, by name.
func (r *rig) wantSets(t *testing.T, want map[string]string) {
	t.Helper()
	synctest.Wait()
	if diff := cmp.Diff(want, r.sets.content()); diff != "" {
		t.Errorf("sets (-want +got):\n%s\nrequests %v\n%s", diff, r.sets.seen(), r.log)
	}
}

func networkSetNamed(name string, labels map[string]string, nets ...string) *calico.GlobalNetworkSet {
	set := networkSet(labels, "", nets...)
	set.Name, set.UID, set.ResourceVersion = "gcp-ns-"+name, "", ""
	return set
}
