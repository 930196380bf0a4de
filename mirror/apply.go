package mirror

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/kube-semaphore/internal/event"
	"github.com/kube-semaphore/kube-semaphore/internal/keep"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/pace"
	"github.com/kube-semaphore/kube-semaphore/internal/status"
	"github.com/kube-semaphore/kube-semaphore/mirror/exposed"
	"github.com/kube-semaphore/kube-semaphore/mirror/mcs"
)

const (
	// fieldManager is ours in metadata.managedFields.
	fieldManager = managedBy
	// fieldValidation saves the API server the search for unknown fields.
	fieldValidation = metav1.FieldValidationIgnore
)

// applier applies changes to objects of the mirror namespace. Each has the UID and the
// resource version of its object as preconditions, so that objects that were replaced or
// changed by others are never overwritten.
type applier struct {
	client    kube.Client
	namespace string
	sums      summer
	pace      *pace.Pacer[string]
	local     *local
	events    *event.Recorder
	log       *slog.Logger
	count     func(kind, verb string)
}

// apply makes all changes, also after failures, and joins their errors. Changes that others
// override wait; again is how long until the first of them is due, 0: none waits. The error is
// keep.ErrWaits if nothing has failed, and other changes wait for their turn. The cluster is that
// of what isn't a slice.
func (a *applier) apply(ctx context.Context, past *keep.Overrides[string], cluster string, have *Observed, want *Service, changes []Change) (again time.Duration, err error) {
	writes := make([]keep.Write, len(changes))
	for i := range changes {
		writes[i] = changes[i].write(have, want)
	}
	waits := past.Review(ctx, want.Name, time.Now(), writes)
	may := a.turns(cluster, have, want, changes, func(i int) bool { return waits[i] > 0 }, func(i int) bool { return writes[i].Urgent })
	var errs []error
	var missing []string // objects that could not be created, or deleted for another one
	waiting := false
	for i := range changes {
		c := &changes[i]
		if slices.ContainsFunc(missing, c.needs) {
			continue
		}
		if wait := waits[i]; wait > 0 {
			if again == 0 || wait < again {
				again = wait
			}
			continue
		}
		if !may[i] {
			if waiting = true; c.Verb != verbPatch {
				missing = append(missing, c.Object)
			}
			continue
		}
		done, err := a.change(ctx, have, want, c)
		if err == nil || done.sum != 0 {
			w := &writes[i]
			switch w.Want = uint64(c.want); {
			case err != nil:
				w.Want = uint64(done.sum) // a part of the change
			case c.Verb == verbCreate:
				w.Have = 0 // deleted before, if it existed
			case c.Verb == verbDelete:
				w.Want = 0
			}
			past.Wrote(ctx, want.Name, time.Now(), w, uint64(done.sum), done.differs...)
		}
		if err == nil {
			continue
		}
		if c.Verb != verbPatch {
			missing = append(missing, c.Object)
		}
		err = fmt.Errorf("%s %s %s: %w", c.Verb, c.Object, c.Name, err)
		if apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) {
			err = fmt.Errorf("%w: %w", keep.ErrOutdated, err)
		}
		errs = append(errs, err)
	}
	if waiting && len(errs) == 0 {
		return again, keep.ErrWaits
	}
	return again, errors.Join(errs...)
}

// needs reports whether a change is in vain without another object.
func (c *Change) needs(object string) bool {
	switch object {
	case aService:
		return c.Verb == verbCreate
	case anImport:
		return c.Verb == verbCreate || c.Object == importStatus
	case aDerived:
		return c.Verb == verbCreate && (c.Object == aDerived || c.Object == aSlice)
	}
	return false
}

// write returns a change as Overrides identifies it.
func (c *Change) write(have *Observed, want *Service) keep.Write {
	w := keep.Write{Object: c.Object + " " + c.Name, Have: uint64(c.have.sum), Want: uint64(c.want), By: c.have.by}
	if c.Verb == verbPatch && want.Imported != nil && (c.Object == aDerived || c.Object == aSlice) && !c.have.ownedBy(have.Import) {
		w.Have ^= notOwned
	}
	switch {
	case c.Object == aDerived && c.Verb == verbPatch && have.Service.owner == "":
		w.Object += ", its owner" // which a policy that changes other fields must not hold up
	case c.Verb == verbDelete, c.Ports != nil:
		w.Urgent = true
	case c.Object == aSlice && c.Verb == verbPatch:
		w.Urgent = exposed.Loses([]exposed.Set{have.Slices[c.Name].Set}, []exposed.Set{c.Slice.exposed()})
	}
	return w
}

// response is the object in the response to a write; zero: it was deleted.
type response struct {
	sum     sum
	differs []string // fields that aren't as requested
	// instead is what it has instead of what was refused: see mcs.Accepted.
	instead []string
}

func (a *applier) change(ctx context.Context, have *Observed, want *Service, c *Change) (response, error) {
	a.count(c.Object, c.Verb)
	if k, is := importKey(want.Name); is {
		return a.importChange(ctx, k, have, want, c)
	}
	if c.Object == aService {
		return a.service(ctx, have.Service, want, c)
	}
	return a.slice(ctx, have.Slices[c.Name], want, c)
}

func exactly(o identity) metav1.DeleteOptions {
	uid := types.UID(o.UID)
	return metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &o.ResourceVersion}}
}

// deleted records a successful deletion, also of an object that doesn't exist.
func deleted[T any](ledger *keep.Ledger[T], was *T, err error) error {
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	ledger.Deleted(was)
	return nil
}

// mergePatch is a JSON merge patch (RFC 7386), in which null removes a field.
type mergePatch map[string]any

// marked returns a patch with the preconditions of an object, and its labels and
// annotations: the desired ones, and null for the others.
func marked(have identity, object metav1.Object, labels, annotations []string) mergePatch {
	marks := func(want map[string]string, keys []string) mergePatch {
		m := mergePatch{}
		for _, k := range keys {
			if v, ok := want[k]; ok {
				m[k] = v
			} else {
				m[k] = nil
			}
		}
		return m
	}
	metadata := mergePatch{
		"uid": have.UID, "resourceVersion": have.ResourceVersion,
		"labels": marks(object.GetLabels(), labels), "annotations": marks(object.GetAnnotations(), annotations),
	}
	switch {
	case have.begin:
		metadata["managedFields"] = kube.Tracking(fieldManager, "v1")
	case have.tracked:
		metadata["managedFields"] = kube.Untracked()
	}
	return mergePatch{"metadata": metadata}
}

func (a *applier) service(ctx context.Context, have *ObservedService, want *Service, c *Change) (response, error) {
	api := a.client.Services(a.namespace)
	if c.Verb == verbDelete {
		err := deleted(a.local.services, have, api.Delete(ctx, c.Name, exactly(c.have)))
		if err == nil {
			a.log.InfoContext(ctx, "service deleted", "service", c.Name, "reason", c.Why)
		}
		return response{}, err
	}
	object := want.service(a.namespace)
	made, instead, err := accepted(object, mcs.ServiceOptions(object), func(o *corev1.Service, w writing) (*corev1.Service, error) {
		if c.Verb == verbCreate {
			return api.Create(ctx, o, w.create())
		}
		made, err := patchOf(ctx, api.Patch, c.Name, servicePatch(c.have, o), w)
		if kube.Refused(err) {
			// With managed fields an admission policy can distinguish what we change from what
			// others add to it.
			made, err = patchOf(ctx, api.Patch, c.Name, servicePatch(c.have.withFields(), o), w)
		}
		return made, err
	})
	if err != nil {
		return response{}, err
	}
	o := a.sums.observedService(made)
	a.local.services.Wrote(o)
	a.log.InfoContext(ctx, "service written", "verb", c.Verb, "service", c.Name, "origin", want.Origin.String())
	return response{o.sum, differing(c.want, o.sum, ownService(object), ownService(made)), instead}, nil
}

// withFields returns an identity for a patch after which there are managed fields.
func (o identity) withFields() identity {
	o.begin, o.tracked = o.untracked, false
	return o
}

func servicePatch(have identity, want *corev1.Service) mergePatch {
	spec := mergePatch{
		"type":                     want.Spec.Type,
		"ports":                    want.Spec.Ports,
		"selector":                 nil,
		"externalIPs":              nil,
		"loadBalancerIP":           nil,
		"externalName":             nil,
		"sessionAffinity":          want.Spec.SessionAffinity,
		"sessionAffinityConfig":    want.Spec.SessionAffinityConfig,
		"publishNotReadyAddresses": want.Spec.PublishNotReadyAddresses,
		"internalTrafficPolicy":    want.Spec.InternalTrafficPolicy,
		"trafficDistribution":      want.Spec.TrafficDistribution,
	}
	if p := want.Spec.IPFamilyPolicy; p != nil {
		spec["ipFamilyPolicy"] = *p
	}
	if len(want.Spec.IPFamilies) > 0 {
		spec["ipFamilies"] = want.Spec.IPFamilies
	}
	p := marked(have, want, serviceLabels, serviceAnnotations)
	p["spec"] = spec
	return p
}

// sliceWriter writes the slices of mirrors and global services, or those of one import.
type sliceWriter struct {
	*applier
	api      kube.Objects[*discoveryv1.EndpointSlice, *discoveryv1.EndpointSliceList]
	ledger   *keep.Ledger[ObservedSlice]
	name     string // of the object
	owners   []metav1.OwnerReference
	observed func(*discoveryv1.EndpointSlice) *ObservedSlice
	object   func(*Slice) *discoveryv1.EndpointSlice
	own      func(*discoveryv1.EndpointSlice) ownFields
	// labels and annotations are those that we set and remove.
	labels, annotations []string
}

func (a *applier) slice(ctx context.Context, have *ObservedSlice, want *Service, c *Change) (response, error) {
	w := sliceWriter{
		applier: a, api: a.client.EndpointSlices(a.namespace), ledger: a.local.slices.Ledger, name: c.Name,
		observed: a.sums.observedSlice, own: ownSlice, labels: sliceLabels, annotations: sliceAnnotations,
		object: func(s *Slice) *discoveryv1.EndpointSlice { return s.object(a.namespace, want.Name) },
	}
	return w.write(ctx, have, want, c)
}

func (w *sliceWriter) write(ctx context.Context, have *ObservedSlice, want *Service, c *Change) (response, error) {
	if c.Verb == verbDelete {
		w.log.DebugContext(ctx, "deleting endpoint slice", "service", want.Name, "slice", c.Name)
		return response{}, deleted(w.ledger, have, w.api.Delete(ctx, w.name, exactly(c.have)))
	}
	var object, made *discoveryv1.EndpointSlice
	var instead []string
	var err error
	if c.Slice == nil {
		made, err = w.patch(ctx, c, nil, storing)
		if object = made.DeepCopy(); err == nil {
			object.Ports = c.Ports
		}
	} else {
		object = w.object(c.Slice)
		made, instead, err = accepted(object, mcs.SliceOptions(object), func(o *discoveryv1.EndpointSlice, how writing) (*discoveryv1.EndpointSlice, error) {
			if c.Verb == verbCreate {
				return w.api.Create(ctx, o, how.create())
			}
			return w.patch(ctx, c, o, how)
		})
		if kube.Refused(err) && have != nil {
			return w.withdraw(ctx, have, c, object), err
		}
	}
	if err != nil {
		return response{}, err
	}
	o := w.observed(made)
	w.ledger.Wrote(o)
	w.log.DebugContext(ctx, "endpoint slice written", "service", want.Name, "slice", c.Name, "endpoints", len(made.Endpoints))
	return response{o.sum, differing(c.want, o.sum, w.own(object), w.own(made)), instead}.owned(o.identity, w.owners), nil
}

// patch makes a slice the given object; nil: it restricts its ports.
func (w *sliceWriter) patch(ctx context.Context, c *Change, object *discoveryv1.EndpointSlice, how writing) (*discoveryv1.EndpointSlice, error) {
	var p mergePatch
	if object == nil {
		p = marked(c.have, &discoveryv1.EndpointSlice{}, nil, nil)
		p["ports"] = c.Ports
	} else {
		p = marked(c.have, object, w.labels, w.annotations)
		p["endpoints"], p["ports"] = object.Endpoints, object.Ports
		if w.owners != nil {
			p = owned(p, w.owners)
		}
	}
	return patchOf(ctx, w.api.Patch, w.name, p, how)
}

// withdraw makes only the removals of a refused patch: an endpoint that isn't admitted must
// not keep others from leaving. The caller reports the refusal.
func (w *sliceWriter) withdraw(ctx context.Context, have *ObservedSlice, c *Change, object *discoveryv1.EndpointSlice) response {
	less := object.DeepCopy()
	less.Endpoints = slices.DeleteFunc(less.Endpoints, func(e discoveryv1.Endpoint) bool {
		return slices.ContainsFunc(e.Addresses, func(text string) bool {
			address, err := netip.ParseAddr(text)
			return err != nil || !slices.Contains(have.Addresses, address)
		})
	})
	// Without an endpoint the service would be cut off for the sake of one that is refused.
	if len(less.Endpoints) == len(object.Endpoints) || len(less.Endpoints) == len(have.Addresses) || len(less.Endpoints) == 0 {
		return response{}
	}
	made, err := w.patch(ctx, c, less, storing)
	if err != nil {
		return response{}
	}
	o := w.observed(made)
	w.ledger.Wrote(o)
	w.log.InfoContext(ctx, "endpoints withdrawn, while others are refused", "slice", c.Name, "endpoints", len(less.Endpoints))
	return response{sum: o.sum}
}

// warn creates Events about a service of ours, and joins the errors.
func (a *applier) warn(ctx context.Context, overridden []status.Override, have *Observed, want *Service) error {
	if _, is := importKey(want.Name); is {
		return nil // conditions of exports and imports say it
	}
	o := a.local.services.Get(want.Name)
	if want.Absent || o == nil || !o.ours {
		return nil
	}
	about := corev1.ObjectReference{
		APIVersion: "v1", Kind: "Service", Namespace: a.namespace, Name: o.Name, UID: types.UID(o.UID),
	}
	var errs []error
	record := func(reason, message string) {
		if err := a.events.Warn(ctx, about, reason, message); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", reason, err))
		}
	}
	if len(want.Conflicts) > 0 {
		var lines []string
		for _, conflict := range want.Conflicts {
			lines = append(lines, conflict.Cluster+": "+conflict.What)
		}
		record("Conflict", "the cluster that was first decides, against "+strings.Join(lines, "; "))
	}
	if want.Instead != nil {
		record("NameTaken", fmt.Sprintf("%s has this name because %s has its default name", want.Origin, want.Instead))
	}
	if foreign := have.foreign(want); len(foreign) > 0 {
		record("ForeignEndpoints", "endpoint slices that are not ours: "+strings.Join(foreign, ", "))
	}
	if len(overridden) > 0 {
		record("Overridden", overrides(overridden))
	}
	for _, cluster := range slices.Sorted(maps.Keys(want.Tallies)) {
		if t := want.Tallies[cluster]; t.Rejected > 0 {
			record("EndpointsRefused", fmt.Sprintf("%d of %s, such as %s", t.Rejected, cluster, t.Example))
		}
	}
	return errors.Join(errs...)
}

// overrides returns a text with all objects.
func overrides(all []status.Override) string {
	text := make([]string, 0, len(all))
	for i := range all {
		text = append(text, all[i].String())
	}
	return strings.Join(text, "; ")
}
