package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/kube-semaphore/kube-semaphore/internal/reconcile"
)

// How one remote's objects are written.
const (
	// workers is how many objects are written at the same time.
	workers = 8
	// writeSpacing is the least time between the starts of two writes of one
	// object. What changes meanwhile is written at once.
	writeSpacing = 25 * time.Millisecond
	// writeTimeout bounds one request.
	writeTimeout = 15 * time.Second
	// Waits after failures of one object.
	firstRetry, lastRetry = 100 * time.Millisecond, 30 * time.Second
)

// errOutdated is the error of a write whose object isn't what it was thought to
// be. What it is has been read meanwhile.
var errOutdated = errors.New("object has changed meanwhile")

// fieldManager names us in the managed fields of objects.
const fieldManager = "semaphore-policy"

// writer makes the changes of one remote's objects: one at a time for each,
// those of different objects side by side, so that no object's failure holds
// up another one.
type writer struct {
	writerConfig

	queue workqueue.TypedDelayingInterface[string]

	mu      sync.Mutex
	jobs    map[string]*job // by object name
	failing map[string]error
	logged  string // what the last complaint was about; empty: all is well
}

type writerConfig struct {
	cluster string
	labels  Labels
	clients func(ctx context.Context) (SetClient, error)
	// gone is called when the API doesn't know network sets any more.
	gone   func()
	ledger *ledger
	// written is called after each write, and when an object turned out to
	// be different from what it was thought to be.
	written func(outdated bool)
	metrics *Metrics
	log     *slog.Logger
}

// job is what there is to do about one object, and when.
type job struct {
	change  Change
	writes  uint64    // in the view that the change was found in
	noticed time.Time // when the change was first asked for
	pending bool
	running bool
	next    time.Time // not before
	backoff reconcile.Backoff
}

func newWriter(cfg writerConfig) *writer {
	return &writer{
		writerConfig: cfg,
		queue:        workqueue.NewTypedDelayingQueue[string](),
		jobs:         map[string]*job{},
		failing:      map[string]error{},
	}
}

// set replaces all changes that are still to be made by those that were found in
// a view with so many writes.
func (w *writer) set(ctx context.Context, changes []Change, writes uint64) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	wanted := make(map[string]bool, len(changes))
	for _, change := range changes {
		wanted[change.Name] = true
		j := w.jobs[change.Name]
		if j == nil {
			j = &job{backoff: reconcile.Backoff{Min: firstRetry, Max: lastRetry}}
			w.jobs[change.Name] = j
		}
		if !j.pending {
			j.noticed = now
		}
		j.change, j.writes, j.pending = change, writes, true
		if !j.running {
			w.queue.AddAfter(change.Name, j.next.Sub(now))
		}
	}
	for name, j := range w.jobs {
		if wanted[name] {
			continue
		}
		j.pending = false
		if !j.running && j.next.Before(now) {
			delete(w.jobs, name)
			w.failed(ctx, name, nil)
		}
	}
}

// run makes changes until ctx ends, and returns when none is under way. It must
// not be called twice.
func (w *writer) run(ctx context.Context) {
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for w.work(ctx) {
				continue
			}
		})
	}
	<-ctx.Done()
	w.queue.ShutDown()
	wg.Wait()
}

// work makes the next change; false: there are to be no more.
func (w *writer) work(ctx context.Context) bool {
	name, closed := w.queue.Get()
	if closed {
		return false
	}
	defer w.queue.Done(name)
	taken, due := w.take(name)
	if !due || ctx.Err() != nil {
		return true
	}
	verb, err := w.write(ctx, taken.change, taken.writes)
	if ctx.Err() != nil {
		return true // it says nothing about the object
	}
	w.metrics.wrote(w.cluster, verb, time.Since(taken.noticed), err)
	w.finish(ctx, name, taken, err)
	w.written(errors.Is(err, errOutdated))
	return true
}

func (w *writer) take(name string) (taken job, due bool) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	j := w.jobs[name]
	if j == nil || !j.pending || j.running {
		return job{}, false
	}
	if wait := j.next.Sub(now); wait > 0 {
		w.queue.AddAfter(name, wait)
		return job{}, false
	}
	j.pending, j.running = false, true
	j.next = now.Add(writeSpacing)
	return *j, true
}

func (w *writer) finish(ctx context.Context, name string, taken job, err error) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	j := w.jobs[name]
	j.running = false
	if err == nil {
		j.backoff.Reset()
	} else {
		j.next = now.Add(j.backoff.Next())
		if !j.pending && !errors.Is(err, errOutdated) {
			j.change, j.writes, j.pending = taken.change, taken.writes, true
		}
	}
	if j.pending {
		w.queue.AddAfter(name, j.next.Sub(now))
	}
	if errors.Is(err, errOutdated) {
		err = nil
	}
	w.failed(ctx, name, err)
}

// failed notes how the last write of an object went, and complains when the
// trouble is new or of another kind. The caller holds mu.
func (w *writer) failed(ctx context.Context, name string, err error) {
	if err == nil {
		delete(w.failing, name)
		if len(w.failing) == 0 && w.logged != "" {
			w.logged = ""
			w.log.InfoContext(ctx, "network sets can be written again")
		}
		return
	}
	w.failing[name] = err
	kind := string(apierrors.ReasonForError(err))
	if kind == "" {
		kind = "request"
	}
	level := slog.LevelDebug
	if kind != w.logged {
		w.logged, level = kind, slog.LevelError
	}
	w.log.Log(ctx, level, "network set not written", "set", name, "err", err)
}

// failures returns the objects that can't be written, and why.
func (w *writer) failures() map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	failures := make(map[string]string, len(w.failing))
	for name, err := range w.failing {
		failures[name] = err.Error()
	}
	return failures
}

// backlog returns how many objects wait to be written.
func (w *writer) backlog() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, j := range w.jobs {
		if j.pending || j.running {
			n++
		}
	}
	return n
}

// Verbs of writes, in metrics.
const (
	verbCreate = "create"
	verbPatch  = "patch"
	verbDelete = "delete"
)

// write makes one change, of the object as it is now.
func (w *writer) write(ctx context.Context, change Change, writes uint64) (verb string, err error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	client, err := w.clients(ctx)
	if err != nil {
		return "", err
	}
	defer w.ledger.begin(change.Name)()
	have, want := w.ledger.latest(change.Name, change.Have, writes), change.Want
	switch {
	case have != nil && !have.of(w.cluster):
		return "", errOutdated // somebody else's by now
	case have == nil && want == nil:
		return "", nil
	case want == nil:
		return verbDelete, w.delete(ctx, client, have)
	case have == nil:
		return verbCreate, w.create(ctx, client, want)
	case have.matches(want):
		return "", nil
	default:
		return verbPatch, w.patch(ctx, client, have, want)
	}
}

func (w *writer) create(ctx context.Context, client SetClient, want *Object) error {
	set, err := client.Create(ctx, w.labels.manifest(want), metav1.CreateOptions{FieldManager: fieldManager})
	switch {
	case apierrors.IsAlreadyExists(err):
		return w.reread(ctx, client, want.Name, "")
	case apierrors.IsNotFound(err):
		w.gone()
		return fmt.Errorf("%w any more: %w", ErrNoCalico, err)
	case err != nil:
		return fmt.Errorf("create network set %s: %w", want.Name, err)
	}
	w.ledger.wrote(w.labels.observe(set))
	return nil
}

func (w *writer) patch(ctx context.Context, client SetClient, have *Observed, want *Object) error {
	patch, err := w.labels.patch(have, want)
	if err != nil {
		return err
	}
	set, err := client.Patch(ctx, want.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return w.reread(ctx, client, want.Name, have.UID)
	case err != nil:
		return fmt.Errorf("patch network set %s: %w", want.Name, err)
	}
	w.ledger.wrote(w.labels.observe(set))
	return nil
}

func (w *writer) delete(ctx context.Context, client SetClient, have *Observed) error {
	uid := types.UID(have.UID)
	err := client.Delete(ctx, have.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &have.ResourceVersion},
	})
	switch {
	case apierrors.IsConflict(err):
		return w.reread(ctx, client, have.Name, have.UID)
	case err != nil && !apierrors.IsNotFound(err):
		return fmt.Errorf("delete network set %s: %w", have.Name, err)
	}
	w.ledger.deleted(have.Name, have.UID)
	return nil
}

// reread finds out what became of an object, so that the next pass can decide
// anew. UID is that of the object that it was.
func (w *writer) reread(ctx context.Context, client SetClient, name, uid string) error {
	set, err := client.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		w.ledger.deleted(name, uid)
	case err != nil:
		return fmt.Errorf("read network set %s: %w", name, err)
	default:
		w.ledger.wrote(w.labels.observe(set))
	}
	return errOutdated
}
