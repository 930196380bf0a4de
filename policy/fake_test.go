package policy

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	calico "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// fakeSets is an API server's network sets in memory: versions, conflicts and
// preconditions as in a real one, and failures at will. It serves no watches.
type fakeSets struct {
	mu       sync.Mutex
	version  int
	sets     map[string]*calico.GlobalNetworkSet
	requests []string                          // verb and name
	fail     func(verb, name string) error     // nil: never
	meddle   func(f *fakeSets, verb, n string) // called before a write is made; with mu held
}

func newFakeSets() *fakeSets {
	return &fakeSets{sets: map[string]*calico.GlobalNetworkSet{}}
}

func resource() schema.GroupResource {
	return schema.GroupResource{Group: "projectcalico.org", Resource: networkSets}
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
	f.sets[set.Name] = set
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
	return f.store(set), nil
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
	return f.store(set), nil
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
	delete(f.sets, name)
	return nil
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
	list := &calico.GlobalNetworkSetList{}
	for _, set := range f.sets {
		list.Items = append(list.Items, *set.DeepCopy())
	}
	return list, nil
}

// Watch implements SetClient.
func (f *fakeSets) Watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	return watch.NewFake(), nil
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

// rig is a writer of gcp's sets that runs against a fake.
type rig struct {
	*writer
	sets     *fakeSets
	ledger   *ledger
	outdated chan struct{}
	log      *buffer
}

// buffer is a log that may be read while it is written.
type buffer struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements io.Writer.
func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// String returns what was written until now.
func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// startWriter runs a writer until the test ends. What the watch shows is always
// what there is, unless shown says otherwise.
func startWriter(t *testing.T, sets *fakeSets, shown func() ([]Observed, bool)) *rig {
	t.Helper()
	r := &rig{sets: sets, outdated: make(chan struct{}, 1000), log: &buffer{}}
	if shown == nil {
		shown = func() ([]Observed, bool) {
			sets.mu.Lock()
			defer sets.mu.Unlock()
			var all []Observed
			for _, set := range sets.sets {
				all = append(all, domain().observe(set))
			}
			return all, true
		}
	}
	r.ledger = newLedger(shown)
	r.writer = newWriter(writerConfig{
		cluster: "gcp", labels: domain(), ledger: r.ledger, metrics: NewMetrics(),
		clients: func(context.Context) (SetClient, error) { return sets, nil },
		gone:    func() {},
		written: func(outdated bool) {
			if outdated {
				r.outdated <- struct{}{}
			}
		},
		log: slog.New(slog.NewTextHandler(r.log, nil)),
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return r
}

// want asks for objects as a pass does.
func (r *rig) want(t *testing.T, objects ...Object) {
	t.Helper()
	known := r.ledger.view()
	r.set(t.Context(), Diff("gcp", known.sets, objects), known.writes)
}

func object(name string, ips ...string) Object {
	return Object{Name: "gcp-ns-" + name, Identity: gcp(name), Addrs: addrs(ips...)}
}

func networkSetNamed(name string, labels map[string]string, nets ...string) *calico.GlobalNetworkSet {
	set := networkSet(labels, "", nets...)
	set.Name, set.UID, set.ResourceVersion = "gcp-ns-"+name, "", ""
	return set
}
