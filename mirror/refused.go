package mirror

import (
	"errors"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/internal/keep"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/mirror/mcs"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// writing is how a request is made: whether what it writes is stored.
type writing bool

const (
	storing writing = true
	trying  writing = false
)

func (w writing) dryRun() []string {
	if w == trying {
		return []string{metav1.DryRunAll}
	}
	return nil
}

func (w writing) create() metav1.CreateOptions {
	return metav1.CreateOptions{FieldManager: fieldManager, FieldValidation: fieldValidation, DryRun: w.dryRun()}
}

func (w writing) patch() metav1.PatchOptions {
	return metav1.PatchOptions{FieldManager: fieldManager, FieldValidation: fieldValidation, DryRun: w.dryRun()}
}

// accepted writes an object. If it is refused, it writes as much of it as isn't, and returns what
// is written instead of the rest.
func accepted[T interface{ DeepCopy() T }](object T, options []mcs.Option[T], write func(T, writing) (T, error)) (made T, instead []string, err error) {
	made, err = write(object, storing)
	if !kube.Refused(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return made, nil, err
	}
	less, instead, ok := mcs.Accepted(object, options, func(o T) bool {
		_, err := write(o, trying)
		return err == nil
	})
	if !ok {
		return made, nil, err
	}
	made, err = write(less, storing)
	return made, instead, err
}

// refusal is what the API server refuses of an object of an import.
type refusal struct {
	want, got sum      // of the desired and of the observed object, for which it holds
	instead   []string // see mcs.Accepted
	err       string   // empty: not all of the object is refused
}

// objectName names an object of an import, as a Change does.
type objectName struct{ object, name string }

// answers are what the API server has answered to writes of imports.
type answers struct {
	mu sync.Mutex
	// deleted are the imports whose ServiceImport the last write deleted.
	deleted map[origin.Key]bool
	// refused is what the API server refuses of imports.
	refused map[origin.Key]map[objectName]refusal
	// families are those of the cluster; none: not known.
	families []corev1.IPFamily
}

func newAnswers() answers {
	return answers{deleted: map[origin.Key]bool{}, refused: map[origin.Key]map[objectName]refusal{}}
}

// importSpacing is the minimum time between the deletion of an import and its next write, so
// that a remote that creates and deletes an export all the time causes few of them.
const importSpacing = 5 * time.Second

// spacing is called after each write of a local service: see keep.WriterConfig.
func (l *answers) spacing(name string) time.Duration {
	k, is := importKey(name)
	l.mu.Lock()
	defer l.mu.Unlock()
	if !is || !l.deleted[k] {
		return 0
	}
	delete(l.deleted, k)
	return importSpacing
}

// has notes the IP families of the cluster.
func (l *answers) has(families []corev1.IPFamily) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.families = families
}

func (l *answers) clusterFamilies() []corev1.IPFamily {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.families
}

// gone notes that an import was deleted.
func (l *answers) gone(k origin.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.refused, k)
	l.deleted[k] = true
}

// forget drops what was refused of an import that isn't wanted any more.
func (l *answers) forget(name string) {
	if k, is := importKey(name); is {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.refused, k)
	}
}

// answered notes what became of a change of an import.
func (l *answers) answered(k origin.Key, c *Change, done *response, err error) {
	r := refusal{want: c.want, got: done.sum, instead: done.instead}
	switch {
	case errors.Is(err, keep.ErrOutdated):
		return
	case kube.Refused(err):
		if r.err = err.Error(); done.sum == 0 {
			r.got = c.have.sum
		}
	case err != nil:
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	of := objectName{c.Object, c.Name}
	if delete(l.refused[k], of); r.err == "" && len(r.instead) == 0 {
		return
	}
	if l.refused[k] == nil {
		l.refused[k] = map[objectName]refusal{}
	}
	l.refused[k][of] = r
}

// refusals returns what the API server refuses of the desired objects of an import: whole ones,
// with the reason, and what others have instead of some fields.
func (l *answers) refusals(k origin.Key, want *Service, have *Observed) (whole, instead []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for of, r := range l.refused[k] {
		if !r.holds(of, want, have) {
			delete(l.refused[k], of)
			continue
		}
		if r.err != "" {
			whole = append(whole, r.err)
		}
		for _, text := range r.instead {
			instead = append(instead, of.object+": "+text)
		}
	}
	if len(l.refused[k]) == 0 {
		delete(l.refused, k)
	}
	for _, all := range []*[]string{&whole, &instead} {
		slices.Sort(*all)
		*all = slices.Compact(*all) // many slices
	}
	return whole, instead
}

// holds reports whether the desired and the observed object are still those of a refusal.
func (r *refusal) holds(of objectName, want *Service, have *Observed) bool {
	var wanted, is sum
	switch of.object {
	case anImport:
		if wanted = want.Imported.sum; have.Import != nil {
			is = have.Import.sum
		}
	case aDerived:
		if wanted = want.sum; have.Service != nil {
			is = have.Service.sum
		}
	case aSlice:
		if sl := want.slice(of.name); sl != nil {
			wanted = sl.sum
		}
		if o := have.Slices[of.name]; o != nil {
			is = o.sum
		}
	}
	return wanted != 0 && wanted == r.want && is == r.got
}
