package mirror

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/kube-semaphore/mirror/exposed"
	"github.com/kube-semaphore/kube-semaphore/mirror/mcs"
)

// Verbs and objects of a Change, as in metrics.
const (
	verbCreate = "create"
	verbPatch  = "patch"
	verbDelete = "delete"

	aService     = "service"
	aSlice       = "endpointslice"
	anImport     = "serviceimport"
	aDerived     = "derived service"
	importStatus = "serviceimport status"
	exportStatus = "serviceexport status"
)

// Change is a change of one object. Changes are independent, except that a service is
// deleted before it is created with the same name.
type Change struct {
	Verb, Object string
	Name         string
	Slice        *Slice // the desired one
	// Why is the reason of a deletion.
	Why  string
	have identity // of the changed or deleted object
	want sum      // of the desired object; 0: none
	// conditions are those of an export. The status of an import depends on the writes before.
	conditions []metav1.Condition
}

// Diff returns the changes from the observed to the desired state, in the order in which they are
// made.
//
//	| observed         | desired     | change                                                      |
//	| ---------------- | ----------- | ----------------------------------------------------------- |
//	| anything         | held        | none, except to the status of an export                     |
//	| foreign object   | anything    | none; of a foreign Service or import our slices are deleted |
//	| ours, deleting   | anything    | none: it waits for finalizers                               |
//	| none             | an object   | create                                                      |
//	| ours             | another one | patch; or delete and create if immutable                    |
//	| ours             | none        | delete                                                      |
//	| a slice          | kept        | patch, if it has ports that must go                         |
//
// An import comes before what it owns, but a new Service before a new import, which has its
// addresses. The order of slices is that of inOrder.
func (h summer) Diff(have *Observed, want *Service) []Change {
	var changes []Change
	if want.Hold == "" {
		changes = diffObjects(have, want)
	}
	return append(changes, h.diffStatus(have, want)...)
}

func diffObjects(have *Observed, want *Service) []Change {
	_, isImport := importKey(want.Name)
	wanted, slices := !want.Absent, true
	var changes []Change
	if isImport {
		changes = diffImport(have.Import, want)
		going := have.Import != nil && have.Import.going
		wanted = wanted && (have.Import == nil || have.Import.ours)
		slices = wanted && !going
		wanted = slices && !want.Spec.Headless
	}
	service := diffService(have, want, wanted)
	if isImport && have.Import == nil && have.Service == nil {
		changes = append(service, changes...)
	} else {
		changes = append(changes, service...)
	}
	// Slices of a foreign Service would be endpoints of it.
	if foreign := have.Service != nil && !have.Service.ours; foreign && (!isImport || !want.Spec.Headless) {
		slices = false
	}
	if !slices {
		want = &Service{Name: want.Name, Absent: true}
	}
	return append(changes, inOrder(have, diffSlices(have, want))...)
}

// diffImport returns the change of a ServiceImport.
func diffImport(o *ObservedImport, want *Service) []Change {
	c := Change{Object: anImport, Name: want.Name}
	if want.Imported != nil {
		c.want = want.Imported.sum
	}
	if o != nil {
		c.have = o.identity
	}
	switch {
	case o == nil && want.Imported == nil, o != nil && (!o.ours || o.going || o.sum == c.want):
		return nil
	case o == nil:
		c.Verb = verbCreate
	case want.Imported == nil:
		c.Verb, c.Why = verbDelete, "no cluster exports it"
	default:
		c.Verb = verbPatch
	}
	return []Change{c}
}

// diffService returns the changes of the Service, or of the derived one of an import.
func diffService(have *Observed, want *Service, wanted bool) []Change {
	o, c, gone := have.Service, Change{Object: aService, Name: want.Name, want: want.sum}, "no origin"
	_, isImport := importKey(want.Name)
	if isImport {
		c.Object, gone = aDerived, "no import has its addresses"
	}
	if o != nil {
		c.have = o.identity
	}
	switch {
	case o == nil && !wanted:
		return nil
	case o == nil:
		c.Verb = verbCreate
	case !o.ours, o.going:
		return nil
	case !wanted:
		c.Verb, c.Why, c.want = verbDelete, gone, 0
	case o.sum == want.sum && (!isImport || o.ownedBy(have.Import)):
		return nil
	case mustBeAnother(o, want):
		again := c
		again.Verb = verbCreate
		c.Verb, c.Why = verbDelete, "its cluster IP or first IP family is immutable"
		return []Change{c, again}
	default:
		c.Verb = verbPatch
	}
	return []Change{c}
}

// diffSlices returns the changes of slices.
func diffSlices(have *Observed, want *Service) (changes []Change) {
	_, isImport := importKey(want.Name)
	for i := range want.Slices {
		w := &want.Slices[i]
		switch o := have.Slices[w.Name]; {
		case o == nil && w.kept != nil:
		case o == nil:
			changes = append(changes, Change{Verb: verbCreate, Object: aSlice, Name: w.Name, Slice: w, want: w.sum})
		case !o.ours, o.going, o.sum == w.sum && (!isImport || w.kept != nil || o.ownedBy(have.Import)):
		default:
			changes = append(changes, Change{Verb: verbPatch, Object: aSlice, Name: w.Name, Slice: w, have: o.identity, want: w.sum})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(have.Slices)) {
		o := have.Slices[name]
		if o.ours && !o.going && o.service == want.Name && want.slice(name) == nil {
			changes = append(changes, Change{Verb: verbDelete, Object: aSlice, Name: name, have: o.identity})
		}
	}
	return changes
}

// gains returns the ready addresses that a slice gets by a change, and loses those that it loses.
func (c *Change) gains(have *Observed) []netip.Addr { return lacking(c.before(have), c.after()) }
func (c *Change) loses(have *Observed) []netip.Addr { return lacking(c.after(), c.before(have)) }

func (c *Change) before(have *Observed) []netip.Addr {
	if o := have.Slices[c.Name]; o != nil {
		return o.Addresses[:o.Ready]
	}
	return nil
}

func (c *Change) after() []netip.Addr {
	if c.Slice == nil {
		return nil
	}
	e := c.Slice.exposed()
	return e.Addresses[:e.Ready]
}

// lacking returns the addresses of b that a lacks.
func lacking(a, b []netip.Addr) (all []netip.Addr) {
	has := make(map[netip.Addr]bool, len(a))
	for _, address := range a {
		has[address] = true
	}
	for _, address := range b {
		if !has[address] {
			all = append(all, address)
		}
	}
	return all
}

// inOrder sorts the changes of slices, so that an endpoint that moves to another slice is always in
// one of them: each change comes after those that get what it loses. Apart from that, what must go
// goes first, unless it may be the last of a frontend: that goes after others have come.
func inOrder(have *Observed, changes []Change) (sorted []Change) {
	coming, stays := map[netip.Addr][]int{}, staying(have, changes)
	rank := make([]int, len(changes))
	for i := range changes {
		for _, address := range changes[i].gains(have) {
			coming[address] = append(coming[address], i)
		}
		switch {
		case !changes[i].urgent(have):
			rank[i] = 1
		case slices.ContainsFunc(have.Slices[changes[i].Name].frontends(), func(f exposed.Frontend) bool { return !stays[f] }):
			rank[i] = 2
		}
	}
	added := make([]bool, len(changes))
	var add func(i int)
	add = func(i int) {
		if added[i] {
			return
		}
		added[i] = true // two that swap endpoints are in any order
		for _, address := range changes[i].loses(have) {
			getting := coming[address]
			delete(coming, address)
			for _, n := range getting {
				add(n)
			}
		}
		sorted = append(sorted, changes[i])
	}
	for r := range 3 {
		for i := range changes {
			if rank[i] == r {
				add(i)
			}
		}
	}
	return sorted
}

// staying returns the frontends with a ready endpoint in a slice that loses nothing.
func staying(have *Observed, changes []Change) map[exposed.Frontend]bool {
	loses, stays := map[string]bool{}, map[exposed.Frontend]bool{}
	for i := range changes {
		loses[changes[i].Name] = changes[i].urgent(have)
	}
	for name, o := range have.Slices {
		if o.ours && !o.going && o.Ready > 0 && !loses[name] {
			for _, f := range o.frontends() {
				stays[f] = true
			}
		}
	}
	return stays
}

// frontends returns those that a slice has endpoints for.
func (o *ObservedSlice) frontends() []exposed.Frontend {
	if len(o.Ports) == 0 {
		return []exposed.Frontend{exposed.AllPorts(o.family)}
	}
	all := make([]exposed.Frontend, len(o.Ports))
	for i := range o.Ports {
		all[i] = exposed.FrontendOf(o.family, &o.Ports[i])
	}
	return all
}

// diffStatus returns the changes of the status of an import and of an export.
func (h summer) diffStatus(have *Observed, want *Service) (changes []Change) {
	if i := have.Import; want.Imported != nil && want.Imported.Status != nil && want.Hold == "" && (i == nil || i.ours && !i.going) {
		if i == nil {
			i = &ObservedImport{}
		}
		if st, differs := statusOf(i, want.Imported); differs {
			is := i.identity
			is.sum = h.status(&i.status)
			changes = append(changes, Change{Verb: verbPatch, Object: importStatus, Name: want.Name, have: is, want: h.status(st)})
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

// statusOf returns the desired status of an import, and whether it differs.
func statusOf(o *ObservedImport, want *Imported) (*v1beta1.ServiceImportStatus, bool) {
	waiting := ""
	if !want.Headless && len(want.IPs) == 0 {
		waiting = "its Service has no addresses yet"
	}
	st := *want.Status
	unsupported := want.Unsupported && (want.Headless || waiting != "")
	all, differs := mcs.SetConditions(o.status.Conditions, []metav1.Condition{mcs.ImportCondition(waiting, unsupported, want.Rejected, want.Instead)}, o.age)
	st.Conditions = all
	return &st, differs || !slices.Equal(st.Clusters, o.status.Clusters) || st.EndpointSliceObjects != o.status.EndpointSliceObjects
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
	if want.Absent {
		return nil
	}
	var errs []error
	foreign := func(kind, name string) { errs = append(errs, fmt.Errorf("%s %s: %w", kind, name, errForeign)) }
	if i := have.Import; i != nil && !i.ours {
		foreign("service import", i.Name)
	}
	if o := have.Service; o != nil && !o.ours && (want.Imported == nil || !want.Spec.Headless) {
		foreign("service", o.Name)
	}
	for i := range want.Slices {
		if o := have.Slices[want.Slices[i].Name]; o != nil && !o.ours {
			foreign("endpoint slice", o.Name)
		}
	}
	return errors.Join(errs...)
}
