package mirror

import (
	"cmp"
	"slices"
	"time"

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
	rejectNamespace = "nothing is imported from the cluster in this namespace"
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
	case !set.cluster.mayExport(k.Namespace):
		return &origin.Service{Key: k, Export: export, Reject: rejectNamespace}
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
	for _, cluster := range mcs.Exporting(own.places) {
		if why, _ := s.unknown(cluster, exported); why != "" {
			missing = append(missing, cluster)
		}
	}
	return own, missing
}

// places returns those of an import that runs, or has just gone, without clusters that are no
// longer configured.
func (s *Snapshot) places(k origin.Key, own *ObservedImport) []mcs.Place {
	places := s.local.imported.left[k]
	if own != nil {
		places = own.places
	}
	return slices.DeleteFunc(slices.Clone(places), func(p mcs.Place) bool {
		return !s.clusters[p.Cluster] && s.removal(p.Cluster).IsZero()
	})
}

// leaveImport remembers the places of an import that has no export any more.
func (s *Snapshot) leaveImport(k origin.Key) {
	own, _ := s.rememberedImport(k)
	s.local.imported.leave(k, mcs.Leave(s.places(k, own), s.now), s.now)
}

// imported fills in an import.
func (b *builder) imported(w *Service) {
	s, k := b.s, w.Origin.Key
	parts := b.m.importParts(s, k)
	own, missing := s.rememberedImport(k)
	places := s.places(k, own)
	if len(parts) == 0 && len(missing) == 0 || !s.local.imported.usable(k.Namespace) {
		w.Absent = true
		s.leaveImport(k)
		return
	}
	delete(s.local.imported.left, k)
	exports := mcs.Exports{Local: s.localCluster(), Places: places, Unknown: missing, Now: s.now}
	for _, pt := range parts {
		exports.Offers = append(exports.Offers, pt.origin.Offer(pt.cluster))
	}
	if own != nil {
		running := mcs.ParseImport(&own.spec, own.labels, own.annots)
		exports.Running = &running
	}
	merged, conflict := exports.Merge()
	w.Imported = &Imported{Import: merged}
	w.Spec = origin.Spec{Traits: origin.Traits{Headless: merged.Headless, AffinityTimeout: merged.AffinityTimeout, IPv4: merged.IPv4, IPv6: merged.IPv6}}
	for _, p := range merged.Ports {
		w.Spec.Ports = append(w.Spec.Ports, origin.Port{Name: p.Name, Protocol: p.Protocol, Port: p.Port, Target: intstr.FromInt32(p.Port), AppProtocol: p.AppProtocol})
	}
	w.Clusters = mcs.Exporting(merged.Places)
	if len(missing) == 0 {
		for _, d := range conflict.Differences {
			w.Conflicts = append(w.Conflicts, status.Conflict{Cluster: d.Cluster, What: d.What})
		}
		w.conflict = conflict
		w.Imported.Status = exportedBy(w.Clusters)
	}
	// Endpoints near by are preferred where the export that decides asks for it.
	w.LocalFirst = merged.TrafficDistribution != "" || len(parts) > 0 && deciding(parts, w.Clusters).origin.LocalFirst
	for _, pt := range parts {
		pt.slices = served(&merged, pt)
	}
	candidates := slices.Clone(parts)
	for _, c := range missing {
		set := s.sets[setID{c, exported}]
		if set == nil {
			w.Former = append(w.Former, c)
		}
		pt := &part{cluster: c, remembered: true, stale: set == nil || set.stale, drained: s.drained[c]}
		if !merged.Headless { // of which clients don't request ports
			pt.names = exports.Running.Names(&merged, c)
		}
		candidates = append(candidates, pt)
	}
	b.use(w, candidates)
}

// deciding returns the part of the local cluster, or else the first one by rank.
func deciding(parts []*part, clusters []string) *part {
	return slices.MinFunc(parts, func(a, b *part) int {
		return cmp.Or(boolCompare(b.local, a.local), cmp.Compare(slices.Index(clusters, a.cluster), slices.Index(clusters, b.cluster)))
	})
}

// exportedBy returns the status of an import without its Ready condition.
func exportedBy(clusters []string) *v1beta1.ServiceImportStatus {
	st := &v1beta1.ServiceImportStatus{EndpointSliceObjects: v1beta1.EndpointSliceObjectsPresent}
	for _, cluster := range slices.Sorted(slices.Values(clusters)) {
		st.Clusters = append(st.Clusters, v1beta1.ClusterStatus{Cluster: cluster})
	}
	return st
}

// served returns the slices of a part with the ports that it serves, by their names in the
// import. A slice that loses all its ports is dropped: to some consumers a slice without ports
// has all of them.
func served(i *mcs.Import, pt *part) map[string]*origin.Slice {
	offer := pt.origin.Offer(pt.cluster)
	names := map[string]string{}
	same := true
	for _, p := range offer.Ports {
		name, serves := i.Name(&offer, p.Name)
		if same = same && serves && name == p.Name; serves {
			names[p.Name] = name
		}
	}
	if same {
		return pt.slices
	}
	some := map[string]*origin.Slice{}
	for name, sl := range pt.slices {
		if slices.ContainsFunc(sl.Ports, func(p discoveryv1.EndpointPort) bool { return names[*p.Name] != *p.Name }) {
			with := *sl
			if with.Ports = renamed(sl.Ports, names); len(with.Ports) == 0 {
				continue
			}
			sl = &with
		}
		some[name] = sl
	}
	return some
}

// renamed returns ports with other names, without those that have none.
func renamed(ports []discoveryv1.EndpointPort, names map[string]string) []discoveryv1.EndpointPort {
	var all []discoveryv1.EndpointPort
	for _, p := range ports {
		if name, has := names[*p.Name]; has {
			p.Name = &name
			all = append(all, p)
		}
	}
	return all
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
		for _, cluster := range mcs.Exporting(o.places) {
			if why, until = s.unknown(cluster, exported); why != "" {
				return "import of " + why, until
			}
		}
	}
	return "", time.Time{}
}
