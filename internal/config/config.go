// Package config reads the settings of the programs: environment
// variables, flags (which win over the environment), and the JSON file of the
// original tools in place of the variables that describe clusters.
//
// Every fault of a configuration is reported at once, each naming the setting
// that it came from, and before anything else happens.
package config

import (
	"net/netip"
	"strings"
	"time"
)

// Access says how to reach one cluster's API server. Either Kubeconfig is set,
// or APIURL, TokenFile and one of CAURL and CAFile are. All empty means the
// cluster that the process runs in; only the local cluster may be left so.
type Access struct {
	// Kubeconfig is the path of a kubeconfig file; its current context counts.
	Kubeconfig string
	// APIURL is the https address of the API server.
	APIURL string
	// CAURL is an https address that serves the certificates, in PEM, that the
	// API server's certificate must chain to.
	CAURL string
	// CASHA256 are the SHA-256 fingerprints of the certificates that count of
	// those that CAURL serves, comma-separated, in lower-case hexadecimal. Empty:
	// all of them count.
	CASHA256 string
	// CAFile is a path of such certificates.
	CAFile string
	// TokenFile is the path of a bearer token, read anew as it rotates.
	TokenFile string
}

// InCluster reports whether a is the access of a pod to its own cluster.
func (a Access) InCluster() bool { return a == Access{} }

// Pins returns the fingerprints of CASHA256 one by one.
func (a Access) Pins() []string {
	if a.CASHA256 == "" {
		return nil
	}
	return strings.Split(a.CASHA256, ",")
}

// Remote is one remote cluster.
type Remote struct {
	// Name is the cluster's name, a DNS label, the same in all configurations.
	Name string
	// Access is never that of the own cluster.
	Access Access
	// PodSubnets are masked and sorted; no two of a configuration overlap.
	// Empty only for the mirror and policy, which then accept any address.
	PodSubnets []netip.Prefix
	// PodSubnetsFrom is the setting that PodSubnets were read from, for faults.
	PodSubnetsFrom string
	// NodeSubnets are where endpoints of its nodes may be, masked and sorted;
	// empty: anywhere.
	NodeSubnets []netip.Prefix
	// ResyncPeriod is how often everything is looked at again without an
	// event; 0 is never.
	ResyncPeriod time.Duration
	// StaleAfter is how long the last known state counts without contact to
	// the remote; 0 is for ever.
	StaleAfter time.Duration
	// ListenPort is the local UDP port of this remote's WireGuard device.
	ListenPort int
	// MTU is that of this remote's WireGuard device, in bytes; 0 is that of the
	// network between the nodes less WireGuard's overhead.
	MTU int
	// MaxPeers is how many of the remote's nodes may be peers.
	MaxPeers int
	// MaxAnswer is the most bytes of one list of the remote's objects, and four
	// times as many as are kept of one kind of them.
	MaxAnswer int64
	// MaxObjects is the most objects that are kept of one kind; 0: as many as
	// suit the kind.
	MaxObjects int
	// MaxServices is how many Services are made for this remote's.
	MaxServices int
	// MaxSlices is how many EndpointSlices are made for this remote's services.
	MaxSlices int
	// MaxAddresses is how many addresses of this remote's pods are written to
	// EndpointSlices, and to network sets.
	MaxAddresses int
	// MaxSets is how many network sets are made for this remote's pods.
	MaxSets int
	// ServicePrefix starts the names of services mirrored from this remote.
	ServicePrefix string
}

// Values of Base.ListenAuth.
const (
	ListenAuthNone  = "none"
	ListenAuthToken = "token"
)

// Base is what all programs have in common.
type Base struct {
	// ClusterName is the local cluster. Empty only for the policy program
	// started with -target-cluster-name, as the original one is.
	ClusterName string
	// Remotes are in the order in which they were configured.
	Remotes []Remote
	// Local is the access to the local cluster.
	Local Access
	// ListenAddress is where metrics and status are served.
	ListenAddress string
	// ListenAuth is ListenAuthNone or ListenAuthToken.
	ListenAuth string
	// ProbeAddress is where probes are answered, on another port.
	ProbeAddress string
	// LogLevel is one of debug, info, warn and error.
	LogLevel string
	// LogFormat is json or text.
	LogFormat string
}

// Logging returns the level and the format of the log.
func (b Base) Logging() (level, format string) { return b.LogLevel, b.LogFormat }

// TokenFiles are the files with the tokens for the remotes' API servers, by remote,
// of those whose access isn't a kubeconfig.
func (b *Base) TokenFiles() map[string]string {
	files := map[string]string{}
	for i := range b.Remotes {
		if file := b.Remotes[i].Access.TokenFile; file != "" {
			files[b.Remotes[i].Name] = file
		}
	}
	return files
}

// Pod is the pod that a program runs in, which its Events are about.
type Pod struct{ Namespace, Name, UID string }

// Known reports whether there is anything for Events to be about.
func (p Pod) Known() bool { return p.Namespace != "" && p.Name != "" && p.UID != "" }

// Values of Wireguard.Backend.
const (
	BackendAuto      = "auto"
	BackendKernel    = "kernel"
	BackendUserspace = "userspace"
)

// Values of Wireguard.RouteSrc, which can also be an address.
const (
	RouteSrcAuto = "auto"
	RouteSrcNone = "none"
)

// Wireguard configures semaphore-wireguard.
type Wireguard struct {
	Base
	// NodeName is the Kubernetes node that the process runs on.
	NodeName string
	// Pod may be unknown.
	Pod Pod
	// Backend is BackendAuto, BackendKernel or BackendUserspace.
	Backend string
	// KeyPath is the absolute path of the folder of private keys.
	KeyPath string
	// RouteSrc is RouteSrcAuto, RouteSrcNone or an address.
	RouteSrc string
	// PeerMetrics is how many peers of a remote have metrics of their own; 0:
	// none.
	PeerMetrics int
	// LocalSubnets are where this cluster has its nodes, pods and services,
	// beside what the API server tells; masked and sorted.
	LocalSubnets []netip.Prefix
	// SourceFilter asks to drop packets that claim a remote pod's address and
	// didn't come through the tunnel.
	SourceFilter bool
	// Cleanup asks to remove all that the program ever set up, and to end.
	Cleanup bool
}

// Mirror configures semaphore-service-mirror.
type Mirror struct {
	Base
	// LeaderElection lets several replicas run, one of them at work.
	LeaderElection bool
	// Namespace holds the leader election's Lease.
	Namespace string
	// MirrorNamespace is where the mirrors live.
	MirrorNamespace string
	// MirrorSelector is the label selector of services to mirror; empty: none.
	MirrorSelector string
	// GlobalSelector is the label selector of global services; empty: none.
	GlobalSelector string
	// RoutingStrategyLabel is the label selector of global services that
	// prefer local endpoints; empty: none.
	RoutingStrategyLabel string
	// LegacyEndpoints also writes objects of the deprecated Endpoints API.
	LegacyEndpoints bool
	// RemovalGrace is how long after the program's start what came from a remote
	// that is no longer configured stays; 0: it doesn't.
	RemovalGrace time.Duration
}

// Values of Policy.CalicoAPI.
const (
	CalicoAPIAuto = "auto"
	CalicoAPIV3   = "v3"
	CalicoAPIV1   = "v1"
)

// Policy configures semaphore-policy.
type Policy struct {
	Base
	// LeaderElection lets several replicas run, one of them at work.
	LeaderElection bool
	// Namespace holds the leader election's Lease.
	Namespace string
	// Pod may be unknown.
	Pod Pod
	// LabelDomain is what stands before the slash in the labels of pods and sets.
	LabelDomain string
	// ManagedBy is the value of the label that marks sets as ours.
	ManagedBy string
	// CalicoAPI is CalicoAPIAuto, CalicoAPIV3 or CalicoAPIV1.
	CalicoAPI string
	// IncludeHostNetwork lets addresses of pods on the host network in, which
	// are those of whole nodes.
	IncludeHostNetwork bool
	// FullResyncPeriod is how often all sets are compared with the cluster.
	FullResyncPeriod time.Duration
	// RemovalGrace is how long after the program's start what came from a remote
	// that is no longer configured stays; 0: it doesn't.
	RemovalGrace time.Duration
}

// Tokens configures semaphore-tokens.
type Tokens struct {
	Base
	// Namespace holds the Secrets with the remotes' tokens.
	Namespace string
	// All asks to renew tokens that aren't due, too.
	All bool
}
