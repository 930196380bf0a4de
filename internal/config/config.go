// Package config reads the settings of the programs: environment
// variables, flags (which win over the environment), and the JSON file of the
// original tools in place of the variables that describe clusters.
//
// A setting is a field of one of the structs below, with what is to be said of it
// in its tags; envconfig makes the names of variables of them:
//
//	envconfig  the variable, without what all or those of a remote begin with
//	desc       the meaning, for -help
//	default    what counts when it is unset or empty
//	required   why it must be set; some are required under conditions, in code
//	range      least and most, of numbers and bytes
//	oneof      the words that it can be
//	is         what it must be otherwise: a kind that check knows
//	zero       a word for 0
//	holds      what has its addresses in a list of subnets
//	empty      "off": it can be set to nothing
//	flag       flags that set it, too
//	file       where it is in the JSON file: section and key
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
	Kubeconfig string `envconfig:"KUBECONFIG" file:"remote.kubeConfigPath" desc:"path of a kubeconfig for the remote; or the next ones"`
	APIURL     string `envconfig:"API_URL" is:"https" file:"remote.remoteAPIURL" desc:"https address of the remote's API server"`
	CAURL      string `envconfig:"CA_URL" is:"https" file:"remote.remoteCAURL" desc:"https address that serves the certificates that the API server's must chain to; or"`
	CAFile     string `envconfig:"CA_FILE" file:"remote.remoteCAPath" desc:"path of a file that holds them, read again when it changes"`
	// CASHA256 is in lower-case hexadecimal. Empty: all that CAURL serves count.
	CASHA256  string `envconfig:"CA_SHA256" file:"remote.remoteCASHA256" desc:"SHA-256 fingerprints of certificates, comma-separated: of those that _CA_URL serves only these count"`
	TokenFile string `envconfig:"TOKEN_FILE" file:"remote.remoteSATokenPath" desc:"path of a service account's token, read anew as it rotates"`
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

// Remote is one remote cluster. Lists of subnets are masked and sorted.
type Remote struct {
	// Name is the cluster's name, a DNS label, the same in all configurations.
	Name string `ignored:"true"`
	// Access is never that of the own cluster.
	Access Access `ignored:"true"`
	// PodSubnets don't overlap, neither each other nor those of another remote.
	// Empty only for the mirror and policy, which then accept any address.
	PodSubnets []netip.Prefix `envconfig:"POD_SUBNETS" file:"remote.podSubnet" holds:"pods" desc:"the remote's pod subnets, IPv4 and IPv6, comma-separated (required by semaphore-wireguard)"`
	// PodSubnetsFrom is the setting that PodSubnets were read from, for faults.
	PodSubnetsFrom string         `ignored:"true"`
	NodeSubnets    []netip.Prefix `envconfig:"NODE_SUBNETS" file:"remote.nodeSubnets" holds:"nodes" desc:"where endpoints of the remote's nodes may be, IPv4 and IPv6, comma-separated, for semaphore-wireguard (default: anywhere but in this cluster)"`
	ResyncPeriod   time.Duration  `envconfig:"RESYNC_PERIOD" file:"remote.resyncPeriod" default:"0" desc:"how often everything is looked at again without an event; 0 is never"`
	StaleAfter     time.Duration  `envconfig:"STALE_AFTER" file:"remote.staleAfter" default:"0" desc:"how long the last known state counts without contact, for mirrors and network sets; 0 is for ever"`
	// MaxAnswer is at least what one object has, and some more.
	MaxAnswer int64 `envconfig:"MAX_ANSWER" file:"remote.maxAnswer" default:"256Mi" range:"4Mi,64Gi" desc:"most bytes of one list of the remote's objects, as in 64Mi; a quarter of it is kept of each kind at most"`
	// MaxObjects of 0 is as many as suit the kind.
	MaxObjects   int `envconfig:"MAX_OBJECTS" file:"remote.maxObjects" range:"1,10000000" desc:"most objects of one kind that are kept of the remote (default 10000 nodes, 50000 of other kinds)"`
	MaxServices  int `envconfig:"MAX_SERVICES" file:"remote.maxServices" default:"2000" range:"1,10000000" desc:"how many Services semaphore-service-mirror makes for the remote's"`
	MaxSlices    int `envconfig:"MAX_SLICES" file:"remote.maxSlices" default:"10000" range:"1,10000000" desc:"how many EndpointSlices semaphore-service-mirror makes for the remote's services"`
	MaxAddresses int `envconfig:"MAX_ADDRESSES" file:"remote.maxAddresses" default:"100000" range:"1,10000000" desc:"how many addresses of the remote are written to EndpointSlices, and to network sets"`
	MaxSets      int `envconfig:"MAX_SETS" file:"remote.maxSets" default:"2000" range:"1,10000000" desc:"how many network sets semaphore-policy makes for the remote's pods"`
	// ListenPort is local.
	ListenPort int `envconfig:"WG_LISTEN_PORT" file:"remote.wgListenPort" range:"1,65535" desc:"UDP port of this remote's WireGuard device (default 51820 for the first remote, 51821 for the second, ...)"`
	// MTU is at least what IPv4 hosts must be able to put together (RFC 791), and
	// leaves room in the largest packet for the headers of IPv6 (40 bytes), UDP (8)
	// and WireGuard (32). 0 is auto.
	MTU int `envconfig:"WG_MTU" file:"remote.wgDeviceMTU" default:"auto" zero:"auto" range:"576,65455" desc:"MTU of this remote's WireGuard device; auto is that of the network between the nodes less 80"`
	// MaxPeers is at most what a device takes (the kernel's MAX_PEERS_PER_DEVICE and
	// wireguard-go's MaxPeers are 2^20 and 2^16).
	MaxPeers int `envconfig:"WG_MAX_PEERS" file:"remote.wgMaxPeers" default:"2000" range:"1,65536" desc:"how many of the remote's nodes may be peers; those that were accepted first stay"`
	// MaxPrefixes is of one node: what the agents publish fits the 256 KiB that an
	// API server takes of annotations.
	MaxPrefixes   int    `envconfig:"WG_MAX_PREFIXES" file:"remote.wgMaxPrefixes" default:"1024" range:"1,5000" desc:"how many prefixes one of the remote's nodes may have; the first ones count"`
	MaxAllowedIPs int    `envconfig:"WG_MAX_ALLOWED_IPS" file:"remote.wgMaxAllowedIPs" default:"100000" range:"1,10000000" desc:"how many prefixes all of the remote's nodes may have together; those that were accepted first stay"`
	Borrowed      bool   `envconfig:"BORROWED" file:"remote.borrowed" default:"true" desc:"whether a node of the remote may have single addresses inside another one's prefix, as Calico's address management hands them out"`
	ServicePrefix string `envconfig:"SERVICE_PREFIX" file:"remote.servicePrefix" desc:"what the names of services mirrored from the remote start with (default: the remote's name)"`
}

// Values of Base.ListenAuth.
const (
	ListenAuthNone  = "none"
	ListenAuthToken = "token"
)

// Base is what all programs have in common.
type Base struct {
	// ClusterName is empty only for the policy program started with
	// -target-cluster-name, as the original one is.
	ClusterName string `envconfig:"CLUSTER_NAME" is:"cluster" file:"local.name" desc:"this cluster: lower-case letters, digits and dashes, 52 at most, the same in the configuration of all clusters (required)"`
	// Remotes are in the order in which they were configured.
	Remotes []Remote `envconfig:"REMOTES" desc:"the remote clusters, comma-separated, as in gcp,merit (required)"`
	// Local is the access to the local cluster.
	Local         Access `ignored:"true"`
	ListenAddress string `envconfig:"LISTEN_ADDRESS" is:"host:port" flag:"listen-address" desc:"where metrics and status are served (default for semaphore-wireguard: port 7773 of SEMAPHORE_HOST_IP, or of the loopback without it; for the others \":8080\")"`
	ListenAuth    string `envconfig:"LISTEN_AUTH" default:"none" oneof:"none,token" desc:"who gets metrics and status there: none is everybody, token is who shows a token of an account that may get the path"`
	// ProbeAddress is on another port.
	ProbeAddress string `envconfig:"PROBE_ADDRESS" is:"host:port" desc:"where the kubelet gets /healthz and /readyz, and the own host, or pod, metrics and status as well (default \"127.0.0.1:7774\" for semaphore-wireguard, \":8081\" for the others)"`
	LogLevel     string `envconfig:"LOG_LEVEL" flag:"log-level" default:"info" oneof:"debug,info,warn,error" desc:"debug, info, warn or error"`
	LogFormat    string `envconfig:"LOG_FORMAT" default:"json" oneof:"json,text" desc:"json, or text for people"`
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

// sources are settings of all programs that say where others come from.
type sources struct {
	ClustersConfig string `envconfig:"CLUSTERS_CONFIG" flag:"clusters-config" desc:"path of a JSON file that takes the place of SEMAPHORE_CLUSTER_NAME and all SEMAPHORE_REMOTE variables"`
	Kubeconfig     string `envconfig:"KUBECONFIG" file:"local.kubeConfigPath" flag:"kube-config,local-kube-config" desc:"path of a kubeconfig for this cluster; without it the pod's service account is used"`
}

// Pod is the pod that a program runs in, which its Events are about.
type Pod struct {
	Namespace string `ignored:"true"`
	Name      string `envconfig:"NAME" is:"subdomain" desc:"name of the pod that this runs in, which its Events are about; without it there are none"`
	UID       string `envconfig:"UID" desc:"UID of that pod"`
}

// Known reports whether there is anything for Events to be about.
func (p Pod) Known() bool { return p.Namespace != "" && p.Name != "" && p.UID != "" }

// Values of Wireguard.Engine.
const (
	EngineStart = "start"
	EngineWait  = "wait"
)

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
	NodeName string `envconfig:"NODE_NAME" is:"subdomain" flag:"node-name" required:"the node that this runs on, from spec.nodeName" desc:"the Kubernetes node that this runs on (required)"`
	// Pod may be unknown.
	Pod Pod
	// LocalSubnets are masked and sorted.
	LocalSubnets []netip.Prefix `envconfig:"LOCAL_SUBNETS" holds:"addresses of a cluster" desc:"where this cluster has nodes, pods and services, comma-separated, beside what its API server tells: no remote's endpoint may be there"`
	Backend      string         `envconfig:"WG_BACKEND" default:"auto" oneof:"auto,kernel,userspace" desc:"auto, kernel or userspace; auto is the kernel's WireGuard where there is one"`
	Engine       string         `envconfig:"WG_ENGINE" default:"start" oneof:"start,wait" desc:"what to do where the backend is userspace and no engine answers: start the program semaphore-engine that is beside this one, or wait for one, as beside a container that is one"`
	KeyPath      string         `envconfig:"WG_KEY_PATH" is:"path" flag:"wg-key-path" default:"/var/lib/semaphore-wireguard" desc:"folder of private keys and of what outlives a restart"`
	// Endpoint can also be said of a single node.
	Endpoint     string `envconfig:"WG_ENDPOINT" is:"endpoint" default:"InternalIP" desc:"where the nodes of other clusters reach this one: InternalIP or ExternalIP is that of the node's status; an address, also with a port if that differs outside; or none, behind address translation: then this node has to begin"`
	RouteSrc     string `envconfig:"WG_ROUTE_SRC" is:"source" default:"auto" desc:"source address of what the node itself sends to remote pods: auto is a local address inside the node's podCIDR, none, or an address"`
	PodCIDRs     string `envconfig:"WG_POD_CIDRS" is:"pod prefixes" default:"auto" desc:"where the prefixes of the node's pods come from: auto, node (its podCIDRs), calico, cilium, ovn, pods (their addresses), or prefixes, comma-separated"`
	SourceFilter bool   `envconfig:"WG_SOURCE_FILTER" default:"true" desc:"whether packets are dropped that claim a remote pod's address and didn't come through the tunnel"`
	// ProbeSocket may be empty.
	ProbeSocket string `envconfig:"PROBE_SOCKET" is:"path" desc:"path of a Unix socket that serves what SEMAPHORE_PROBE_ADDRESS does, for \"semaphore-wireguard probe\" and \"status\" in the same pod (default: none)"`
	PeerMetrics int    `envconfig:"WG_PEER_METRICS" default:"1000" range:"0,1000000" desc:"how many peers of each remote have metrics of their own; 0 is none"`
	// Cleanup asks to remove all that the program ever set up, and to end.
	Cleanup bool `ignored:"true"`
}

// agentSources are settings of semaphore-wireguard that others are made of.
type agentSources struct {
	HostIP    string `envconfig:"HOST_IP" is:"ip" desc:"the node's own address, from status.hostIP; where metrics and status are served by default"`
	Namespace string `envconfig:"NAMESPACE" is:"label" desc:"namespace of its Events (default: the pod's)"`
}

// Mirror configures semaphore-service-mirror.
type Mirror struct {
	Base
	LeaderElection       bool          `envconfig:"LEADER_ELECTION" default:"true" desc:"whether several replicas agree on one that works"`
	Namespace            string        `envconfig:"NAMESPACE" is:"label" desc:"namespace of the leader election's Lease, and of what agents report of paths (default: the pod's)"`
	MirrorNamespace      string        `envconfig:"MIRROR_NAMESPACE" is:"label" flag:"mirror-ns" file:"global.mirrorNamespace" desc:"namespace of the mirrors (default: the pod's)"`
	MirrorSelector       string        `envconfig:"MIRROR_SELECTOR" is:"selector" flag:"mirror-svc-label-selector,label-selector" file:"global.mirrorSvcLabelSelector" empty:"off" default:"mirror.semaphore.uw.io/mirror-service=true" desc:"label selector of services to mirror; empty: none"`
	GlobalSelector       string        `envconfig:"GLOBAL_SELECTOR" is:"selector" flag:"global-svc-label-selector" file:"global.globalSvcLabelSelector" empty:"off" default:"mirror.semaphore.uw.io/global-service=true" desc:"label selector of global services; empty: none"`
	RoutingStrategyLabel string        `envconfig:"GLOBAL_ROUTING_STRATEGY_LABEL" is:"selector" flag:"global-svc-routing-strategy-label" file:"global.globalSvcRoutingStrategyLabel" empty:"off" default:"mirror.semaphore.uw.io/global-service-routing-strategy=local-first" desc:"label selector of global services that prefer local endpoints; empty: none"`
	LocalMinimum         int           `envconfig:"GLOBAL_LOCAL_MINIMUM" default:"1" range:"1,1000000" desc:"how many of its local endpoints must be ready for a global service to prefer them, unless a label of the service says so"`
	LegacyEndpoints      bool          `envconfig:"MIRROR_LEGACY_ENDPOINTS" default:"false" desc:"whether to write objects of the deprecated Endpoints API as well"`
	RemovalGrace         time.Duration `envconfig:"REMOVAL_GRACE" default:"10m" desc:"how long what came from a remote that is no longer configured stays, from the start of the program on; 0: it is removed at once"`
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
	LeaderElection bool   `envconfig:"LEADER_ELECTION" default:"true" desc:"whether several replicas agree on one that works"`
	Namespace      string `envconfig:"NAMESPACE" is:"label" desc:"namespace of the leader election's Lease and of Events (default: the pod's)"`
	// Pod may be unknown.
	Pod                Pod
	LabelDomain        string        `envconfig:"POLICY_LABEL_DOMAIN" is:"subdomain" default:"policy.semaphore.uw.io" desc:"what stands before the slash in the labels of pods and network sets"`
	ManagedBy          string        `envconfig:"POLICY_MANAGED_BY" is:"label value" default:"semaphore-policy" desc:"value of the managed-by label of network sets"`
	CalicoAPI          string        `envconfig:"POLICY_CALICO_API" default:"auto" oneof:"auto,v3,v1" desc:"auto, v3 or v1: the API group that network sets are written to"`
	IncludeHostNetwork bool          `envconfig:"POLICY_INCLUDE_HOST_NETWORK" default:"false" desc:"whether pods on the host network count, with the addresses of their nodes"`
	FullResyncPeriod   time.Duration `envconfig:"POLICY_FULL_RESYNC_PERIOD" flag:"full-store-resync-period" default:"1h" desc:"how often all network sets are compared with the cluster; 0 is never"`
	RemovalGrace       time.Duration `envconfig:"REMOVAL_GRACE" default:"10m" desc:"how long what came from a remote that is no longer configured stays, from the start of the program on; 0: it is removed at once"`
}

// Tokens configures semaphore-tokens.
type Tokens struct {
	Base
	Namespace string `envconfig:"NAMESPACE" is:"label" desc:"namespace of the Secrets with the remotes' tokens (default: the pod's)"`
	// All asks to renew tokens that aren't due, too.
	All bool `ignored:"true"`
}
