package mirror

import (
	"context"
	"encoding/json"
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
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/kube-semaphore/internal/event"
	"github.com/kube-semaphore/kube-semaphore/internal/keep"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/pace"
	"github.com/kube-semaphore/kube-semaphore/internal/report"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/mirror/mcs"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// removalPatience is the maximum time for writing an object other than a slice if removals of
// endpoints come after it: all objects of a service share keep.DefaultTimeout, which an admission
// webhook that doesn't answer would use up. Later attempts, without removals, have all of it.
const removalPatience = 5 * time.Second

const (
	// fieldManager is ours in metadata.managedFields.
	fieldManager = managedBy
	// fieldValidation saves the API server the search for unknown fields.
	fieldValidation = metav1.FieldValidationIgnore
)

// applier applies changes. Each has the UID and the resource version of its object as
// preconditions, so that objects that were replaced or changed by others are never overwritten.
type applier struct {
	client kube.Client
	home   string // namespace of mirrors
	sums   summer
	pace   *pace.Pacer[string]
	local  *local
	events *event.Recorder
	log    *slog.Logger
	count  func(kind, verb string)
}

// apply makes all changes, also after failures, and joins their errors. Changes that others
// override wait; again is how long until the first of them is due, 0: none is. The error is
// keep.ErrWaits if nothing has failed, and other changes wait for their turn. The cluster is that
// of what isn't a slice.
func (a *applier) apply(ctx context.Context, past *keep.Overrides[string], cluster string, have *Observed, want *Service, changes []Change) (again time.Duration, err error) {
	objects, waits := make([]string, len(changes)), make([]time.Duration, len(changes))
	for i := range changes {
		objects[i] = changes[i].name(have)
		waits[i] = past.Wait(time.Now(), want.Name, objects[i], uint64(changes[i].want))
	}
	lost := map[netip.Addr]bool{}
	for i := range changes {
		if c := &changes[i]; c.Object == aSlice {
			for _, address := range c.loses(have) {
				lost[address] = true
			}
		}
	}
	may := a.turns(cluster, want, changes, func(i int) bool { return waits[i] > 0 }, func(i int) bool {
		// One that gets an endpoint comes with the one that loses it, which waits for it.
		return changes[i].urgent(have) || slices.ContainsFunc(changes[i].gains(have), func(address netip.Addr) bool { return lost[address] })
	})
	later := func(wait time.Duration) {
		if again == 0 || wait < again {
			again = wait
		}
	}
	var errs []error
	var missing []string // objects that could not be created, or deleted for another one
	waiting := false
	late := map[netip.Addr]bool{} // endpoints that another slice doesn't have yet
	for i := range changes {
		c := &changes[i]
		if slices.ContainsFunc(missing, c.needs) {
			continue
		}
		if wait := waits[i]; wait > 0 {
			later(wait)
			continue
		}
		if !may[i] || c.Object == aSlice && slices.ContainsFunc(c.loses(have), func(address netip.Addr) bool { return late[address] }) {
			if waiting = true; c.Object == aSlice {
				for _, address := range c.gains(have) {
					late[address] = true
				}
			} else if c.Verb != verbPatch {
				missing = append(missing, c.Object)
			}
			continue
		}
		bounded, cancel := c.patience(ctx, have, changes[i+1:])
		done, err := a.change(bounded, have, want, c)
		cancel()
		if err == nil {
			stored := c.Verb == verbDelete || done.sum == c.want
			if c.Verb != verbDelete || c.want == 0 { // another deletion is a part of a creation
				past.Wrote(ctx, time.Now(), want.Name, objects[i], uint64(c.want), stored)
			}
			if !stored {
				later(keep.LongestWait) // no event says that it is to be written again
			}
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

// name names the object of a change in keep.Overrides.
func (c *Change) name(have *Observed) string {
	name := c.Object + " " + c.Name
	if c.Object == aDerived && c.Verb == verbPatch && have.Service.owner == "" {
		name += ", its owner" // which a policy that changes other fields must not hold up
	}
	return name
}

// urgent reports whether a change removes something.
func (c *Change) urgent(have *Observed) bool {
	if c.Object == aSlice && c.Verb == verbPatch {
		next := c.Slice.exposed()
		return have.Slices[c.Name].Loses(&next)
	}
	return c.Verb == verbDelete
}

// patience bounds the time for a change by removalPatience, where that is needed. later are the
// changes after it.
func (c *Change) patience(ctx context.Context, have *Observed, later []Change) (context.Context, context.CancelFunc) {
	for i := range later {
		if c.Object != aSlice && later[i].Object == aSlice && later[i].urgent(have) {
			return context.WithTimeout(ctx, removalPatience)
		}
	}
	return ctx, func() {}
}

// response is the object in the response to a write; zero: it was deleted.
type response struct {
	sum sum
	// instead is what it has instead of what was refused: see mcs.Accepted.
	instead []string
}

// change makes one change.
func (a *applier) change(ctx context.Context, have *Observed, want *Service, c *Change) (response, error) {
	a.count(c.Object, c.Verb)
	k, isImport := importKey(want.Name)
	if !isImport {
		return a.changeObject(ctx, k, have, want, c, "")
	}
	done, err := a.changeImport(ctx, k, have, want, c)
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		err = fmt.Errorf("%w: %w", keep.ErrOutdated, err) // the feed of namespaces will show it
	}
	a.local.answers.answered(k, c, &done, err)
	return done, err
}

// changeImport makes one change of an import.
func (a *applier) changeImport(ctx context.Context, k origin.Key, have *Observed, want *Service, c *Change) (response, error) {
	switch c.Object {
	case anImport:
		return a.serviceImport(ctx, k, have.Import, want, c)
	case importStatus:
		return a.importStatus(ctx, k, want, c)
	case exportStatus:
		return a.exportStatus(ctx, k, c)
	}
	var owner types.UID
	switch i := a.local.imports.Get(k.String()); {
	case i != nil && i.ours && !i.going:
		owner = types.UID(i.UID)
	case c.Verb != verbDelete && (i != nil || c.Object != aDerived):
		return response{}, apierrors.NewNotFound(v1beta1.Resource(v1beta1.ServiceImportPluralName), k.Name)
	}
	return a.changeObject(ctx, k, have, want, c, owner)
}

// changeObject makes one change of a Service or a slice. owner is the import of both, if it exists.
func (a *applier) changeObject(ctx context.Context, k origin.Key, have *Observed, want *Service, c *Change, owner types.UID) (response, error) {
	if c.Object == aSlice {
		return a.slice(ctx, have.Slices[c.Name], want, c, owner)
	}
	return a.service(ctx, k, have.Service, want, c, owner)
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
func marked(have identity, object metav1.Object, m *marks) mergePatch {
	some := func(want map[string]string, keys []string) mergePatch {
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
		"labels": some(object.GetLabels(), m.labels), "annotations": some(object.GetAnnotations(), m.annotations),
	}
	switch {
	case have.begin:
		metadata["managedFields"] = kube.Tracking(fieldManager, "v1")
	case have.tracked:
		metadata["managedFields"] = kube.Untracked()
	}
	return mergePatch{"metadata": metadata}
}

// patchOf makes a merge patch with the method of a client.
func patchOf[T any](ctx context.Context, patch func(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (T, error), name string, p mergePatch, w writing, subresources ...string) (T, error) {
	data, err := json.Marshal(p)
	if err != nil {
		var none T
		return none, err
	}
	return patch(ctx, name, types.MergePatchType, data, w.patch(), subresources...)
}

// service writes a mirror, a global service or the derived one of an import.
func (a *applier) service(ctx context.Context, k origin.Key, have *ObservedService, want *Service, c *Change, owner types.UID) (response, error) {
	object, ledger := want.object(a.home, owner), a.local.of(want.Name).services
	api, name, log := a.client.Services(object.Namespace), object.Name, a.log.With("service", object.Name, "origin", want.Origin.String())
	if c.Verb == verbDelete {
		err := deleted(ledger, have, api.Delete(ctx, name, exactly(c.have)))
		if err == nil {
			log.InfoContext(ctx, "service deleted", "reason", c.Why)
		}
		return response{}, err
	}
	m, _ := marksOf(want.Name)
	made, instead, err := accepted(object, mcs.ServiceOptions(object), func(o *corev1.Service, w writing) (*corev1.Service, error) {
		if c.Verb == verbCreate {
			return api.Create(ctx, o, w.create())
		}
		made, err := patchOf(ctx, api.Patch, name, servicePatch(c.have, o, m), w)
		if kube.Refused(err) {
			// With managed fields an admission policy can distinguish what we change from what
			// others add to it.
			made, err = patchOf(ctx, api.Patch, name, servicePatch(c.have.withFields(), o, m), w)
		}
		return made, err
	})
	if c.Object == aDerived && apierrors.IsAlreadyExists(err) {
		return response{}, a.notDerived(ctx, k, name, err)
	}
	if err != nil {
		return response{}, err
	}
	o := a.sums.observedService(made)
	if c.Object == aDerived {
		o = a.sums.observedDerived(made)
	}
	ledger.Wrote(o)
	log.InfoContext(ctx, "service written", "verb", c.Verb)
	return response{o.sum, instead}, nil
}

// withFields returns an identity for a patch after which there are managed fields.
func (o identity) withFields() identity {
	o.begin, o.tracked = o.untracked, false
	return o
}

func servicePatch(have identity, want *corev1.Service, m *marks) mergePatch {
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
	p := marked(have, want, m)
	p["spec"] = spec
	if m == &derivedMarks {
		p = owned(p, want.OwnerReferences)
	}
	return p
}

// notDerived returns why a derived Service already exists: it is another client's, which the
// feed of derived ones doesn't show, or it is not shown yet. The account may list Services, and
// not get them.
func (a *applier) notDerived(ctx context.Context, k origin.Key, name string, exists error) error {
	list, err := a.client.Services(k.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err == nil && len(list.Items) == 1 && !a.sums.observedDerived(&list.Items[0]).ours {
		return fmt.Errorf("service %s: %w", name, errForeign)
	}
	return exists
}

func owned(p mergePatch, owners []metav1.OwnerReference) mergePatch {
	if m, ok := p["metadata"].(mergePatch); ok {
		m["ownerReferences"] = owners
	}
	return p
}

// slice writes a slice of a local service.
func (a *applier) slice(ctx context.Context, have *ObservedSlice, want *Service, c *Change, owner types.UID) (response, error) {
	w := sliceWriter{applier: a, want: want, c: c, ledger: a.local.of(want.Name).slices, name: c.Name, observed: a.sums.observedSlice}
	_, w.marks = marksOf(want.Name)
	namespace := a.home
	if k, is := importKey(want.Name); is {
		slice, _ := importKey(c.Name)
		namespace, w.name, w.observed, w.owners = k.Namespace, slice.Name, a.sums.observedImportSlice, []metav1.OwnerReference{mcs.Owner(k.Name, owner)}
	}
	w.api = a.client.EndpointSlices(namespace)
	return w.write(ctx, have, owner)
}

// sliceWriter makes a change of a slice.
type sliceWriter struct {
	*applier
	want     *Service
	c        *Change
	api      kube.Objects[*discoveryv1.EndpointSlice, *discoveryv1.EndpointSliceList]
	ledger   *keep.Ledger[ObservedSlice]
	name     string // of the object
	observed func(*discoveryv1.EndpointSlice) *ObservedSlice
	marks    *marks
	owners   []metav1.OwnerReference // of a slice of an import
}

func (w *sliceWriter) write(ctx context.Context, have *ObservedSlice, owner types.UID) (response, error) {
	c := w.c
	if c.Verb == verbDelete {
		w.log.DebugContext(ctx, "deleting endpoint slice", "service", w.want.Name, "slice", c.Name)
		return response{}, deleted(w.ledger, have, w.api.Delete(ctx, w.name, exactly(c.have)))
	}
	var made *discoveryv1.EndpointSlice
	var instead []string
	var err error
	if c.Slice.kept != nil {
		made, err = w.patch(ctx, nil, storing)
	} else {
		object := c.Slice.object(w.home, w.want, owner)
		made, instead, err = accepted(object, mcs.SliceOptions(object), func(o *discoveryv1.EndpointSlice, how writing) (*discoveryv1.EndpointSlice, error) {
			if c.Verb == verbCreate {
				return w.api.Create(ctx, o, how.create())
			}
			return w.patch(ctx, o, how)
		})
		if kube.Refused(err) && have != nil {
			return w.withdraw(ctx, have, object), err
		}
	}
	if err != nil {
		return response{}, err
	}
	o := w.observed(made)
	w.ledger.Wrote(o)
	w.log.DebugContext(ctx, "endpoint slice written", "service", w.want.Name, "slice", c.Name, "endpoints", len(made.Endpoints))
	return response{o.sum, instead}, nil
}

// patch makes a slice the given object; nil: it restricts the ports of a kept one.
func (w *sliceWriter) patch(ctx context.Context, object *discoveryv1.EndpointSlice, how writing) (*discoveryv1.EndpointSlice, error) {
	var p mergePatch
	if object == nil {
		p = marked(w.c.have, &discoveryv1.EndpointSlice{}, &marks{})
		p["ports"] = w.c.Slice.origin.Ports
	} else {
		p = marked(w.c.have, object, w.marks)
		p["endpoints"], p["ports"] = object.Endpoints, object.Ports
		if w.owners != nil {
			p = owned(p, w.owners)
		}
	}
	return patchOf(ctx, w.api.Patch, w.name, p, how)
}

// withdraw makes only the removals of a refused patch: an endpoint that isn't admitted must
// not keep others from leaving. The caller reports the refusal.
func (w *sliceWriter) withdraw(ctx context.Context, have *ObservedSlice, object *discoveryv1.EndpointSlice) response {
	less := object.DeepCopy()
	less.Endpoints = slices.DeleteFunc(less.Endpoints, func(e discoveryv1.Endpoint) bool {
		return slices.ContainsFunc(e.Addresses, func(text string) bool {
			address, err := netip.ParseAddr(text)
			return err != nil || !slices.Contains(have.Addresses, address)
		})
	})
	next := w.observed(less).Set
	// Without a ready endpoint the service would be cut off for the sake of one that is refused.
	cutOff := len(less.Endpoints) == 0 || next.Ready == 0 && have.Ready > 0
	if len(less.Endpoints) == len(object.Endpoints) || !have.Loses(&next) || cutOff {
		return response{}
	}
	made, err := w.patch(ctx, less, storing)
	if err != nil {
		return response{}
	}
	o := w.observed(made)
	w.ledger.Wrote(o)
	w.log.InfoContext(ctx, "endpoints withdrawn, while others are refused", "slice", w.c.Name, "endpoints", len(less.Endpoints))
	return response{sum: o.sum}
}

// serviceImport writes a ServiceImport.
func (a *applier) serviceImport(ctx context.Context, k origin.Key, have *ObservedImport, want *Service, c *Change) (response, error) {
	api, ledger := a.client.ServiceImports(k.Namespace), a.local.imports
	if c.Verb == verbDelete {
		err := deleted(ledger, have, api.Delete(ctx, k.Name, exactly(c.have)))
		if err == nil {
			a.local.answers.gone(k)
			a.log.InfoContext(ctx, "service import deleted", "import", k.String(), "reason", c.Why)
		}
		return response{}, err
	}
	object := want.Imported.object(k)
	if s := a.local.derived(k); c.Verb == verbCreate && s != nil && s.ours && s.owner == "" && !want.Spec.Headless {
		object.Spec.IPs, object.Spec.IPFamilies = s.ips, s.families
		c.want = a.sums.serviceImport(object)
		want.Imported.sum = c.want
	}
	made, instead, err := accepted(object, mcs.ImportOptions(object), func(o *v1beta1.ServiceImport, w writing) (*v1beta1.ServiceImport, error) {
		if c.Verb == verbCreate {
			return api.Create(ctx, o, w.create())
		}
		return patchOf(ctx, api.Patch, k.Name, importPatch(c.have, have, o), w)
	})
	if err != nil {
		return response{}, err
	}
	o := a.sums.observedImport(made)
	ledger.Wrote(o)
	a.log.InfoContext(ctx, "service import written", "verb", c.Verb, "import", k.String(), "clusters", want.Clusters)
	return response{o.sum, instead}, nil
}

// importPatch replaces the spec, and all labels and annotations: exported ones that are no
// longer exported go.
func importPatch(have identity, was *ObservedImport, object *v1beta1.ServiceImport) mergePatch {
	marks := func(was, want map[string]string) mergePatch {
		m := mergePatch{}
		for key := range was {
			m[key] = nil
		}
		for key, value := range want {
			m[key] = value
		}
		return m
	}
	p := mergePatch{
		"metadata": versioned(have),
		"spec": mergePatch{
			"type": object.Spec.Type, "ports": object.Spec.Ports, "ips": object.Spec.IPs, "ipFamilies": object.Spec.IPFamilies,
			"sessionAffinity": object.Spec.SessionAffinity, "sessionAffinityConfig": object.Spec.SessionAffinityConfig,
			"internalTrafficPolicy": object.Spec.InternalTrafficPolicy, "trafficDistribution": object.Spec.TrafficDistribution,
		},
	}
	if was != nil {
		metadata := versioned(have)
		metadata["labels"], metadata["annotations"] = marks(was.labels, object.Labels), marks(was.annots, object.Annotations)
		p["metadata"] = metadata
	}
	return p
}

// versioned returns the preconditions of a patch, without managed fields of ours.
func versioned(have identity) mergePatch {
	m := mergePatch{"uid": have.UID, "resourceVersion": have.ResourceVersion}
	if have.tracked {
		m["managedFields"] = kube.Untracked()
	}
	return m
}

// importStatus writes the status of an import, as it is after earlier changes.
func (a *applier) importStatus(ctx context.Context, k origin.Key, want *Service, c *Change) (response, error) {
	ledger := a.local.imports
	now := ledger.Get(k.String())
	if now == nil || c.have.UID != "" && now.UID != c.have.UID {
		return response{}, keep.ErrOutdated // the next pass has another one
	}
	with := *want.Imported
	with.IPs = now.spec.IPs
	is := a.local.imported.get(want)
	is.Import, is.Service = now, a.local.derived(k)
	with.Rejected, with.Instead = a.local.answers.refusals(k, want, &is)
	st, differs := statusOf(now, &with)
	if c.want = a.sums.status(st); !differs {
		return response{sum: c.want}, nil
	}
	made, err := patchOf(ctx, a.client.ServiceImports(k.Namespace).Patch, k.Name, mergePatch{
		"metadata": versioned(now.identity),
		"status":   mergePatch{"clusters": st.Clusters, "conditions": st.Conditions, "endpointSliceObjects": st.EndpointSliceObjects},
	}, storing, "status")
	if err != nil {
		return response{}, err
	}
	o := a.sums.observedImport(made)
	ledger.Wrote(o)
	return response{sum: a.sums.status(&o.status)}, nil
}

// exportStatus writes the status of an export of the local cluster, whose feed shows it.
func (a *applier) exportStatus(ctx context.Context, k origin.Key, c *Change) (response, error) {
	made, err := patchOf(ctx, a.client.ServiceExports(k.Namespace).Patch, k.Name, mergePatch{
		"metadata": mergePatch{"uid": c.have.UID, "resourceVersion": c.have.ResourceVersion},
		"status":   mergePatch{"conditions": c.conditions},
	}, storing, "status")
	if err != nil {
		return response{}, err
	}
	return response{sum: a.sums.conditions(made.Status.Conditions)}, nil
}

// warn creates Events about a service of ours, and joins the errors.
func (a *applier) warn(ctx context.Context, overridden []statuspage.Override, have *Observed, want *Service) error {
	if _, is := importKey(want.Name); is {
		return nil // conditions of exports and imports say it
	}
	o := a.local.home.services.Get(want.Name)
	if want.Absent || o == nil || !o.ours {
		return nil
	}
	about := corev1.ObjectReference{
		APIVersion: "v1", Kind: "Service", Namespace: a.home, Name: o.Name, UID: types.UID(o.UID),
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
	if len(want.Refused) > 0 {
		var others []string
		for _, id := range want.Refused {
			others = append(others, id.String())
		}
		record("NameTaken", fmt.Sprintf("%s has this name, and therefore not copied: %s", want.Origin, report.Some(others)))
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
func overrides(all []statuspage.Override) string {
	text := make([]string, 0, len(all))
	for i := range all {
		text = append(text, all[i].String())
	}
	return strings.Join(text, "; ")
}
