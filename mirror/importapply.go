package mirror

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/kube-semaphore/internal/keep"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/mirror/mcs"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// importChange makes one change of an import.
func (a *applier) importChange(ctx context.Context, k origin.Key, have *Observed, want *Service, c *Change) (response, error) {
	done, err := a.changeImport(ctx, k, have, want, c)
	a.local.imported.answered(k, c, &done, err)
	return done, err
}

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
	switch i := a.local.imported.imports.Get(k.String()); {
	case i != nil && i.ours && !i.going:
		owner = types.UID(i.UID)
	case c.Verb != verbDelete && (i != nil || c.Object != aDerived):
		return response{}, apierrors.NewNotFound(v1beta1.Resource(v1beta1.ServiceImportPluralName), k.Name)
	}
	if c.Object == aDerived {
		return a.derived(ctx, k, have.Service, want, c, owner)
	}
	return a.importSlice(ctx, k, have.Slices[c.Name], want, c, owner)
}

// terminating marks the error of a namespace that is being deleted: its feed will show that.
func terminating(err error) error {
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return fmt.Errorf("%w: %w", keep.ErrOutdated, err)
	}
	return err
}

func (a *applier) serviceImport(ctx context.Context, k origin.Key, have *ObservedImport, want *Service, c *Change) (response, error) {
	api, ledger := a.client.ServiceImports(k.Namespace), a.local.imported.imports
	if c.Verb == verbDelete {
		err := deleted(ledger, have, api.Delete(ctx, k.Name, exactly(c.have)))
		if err == nil {
			a.local.imported.gone(k)
			a.log.InfoContext(ctx, "service import deleted", "import", k.String(), "reason", c.Why)
		}
		return response{}, err
	}
	object := want.Imported.object(k)
	if s := a.local.imported.service(k); c.Verb == verbCreate && s != nil && s.ours && s.owner == "" && !want.Spec.Headless {
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
		return response{}, terminating(err)
	}
	o := a.sums.observedImport(made)
	ledger.Wrote(o)
	a.log.InfoContext(ctx, "service import written", "verb", c.Verb, "import", k.String(), "clusters", want.Clusters)
	return response{o.sum, differing(c.want, o.sum, ownImport(object), ownImport(made)), instead}, nil
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
	ledger := a.local.imported.imports
	now := ledger.Get(k.String())
	if now == nil || c.have.UID != "" && now.UID != c.have.UID {
		return response{}, keep.ErrOutdated // the next pass has another one
	}
	with := *want.Imported
	if with.IPs = now.spec.IPs; !with.Headless {
		with.Unsupported = !a.local.imported.supported(k)
	}
	is := a.local.imported.get(k, want)
	with.Refused, with.Instead = a.local.imported.refusals(k, want, &is)
	st, differs := statusOf(now, &with)
	if c.want = a.sums.status(st); !differs {
		return response{sum: c.want}, nil
	}
	made, err := patchOf(ctx, a.client.ServiceImports(k.Namespace).Patch, k.Name, mergePatch{
		"metadata": versioned(now.identity),
		"status":   mergePatch{"clusters": st.Clusters, "conditions": st.Conditions, "endpointSliceObjects": st.EndpointSliceObjects},
	}, storing, "status")
	if err != nil {
		return response{}, terminating(err)
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
		return response{}, terminating(err)
	}
	return response{sum: a.sums.conditions(made.Status.Conditions)}, nil
}

func (a *applier) derived(ctx context.Context, k origin.Key, have *ObservedService, want *Service, c *Change, owner types.UID) (response, error) {
	api, ledger := a.client.Services(k.Namespace), a.local.imported.services
	name := mcs.DerivedName(k.Namespace, k.Name)
	if c.Verb == verbDelete {
		err := deleted(ledger, have, api.Delete(ctx, name, exactly(c.have)))
		if err == nil {
			a.log.InfoContext(ctx, "derived service deleted", "import", k.String(), "service", name, "reason", c.Why)
		}
		return response{}, err
	}
	object := want.derived(k, owner)
	made, instead, err := accepted(object, mcs.ServiceOptions(object), func(o *corev1.Service, w writing) (*corev1.Service, error) {
		if c.Verb == verbCreate {
			return api.Create(ctx, o, w.create())
		}
		patch := func(have identity) (*corev1.Service, error) {
			p := owned(marked(have, o, derivedLabels, derivedAnnotations), o.OwnerReferences)
			p["spec"] = servicePatch(have, o)["spec"]
			return patchOf(ctx, api.Patch, name, p, w)
		}
		made, err := patch(c.have)
		if kube.Refused(err) {
			made, err = patch(c.have.withFields()) // as in service
		}
		return made, err
	})
	if apierrors.IsAlreadyExists(err) {
		return response{}, a.notDerived(ctx, k, name, err)
	}
	a.local.imported.support(k, familyUnsupported(err))
	if err != nil {
		return response{}, terminating(err)
	}
	o := a.sums.observedDerived(made)
	ledger.Wrote(o)
	a.log.InfoContext(ctx, "derived service written", "verb", c.Verb, "import", k.String(), "service", name)
	return response{o.sum, differing(c.want, o.sum, ownDerived(object), ownDerived(made)), instead}.owned(o.identity, object.OwnerReferences), nil
}

// notOwned is the difference that another owner makes to the sum of an object of an import in
// keep.Overrides. It is not in sums because the UID of an import that doesn't exist yet is unknown.
const notOwned = 1

// owned returns a response to a request with these owners, at most one.
func (r response) owned(o identity, owners []metav1.OwnerReference) response {
	var owner types.UID
	for _, of := range owners {
		owner = of.UID
	}
	if o.owner != owner {
		r.sum, r.differs = r.sum^notOwned, append(r.differs, "metadata.ownerReferences")
	}
	return r
}

// familyUnsupported reports whether a Service was refused because the cluster doesn't have its
// IP family.
func familyUnsupported(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool {
		return strings.HasPrefix(c.Field, "spec.ipFamilies")
	})
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

func (a *applier) importSlice(ctx context.Context, k origin.Key, have *ObservedSlice, want *Service, c *Change, owner types.UID) (response, error) {
	w := sliceWriter{
		applier: a, api: a.client.EndpointSlices(k.Namespace), ledger: a.local.imported.slices.Ledger, owners: []metav1.OwnerReference{mcs.Owner(k.Name, owner)},
		observed: a.sums.observedImportSlice, own: ownImportSlice, labels: importSliceLabels,
		object: func(s *Slice) *discoveryv1.EndpointSlice { return s.importObject(k, owner) },
	}
	slice, _ := importKey(c.Name)
	w.name = slice.Name
	done, err := w.write(ctx, have, want, c)
	return done, terminating(err)
}
