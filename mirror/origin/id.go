package origin

import "cmp"

// Key names a Service in its cluster.
type Key struct{ Namespace, Name string }

// String returns namespace/name.
func (k Key) String() string { return k.Namespace + "/" + k.Name }

// ID identifies the origin of a local service. A global one has no cluster, an import of the
// Multi-Cluster Services API has ClusterSet.
type ID struct {
	Cluster string
	Key
}

// ClusterSet stands for all clusters of a cluster set. No cluster has that name.
const ClusterSet = "*"

// Global reports whether the service is merged from several clusters.
func (id ID) Global() bool { return id.Cluster == "" }

// Import reports whether the service is imported from a cluster set.
func (id ID) Import() bool { return id.Cluster == ClusterSet }

// String returns cluster/namespace/name, global/namespace/name or clusterset/namespace/name.
func (id ID) String() string {
	if id.Import() {
		return "clusterset/" + id.Key.String()
	}
	return cmp.Or(id.Cluster, "global") + "/" + id.Key.String()
}

// CompareIDs orders by cluster, namespace and name.
func CompareIDs(a, b ID) int {
	return cmp.Or(
		cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name),
	)
}
