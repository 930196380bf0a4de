package status

// PodSubnetsMap is what the nodes of a remote publish of its map of pod subnets to virtual ones,
// as the programs read it that translate the addresses of its pods.
type PodSubnetsMap struct {
	// State is one of the constants below.
	State string `json:"state"`
	// Maps are the different ones of nodes with agents, if one of these has a map.
	Maps []NodesWithMap `json:"maps,omitempty"`
	// Fault is a node whose map is invalid, and why.
	Fault string `json:"fault,omitempty"`
	// Error is why nodes can't be read.
	Error string `json:"error,omitempty"`
}

// NodesWithMap is a map, and the number of nodes that publish it.
type NodesWithMap struct {
	// Map is as in SEMAPHORE_POD_SUBNETS_MAP; empty: none.
	Map   string `json:"map"`
	Nodes int    `json:"nodes"`
}

// The states of a remote's map.
const (
	MapUnread    = "unread"    // nodes have not been read since start
	MapForbidden = "forbidden" // the account may not read nodes: no map is used
	MapNone      = "none"      // no node has a map
	MapKnown     = "known"     // all nodes have the same
	MapDiffers   = "differs"   // each is used for the addresses on its nodes
	MapBad       = "bad"       // that of a node is invalid, and not used
)
