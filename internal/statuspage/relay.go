package statuspage

// Relay is the report of semaphore-relay.
type Relay struct {
	Version string `json:"version"`
	Cluster string `json:"cluster"`
	// Leading is set on the replica that writes, whose name is Leader.
	Leading bool   `json:"leading"`
	Leader  string `json:"leader,omitempty"`
	// ElectionError is why the last request for the lease failed.
	ElectionError string `json:"electionError,omitempty"`
	// NotServed are the errors of addresses that are not listened on.
	NotServed   map[string]string          `json:"notServed,omitempty"`
	Credentials map[string]CredentialCheck `json:"credentials,omitempty"` // by remote
	// Objects is the state of reading the relay's own objects.
	Objects  Connection     `json:"objects"`
	Clusters []RelayCluster `json:"clusters"`
	// Unconfigured are clusters with objects that are being removed.
	Unconfigured []string `json:"unconfigured,omitempty"`
}

// RelayCluster is a cluster in the report of semaphore-relay. Pending, Failing and Overridden
// are known to the leader only.
type RelayCluster struct {
	Name  string     `json:"name"`
	Local bool       `json:"local,omitempty"`
	API   Connection `json:"api"`
	// Nodes is the number of nodes that are desired, Objects that of their objects.
	Nodes   int `json:"nodes"`
	Objects int `json:"objects"`
	// Incomplete is why agents don't know all nodes of the cluster; empty: they do.
	Incomplete string `json:"incomplete,omitempty"`
	// Pending is the number of waiting writes.
	Pending int `json:"pending"`
	// Failing are the errors of objects that can't be written, by name.
	Failing map[string]string `json:"failing,omitempty"`
	// Overridden are objects that others change again, each time they are written.
	Overridden []Override `json:"overridden,omitempty"`
}
