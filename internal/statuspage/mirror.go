package statuspage

import "time"

// Mirror is the report of semaphore-service-mirror.
type Mirror struct {
	Version string `json:"version"`
	Cluster string `json:"cluster"`
	// Election is that of the replica that writes; nil: there is only one replica.
	Election *Election       `json:"election,omitempty"`
	Leading  bool            `json:"leading"`
	Clusters []MirrorCluster `json:"clusters"`
	Services []Service       `json:"services"`
	// Rejected are origins that are not copied.
	Rejected []RejectedOrigin `json:"rejected"`
	// Former are clusters that are no longer configured, and of which objects are left.
	// Departed are configured ones that are ignored because they left.
	Former   []FormerCluster `json:"former,omitempty"`
	Departed []string        `json:"departed,omitempty"`
	Paths    PathReports     `json:"paths"`
	// MultiCluster is that of the Multi-Cluster Services API; nil: disabled.
	MultiCluster *MultiCluster `json:"multiCluster,omitempty"`
	// Omitted is the number of entries beyond maxListed.
	Omitted  int    `json:"omitted,omitempty"`
	NotReady string `json:"notReady,omitempty"`
	// NotServed are the errors of addresses that are not listened on.
	NotServed   map[string]string          `json:"notServed,omitempty"`
	Credentials map[string]CredentialCheck `json:"credentials,omitempty"` // by remote
}

// Election is the state of a leader election.
type Election struct {
	Leader string `json:"leader"`
	Error  string `json:"error,omitempty"`
}

// MirrorCluster is the status of one cluster.
type MirrorCluster struct {
	Name      string  `json:"name"`
	Local     bool    `json:"local,omitempty"`
	Prefix    string  `json:"prefix,omitempty"`
	Watches   []Watch `json:"watches"`
	Services  int     `json:"services"`
	Endpoints int     `json:"endpoints"`
	Refused   int     `json:"refused"`
	// Withdrawn is the number of endpoints on nodes with broken paths.
	Withdrawn int `json:"withdrawn,omitempty"`
	// Drained: the cluster is marked as drained.
	Drained bool `json:"drained,omitempty"`
	// Bounds is what is omitted because of the quota.
	Bounds string `json:"bounds,omitempty"`
	// Waiting is the number of writes that wait because of the limit of bytes.
	Waiting int `json:"waiting,omitempty"`
	// PodSubnetsMap is the setting of a remote's virtual pod subnets; empty: none.
	PodSubnetsMap string `json:"podSubnetsMap,omitempty"`
}

// Watch is the status of the watch of one kind in one cluster.
type Watch struct {
	Kind  string `json:"kind"`
	Stale bool   `json:"stale,omitempty"`
	Connection
}

// Service is one local service. Services with problems are listed first.
type Service struct {
	Name      string     `json:"name"`
	Origin    string     `json:"origin,omitempty"`
	Clusters  []string   `json:"clusters,omitempty"`
	Conflicts []Conflict `json:"conflicts,omitempty"`
	// Refused has an example of the rejected endpoints, by cluster.
	Refused map[string]string `json:"refused,omitempty"`
	// Foreign are foreign endpoint slices of this service.
	Foreign []string `json:"foreignSlices,omitempty"`
	// Withdrawn is the number of endpoints on nodes with broken paths, by cluster. Drained
	// are the clusters with endpoints that are omitted because they are drained.
	Withdrawn map[string]int `json:"withdrawn,omitempty"`
	Drained   []string       `json:"drained,omitempty"`
	// Needed are families, and ports, for which a drained, stale or removed cluster is still
	// used because no other one has a ready endpoint, by cluster; at most maxNeeded each.
	Needed map[string][]string `json:"needed,omitempty"`
	Held   string              `json:"held,omitempty"`
	// Overridden are objects of the service that others change again, each time they are
	// written; known to the leader only.
	Overridden []Override `json:"overridden,omitempty"`
	// RemovedAt is when the removal of the service is no longer held.
	RemovedAt *time.Time `json:"removedAt,omitempty"`
	Error     string     `json:"error,omitempty"`
}

// FormerCluster is a cluster that is no longer configured.
type FormerCluster struct {
	Name string `json:"name"`
	// Services are its mirrors, Slices those and its part of global services.
	Services int `json:"services"`
	Slices   int `json:"slices"`
	// RemovedAt is when they are removed; nil: now.
	RemovedAt *time.Time `json:"removedAt,omitempty"`
}

// RejectedOrigin is one origin that is not copied.
type RejectedOrigin struct {
	Origin string `json:"origin"`
	Reason string `json:"reason"`
}

// PathReports is the status of path reports.
type PathReports struct {
	// ReadyNodes is the number of ready local nodes, Reports the number of them with a
	// report.
	ReadyNodes int `json:"readyNodes"`
	Reports    int `json:"reports"`
	// Withdrawn are remote nodes whose endpoints are withdrawn.
	Withdrawn []WithdrawnNode `json:"withdrawn,omitempty"`
	// Faults are the errors of invalid or partly invalid reports, by name.
	Faults map[string]string `json:"faults,omitempty"`
	// Error is the error of reading reports.
	Error string `json:"error,omitempty"`
}

// WithdrawnNode is a remote node whose endpoints are withdrawn.
type WithdrawnNode struct {
	Cluster string    `json:"cluster"`
	Node    string    `json:"node"`
	Since   time.Time `json:"since"`
	// ReportedBy is the number of ready local nodes that report it as down now.
	ReportedBy int `json:"reportedBy"`
	// Services is the number of services with endpoints on it.
	Services int `json:"services"`
}

// MultiCluster is the status of the Multi-Cluster Services API in the local cluster.
type MultiCluster struct {
	// Off is why the API isn't implemented in this cluster, although it may be; empty: it is.
	Off string `json:"off,omitempty"`
	// Error is why the API isn't implemented, although it must be, or why the program can't read
	// what it needs for it; empty: neither.
	Error string `json:"error,omitempty"`
	// Imports are the imports and the exports of the local cluster. Those with conflicts and
	// faults are first.
	Imports []Import `json:"imports"`
}

// Import is one import, or an export of the local cluster without one.
type Import struct {
	// Name is namespace/name.
	Name string `json:"name"`
	// Type is ClusterSetIP or Headless; empty: there is no import.
	Type string   `json:"type,omitempty"`
	IPs  []string `json:"ips,omitempty"`
	// Ports are as in "http 80/TCP".
	Ports []string `json:"ports,omitempty"`
	// Exports are the clusters that export it, by precedence.
	Exports []string `json:"exports,omitempty"`
	// Endpoints are the numbers of used endpoints, by cluster.
	Endpoints map[string]int `json:"endpoints,omitempty"`
	Conflicts []Conflict     `json:"conflicts,omitempty"`
	// Fault is why the export of the local cluster, or of another one, is not imported, by
	// cluster.
	Faults map[string]string `json:"faults,omitempty"`
	// Refused are the clusters from which nothing is imported in the namespace, as configured.
	Refused []string `json:"refused,omitempty"`
	// Missing: the namespace doesn't exist in the local cluster, or is being deleted.
	Missing bool   `json:"namespaceMissing,omitempty"`
	Held    string `json:"held,omitempty"`
}

// Conflict is a difference between the services of a global service, or the exports of an import.
type Conflict struct {
	Cluster string `json:"cluster"` // whose value is ignored
	What    string `json:"what"`
}

// InOrder reports whether the service has no problems.
func (s *Service) InOrder() bool {
	return len(s.Conflicts) == 0 && len(s.Refused) == 0 && len(s.Withdrawn) == 0 && len(s.Foreign) == 0 && s.Held == "" && len(s.Overridden) == 0 && s.Error == ""
}

// InOrder reports whether the import has no problems.
func (i *Import) InOrder() bool {
	return len(i.Conflicts) == 0 && len(i.Faults) == 0 && i.Held == ""
}

// ElectionError is why the last request for the lease failed; empty: it didn't.
func (m *Mirror) ElectionError() string {
	if m.Election == nil {
		return ""
	}
	return m.Election.Error
}
