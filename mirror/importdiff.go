package mirror

import (
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/kube-semaphore/mirror/mcs"
)

// Objects of changes of an import, as in metrics.
const (
	anImport     = "serviceimport"
	aDerived     = "derived service"
	importStatus = "serviceimport status"
	exportStatus = "serviceexport status"
)

// diffImport returns the changes from the observed to the desired state of an import, in the
// order in which they are made: the import before what it owns, but a new Service before a new
// import, which has its addresses.
//
//	| observed import  | desired | change                                              |
//	| ---------------- | ------- | --------------------------------------------------- |
//	| another client's | any     | our objects are removed                             |
//	| none             | held    | none but the status of the export                   |
//	| none             | some    | create its Service, it, and its slices; own Service |
//	| ours             | some    | patch what differs; slices by name                  |
//	| ours             | none    | delete with its objects                             |
func (h summer) diffImport(have Observed, want Service) []Change {
	var changes []Change
	if want.Hold == "" {
		changes = diffImported(have, &want)
	}
	if i := have.Import; want.Imported != nil && want.Imported.Status != nil && want.Hold == "" && (i == nil || i.ours && !i.going) {
		if i == nil {
			i = &ObservedImport{}
		}
		if st, differs := statusOf(i, want.Imported); differs {
			changes = append(changes, Change{Verb: verbPatch, Object: importStatus, Name: want.Name, have: i.of(h.status(&i.status)), want: h.status(st)})
		}
	}
	if x := have.Export; x != nil && x.Status != nil && want.Conditions != nil {
		if all, differs := mcs.SetConditions(x.Status.Conditions, want.Conditions, x.Status.Generation); differs {
			is := identity{}
			is.UID, is.ResourceVersion, is.sum = x.Status.UID, x.Status.ResourceVersion, h.conditions(x.Status.Conditions)
			changes = append(changes, Change{Verb: verbPatch, Object: exportStatus, Name: want.Name, have: is, want: h.conditions(all), conditions: all})
		}
	}
	return changes
}

func diffImported(have Observed, want *Service) []Change {
	var changes []Change
	i, w := have.Import, want.Imported
	switch {
	case i == nil && w != nil:
		changes = append(changes, Change{Verb: verbCreate, Object: anImport, Name: want.Name, want: w.sum})
	case i == nil, i.going && i.ours:
	case !i.ours:
		w = nil
	case w == nil:
		changes = append(changes, Change{Verb: verbDelete, Object: anImport, Name: want.Name, Why: "no cluster exports it", have: i.identity})
	case i.sum != w.sum:
		changes = append(changes, Change{Verb: verbPatch, Object: anImport, Name: want.Name, have: i.identity, want: w.sum})
	}
	going := i != nil && i.going
	if derived := diffDerived(have, want, w != nil && !going && !want.Spec.Headless); i == nil && have.Service == nil {
		changes = append(derived, changes...)
	} else {
		changes = append(changes, derived...)
	}
	// Slices of a foreign Service would be endpoints of it.
	foreign := have.Service != nil && !have.Service.ours && !want.Spec.Headless
	if w == nil || going || foreign {
		want = &Service{Name: want.Name, Absent: true}
	}
	return diffSlices(changes, have, want, func(o *ObservedSlice) bool { return o.ownedBy(i) })
}

func diffDerived(have Observed, want *Service, wanted bool) []Change {
	o := have.Service
	c := Change{Object: aDerived, Name: want.Name}
	if o != nil {
		c.have = o.identity
	}
	if wanted {
		c.want = want.Imported.derivedSum
	}
	switch {
	case o == nil && !wanted:
		return nil
	case o == nil:
		c.Verb = verbCreate
	case !o.ours, o.going:
		return nil
	case !wanted:
		c.Verb, c.Why = verbDelete, "no import has its addresses"
	case o.sum == c.want && o.ownedBy(have.Import):
		return nil
	case mustBeAnother(o, want):
		c.Verb, c.Why, c.want = verbDelete, "its first IP family is immutable", 0
		return []Change{c, {Verb: verbCreate, Object: aDerived, Name: want.Name, have: c.have, want: want.Imported.derivedSum}}
	default:
		c.Verb = verbPatch
	}
	return []Change{c}
}

// statusOf returns the desired status of an import, and whether it differs.
func statusOf(o *ObservedImport, want *Imported) (*v1beta1.ServiceImportStatus, bool) {
	waiting := ""
	if !want.Headless && len(want.IPs) == 0 {
		waiting = "its Service has no addresses yet"
	}
	st := *want.Status
	unsupported := want.Unsupported && (want.Headless || waiting != "")
	all, differs := mcs.SetConditions(o.status.Conditions, []metav1.Condition{mcs.ImportCondition(waiting, unsupported, want.Refused, want.Instead)}, o.age)
	st.Conditions = all
	return &st, differs || !slices.Equal(st.Clusters, o.status.Clusters) || st.EndpointSliceObjects != o.status.EndpointSliceObjects
}

// of returns an identity with another sum.
func (o identity) of(s sum) identity {
	o.sum = s
	return o
}

// status hashes the status of an import, without times.
func (h summer) status(st *v1beta1.ServiceImportStatus) sum {
	return h.of(st.Clusters, st.EndpointSliceObjects, h.conditions(st.Conditions))
}

// conditions hashes conditions, without times.
func (h summer) conditions(all []metav1.Condition) sum {
	timeless := slices.Clone(all)
	for i := range timeless {
		timeless[i].LastTransitionTime = metav1.Time{}
	}
	return h.of(timeless)
}

// importInTheWay returns an error for foreign objects with names of an import's.
func importInTheWay(have *Observed, want *Service) error {
	if want.Imported == nil {
		return nil
	}
	var errs []error
	if i := have.Import; i != nil && !i.ours {
		errs = append(errs, fmt.Errorf("service import %s: %w", i.Name, errForeign))
	}
	if o := have.Service; o != nil && !o.ours && !want.Spec.Headless {
		errs = append(errs, fmt.Errorf("service %s: %w", o.Name, errForeign))
	}
	for n := range want.Slices {
		if o := have.Slices[want.Slices[n].Name]; o != nil && !o.ours {
			errs = append(errs, fmt.Errorf("endpoint slice %s: %w", o.Name, errForeign))
		}
	}
	return errors.Join(errs...)
}
