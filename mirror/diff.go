package mirror

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Verbs and objects of a Change, as in metrics.
const (
	verbCreate = "create"
	verbPatch  = "patch"
	verbDelete = "delete"

	aService = "service"
	aSlice   = "endpointslice"
)

// Change is a change of one object. Changes are independent, except that a service is
// deleted before it is created with the same name.
type Change struct {
	Verb, Object string
	Name         string
	// Slice is the desired slice, or Ports are those that a retained one is restricted to.
	Slice *Slice
	Ports []discoveryv1.EndpointPort
	// Why is the reason of a deletion.
	Why  string
	have identity // of the changed or deleted object
	want sum      // of the desired object; 0: none
	// conditions are those of an export. The status of an import depends on the writes before.
	conditions []metav1.Condition
}

// Diff returns the changes from the observed to the desired state.
//
//	| observed       | desired     | change                                   |
//	| -------------- | ----------- | ---------------------------------------- |
//	| anything       | held        | none                                     |
//	| foreign object | anything    | none                                     |
//	| ours, deleting | anything    | none: it waits for finalizers            |
//	| none           | an object   | create                                   |
//	| ours           | another one | patch; or delete and create if immutable |
//	| ours           | none        | delete                                   |
//	| a slice        | retained    | patch, if it has ports that must go      |
//
// If the Service is foreign, slices of ours are deleted.
func Diff(have Observed, want Service) []Change {
	if want.Hold != "" {
		return nil
	}
	foreign := have.Service != nil && !have.Service.ours
	if foreign {
		want = Service{Name: want.Name, Absent: true}
	}
	return diffSlices(diffService(nil, have.Service, &want), have, &want, func(*ObservedSlice) bool { return true })
}

// diffSlices adds the changes of slices. Owned reports whether a slice has the owner that it
// must have.
func diffSlices(changes []Change, have Observed, want *Service, owned func(*ObservedSlice) bool) []Change {
	for i := range want.Slices {
		w := &want.Slices[i]
		switch o := have.Slices[w.Name]; {
		case o == nil:
			changes = append(changes, Change{Verb: verbCreate, Object: aSlice, Name: w.Name, Slice: w, want: w.sum})
		case !o.ours, o.going, o.sum == w.sum && owned(o):
		default:
			changes = append(changes, Change{Verb: verbPatch, Object: aSlice, Name: w.Name, Slice: w, have: o.identity, want: w.sum})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(have.Slices)) {
		o := have.Slices[name]
		if !o.ours || o.going || o.service != want.Name || want.slice(name) != nil {
			continue
		}
		switch r := want.retained(name); {
		case r == nil:
			changes = append(changes, Change{Verb: verbDelete, Object: aSlice, Name: name, have: o.identity})
		case r.sum != o.sum:
			changes = append(changes, Change{Verb: verbPatch, Object: aSlice, Name: name, Ports: r.Ports, have: o.identity, want: r.sum})
		}
	}
	return changes
}

func diffService(changes []Change, o *ObservedService, want *Service) []Change {
	c := Change{Object: aService, Name: want.Name, want: want.sum}
	if o != nil {
		c.have = o.identity
	}
	switch {
	case o == nil && want.Absent:
		return changes
	case o == nil:
		c.Verb = verbCreate
	case !o.ours, o.going:
		return changes
	case want.Absent:
		c.Verb, c.Why, c.want = verbDelete, "no origin", 0
	case o.sum == want.sum:
		return changes
	case mustBeAnother(o, want):
		c.Verb, c.Why = verbDelete, "its cluster IP or first IP family is immutable"
		return append(changes, c, Change{Verb: verbCreate, Object: aService, Name: want.Name, have: c.have, want: want.sum})
	default:
		c.Verb = verbPatch
	}
	return append(changes, c)
}

// mustBeAnother reports whether a Service must be deleted and created: whether it is
// headless, and its first IP family, are immutable.
func mustBeAnother(have *ObservedService, want *Service) bool {
	if have.spec.Headless != want.Spec.Headless {
		return true
	}
	_, families := families(want.Spec.Traits)
	return len(families) > 0 && have.family != "" && have.family != families[0]
}

// errForeign means that a foreign object has the name of one of ours. An operator must
// decide which one stays.
var errForeign = errors.New("in the way and not ours")

// inTheWay returns an error for foreign objects with names of ours.
func inTheWay(have *Observed, want *Service) error {
	if _, is := importKey(want.Name); is {
		return importInTheWay(have, want)
	}
	if want.Absent {
		return nil
	}
	if o := have.Service; o != nil && !o.ours {
		return fmt.Errorf("service %s: %w", want.Name, errForeign)
	}
	var errs []error
	for i := range want.Slices {
		if o := have.Slices[want.Slices[i].Name]; o != nil && !o.ours {
			errs = append(errs, fmt.Errorf("endpoint slice %s: %w", o.Name, errForeign))
		}
	}
	return errors.Join(errs...)
}
