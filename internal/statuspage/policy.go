package statuspage

import "time"

// Policy is the report of semaphore-policy.
type Policy struct {
	Version string `json:"version"`
	Cluster string `json:"cluster"`
	// Leading is set on the replica that writes, whose name is Leader.
	Leading bool   `json:"leading"`
	Leader  string `json:"leader,omitempty"`
	// ElectionError is why the last request for the lease failed.
	ElectionError string `json:"electionError,omitempty"`
	// NotServed are the errors of addresses that are not listened on.
	NotServed map[string]string `json:"notServed,omitempty"`
	// Pools are Calico's IP pools, as far as remotes need them.
	Pools       PoolFaults                 `json:"ipPools"`
	Credentials map[string]CredentialCheck `json:"credentials,omitempty"` // by remote
	// CalicoAPI is the group and version in use; empty: not detected yet.
	CalicoAPI string     `json:"calicoAPI"`
	Sets      Connection `json:"localSets"`
	// Unconfigured is the number of our sets by cluster that isn't configured. RemovedAt is
	// when they are removed; those of other clusters stay.
	Unconfigured map[string]int       `json:"unconfigured,omitempty"`
	RemovedAt    map[string]time.Time `json:"removedAt,omitempty"`
	Remotes      []PolicyRemote       `json:"remotes"`
}

// PoolFaults is the result of checking Calico's IP pools.
type PoolFaults struct {
	// Unknown is why the pools could not be read; empty: they were.
	Unknown string `json:"unknown,omitempty"`
	// Faults are by remote.
	Faults map[string][]string `json:"faults,omitempty"`
}

// PolicyRemote is a remote in the report of semaphore-policy. Pending and Failing are known to
// the leader only.
type PolicyRemote struct {
	Name string     `json:"name"`
	API  Connection `json:"api"`
	// Stale: the sets are empty because of missing contact.
	Stale bool `json:"stale"`
	// Pods is the number of labelled pods.
	Pods int          `json:"pods"`
	Sets []NetworkSet `json:"sets"`
	// Skipped are pods by the reason for which they are skipped, a policy.Reason.
	Skipped map[string]SkippedPods `json:"skipped,omitempty"`
	// PodSubnetsMap is the setting of the remote's virtual pod subnets; empty: none.
	PodSubnetsMap string `json:"podSubnetsMap,omitempty"`
	// Pending is the number of waiting writes.
	Pending int `json:"pending"`
	// Failing are the errors of objects that can't be written, by name.
	Failing map[string]string `json:"failing,omitempty"`
	// Overridden are objects that others change again, each time they are written.
	Overridden []Override `json:"overridden,omitempty"`
}

// NetworkSet is one object in the local cluster.
type NetworkSet struct {
	Object    string `json:"object"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Addresses int    `json:"addresses"`
	// NameTaken says what has the name that the object would have; empty: nothing.
	NameTaken string `json:"nameTaken,omitempty"`
}

// SkippedPods are the pods that are skipped for one reason.
type SkippedPods struct {
	// Pods is their number.
	Pods int `json:"pods"`
	// Examples are the first ones by namespace/name.
	Examples []string `json:"examples"`
}
