// Package statuspage has the types of the programs' reports, which /status serves as JSON and
// semaphorectl reads. Fields that an older program doesn't report stay zero. A report holds
// nothing secret.
package statuspage

import (
	"slices"
	"time"
)

// Agent is the report of semaphore-wireguard.
type Agent struct {
	Version   string `json:"version"`
	Cluster   string `json:"cluster"`
	Node      string `json:"node"`
	Published bool   `json:"published"`      // this node has all annotations of the agent
	Local     bool   `json:"localKnown"`     // the addresses of this cluster have been read
	Pods      *Pods  `json:"pods,omitempty"` // nil: an older agent
	// Conditions are what fails, and what isn't known yet; nil: an older agent, of which neither is
	// known.
	Conditions []Condition `json:"conditions"`
	// Standby names the active agent; nil: this one is active.
	Standby *Standby `json:"standby,omitempty"`
	Filter  Filter   `json:"sourceFilter"`
	// Forwarding is not known while the agent stands by.
	Forwarding Forwarding `json:"forwarding"`
	Exit       Filter     `json:"exitFilter"`
	Removed    *Removed   `json:"removedSubnets,omitempty"` // whose packets are refused for a time
	// Translation is nil without a map of this cluster's pod subnets.
	Translation *Translation `json:"podSubnetsMap,omitempty"`
	// Unsourced are podCIDRs of this node in which the host has no address, so that
	// responses of remote pods to the host itself get lost.
	Unsourced string `json:"podCIDRsWithoutHostAddress,omitempty"`
	// Networkd is set when systemd-networkd removes our rules and routes.
	Networkd bool     `json:"networkdRemovesRoutes,omitempty"`
	Remotes  []Remote `json:"remotes"`
	// RemotesFrom is the setting REMOTES_FROM; empty: an older agent.
	RemotesFrom string `json:"remotesFrom,omitempty"`
	// Relay has what semaphore-relay's Leases say, by cluster, of which one may be missing.
	Relay       map[string]RelayContact    `json:"relay,omitempty"`
	Credentials map[string]CredentialCheck `json:"credentials,omitempty"` // by remote
}

// Condition is a part of a program that fails, or isn't known yet.
type Condition struct {
	Type   string `json:"type"`   // a constant
	Reason string `json:"reason"` // a constant, for programs; it stays the same in later releases
	// Object is the part, such as "device gcp", "routes" or "publish".
	Object  string     `json:"object"`
	Message string     `json:"message,omitempty"` // for people
	Since   *time.Time `json:"since,omitempty"`   // when it began; nil: not known
}

// Types of conditions. Pending is a part that has not completed a pass since start.
const (
	Failing = "Failing"
	Pending = "Pending"
)

// Reasons of conditions. A part that fails for several has a condition for each.
const (
	ReasonPortTaken     = "PortTaken"     // another program or device has the listen port
	ReasonRouteInTheWay = "RouteInTheWay" // a foreign route has the place of one of ours
	ReasonUndone        = "Undone"        // another program undoes what the part sets up, again and again
	ReasonRefused       = "Refused"       // an admission controller refuses what it writes
	ReasonNotListening  = "NotListening"  // of a server
	ReasonError         = "Error"         // anything else
	ReasonNotCompleted  = "NotCompleted"  // of Pending
)

// Failure returns the message of a part that fails; empty: it doesn't.
func (a *Agent) Failure(object string) string {
	for i := range a.Conditions {
		if c := &a.Conditions[i]; c.Type == Failing && c.Object == object {
			return c.Message
		}
	}
	return ""
}

// Of returns the conditions of a type.
func (a *Agent) Of(kind string) []Condition {
	return slices.DeleteFunc(slices.Clone(a.Conditions), func(c Condition) bool { return c.Type != kind })
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

// CredentialCheck is the result of a request to a remote with the credentials that are on disk. An
// open watch shows only that those were valid when it was opened.
type CredentialCheck struct {
	// Asked is when the last completed request was sent; nil: none yet.
	Asked *time.Time `json:"asked,omitempty"`
	// Error is its error; empty: the remote has accepted the credentials.
	Error string `json:"error,omitempty"`
	// Reason is that of Error, of the reasons of package kube; empty: of an earlier release.
	Reason string `json:"reason,omitempty"`
	// Waiting is when the running request was sent; nil: none runs.
	Waiting *time.Time `json:"waiting,omitempty"`
	// Issued and Expires are those of the token on disk; nil: not known.
	Issued  *time.Time `json:"issued,omitempty"`
	Expires *time.Time `json:"expires,omitempty"`
}

// recent is how long before a running request the last one counts as its result.
const recent = time.Minute

// Unanswered reports whether a request runs, and no recent one was answered.
func (t *CredentialCheck) Unanswered() bool {
	return t.Waiting != nil && (t.Asked == nil || t.Waiting.Sub(*t.Asked) > recent)
}

// soon is the remaining lifetime of a token that should have been renewed, if a third of its
// lifetime is no less.
const soon = 7 * 24 * time.Hour

// Overdue reports whether the token on disk should have been renewed: semaphore-tokens does
// that after a third of the lifetime.
func (t *CredentialCheck) Overdue(now time.Time) bool {
	if t.Expires == nil || t.Issued == nil {
		return false
	}
	return t.Expires.Sub(now) < min(soon, t.Expires.Sub(*t.Issued)/3)
}

// Pods describes the pod prefixes of a node.
type Pods struct {
	Source string `json:"source"` // empty: not decided yet
	Why    string `json:"why"`
	Known  bool   `json:"known"`
	Count  int    `json:"count"`
	// Prefixes are the first ones.
	Prefixes []string `json:"prefixes,omitempty"`
}

// Standby is part of the report of an agent that stands by.
type Standby struct {
	Holder string `json:"holder,omitempty"` // the active agent
}

// Filter is the state of the source filter, which drops packets with a remote pod's source
// address that did not arrive through the tunnel, or of the exit filter, which drops packets
// to remote pods that would not leave through it.
type Filter struct {
	State string `json:"state"` // one of the constants
	// Error is set when State is not enforced or unknown.
	Error string `json:"error,omitempty"`
}

// Translation is the state of the rules that translate addresses of this node's pods.
type Translation struct {
	Map string `json:"map"` // of real subnets to virtual ones, as text
	Filter
	// OwnPods is set if pods of this cluster reach each other by virtual addresses.
	OwnPods bool `json:"ownPods"`
	// Untranslated are packets dropped because they were not translated; nil: not known.
	Untranslated *uint64 `json:"untranslated,omitempty"`
}

// The states of filters.
const (
	FilterEnforced    = "enforced"
	FilterNotEnforced = "not enforced"
	FilterOff         = "off" // by the configuration
	FilterUnknown     = "unknown"
)

// Forwarding is whether the host forwards packets between its pods and the tunnels. Probes of
// paths end at the host, and say nothing about it.
type Forwarding struct {
	Known bool `json:"known"` // read since start
	// Off are settings by which it doesn't.
	Off []string `json:"off,omitempty"`
}

// Removed are pod subnets that are no longer configured.
type Removed struct {
	PodSubnets []string  `json:"podSubnets"`
	Until      time.Time `json:"until"`
	// Stopped are packets to them that were dropped; nil: not known.
	Stopped *uint64 `json:"stoppedPackets,omitempty"`
}

// Remote is a remote in the report of an agent.
type Remote struct {
	Name       string   `json:"name"`
	PodSubnets []string `json:"podSubnets"`
	// PodSubnetsMap is the setting of its virtual pod subnets; empty: none.
	PodSubnetsMap string      `json:"podSubnetsMap,omitempty"`
	Refused       string      `json:"refused,omitempty"` // why nothing is set up for it
	API           Connection  `json:"api"`
	Device        Device      `json:"device"`
	Source        string      `json:"source"` // of the peers, a peers.Source
	Peers         []Peer      `json:"peers"`
	Rejected      []Rejection `json:"rejected"`
	Forged        *uint64     `json:"forgedPackets,omitempty"` // dropped by the source filter; nil: not known
	// Stopped are packets to its pods that the exit filter dropped because they would have
	// left in plaintext, the last of them at LastStopped; nil: not known, or not since start.
	Stopped     *uint64    `json:"stoppedPackets,omitempty"`
	LastStopped *time.Time `json:"lastStopped,omitempty"`
	Stopping    bool       `json:"stopping,omitempty"` // LastStopped was within the last minute
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

// Connection is the state of the connection to an API server.
type Connection struct {
	Synced      bool       `json:"synced"` // at least once since start
	LastContact *time.Time `json:"lastContact,omitempty"`
	Error       string     `json:"error,omitempty"`
	// Reason is that of Error, of the reasons of package kube; empty: of an earlier release.
	Reason string `json:"reason,omitempty"`
	// Whole is set when nodes are read whole, with five times the bytes of their metadata.
	Whole bool `json:"wholeNodes,omitempty"`
}

// RelayContact is what the Lease of semaphore-relay for a cluster says, and what the agent has
// read of its objects.
type RelayContact struct {
	// Renewed is up to when the relay had contact to the cluster; nil: there is no Lease.
	Renewed *time.Time `json:"renewed,omitempty"`
	// Late is set when that is longer ago than the Lease states as the maximum.
	Late  bool   `json:"late,omitempty"`
	Error string `json:"error,omitempty"` // of reading it
	// Revision is the newest resource version among the objects of the cluster that the agent
	// has read; empty: none.
	Revision string `json:"revision,omitempty"`
}

// Device is a WireGuard device of an agent.
type Device struct {
	Name       string `json:"name"`
	Index      int    `json:"index,omitempty"`
	Backend    string `json:"backend,omitempty"`
	PublicKey  string `json:"publicKey"`
	ListenPort int    `json:"listenPort"`
	MTU        int    `json:"mtu"`
	// LargestMTU is the largest MTU without fragmentation on the paths to all endpoints,
	// of which that to NarrowestEndpoint is the smallest; 0: not known.
	LargestMTU        int    `json:"largestMtu,omitempty"`
	NarrowestEndpoint string `json:"narrowestEndpoint,omitempty"`
	// Unprobed is why its peers can't be probed, so that a broken path is detected only
	// after minutes.
	Unprobed string `json:"unprobed,omitempty"`
	Error    string `json:"error,omitempty"`
}

// Peer is a peer of a device.
type Peer struct {
	Node          string     `json:"node"` // empty for a peer without a known node
	PublicKey     string     `json:"publicKey"`
	Endpoint      string     `json:"endpoint"` // current, may have roamed; empty: not known
	AllowedIPs    []string   `json:"allowedIPs"`
	Health        string     `json:"health"`         // a paths.Health
	Path          *Path      `json:"path,omitempty"` // nil: a peer without a known node, or an older agent
	LastHandshake *time.Time `json:"lastHandshake,omitempty"`
	LastHeard     *time.Time `json:"lastHeard,omitempty"` // nil: not since the agent's start
	RxBytes       int64      `json:"rxBytes"`
	TxBytes       int64      `json:"txBytes"`
	// Disputed is the node of this cluster that claims the address of its endpoint after
	// that was accepted.
	Disputed string `json:"disputed,omitempty"`
}

// Path is the state of the path to a peer.
type Path struct {
	State     string    `json:"state"` // a paths.State
	Since     time.Time `json:"since"`
	Sign      string    `json:"sign"`                // a paths.Sign
	Answers   bool      `json:"answers"`             // the peer answers probes
	SmallOnly bool      `json:"smallOnly,omitempty"` // full-size packets get lost
	RTT       float64   `json:"rtt,omitempty"`       // median round trip of the last probes in seconds; 0: not known
}

// Rejection is a node that isn't a peer, or part of whose annotations are rejected.
type Rejection struct {
	Node    string `json:"node"`
	Reason  string `json:"reason"` // a peers.Reason
	Detail  string `json:"detail"`
	Partial bool   `json:"partial,omitempty"`
}
