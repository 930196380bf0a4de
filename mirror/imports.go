package mirror

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/kube-semaphore/internal/status"
	"github.com/kube-semaphore/kube-semaphore/mirror/mcs"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// Reasons for which an export doesn't make an import.
const (
	rejectNoService = "there is no Service of this name"
	rejectDerived   = "the Service is that of an import"
	rejectHome      = "its namespace is that of mirrors, in which nothing is imported"
)

// export updates the export of a key in a set of exported services; nil: it was deleted.
func (s *Snapshot) export(id setID, k origin.Key, after *mcs.Export) {
	set := s.sets[id]
	if set.exports[k] != nil && after == nil {
		for _, sl := range set.slices[k] {
			s.place(set, sl, -1)
		}
	}
	began := set.exports[k] == nil && after != nil
	if delete(set.exports, k); after != nil {
		set.exports[k] = after
	}
	if began {
		for _, sl := range set.slices[k] {
			s.place(set, sl, 1)
		}
	}
	s.origin(id, k, s.join(set, k))
}

// exportable updates a service of a set of exported services; nil: it was deleted.
func (s *Snapshot) exportable(id setID, k origin.Key, after *origin.Service) {
	set := s.sets[id]
	if delete(set.services, k); after != nil {
		set.services[k] = after
	}
	if set.exports[k] != nil {
		s.origin(id, k, s.join(set, k))
	}
}

// join returns the origin of a key in a set: its service, if it is exported; nil: it isn't.
func (s *Snapshot) join(set *set, k origin.Key) *origin.Service {
	export, service := set.exports[k], set.services[k]
	switch {
	case export == nil:
		return nil
	case k.Namespace == s.home:
		return &origin.Service{Key: k, Export: export, Reject: rejectHome}
	case mcs.IsDerivedName(k.Name):
		return &origin.Service{Key: k, Export: export, Reject: rejectDerived}
	case service == nil:
		return &origin.Service{Key: k, Export: export, Reject: rejectNoService}
	}
	joined := *service
	joined.Export = export
	if export.Cluster != "" && export.Cluster != set.cluster.name && !set.cluster.local {
		joined.Reject = "the cluster calls itself " + export.Cluster + ", and is configured here as " + set.cluster.name
	}
	return &joined
}

// exportFault returns why an export of the local cluster is invalid.
func exportFault(o *origin.Service) mcs.Fault {
	switch o.Reject {
	case "":
		return mcs.Fault{}
	case rejectNoService:
		return mcs.NoService()
	default:
		return mcs.InvalidService(o.Reject)
	}
}

// importName returns the name of an import among local services; empty: there is nothing to
// compute.
func (s *Snapshot) importName(m *Memo, k origin.Key) string {
	if !s.importsKnown {
		return ""
	}
	if s.ownExport(k) != nil || len(m.importParts(s, k)) > 0 {
		return k.String()
	}
	if own, missing := s.rememberedImport(k); own != nil && len(missing) > 0 {
		return k.String()
	}
	return ""
}

// ownExport returns the export of the local cluster; nil: none.
func (s *Snapshot) ownExport(k origin.Key) *origin.Service {
	for _, id := range s.order {
		if set := s.sets[id]; id.kind == exported && set.cluster.local {
			return set.origins[k]
		}
	}
	return nil
}

// importParts returns the parts of an import, in the order of configuration.
func (m *Memo) importParts(s *Snapshot, k origin.Key) []*part {
	var parts []*part
	for _, id := range s.order {
		if id.kind != exported {
			continue
		}
		if o := m.copied(s, id, k); o != nil {
			set := s.sets[id]
			parts = append(parts, &part{
				set: set, cluster: id.cluster, origin: o, local: set.cluster.local, stale: set.stale, drained: s.drained[id.cluster],
				slices: set.slices[k],
			})
		}
	}
	return parts
}

// rememberedImport returns the running import, and the clusters of it whose exports are
// unknown.
func (s *Snapshot) rememberedImport(k origin.Key) (own *ObservedImport, missing []string) {
	own = s.local.imported.imports.Get(k.String())
	if own == nil || !own.ours {
		return nil, nil
	}
	for _, i := range own.exports {
		if why, _ := s.unknown(i.Cluster, exported); why != "" {
			missing = append(missing, i.Cluster)
		}
	}
	return own, missing
}

// imported fills in an import.
func (b *builder) imported(w *Service) {
	s, k := b.s, w.Origin.Key
	parts := b.m.importParts(s, k)
	own, missing := s.rememberedImport(k)
	if len(parts) == 0 && len(missing) == 0 || !s.local.imported.usable(k.Namespace) {
		w.Absent = true
		return
	}
	offers := make([]mcs.Offer, 0, len(parts)+1)
	for _, pt := range parts {
		offers = append(offers, pt.origin.Offer(pt.cluster))
	}
	var running []mcs.Incumbent
	var headless *bool
	if own != nil {
		was := own.spec.Type == v1beta1.Headless
		running, headless = own.exports, &was
	}
	mcs.Rank(offers, running)
	if len(missing) > 0 {
		// Until these clusters have been read, nothing of the running import changes.
		offers = slices.Insert(offers, 0, own.offer())
	}
	merged, conflict := mcs.Merge(offers, headless)
	if len(missing) > 0 {
		merged.Exports = remembering(running, merged.Exports[1:], missing)
	}
	w.Imported = &Imported{Import: merged}
	w.Spec = origin.Spec{Traits: origin.Traits{Headless: merged.Headless, AffinityTimeout: merged.AffinityTimeout, IPv4: merged.IPv4, IPv6: merged.IPv6}}
	for _, p := range merged.Ports {
		w.Spec.Ports = append(w.Spec.Ports, origin.Port{Name: p.Name, Protocol: p.Protocol, Port: p.Port, Target: intstr.FromInt32(p.Port), AppProtocol: p.AppProtocol})
	}
	for _, i := range merged.Exports {
		w.Clusters = append(w.Clusters, i.Cluster)
	}
	if len(missing) == 0 {
		for _, d := range conflict.Differences {
			w.Conflicts = append(w.Conflicts, status.Conflict{Cluster: d.Cluster, What: d.What})
		}
		w.conflict = conflict
		w.Imported.Status = exportedBy(merged.Exports)
	}
	// Endpoints near by are preferred where the first export asks for it.
	w.LocalFirst = merged.TrafficDistribution != "" || len(parts) > 0 && first(parts, merged.Exports).origin.LocalFirst
	for _, pt := range parts {
		pt.slices = served(&merged, pt)
	}
	candidates := slices.Clone(parts)
	for _, c := range missing {
		set := s.sets[setID{c, exported}]
		if set == nil {
			w.Former = append(w.Former, c)
		}
		candidates = append(candidates, &part{cluster: c, remembered: true, stale: set == nil || set.stale, drained: s.drained[c]})
	}
	b.use(w, candidates)
}

// first returns the part of the first export that there is one of.
func first(parts []*part, exports []mcs.Incumbent) *part {
	for _, i := range exports {
		for _, pt := range parts {
			if pt.cluster == i.Cluster {
				return pt
			}
		}
	}
	return parts[0]
}

// exportedBy returns the status of an import without its Ready condition.
func exportedBy(exports []mcs.Incumbent) *v1beta1.ServiceImportStatus {
	st := &v1beta1.ServiceImportStatus{EndpointSliceObjects: v1beta1.EndpointSliceObjectsPresent}
	for _, i := range exports {
		st.Clusters = append(st.Clusters, v1beta1.ClusterStatus{Cluster: i.Cluster})
	}
	slices.SortFunc(st.Clusters, func(a, b v1beta1.ClusterStatus) int { return strings.Compare(a.Cluster, b.Cluster) })
	return st
}

// remembering returns the exports of the offers, and those of clusters that are unknown at
// their rank in the running import.
func remembering(running, offered []mcs.Incumbent, missing []string) []mcs.Incumbent {
	var all []mcs.Incumbent
	for _, i := range running {
		if slices.Contains(missing, i.Cluster) || slices.Contains(offered, i) {
			all = append(all, i)
		}
	}
	for _, i := range offered {
		if !slices.Contains(all, i) {
			all = append(all, i)
		}
	}
	return all
}

// offer returns what a running import is, as an offer.
func (o *ObservedImport) offer() mcs.Offer {
	offer := mcs.Offer{Export: &mcs.Export{Labels: maps.Clone(o.labels), Annotations: maps.Clone(o.annots)}, Headless: o.spec.Type == v1beta1.Headless}
	delete(offer.Labels, mcs.LabelImported)
	delete(offer.Annotations, mcs.AnnotExports)
	delete(offer.Annotations, mcs.AnnotDerived)
	if c := o.spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		offer.AffinityTimeout = *c.ClientIP.TimeoutSeconds
	}
	if p := o.spec.InternalTrafficPolicy; p != nil {
		offer.InternalTrafficPolicy = *p
	}
	if p := o.spec.TrafficDistribution; p != nil {
		offer.TrafficDistribution = *p
	}
	for _, family := range o.spec.IPFamilies {
		offer.IPv4, offer.IPv6 = offer.IPv4 || family == corev1.IPv4Protocol, offer.IPv6 || family == corev1.IPv6Protocol
	}
	for _, p := range o.spec.Ports {
		port := mcs.Port{Name: p.Name, Protocol: p.Protocol, Port: p.Port}
		if p.AppProtocol != nil {
			port.AppProtocol = *p.AppProtocol
		}
		offer.Ports = append(offer.Ports, port)
	}
	return offer
}

// served returns the slices of a part with the ports that it serves: those that its Service
// has with the number that won. A slice that loses all its ports is dropped: to some consumers
// a slice without ports has all of them.
func served(i *mcs.Import, pt *part) map[string]*origin.Slice {
	offer := pt.origin.Offer(pt.cluster)
	lost := func(p discoveryv1.EndpointPort) bool { return !i.Serves(&offer, *p.Name) }
	if !slices.ContainsFunc(offer.Ports, func(p mcs.Port) bool { return !i.Serves(&offer, p.Name) }) {
		return pt.slices
	}
	some := map[string]*origin.Slice{}
	for name, sl := range pt.slices {
		if slices.ContainsFunc(sl.Ports, lost) {
			restricted := *sl
			if restricted.Ports = slices.DeleteFunc(slices.Clone(sl.Ports), lost); len(restricted.Ports) == 0 {
				continue
			}
			sl = &restricted
		}
		some[name] = sl
	}
	return some
}

// wantImport is want for an import.
func (s *Snapshot) wantImport(m *Memo, k origin.Key) (Service, Observed) {
	w := Service{Name: k.String(), Absent: true}
	planned := m.services[w.Name]
	if planned != nil {
		w = *planned
	}
	have := s.local.imported.get(k, &w)
	own := s.ownExport(k)
	if own != nil {
		have.Export = own.Export
	}
	w.Hold, w.Until = s.holdImport(have.Import, &w)
	if w.Until.IsZero() && len(w.Former) > 0 {
		w.Until = s.removeAt
	}
	if w.Imported != nil {
		with := *w.Imported
		w.Imported, with.Unsupported = &with, !s.local.imported.supported(k)
		if cluster := s.local.imported.clusterFamilies(); w.Spec.Headless {
			with.Families = with.Import.Families(cluster)
			with.Unsupported = len(with.Families) == 0 && len(cluster) > 0
		}
		if o := have.Service; o != nil && o.ours && !w.Spec.Headless && !o.spec.Headless && (o.owner == "" || o.ownedBy(have.Import)) {
			with.IPs, with.Families = o.ips, o.families
		}
		with.sum = s.sums.serviceImport(with.object(k))
		with.Refused, with.Instead = s.local.imported.refusals(k, &w, &have)
	}
	if own != nil && s.sets[setID{s.localCluster(), exported}].synced && (w.Imported == nil || w.Imported.Status != nil) {
		w.Conditions = mcs.ExportConditions(s.localCluster(), own.Export, exportFault(own), &w.conflict, w.Hold)
	}
	if w.Imported != nil {
		w.keep(have, func(o *ObservedSlice) (Retained, bool) { return w.retain(o, s.sums) })
	}
	return w, have
}

// localCluster returns the name of the local cluster.
func (s *Snapshot) localCluster() string {
	for _, id := range s.order {
		if s.sets[id].cluster.local {
			return id.cluster
		}
	}
	return ""
}

// holdImport returns why an import must not be changed. A new one waits until each cluster was
// read once since start, for a limited time, so that it is complete when it is first seen. A
// running one isn't removed while one of its clusters is unknown.
func (s *Snapshot) holdImport(o *ObservedImport, want *Service) (why string, until time.Time) {
	if !s.importsKnown {
		return "imports have not been read since start", time.Time{}
	}
	if o == nil && !want.Absent {
		if s.importAfter.IsZero() {
			return "", time.Time{}
		}
		for _, id := range s.order {
			if id.kind == exported && !s.sets[id].synced {
				return "waiting for the exports of " + id.cluster + ", which has not synced since start", s.importAfter
			}
		}
	}
	if o != nil && o.ours && want.Absent {
		for _, i := range o.exports {
			if why, until = s.unknown(i.Cluster, exported); why != "" {
				return "import of " + why, until
			}
		}
	}
	return "", time.Time{}
}
