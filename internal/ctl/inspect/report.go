package inspect

import (
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/keep"
)

// The fields of the programs' reports that are used here. Fields that an older program
// doesn't report stay zero.

// Agent is the report of semaphore-wireguard.
type Agent struct {
	Version   string `json:"version"`
	Cluster   string `json:"cluster"`
	Node      string `json:"node"`
	Published bool   `json:"published"`
	// Pods are the prefixes of the node's pods; nil for agents that don't report them.
	Pods *struct {
		Known bool   `json:"known"`
		Why   string `json:"why"`
	} `json:"pods"`
	Failing map[string]string `json:"failing"`
	Pending []string          `json:"pending"`
	Standby *struct {
		Holder string `json:"holder"`
	} `json:"standby"`
	Filter struct {
		State string `json:"state"`
		Error string `json:"error"`
	} `json:"sourceFilter"`
	Exit struct {
		State string `json:"state"`
		Error string `json:"error"`
	} `json:"exitFilter"`
	Forwarding struct {
		Off     []string `json:"off"`
		Denying []string `json:"chainsDenying"`
	} `json:"forwarding"`
	Networkd bool     `json:"networkdRemovesRoutes"`
	Remotes  []Remote `json:"remotes"`
	Credentials
}

// Credentials are in the reports of all programs: the results of requests to remotes with the
// credentials that are on disk, by remote. Older programs don't report them.
type Credentials struct {
	Credentials map[string]Trial `json:"credentials"`
}

// Trial is the result of such a request.
type Trial struct {
	Asked   *time.Time `json:"asked"`
	Error   string     `json:"error"`
	Waiting *time.Time `json:"waiting"`
	Issued  *time.Time `json:"issued"`
	Expires *time.Time `json:"expires"`
}

// Remote is a remote in the report of an agent.
type Remote struct {
	Name       string      `json:"name"`
	PodSubnets []string    `json:"podSubnets"`
	Refused    string      `json:"refused"`
	API        Connection  `json:"api"`
	Device     Device      `json:"device"`
	Source     string      `json:"source"`
	Peers      []Peer      `json:"peers"`
	Rejected   []Rejection `json:"rejected"`
	Foreign    []string    `json:"foreignRoutes"`
	Forged     *uint64     `json:"forgedPackets"`
	// Rules are foreign policy rules that lead packets past the tunnel. Stopped are packets
	// that the agent dropped there, and Stopping is set if it did so in the last minutes.
	Rules    []ForeignRule `json:"foreignRules"`
	Stopped  uint64        `json:"stoppedPackets"`
	Stopping bool          `json:"stopping"`
}

// ForeignRule is a policy rule of another program.
type ForeignRule struct {
	Rule   string `json:"rule"`
	Marked bool   `json:"marked"` // it selects packets by a firewall mark
}

// Connection is the state of the connection to an API server.
type Connection struct {
	Synced      bool       `json:"synced"`
	LastContact *time.Time `json:"lastContact"`
	Error       string     `json:"error"`
}

// Device is a WireGuard device of an agent.
type Device struct {
	Name              string `json:"name"`
	Index             int    `json:"index"`
	Backend           string `json:"backend"`
	PublicKey         string `json:"publicKey"`
	ListenPort        int    `json:"listenPort"`
	MTU               int    `json:"mtu"`
	LargestMTU        int    `json:"largestMtu"`
	NarrowestEndpoint string `json:"narrowestEndpoint"`
	Unprobed          string `json:"unprobed"`
	Error             string `json:"error"`
}

// Peer is a peer of a device.
type Peer struct {
	Node          string     `json:"node"`
	PublicKey     string     `json:"publicKey"`
	Endpoint      string     `json:"endpoint"`
	AllowedIPs    []string   `json:"allowedIPs"`
	Health        string     `json:"health"`
	Path          *Path      `json:"path"` // nil for agents that don't report paths
	LastHandshake *time.Time `json:"lastHandshake"`
	LastHeard     *time.Time `json:"lastHeard"`
	RxBytes       int64      `json:"rxBytes"`
	TxBytes       int64      `json:"txBytes"`
}

// Path is the state of the path to a peer.
type Path struct {
	State     string    `json:"state"`
	Since     time.Time `json:"since"`
	Sign      string    `json:"sign"`
	Answers   bool      `json:"answers"`
	SmallOnly bool      `json:"smallOnly"`
	// RTT is the time from a probe to its response in seconds; 0: not measured.
	RTT float64 `json:"rtt"`
}

// Rejection is a node that isn't a peer, or part of whose annotations are rejected.
type Rejection struct {
	Node    string `json:"node"`
	Reason  string `json:"reason"`
	Detail  string `json:"detail"`
	Partial bool   `json:"partial"`
}

// Remote returns the remote of a name, or nil.
func (a *Agent) Remote(name string) *Remote {
	for i := range a.Remotes {
		if a.Remotes[i].Name == name {
			return &a.Remotes[i]
		}
	}
	return nil
}

// Peer returns the peer of a node, or nil.
func (r *Remote) Peer(node string) *Peer {
	for i := range r.Peers {
		if r.Peers[i].Node == node {
			return &r.Peers[i]
		}
	}
	return nil
}

// Mirror is the report of semaphore-service-mirror.
type Mirror struct {
	Version  string `json:"version"`
	Cluster  string `json:"cluster"`
	Leading  bool   `json:"leading"`
	NotReady string `json:"notReady"`
	Election struct {
		Error string `json:"error"`
	} `json:"election"`
	Clusters []MirrorCluster `json:"clusters"`
	Services []Service       `json:"services"`
	Rejected []struct {
		Origin string `json:"origin"`
		Reason string `json:"reason"`
	} `json:"rejected"`
	// Former are clusters that are no longer configured, and of which objects are left.
	// Departed are configured ones that the mirror ignores.
	Former   []FormerCluster `json:"former"`
	Departed []string        `json:"departed"`
	Omitted  int             `json:"omitted"`
	Credentials
}

// FormerCluster is a cluster that is no longer configured, with the numbers of its objects.
type FormerCluster struct {
	Name     string `json:"name"`
	Services int    `json:"services"`
	Slices   int    `json:"slices"`
}

// MirrorCluster is a cluster in the report of the service mirror.
type MirrorCluster struct {
	Name      string  `json:"name"`
	Local     bool    `json:"local"`
	Prefix    string  `json:"prefix"`
	Watches   []Watch `json:"watches"`
	Services  int     `json:"services"`
	Endpoints int     `json:"endpoints"`
	Refused   int     `json:"refused"`
	Bounds    string  `json:"bounds"`
}

// Watch is the watch of one kind.
type Watch struct {
	Kind  string `json:"kind"`
	Stale bool   `json:"stale"`
	Connection
}

// Service is a mirror or a global service.
type Service struct {
	Name      string   `json:"name"`
	Origin    string   `json:"origin"`
	Clusters  []string `json:"clusters"`
	Conflicts []struct {
		Cluster, What string
	} `json:"conflicts"`
	Instead string            `json:"nameTakenBy"`
	Refused map[string]string `json:"refused"`
	Foreign []string          `json:"foreignSlices"`
	Held    string            `json:"held"`
	// Overridden are objects that others change again after each write.
	Overridden []keep.Override `json:"overridden"`
	Error      string          `json:"error"`
}

// Policy is the report of semaphore-policy.
type Policy struct {
	Version   string     `json:"version"`
	Cluster   string     `json:"cluster"`
	Leading   bool       `json:"leading"`
	Election  string     `json:"electionError"`
	CalicoAPI string     `json:"calicoAPI"`
	Sets      Connection `json:"localSets"`
	Pools     struct {
		Unknown string              `json:"unknown"`
		Faults  map[string][]string `json:"faults"`
	} `json:"ipPools"`
	Remotes []PolicyRemote `json:"remotes"`
	Credentials
}

// PolicyRemote is a remote in the report of semaphore-policy.
type PolicyRemote struct {
	Name    string     `json:"name"`
	API     Connection `json:"api"`
	Stale   bool       `json:"stale"`
	Pods    int        `json:"pods"`
	Sets    []Set      `json:"sets"`
	Skipped map[string]struct {
		Pods     int      `json:"pods"`
		Examples []string `json:"examples"`
	} `json:"skipped"`
	Pending int               `json:"pending"`
	Failing map[string]string `json:"failing"`
	// Overridden are objects that others change again after each write.
	Overridden []keep.Override `json:"overridden"`
}

// Set is a network set.
type Set struct {
	Object    string `json:"object"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Addresses int    `json:"addresses"`
}
