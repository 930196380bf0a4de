// Package config reads the settings of the programs: environment
// variables, flags (which override the environment), and the JSON file of the
// original tools, which replaces the variables that describe clusters.
//
// A setting is a field of one of the structs below, described by its tags:
//
//	envconfig  the variable, without the common prefix
//	desc       the meaning, for -help and docs/settings.md
//	default    the value when it is unset or empty
//	required   why it must be set; further conditions are in code
//	range      minimum and maximum, of numbers and bytes
//	oneof      the allowed values
//	is         the syntax, one of those in function check
//	holds      for errors: the objects whose addresses a list of subnets contains
//	empty      "off": set but empty is not the default
//	flag       flags that set it
//	file       its section and key in the JSON file
//
// All errors of a configuration are reported together, each with the setting that it
// comes from.
package config

import (
	"strings"
	"time"
)

// Access is the access to one cluster's API server. Either Kubeconfig is set, or APIURL,
// TokenFile and one of CAURL and CAFile. The zero value is the in-cluster configuration,
// for the local cluster only.
type Access struct {
	Kubeconfig string `envconfig:"KUBECONFIG" file:"remote.kubeConfigPath" desc:"path of a kubeconfig for the remote cluster; alternatively set _API_URL, _TOKEN_FILE and one of _CA_URL and _CA_FILE"`
	APIURL     string `envconfig:"API_URL" is:"https" file:"remote.remoteAPIURL" desc:"https URL of the remote's API server"`
	CAURL      string `envconfig:"CA_URL" is:"https" file:"remote.remoteCAURL" desc:"https URL that serves the CA certificates of the remote's API server; alternatively set _CA_FILE"`
	CAFile     string `envconfig:"CA_FILE" file:"remote.remoteCAPath" desc:"path of a file with these CA certificates in PEM, reloaded when it changes"`
	// CASHA256 is in lower-case hexadecimal.
	CASHA256  string `envconfig:"CA_SHA256" file:"remote.remoteCASHA256" desc:"SHA-256 fingerprints of CA certificates, comma-separated; of the certificates that _CA_URL serves only these are trusted (default: all)"`
	TokenFile string `envconfig:"TOKEN_FILE" file:"remote.remoteSATokenPath" desc:"path of a service account token, reloaded when it is rotated"`
	// ProxyURL is one of ParseProxy, for APIURL and CAURL.
	ProxyURL string `envconfig:"PROXY_URL" is:"proxy" file:"remote.remoteProxyURL" desc:"URL of a proxy to the remote's API server, and for _CA_URL: http, https or socks5, such as http://10.66.2.9:3128, without user and password (default: HTTPS_PROXY)"`
}

// InCluster reports whether a is the in-cluster configuration.
func (a Access) InCluster() bool { return a == Access{} }

// Pins returns the fingerprints of CASHA256.
func (a Access) Pins() []string {
	if a.CASHA256 == "" {
		return nil
	}
	return strings.Split(a.CASHA256, ",")
}

// Remote is one remote cluster. Lists of subnets are masked and sorted.
type Remote struct {
	// Name is a DNS label, the same in the configuration of all clusters.
	Name string `ignored:"true"`
	// Access is never InCluster.
	Access Access `ignored:"true"`
	// PodSubnets overlap neither each other nor those of another remote. They may be empty
	// for the mirror and policy, which then accept any address.
	PodSubnets Subnets `envconfig:"POD_SUBNETS" file:"remote.podSubnet" holds:"pods" desc:"the remote's pod subnets, IPv4 and IPv6, comma-separated (required by semaphore-wireguard)"`
	// PodSubnetsMap maps the remote's pod subnets to the virtual ones of PodSubnets, see its
	// method Virtual. It is a setting, and not what the remote says: nothing that its nodes
	// publish changes which addresses are accepted, and whose they are.
	PodSubnetsMap SubnetMap `envconfig:"POD_SUBNETS_MAP" file:"remote.podSubnetsMap" desc:"the remote's SEMAPHORE_POD_SUBNETS_MAP, whose virtual subnets are in _POD_SUBNETS (default: none, its pods have the same addresses everywhere)"`
	// PodSubnetsFrom is the setting that PodSubnets were read from, for errors.
	PodSubnetsFrom string        `ignored:"true"`
	NodeSubnets    Subnets       `envconfig:"NODE_SUBNETS" file:"remote.nodeSubnets" holds:"nodes" desc:"subnets that endpoints of the remote's nodes must lie in, IPv4 and IPv6, comma-separated; used by semaphore-wireguard (default: any address outside this cluster)"`
	ResyncPeriod   time.Duration `envconfig:"RESYNC_PERIOD" file:"remote.resyncPeriod" default:"0" desc:"interval at which all of the remote's objects are reconciled without an event (0: never)"`
	StaleAfter     time.Duration `envconfig:"STALE_AFTER" file:"remote.staleAfter" default:"0" desc:"time without contact after which the remote's state is considered stale, for mirrors and network sets (0: never)"`
	// MaxAnswer is larger than the largest object.
	MaxAnswer Bytes `envconfig:"MAX_ANSWER" file:"remote.maxAnswer" default:"256Mi" range:"4Mi,64Gi" desc:"maximum size of one list of the remote's objects, such as 64Mi; a quarter of it is the maximum size of the cache for one kind"`
	// MaxObjects of 0 is the default of the kind.
	MaxObjects   int `envconfig:"MAX_OBJECTS" file:"remote.maxObjects" range:"1,10000000" desc:"maximum number of cached objects of one kind (default 10000 nodes, 50000 of other kinds)"`
	MaxServices  int `envconfig:"MAX_SERVICES" file:"remote.maxServices" default:"2000" range:"1,10000000" desc:"maximum number of Services that semaphore-service-mirror creates for the remote"`
	MaxSlices    int `envconfig:"MAX_SLICES" file:"remote.maxSlices" default:"10000" range:"1,10000000" desc:"maximum number of EndpointSlices that semaphore-service-mirror creates for the remote"`
	MaxAddresses int `envconfig:"MAX_ADDRESSES" file:"remote.maxAddresses" default:"100000" range:"1,10000000" desc:"maximum number of the remote's addresses in EndpointSlices, and in network sets"`
	MaxSets      int `envconfig:"MAX_SETS" file:"remote.maxSets" default:"2000" range:"1,10000000" desc:"maximum number of network sets that semaphore-policy creates for the remote"`
	// ListenPort is local.
	ListenPort int `envconfig:"WG_LISTEN_PORT" file:"remote.wgListenPort" range:"1,65535" desc:"UDP port of this remote's WireGuard device (default 51820 for the first remote, 51821 for the second, ...)"`
	// MTU is at least what IPv4 hosts must be able to reassemble (RFC 791), and at most
	// the largest packet less the headers of IPv6 (40 bytes), UDP (8) and WireGuard (32).
	// 0 is auto.
	MTU MTU `envconfig:"WG_MTU" file:"remote.wgDeviceMTU" default:"auto" range:"576,65455" desc:"MTU of this remote's WireGuard device; auto: the MTU of the network between the nodes minus 80"`
	// MaxPeers is at most what a device supports (the kernel's MAX_PEERS_PER_DEVICE and
	// wireguard-go's MaxPeers are 2^20 and 2^16).
	MaxPeers int `envconfig:"WG_MAX_PEERS" file:"remote.wgMaxPeers" default:"2000" range:"1,65536" desc:"maximum number of the remote's nodes that are peers; the first accepted ones stay"`
	// MaxPrefixes is per node: what an agent publishes fits the 256 KiB that an API server
	// allows for annotations.
	MaxPrefixes   int  `envconfig:"WG_MAX_PREFIXES" file:"remote.wgMaxPrefixes" default:"1024" range:"1,5000" desc:"maximum number of prefixes of one of the remote's nodes; further ones are ignored"`
	MaxAllowedIPs int  `envconfig:"WG_MAX_ALLOWED_IPS" file:"remote.wgMaxAllowedIPs" default:"100000" range:"1,10000000" desc:"maximum number of prefixes of all of the remote's nodes; the first accepted ones stay"`
	Borrowed      bool `envconfig:"BORROWED" file:"remote.borrowed" default:"true" desc:"whether a node of the remote may have single addresses inside the prefix of another node, as assigned by Calico's IPAM"`
	// Imports are the namespaces in which exports of the remote make imports.
	Tier          int        `envconfig:"TIER" file:"remote.tier" default:"1" range:"0,16" desc:"for services that prefer local endpoints: remotes are preferred in the order of their tiers, until enough of their endpoints are ready; 0 is the tier of the local cluster"`
	Imports       Namespaces `envconfig:"IMPORT_NAMESPACES" file:"remote.importNamespaces" default:"*" empty:"off" desc:"namespaces in which Services that the remote exports are imported, comma-separated: names such as shop, or their beginnings such as team-*; of those that begin with kube- only what does so itself is meant, and never the namespace of the mirrors (empty: none)"`
	ServicePrefix string     `envconfig:"SERVICE_PREFIX" file:"remote.servicePrefix" desc:"prefix of the names of services mirrored from the remote (default: the remote's name)"`
}

// Values of Base.ListenAuth.
const (
	ListenAuthNone  = "none"
	ListenAuthToken = "token"
)

// Base has the settings of all programs.
type Base struct {
	// ClusterName is empty only for semaphore-policy with the original tool's flag
	// -target-cluster-name.
	ClusterName string `envconfig:"CLUSTER_NAME" is:"cluster" file:"local.name" desc:"name of this cluster: at most 52 lower-case letters, digits and dashes, the same in the configuration of all clusters (required)"`
	// Remotes are in the order of the configuration.
	Remotes []Remote `envconfig:"REMOTES" desc:"names of the remote clusters, comma-separated, such as gcp,merit (required)"`
	// Local is the access to the local cluster.
	Local         Access `ignored:"true"`
	ListenAddress string `envconfig:"LISTEN_ADDRESS" is:"host:port" flag:"listen-address" desc:"address that serves metrics and status (default for semaphore-wireguard: port 7773 of SEMAPHORE_HOST_IP, or of the loopback if that is unset; for the others \":8080\")"`
	ListenAuth    string `envconfig:"LISTEN_AUTH" default:"none" oneof:"none,token" desc:"authentication for metrics and status at that address: none, or token (a bearer token whose account may get the path)"`
	// ProbeAddress has another port than ListenAddress.
	ProbeAddress string `envconfig:"PROBE_ADDRESS" is:"host:port" desc:"address that serves /healthz and /readyz for the kubelet, and to clients on the same host or in the same pod metrics and status as well (default \"127.0.0.1:7774\" for semaphore-wireguard, \":8081\" for the others)"`
	// ProbeSocket may be empty.
	ProbeSocket string `envconfig:"PROBE_SOCKET" is:"path" desc:"path of a Unix socket that serves the same as SEMAPHORE_PROBE_ADDRESS, for the commands \"probe\" and \"status\" in the same pod (default: none)"`
	LogLevel    string `envconfig:"LOG_LEVEL" flag:"log-level" default:"info" oneof:"debug,info,warn,error" desc:"minimum level of log messages: debug, info, warn or error"`
	LogFormat   string `envconfig:"LOG_FORMAT" default:"json" oneof:"json,text" desc:"format of log messages: json or text"`
}

// Logging returns the level and the format of the log.
func (b Base) Logging() (level, format string) { return b.LogLevel, b.LogFormat }

// TokenFiles returns the token files by remote, of remotes without a kubeconfig.
func (b *Base) TokenFiles() map[string]string {
	files := map[string]string{}
	for i := range b.Remotes {
		if file := b.Remotes[i].Access.TokenFile; file != "" {
			files[b.Remotes[i].Name] = file
		}
	}
	return files
}

// sources are settings of all programs that name the sources of other settings.
type sources struct {
	ClustersConfig string `envconfig:"CLUSTERS_CONFIG" flag:"clusters-config" desc:"path of a JSON file that replaces SEMAPHORE_CLUSTER_NAME and all SEMAPHORE_REMOTE variables"`
	Kubeconfig     string `envconfig:"KUBECONFIG" file:"local.kubeConfigPath" flag:"kube-config,local-kube-config" desc:"path of a kubeconfig for this cluster (default: the pod's service account)"`
}

// Pod is the program's own pod, which its Events are about.
type Pod struct {
	Namespace string `ignored:"true"`
	Name      string `envconfig:"NAME" is:"subdomain" desc:"name of the program's own pod, which its Events are about; if it is unset, no Events are created"`
	UID       string `envconfig:"UID" desc:"UID of the program's own pod"`
}

// Known reports whether the pod is known: otherwise no Events are created.
func (p Pod) Known() bool { return p.Namespace != "" && p.Name != "" && p.UID != "" }

// Values of Wireguard.RemotesFrom.
const (
	RemotesFromAPI   = "api"
	RemotesFromRelay = "relay"
)

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
	NodeName string `envconfig:"NODE_NAME" is:"subdomain" flag:"node-name" required:"the node that this runs on, from spec.nodeName" desc:"name of the Kubernetes node that the program runs on (required)"`
	// Pod is optional.
	Pod Pod
	// Namespace has the objects of semaphore-relay, with RemotesFromRelay.
	Namespace   string `ignored:"true"`
	RemotesFrom string `envconfig:"REMOTES_FROM" default:"api" oneof:"api,relay" desc:"where the nodes of remotes, and of this cluster, are read: api (each cluster's API server), or relay (the objects of semaphore-relay in this cluster; remotes then need no access)"`
	// LocalSubnets are masked and sorted.
	LocalSubnets Subnets `envconfig:"LOCAL_SUBNETS" holds:"a cluster" desc:"subnets of this cluster's nodes, pods and services, comma-separated, in addition to those that its API server reports: endpoints of remotes inside them are rejected"`
	Backend      string  `envconfig:"WG_BACKEND" default:"auto" oneof:"auto,kernel,userspace" desc:"WireGuard implementation: auto, kernel or userspace; auto: kernel if available"`
	Engine       string  `envconfig:"WG_ENGINE" default:"start" oneof:"start,wait" desc:"with the userspace backend, if no engine is running: start semaphore-engine, which is installed beside this program, or wait for one that another container runs"`
	KeyPath      string  `envconfig:"WG_KEY_PATH" is:"path" flag:"wg-key-path" default:"/var/lib/semaphore-wireguard" desc:"directory of private keys and persistent state"`
	// Endpoint can be overridden for a single node.
	Endpoint string `envconfig:"WG_ENDPOINT" is:"endpoint" default:"InternalIP" desc:"published endpoint of this node: InternalIP or ExternalIP of the node's status, an address with an optional port, or none (behind NAT: this node initiates all handshakes)"`
	RouteSrc string `envconfig:"WG_ROUTE_SRC" is:"source" default:"auto" desc:"source address of packets from the node itself to remote pods: auto (a local address inside the node's podCIDR), none, or an address"`
	PodCIDRs string `envconfig:"WG_POD_CIDRS" is:"pod prefixes" default:"auto" desc:"source of the prefixes of the node's pods: auto, node (its podCIDRs), calico, cilium, ovn, pods (their addresses), or prefixes, comma-separated"`
	// PodSubnetsMap is that of this cluster, the same for all remotes.
	PodSubnetsMap SubnetMap `envconfig:"POD_SUBNETS_MAP" desc:"virtual subnets by which other clusters know the pod subnets of this one, such as 10.0.0.0/16=10.201.0.0/16, comma-separated, of equal length; other clusters have the virtual ones in their SEMAPHORE_REMOTE_<NAME>_POD_SUBNETS (default: none, addresses of pods are the same everywhere)"`
	SourceFilter  bool      `envconfig:"WG_SOURCE_FILTER" default:"true" desc:"whether to drop packets with a source address of a remote pod that don't come through the tunnel"`
	// Mark is none of kube-proxy's. 0: none.
	Mark         uint32        `envconfig:"WG_FWMARK" default:"0x1073" desc:"firewall mark of the tunnel's own packets: those with all its bits pass the routes to the pod subnets of remotes, so that nodes may have addresses inside these; it must not have bits of kube-proxy's marks (0x4000, 0x8000) or of the network plugin's (0: none, such endpoints are rejected)"`
	RemovalGrace time.Duration `envconfig:"REMOVAL_GRACE" default:"10m" desc:"time after the start of the program for which packets to pods of a remote that is no longer configured are refused (0: at once they follow the other routes, in plaintext)"`
	PeerMetrics  int           `envconfig:"WG_PEER_METRICS" default:"1000" range:"0,1000000" desc:"maximum number of peers per remote with metrics of their own (0: none)"`
	// Cleanup is set to remove everything that the program set up, and exit.
	Cleanup bool `ignored:"true"`
}

// agentSources are settings of semaphore-wireguard that others default to.
type agentSources struct {
	HostIP    string `envconfig:"HOST_IP" is:"ip" desc:"address of the node, from status.hostIP; default host of SEMAPHORE_LISTEN_ADDRESS"`
	Namespace string `envconfig:"NAMESPACE" is:"label" desc:"namespace of Events, and of semaphore-relay's objects (default: the pod's)"`
}

// Removal configures the removal of the objects of remotes that are no longer configured.
type Removal struct {
	RemovalGrace time.Duration `envconfig:"REMOVAL_GRACE" default:"10m" desc:"time after the start of the program, or after semaphore-policy has first seen network sets, until mirrors and network sets of a remote that is no longer configured are removed (0: at once)"`
	// Departed may be in Remotes as well, until the agents no longer need them there.
	Departed Names `envconfig:"DEPARTED_REMOTES" desc:"names of clusters that left in order, comma-separated: semaphore-service-mirror ignores them, also in SEMAPHORE_REMOTES, and removes their mirrors and endpoints at once; semaphore-policy removes their network sets at once when they are no longer in SEMAPHORE_REMOTES"`
}

// Mirror configures semaphore-service-mirror.
type Mirror struct {
	Base
	LeaderElection       bool   `envconfig:"LEADER_ELECTION" default:"true" desc:"whether replicas elect a leader; only the leader writes"`
	Namespace            string `envconfig:"NAMESPACE" is:"label" desc:"namespace of the leader election's Lease and of the agents' path reports (default: the pod's)"`
	MirrorNamespace      string `envconfig:"MIRROR_NAMESPACE" is:"label" flag:"mirror-ns" file:"global.mirrorNamespace" desc:"namespace of the mirrors (default: the pod's)"`
	MirrorSelector       string `envconfig:"MIRROR_SELECTOR" is:"selector" flag:"mirror-svc-label-selector,label-selector" file:"global.mirrorSvcLabelSelector" empty:"off" default:"mirror.semaphore.uw.io/mirror-service=true" desc:"label selector of services to mirror (empty: none)"`
	GlobalSelector       string `envconfig:"GLOBAL_SELECTOR" is:"selector" flag:"global-svc-label-selector" file:"global.globalSvcLabelSelector" empty:"off" default:"mirror.semaphore.uw.io/global-service=true" desc:"label selector of global services (empty: none)"`
	RoutingStrategyLabel string `envconfig:"GLOBAL_ROUTING_STRATEGY_LABEL" is:"selector" flag:"global-svc-routing-strategy-label" file:"global.globalSvcRoutingStrategyLabel" empty:"off" default:"mirror.semaphore.uw.io/global-service-routing-strategy=local-first" desc:"label selector of global services that prefer local endpoints (empty: none)"`
	LocalMinimum         int    `envconfig:"GLOBAL_LOCAL_MINIMUM" default:"1" range:"1,1000000" desc:"minimum number of ready local endpoints for a global service to prefer them; a label of the service overrides it"`
	// MaxServices is shared evenly, see its method ServicesOf.
	MaxServices  int    `envconfig:"MIRROR_MAX_SERVICES" range:"1,10000000" desc:"maximum number of Services that semaphore-service-mirror creates for all remotes together, of which each has an equal share at most; semaphorectl join sets it to a quarter of the service range (default: none but those of the remotes)"`
	MultiCluster string `envconfig:"MCS" default:"auto" oneof:"auto,on,off" desc:"whether exported services are imported (Multi-Cluster Services API): auto (if the cluster has the CRDs, and the account the rights), on (without them is an error), or off"`
	Removal
}

// ServicesOf returns the maximum number of Services for a remote: its own, and its share of what
// all remotes together may have. Shares are fixed, so that no remote takes another one's.
func (m *Mirror) ServicesOf(r *Remote) int {
	if m.MaxServices == 0 {
		return r.MaxServices
	}
	return min(r.MaxServices, max(1, m.MaxServices/len(m.Remotes)))
}

// Values of Mirror.MultiCluster.
const (
	MultiClusterAuto = "auto"
	MultiClusterOn   = "on"
	MultiClusterOff  = "off"
)

// Values of Policy.CalicoAPI.
const (
	CalicoAPIAuto = "auto"
	CalicoAPIV3   = "v3"
	CalicoAPIV1   = "v1"
)

// Policy configures semaphore-policy.
type Policy struct {
	Base
	LeaderElection bool   `envconfig:"LEADER_ELECTION" default:"true" desc:"whether replicas elect a leader; only the leader writes"`
	Namespace      string `envconfig:"NAMESPACE" is:"label" desc:"namespace of the leader election's Lease and of Events (default: the pod's)"`
	// Pod is optional.
	Pod                Pod
	LabelDomain        string        `envconfig:"POLICY_LABEL_DOMAIN" is:"subdomain" default:"policy.semaphore.uw.io" desc:"domain of the labels of pods and network sets, before the slash"`
	ManagedBy          string        `envconfig:"POLICY_MANAGED_BY" is:"label value" default:"semaphore-policy" desc:"value of the managed-by label of network sets"`
	CalicoAPI          string        `envconfig:"POLICY_CALICO_API" default:"auto" oneof:"auto,v3,v1" desc:"version of the Calico API for network sets: auto, v3 or v1"`
	IncludeHostNetwork bool          `envconfig:"POLICY_INCLUDE_HOST_NETWORK" default:"false" desc:"whether network sets include pods on the host network, with the addresses of their nodes"`
	FullResyncPeriod   time.Duration `envconfig:"POLICY_FULL_RESYNC_PERIOD" flag:"full-store-resync-period" default:"1h" desc:"interval at which all network sets are compared with the cluster, at least 1m (0: never)"`
	Removal
}

// Relay configures semaphore-relay.
type Relay struct {
	Base
	LeaderElection bool   `envconfig:"LEADER_ELECTION" default:"true" desc:"whether replicas elect a leader; only the leader writes"`
	Namespace      string `envconfig:"NAMESPACE" is:"label" desc:"namespace of the objects that agents read, and of Leases (default: the pod's)"`
}

// Tokens configures semaphore-tokens.
type Tokens struct {
	Base
	Namespace string `envconfig:"NAMESPACE" is:"label" desc:"namespace of the Secrets with the remotes' tokens (default: the pod's)"`
	// All is set to renew tokens that aren't due as well.
	All bool `ignored:"true"`
}
