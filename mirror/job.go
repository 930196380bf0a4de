package mirror

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// job is what there is to compare for one local service.
type job struct {
	name string
	// want is what must be; nil: nothing.
	want *target
	// service, slices and endpoints are what is.
	service   *ownService
	slices    map[string]*ownSlice
	endpoints *ownEndpoints
	// surplus are slices that must go.
	surplus []*ownSlice
	// foreign are slices of others for this service.
	foreign []string
	// hold is why nothing may be done for now; empty: go on.
	hold string
}

// look returns the job for a service. The caller holds the controller's lock.
func (c *Controller) look(name string) *job {
	j := &job{
		name: name, want: c.plan.names[name], service: c.own.services.get(name),
		endpoints: c.own.endpoints.get(name), slices: map[string]*ownSlice{},
	}
	wanted := map[string]bool{}
	if j.want != nil {
		for i := range j.want.slices {
			n := j.want.slices[i].name
			wanted[n] = true
			// Also one whose label somebody bent towards another service.
			if have := c.own.slices.get(n); have != nil {
				j.slices[n] = have
			}
		}
	}
	for _, have := range c.own.slices.groups[name] {
		switch {
		case !have.ours:
			if c.mirrored(j) {
				j.foreign = append(j.foreign, have.name)
			}
		case wanted[have.name], c.keeps(j.want, have), c.plan.wants(have.name):
		default:
			j.surplus = append(j.surplus, have)
		}
	}
	slices.Sort(j.foreign)
	j.hold = c.plan.holds(j)
	return j
}

// mirrored reports whether a job is about a service that is ours.
func (c *Controller) mirrored(j *job) bool {
	return j.want != nil || j.service != nil && j.service.ours
}

// keeps reports whether a slice that isn't wanted stays nevertheless, because
// nothing is known of where it is from.
func (c *Controller) keeps(want *target, have *ownSlice) bool {
	if want != nil && want.id.Global() {
		if have.cluster == "" {
			return len(want.keeps) > 0
		}
		return slices.Contains(want.keeps, have.cluster)
	}
	if have.cluster == "" {
		return c.plan.anyUnknown()
	}
	return want == nil && c.plan.unknown(have.cluster)
}

// anyUnknown reports whether any set has not been read since start.
func (p *plan) anyUnknown() bool {
	for _, s := range p.sets {
		if !s.known {
			return true
		}
	}
	return false
}

// unknown reports whether a cluster is configured and something of it has not
// been read since start.
func (p *plan) unknown(cluster string) bool {
	for _, k := range []setKind{mirrorSet, globalSet} {
		if s := p.sets[setID{cluster, k}]; s != nil && !s.known {
			return true
		}
	}
	return false
}

// clusterOf returns the configured cluster that a service is a mirror of.
func (p *plan) clusterOf(o *ownService) string {
	if o.id.Cluster != "" {
		return o.id.Cluster
	}
	for _, id := range p.order {
		if s := p.sets[id]; id.kind == mirrorSet && s.cluster.prefix == o.prefix {
			return id.cluster
		}
	}
	return ""
}

// holds returns why a job must wait: it would overwrite or remove what may
// still be wanted by a cluster that has not been heard of since start.
func (p *plan) holds(j *job) string {
	o := j.service
	if o == nil || !o.ours {
		return ""
	}
	if o.global {
		if j.want != nil && j.want.id.Global() && (j.want.id.Key == o.id.Key || o.id.Name == "") {
			return ""
		}
		for _, cluster := range o.clusters {
			if s := p.sets[setID{cluster, globalSet}]; s != nil && !s.known {
				return fmt.Sprintf("global service of %s, which has not been heard of since start", cluster)
			}
		}
		return ""
	}
	cluster := p.clusterOf(o)
	if j.want != nil && j.want.id.Cluster == cluster && (j.want.id == o.id || o.id.Name == "") {
		return ""
	}
	if s := p.sets[setID{cluster, mirrorSet}]; s != nil && !s.known {
		return fmt.Sprintf("mirror of %s, which has not been heard of since start", cluster)
	}
	return ""
}

// run brings one local service to what it must be.
func (c *Controller) run(ctx context.Context, name string) error {
	c.mu.Lock()
	j := c.look(name)
	c.mu.Unlock()
	c.note(j)
	if j.hold != "" {
		return nil
	}
	if j.want == nil {
		return c.remove(ctx, j)
	}
	if err := c.putService(ctx, j); err != nil {
		return err
	}
	errs := []error{c.putSlices(ctx, j)}
	if c.cfg.LegacyEndpoints {
		errs = append(errs, c.putEndpoints(ctx, j))
	}
	c.tell(ctx, j)
	return errors.Join(errs...)
}

// remove removes what is left of a service that must not be.
func (c *Controller) remove(ctx context.Context, j *job) error {
	if o := j.service; o != nil && o.ours {
		if err := c.write.deleteService(ctx, o, "no origin"); err != nil {
			return err
		}
		c.update(func(now time.Time) { c.own.serviceDeleted(o, now) })
	}
	errs := []error{c.removeSlices(ctx, j)}
	if e := j.endpoints; e != nil && e.ours {
		err := c.write.deleteEndpoints(ctx, e)
		if err == nil {
			c.update(func(now time.Time) { c.own.endpoints.deleted(e, now) })
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// update changes the holdings under the lock.
func (c *Controller) update(f func(now time.Time)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(time.Now())
}

func (c *Controller) putService(ctx context.Context, j *job) error {
	o, want := j.service, j.want.service(c.cfg.Namespace)
	switch {
	case o == nil:
	case !o.ours:
		return fmt.Errorf("service %s: %w", j.name, errForeign)
	case o.sum == c.sums.service(want):
		return nil
	case mustBeAnother(o, want):
		if err := c.write.deleteService(ctx, o, "its addresses can't become those of its origin"); err != nil {
			return err
		}
		c.update(func(now time.Time) { c.own.serviceDeleted(o, now) })
		o = nil
	}
	var made *ownService
	var err error
	if o == nil {
		made, err = c.write.createService(ctx, j.want)
	} else {
		made, err = c.write.patchService(ctx, o, j.want)
	}
	if err != nil {
		return err
	}
	j.service = made
	c.update(func(now time.Time) { c.own.serviceWritten(made, now) })
	return nil
}

// mustBeAnother reports whether a Service can't become what it must be:
// whether it has an address, and the family of its first one, are for life.
func mustBeAnother(have *ownService, want *corev1.Service) bool {
	if have.spec.Headless != (want.Spec.ClusterIP == corev1.ClusterIPNone) {
		return true
	}
	return len(want.Spec.IPFamilies) > 0 && have.family != "" && have.family != want.Spec.IPFamilies[0]
}

// putSlices writes what is there before it removes what isn't.
func (c *Controller) putSlices(ctx context.Context, j *job) error {
	var errs []error
	for i := range j.want.slices {
		errs = append(errs, c.putSlice(ctx, j, &j.want.slices[i]))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return c.removeSlices(ctx, j)
}

func (c *Controller) putSlice(ctx context.Context, j *job, w *wantSlice) error {
	want := w.object(c.cfg.Namespace, j.want)
	have := j.slices[w.name]
	var made *ownSlice
	var err error
	switch {
	case have == nil:
		made, err = c.write.createSlice(ctx, j.want, want)
	case !have.ours:
		return fmt.Errorf("endpoint slice %s: %w", w.name, errForeign)
	case have.sum == c.sums.slice(want):
		return nil
	default:
		made, err = c.write.patchSlice(ctx, have, j.want, want)
	}
	if err != nil {
		return err
	}
	c.update(func(now time.Time) { c.own.slices.wrote(made, now) })
	return nil
}

func (c *Controller) removeSlices(ctx context.Context, j *job) error {
	var errs []error
	for _, have := range j.surplus {
		if err := c.write.deleteSlice(ctx, have, j.name); err != nil {
			errs = append(errs, err)
			continue
		}
		c.update(func(now time.Time) { c.own.slices.deleted(have, now) })
	}
	return errors.Join(errs...)
}

func (c *Controller) putEndpoints(ctx context.Context, j *job) error {
	family := j.service.family
	if family == "" {
		family = corev1.IPv4Protocol
	}
	want := j.want.endpoints(c.cfg.Namespace, family)
	have := j.endpoints
	if have != nil && have.sum == c.sums.endpoints(want) {
		return nil
	}
	if have != nil && !have.ours {
		return fmt.Errorf("endpoints %s: %w", j.name, errForeign)
	}
	made, err := c.write.putEndpoints(ctx, have, want)
	if err != nil {
		return err
	}
	c.update(func(now time.Time) { c.own.endpoints.wrote(made, now) })
	return nil
}

// tell makes Events of what an operator must know of a service.
func (c *Controller) tell(ctx context.Context, j *job) {
	if j.service == nil {
		return
	}
	about := corev1.ObjectReference{
		APIVersion: "v1", Kind: "Service", Namespace: c.cfg.Namespace, Name: j.service.name, UID: j.service.uid,
	}
	warn := func(reason, message string) {
		if err := c.events.Warn(ctx, about, reason, message); err != nil {
			c.log.WarnContext(ctx, "event not made", "service", j.name, "reason", reason, "err", err)
		}
	}
	if len(j.want.conflicts) > 0 {
		var lines []string
		for _, conflict := range j.want.conflicts {
			lines = append(lines, conflict.Cluster+": "+conflict.What)
		}
		warn("Conflict", "who was there first decides, against "+strings.Join(lines, "; "))
	}
	if j.want.instead != nil {
		warn("NameTaken", fmt.Sprintf("%s would have the name of %s and has this one instead", j.want.id, j.want.instead))
	}
	if len(j.foreign) > 0 {
		warn("ForeignEndpoints", "endpoint slices that are not ours: "+strings.Join(j.foreign, ", "))
	}
	for _, cluster := range slices.Sorted(maps.Keys(j.want.tallies)) {
		if sum := j.want.tallies[cluster]; sum.refused > 0 {
			warn("EndpointsRefused", fmt.Sprintf("%d of %s, such as %s", sum.refused, cluster, sum.example))
		}
	}
}
