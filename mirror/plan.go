package mirror

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/mirror/mcs"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
	"github.com/kube-semaphore/kube-semaphore/mirror/published"
)

// plan returns the desired and the observed state of a local service, without the desired objects,
// see Service.seal. next are other services for which there may be room in a quota now.
func (s *state) plan(name string) (w Service, have Observed, next []string) {
	w = Service{Name: name, Absent: true}
	b := &builder{s: s, w: &w, objects: s.local.of(name), shares: map[*cluster]*taken{}}
	if k, is := importKey(name); is {
		have = s.planImport(b, k)
	} else {
		have = s.planHome(b)
	}
	next = b.settle(&have)
	return w, have, next
}

// planHome plans a mirror or a global service.
func (s *state) planHome(b *builder) (have Observed) {
	w, own := b.w, s.local.home.services.Get(b.w.Name)
	if claims := s.claimsTo(w.Name, own); len(claims) > 0 {
		for _, c := range claims[1:] {
			w.Refused = append(w.Refused, c.id)
		}
		if w.Origin = claims[0].id; w.Origin.Global() {
			b.global(own)
		} else {
			b.mirror()
		}
	}
	if w.Absent {
		delete(s.local.left, w.Name)
	}
	b.end()
	have = s.local.home.get(w)
	if w.Hold, w.Until = s.hold(have.Service, w); len(w.Former) > 0 {
		w.Until = s.removeAt
	}
	return have
}

// claimsTo returns the claims to a name, the first one of which has it. own is the existing Service.
func (s *state) claimsTo(name string, own *ObservedService) []claim {
	var all []claim
	add := func(c claim) {
		if at := slices.IndexFunc(all, func(o claim) bool { return o.id == c.id }); at >= 0 {
			all[at].local = all[at].local || c.local
			return
		}
		c.holds = own != nil && own.ours && own.global == c.id.Global() && own.id.Key == c.id.Key && (own.global || s.clusterOf(own) == c.id.Cluster)
		all = append(all, c)
	}
	for _, c := range s.claims[name] {
		svc := c.set.Service(c.key)
		if !c.set.Synced || svc.Reject != "" {
			continue
		}
		id := c.set.Kind.Of(c.set.Cluster, c.key)
		if id.Global() {
			add(claim{id: id, prefix: globalPrefix, local: c.set.Local})
		} else {
			add(claim{id: id, prefix: s.clusters[id.Cluster].prefix, created: svc.Created})
		}
	}
	if own != nil && own.ours && own.global && GlobalName(own.id.Key) == name && len(s.missing(own.clusters, published.Merged, own.id.Namespace)) > 0 {
		add(claim{id: origin.ID{Key: own.id.Key}, prefix: globalPrefix})
	}
	slices.SortFunc(all, compareClaims)
	return all
}

// missing returns the clusters of which it isn't known what they publish of a namespace.
func (s *state) missing(clusters []string, k published.Kind, namespace string) (all []string) {
	for _, c := range clusters {
		if why, _ := s.unknown(c, k, namespace); why != "" {
			all = append(all, c)
		}
	}
	return all
}

// mirror plans the mirror of the service of one cluster.
func (b *builder) mirror() {
	w, c := b.w, b.s.clusters[b.w.Origin.Cluster]
	set := b.s.sets[published.ID{Cluster: c.name, Kind: published.Mirrored}]
	if !b.admit(c, w.Origin.Namespace) {
		return
	}
	w.Absent, w.prefix, w.Spec = false, c.prefix, set.Service(w.Origin.Key).Spec
	for _, sl := range set.Slices(w.Origin.Key) {
		b.add(c, sl)
	}
	b.grant()
}

// global plans a service that is merged from several clusters.
func (b *builder) global(own *ObservedService) {
	w := b.w
	if own != nil && (!own.ours || !own.global || own.id.Key != w.Origin.Key) {
		own = nil
	}
	running, places := (*mcs.Import)(nil), b.s.local.left[w.Name]
	if own != nil {
		i := own.running(b.s.localCluster().name)
		running, places = &i, i.Places
		delete(b.s.local.left, w.Name)
	}
	merged, ok := b.merge(published.Merged, running, places)
	if !ok {
		return
	}
	slices.Sort(w.Clusters)
	w.prefix, w.LocalFirst = globalPrefix, merged.LocalFirst
	w.Accepted = slices.DeleteFunc(mcs.Exporting(merged.Places), func(c string) bool { return c == b.s.localCluster().name })
	b.use()
}

// merge merges what clusters publish of the service into its spec, and sets b.parts, in the order
// of precedence. places are those of the running service; running is nil if there is none. It
// returns false if no cluster publishes it, or may do so.
func (b *builder) merge(kind published.Kind, running *mcs.Import, places []mcs.Place) (mcs.Import, bool) {
	s, w, k := b.s, b.w, b.w.Origin.Key
	places = s.places(places)
	e := mcs.Exports{Local: s.localCluster().name, Places: places, Running: running, Now: s.now, ByName: kind == published.Merged}
	if running != nil {
		e.Unknown = s.missing(mcs.Exporting(places), kind, k.Namespace)
	}
	parts := map[string]*part{}
	for _, id := range s.order {
		set := s.sets[id]
		if id.Kind != kind || !set.Synced || !set.Has(k) {
			continue
		}
		o, c := set.Service(k), s.clusters[id.Cluster]
		if o.Reject != "" || !c.local && !b.admit(c, k.Namespace) {
			continue
		}
		parts[id.Cluster] = &part{cluster: c, name: c.name, origin: o, local: c.local, stale: set.Stale, drained: c.drained, slices: set.Slices(k)}
		e.Offers = append(e.Offers, o.Offer(id.Cluster))
	}
	if len(e.Offers) == 0 && len(e.Unknown) == 0 {
		return mcs.Import{}, false
	}
	merged, conflict := e.Merge()
	w.Absent, w.Clusters, w.Spec = false, mcs.Exporting(merged.Places), merged.Spec
	if !e.ByName {
		w.Spec.PublishNotReady = false
		for i := range w.Spec.Ports {
			w.Spec.Ports[i].Target = intstr.FromInt32(w.Spec.Ports[i].Port)
		}
	}
	if len(e.Unknown) == 0 {
		w.conflict = conflict
	}
	if e.ByName || len(e.Unknown) == 0 {
		for _, d := range conflict.Differences {
			w.Conflicts = append(w.Conflicts, statuspage.Conflict{Cluster: d.Cluster, What: d.What})
		}
	}
	for _, c := range w.Clusters {
		pt := parts[c]
		if pt == nil { // its state is unknown
			set := s.sets[published.ID{Cluster: c, Kind: kind}]
			if set == nil {
				w.Former = append(w.Former, c)
			}
			pt = &part{name: c, remembered: true, stale: set == nil || set.Stale, drained: s.clusters[c] != nil && s.clusters[c].drained}
			if !e.ByName && !merged.Headless { // of which clients don't request ports
				pt.names = running.Names(&merged, c)
			}
		} else if !e.ByName {
			pt.slices = served(&merged, pt)
		}
		b.parts = append(b.parts, pt)
	}
	return merged, true
}

// places returns places without clusters that are no longer configured when their grace is over.
// Those that still have one come last: they decide nothing.
func (s *state) places(places []mcs.Place) []mcs.Place {
	places = slices.DeleteFunc(slices.Clone(places), func(p mcs.Place) bool {
		return s.clusters[p.Cluster] == nil && s.removal(p.Cluster).IsZero()
	})
	slices.SortStableFunc(places, func(a, b mcs.Place) int {
		return boolCompare(s.clusters[a.Cluster] == nil, s.clusters[b.Cluster] == nil)
	})
	return places
}

// planImport plans an import.
func (s *state) planImport(b *builder, k origin.Key) (have Observed) {
	w, own := b.w, s.local.imports.Get(b.w.Name)
	w.Origin = origin.ID{Cluster: origin.ClusterSet, Key: k}
	if s.importsKnown {
		b.imported(own)
	}
	b.end()
	have = s.local.imported.get(w)
	have.Import, have.Service = own, s.local.derived(k)
	exports := s.sets[published.ID{Cluster: s.localCluster().name, Kind: published.Exported}]
	export := exports.Service(k)
	if export != nil {
		have.Export = export.Export
	}
	if w.Hold, w.Until = s.holdImport(own, w); w.Until.IsZero() && len(w.Former) > 0 {
		w.Until = s.removeAt
	}
	if export != nil && exports.Synced && (w.Imported == nil || w.Imported.Status != nil) {
		w.Conditions = mcs.ExportConditions(s.localCluster().name, export.Export, exportFault(export), &w.conflict, w.Hold)
	}
	return have
}

// imported plans an import of which the running one is known; nil: there is none.
func (b *builder) imported(own *ObservedImport) {
	s, w, k := b.s, b.w, b.w.Origin.Key
	running, places := (*mcs.Import)(nil), s.local.left[w.Name]
	if own != nil {
		if places = own.places; own.ours {
			i := mcs.ParseImport(&own.spec, own.labels, own.annots)
			derived := s.local.derived(k)
			i.LocalFirst = derived != nil && derived.localFirst
			running = &i
		}
	}
	merged, ok := mcs.Import{}, false
	if s.local.usable(k.Namespace) {
		merged, ok = b.merge(published.Exported, running, places)
	}
	if !ok {
		s.local.leave(w.Name, s.places(places), s.now)
		return
	}
	delete(s.local.left, w.Name)
	w.Imported = &Imported{Import: merged}
	if !slices.ContainsFunc(b.parts, func(pt *part) bool { return pt.remembered }) {
		w.Imported.Status = exportedBy(w.Clusters)
	}
	// Endpoints near by are preferred where the export that decides asks for it.
	w.LocalFirst = merged.TrafficDistribution != "" || merged.LocalFirst
	b.use()
}

// exportFault returns why an export of the local cluster is invalid.
func exportFault(o *origin.Service) mcs.Fault {
	switch o.Reject {
	case "":
		return mcs.Fault{}
	case published.RejectNoService:
		return mcs.NoService()
	default:
		return mcs.InvalidService(o.Reject)
	}
}

// exportedBy returns the status of an import without its Ready condition.
func exportedBy(clusters []string) *v1beta1.ServiceImportStatus {
	st := &v1beta1.ServiceImportStatus{EndpointSliceObjects: v1beta1.EndpointSliceObjectsPresent}
	for _, cluster := range slices.Sorted(slices.Values(clusters)) {
		st.Clusters = append(st.Clusters, v1beta1.ClusterStatus{Cluster: cluster})
	}
	return st
}

// hold returns why a mirror or a global service must not be changed: it belongs to a cluster whose
// state is unknown, and may still be desired.
func (s *state) hold(o *ObservedService, want *Service) (why string, until time.Time) {
	if o == nil || !o.ours {
		return "", time.Time{}
	}
	wanted := !want.Absent && (want.Origin.Key == o.id.Key || o.id.Name == "")
	if o.global {
		if wanted && want.Origin.Global() {
			return "", time.Time{}
		}
		for _, cluster := range o.clusters {
			if why, until = s.unknown(cluster, published.Merged, o.id.Namespace); why != "" {
				return "global service of " + why, until
			}
		}
		return "", time.Time{}
	}
	cluster := s.clusterOf(o)
	if wanted && want.Origin.Cluster == cluster {
		return "", time.Time{}
	}
	why, until = s.unknown(cluster, published.Mirrored, o.id.Namespace)
	if why == "" && o.id.Cluster != "" {
		why, until = s.unknown(o.id.Cluster, published.Mirrored, o.id.Namespace) // another cluster may have its prefix by now
	}
	if why == "" {
		return "", time.Time{}
	}
	return "mirror of " + why, until
}

// holdImport returns why an import must not be changed. A new one waits until each cluster was
// read once since start, for a limited time, so that it is complete when it is first seen. A
// running one isn't removed while one of its clusters is unknown.
func (s *state) holdImport(o *ObservedImport, want *Service) (why string, until time.Time) {
	if !s.importsKnown {
		return "imports have not been read since start", time.Time{}
	}
	if o == nil && !want.Absent {
		if s.importAfter.IsZero() {
			return "", time.Time{}
		}
		for _, id := range s.order {
			if id.Kind == published.Exported && !s.sets[id].Synced {
				return "waiting for the exports of " + id.Cluster + ", which has not synced since start", s.importAfter
			}
		}
	}
	if o != nil && o.ours && want.Absent {
		for _, cluster := range mcs.Exporting(o.places) {
			if why, until = s.unknown(cluster, published.Exported, o.key.Namespace); why != "" {
				return "import of " + why, until
			}
		}
	}
	return "", time.Time{}
}

// keeps reports whether a slice of a service of one cluster, or of none, stays: the state of its
// cluster is unknown. Those of services of several clusters are in parts.
func (s *state) keeps(want *Service, o *ObservedSlice) bool {
	_, isImport := importKey(want.Name)
	if isImport || !want.Absent && (want.Origin.Global() || o.cluster != "") {
		return false
	}
	if o.cluster == "" {
		return slices.ContainsFunc(s.order, func(id published.ID) bool { return id.Kind != published.Exported && !s.sets[id].Synced })
	}
	for _, k := range []published.Kind{published.Mirrored, published.Merged} {
		set := s.sets[published.ID{Cluster: o.cluster, Kind: k}]
		if set != nil && !set.Synced || s.clusters[o.cluster] == nil && !s.removal(o.cluster).IsZero() {
			return true
		}
	}
	return false
}
