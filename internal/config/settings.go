package config

import (
	"fmt"
	"io"
	"reflect"
	"strings"
	"text/template"

	"github.com/kelseyhightower/envconfig"
)

// prefix starts the names of all variables.
const prefix = "SEMAPHORE"

// The structs below are the variables as they are written, one field each.
// envconfig derives the name from the field's: nesting and split_words make
// underscores. All fields are text, so that reading them can't fail and every
// fault of a configuration is found by the same pass over the values.
//
// Tags: desc is the meaning, for -help. default counts where a variable is
// unset or empty. flag lists flags that set it. empty:"off" lets an empty
// value stand for itself.

type commonVars struct {
	ClusterName    string `split_words:"true" desc:"this cluster: a DNS label, the same in the configuration of all clusters (required)"`
	Remotes        string `desc:"the remote clusters, comma-separated, as in gcp,merit (required)"`
	ClustersConfig string `split_words:"true" flag:"clusters-config" desc:"path of a JSON file that takes the place of SEMAPHORE_CLUSTER_NAME and all SEMAPHORE_REMOTE variables"`
	Kubeconfig     string `flag:"kube-config,local-kube-config" desc:"path of a kubeconfig for this cluster; without it the pod's service account is used"`
	ListenAddress  string `split_words:"true" flag:"listen-address" desc:"where metrics and status are served (default for semaphore-wireguard: port 7773 of SEMAPHORE_HOST_IP, or of the loopback without it; for the others \":8080\")"`
	ListenAuth     string `split_words:"true" default:"none" desc:"who gets metrics and status there: none is everybody, token is who shows a token of an account that may get the path"`
	ProbeAddress   string `split_words:"true" desc:"where the kubelet gets /healthz and /readyz, and the own host, or pod, metrics and status as well (default \"127.0.0.1:7774\" for semaphore-wireguard, \":8081\" for the others)"`
	LogLevel       string `split_words:"true" flag:"log-level" default:"info" desc:"debug, info, warn or error"`
	LogFormat      string `split_words:"true" default:"json" desc:"json, or text for people"`
}

type remoteVars struct {
	Kubeconfig string `desc:"path of a kubeconfig for the remote; or the next ones"`
	API        struct {
		URL string `desc:"https address of the remote's API server"`
	}
	CA struct {
		URL  string `desc:"https address that serves the certificates that the API server's must chain to; or"`
		File string `desc:"path of a file that holds them, read again when it changes"`
		// SHA256 is one word.
		SHA256 string `desc:"SHA-256 fingerprints of certificates, comma-separated: of those that _CA_URL serves only these count"`
	}
	TokenFile    string `split_words:"true" desc:"path of a service account's token, read anew as it rotates"`
	PodSubnets   string `split_words:"true" desc:"the remote's pod subnets, IPv4 and IPv6, comma-separated (required by semaphore-wireguard)"`
	NodeSubnets  string `split_words:"true" desc:"where endpoints of the remote's nodes may be, IPv4 and IPv6, comma-separated, for semaphore-wireguard (default: anywhere but in this cluster)"`
	ResyncPeriod string `split_words:"true" default:"0" desc:"how often everything is looked at again without an event; 0 is never"`
	StaleAfter   string `split_words:"true" default:"0" desc:"how long the last known state counts without contact, for mirrors and network sets; 0 is for ever"`
	MaxAnswer    string `split_words:"true" default:"256Mi" desc:"most bytes of one list of the remote's objects, as in 64Mi; a quarter of it is kept of each kind at most"`
	MaxObjects   string `split_words:"true" desc:"most objects of one kind that are kept of the remote (default 10000 nodes, 50000 of other kinds)"`
	MaxServices  string `split_words:"true" default:"2000" desc:"how many Services semaphore-service-mirror makes for the remote's"`
	MaxSlices    string `split_words:"true" default:"10000" desc:"how many EndpointSlices semaphore-service-mirror makes for the remote's services"`
	MaxAddresses string `split_words:"true" default:"100000" desc:"how many addresses of the remote are written to EndpointSlices, and to network sets"`
	MaxSets      string `split_words:"true" default:"2000" desc:"how many network sets semaphore-policy makes for the remote's pods"`
	WG           struct {
		ListenPort string `split_words:"true" desc:"UDP port of this remote's WireGuard device (default 51820 for the first remote, 51821 for the second, ...)"`
		MTU        string `default:"auto" desc:"MTU of this remote's WireGuard device; auto is that of the network between the nodes less 80"`
		MaxPeers   string `split_words:"true" default:"2000" desc:"how many of the remote's nodes may be peers; those that were accepted first stay"`
	}
	ServicePrefix string `split_words:"true" desc:"what the names of services mirrored from the remote start with (default: the remote's name)"`
}

// podVars say which pod a program runs in.
type podVars struct {
	Name string `desc:"name of the pod that this runs in, which its Events are about; without it there are none"`
	UID  string `desc:"UID of that pod"`
}

type wireguardVars struct {
	HostIP       string `split_words:"true" desc:"the node's own address, from status.hostIP; where metrics and status are served by default"`
	NodeName     string `split_words:"true" flag:"node-name" desc:"the Kubernetes node that this runs on (required)"`
	Namespace    string `desc:"namespace of its Events (default: the pod's)"`
	Pod          podVars
	LocalSubnets string `split_words:"true" desc:"where this cluster has nodes, pods and services, comma-separated, beside what its API server tells: no remote's endpoint may be there"`
	WG           struct {
		Backend      string `default:"auto" desc:"auto, kernel or userspace; auto is the kernel's WireGuard where there is one"`
		KeyPath      string `split_words:"true" flag:"wg-key-path" default:"/var/lib/semaphore-wireguard" desc:"folder of private keys and of what outlives a restart"`
		RouteSrc     string `split_words:"true" default:"auto" desc:"source address of what the node itself sends to remote pods: auto is a local address inside the node's podCIDR, none, or an address"`
		SourceFilter string `split_words:"true" default:"true" desc:"whether packets are dropped that claim a remote pod's address and didn't come through the tunnel"`
		PeerMetrics  string `split_words:"true" default:"1000" desc:"how many peers of each remote have metrics of their own; 0 is none"`
	}
}

type mirrorVars struct {
	LeaderElection             string `split_words:"true" default:"true" desc:"whether several replicas agree on one that works"`
	Namespace                  string `desc:"namespace of the leader election's Lease (default: the pod's)"`
	RemovalGrace               string `split_words:"true" default:"10m" desc:"how long what came from a remote that is no longer configured stays, from the start of the program on; 0: it is removed at once"`
	MirrorNamespace            string `split_words:"true" flag:"mirror-ns" desc:"namespace of the mirrors (default: the pod's)"`
	MirrorSelector             string `split_words:"true" flag:"mirror-svc-label-selector,label-selector" empty:"off" default:"mirror.semaphore.uw.io/mirror-service=true" desc:"label selector of services to mirror; empty: none"`
	MirrorLegacyEndpoints      string `split_words:"true" default:"false" desc:"whether to write objects of the deprecated Endpoints API as well"`
	GlobalSelector             string `split_words:"true" flag:"global-svc-label-selector" empty:"off" default:"mirror.semaphore.uw.io/global-service=true" desc:"label selector of global services; empty: none"`
	GlobalRoutingStrategyLabel string `split_words:"true" flag:"global-svc-routing-strategy-label" empty:"off" default:"mirror.semaphore.uw.io/global-service-routing-strategy=local-first" desc:"label selector of global services that prefer local endpoints; empty: none"`
}

type policyVars struct {
	LeaderElection string `split_words:"true" default:"true" desc:"whether several replicas agree on one that works"`
	Namespace      string `desc:"namespace of the leader election's Lease and of Events (default: the pod's)"`
	RemovalGrace   string `split_words:"true" default:"10m" desc:"how long what came from a remote that is no longer configured stays, from the start of the program on; 0: it is removed at once"`
	Pod            podVars
	Policy         struct {
		LabelDomain        string `split_words:"true" default:"policy.semaphore.uw.io" desc:"what stands before the slash in the labels of pods and network sets"`
		ManagedBy          string `split_words:"true" default:"semaphore-policy" desc:"value of the managed-by label of network sets"`
		CalicoAPI          string `split_words:"true" default:"auto" desc:"auto, v3 or v1: the API group that network sets are written to"`
		IncludeHostNetwork string `split_words:"true" default:"false" desc:"whether pods on the host network count, with the addresses of their nodes"`
		FullResyncPeriod   string `split_words:"true" flag:"full-store-resync-period" default:"1h" desc:"how often all network sets are compared with the cluster; 0 is never"`
	}
}

type tokensVars struct {
	Namespace string `desc:"namespace of the Secrets with the remotes' tokens (default: the pod's)"`
}

// targetVars are the flags of the original policy tool, which knows one
// remote. They have no variables.
type targetVars struct {
	ClusterName  string `flag:"target-cluster-name" desc:"the only remote, in place of SEMAPHORE_REMOTES; SEMAPHORE_CLUSTER_NAME isn't required then"`
	Kubeconfig   string `flag:"target-kube-config" desc:"path of a kubeconfig for it; or the next ones"`
	APIURL       string `flag:"remote-api-url" desc:"https address of its API server"`
	CAURL        string `flag:"remote-ca-url" desc:"https address of its certificate authority"`
	TokenFile    string `flag:"remote-sa-token-path" desc:"path of a service account's token"`
	ResyncPeriod string `flag:"pod-resync-period" desc:"how often all of its pods are looked at again without an event"`
}

// setting is one value of a configuration as it was written.
type setting struct {
	variable string // its name in the environment
	origin   string // what faults are reported against: the variable, a flag, or a key of the file
	set      bool   // written by the operator, rather than the default
	value    *string
	tag      reflect.StructTag
}

// read fills the fields of vars, a pointer to one of the structs above, from
// the environment, and returns them. Defaults are not filled in yet.
func read(prefix string, vars any, lookup func(string) (string, bool)) ([]*setting, error) {
	settings, err := inspect(prefix, vars)
	if err != nil {
		return nil, err
	}
	if err := envconfig.Process(prefix, vars); err != nil {
		return nil, fmt.Errorf("read environment: %w", err)
	}
	for _, s := range settings {
		value, ok := lookup(s.variable)
		s.set = ok && (value != "" || s.tag.Get("empty") == "off")
		if !s.set {
			*s.value = ""
		}
	}
	return settings, nil
}

// inspect lists the fields of vars under the names that envconfig gives them.
func inspect(prefix string, vars any) ([]*setting, error) {
	var found []*setting
	// The template is envconfig's way of handing out what it knows.
	list, err := template.New("").Funcs(template.FuncMap{"add": func(info any) string {
		v := reflect.ValueOf(info)
		field, isField := v.FieldByName("Field").Interface().(reflect.Value)
		tag, isTag := v.FieldByName("Tags").Interface().(reflect.StructTag)
		if !isField || !isTag {
			return ""
		}
		if value, isText := field.Addr().Interface().(*string); isText {
			name := v.FieldByName("Key").String()
			found = append(found, &setting{variable: name, origin: name, value: value, tag: tag})
		}
		return ""
	}}).Parse("{{range .}}{{add .}}{{end}}")
	if err != nil {
		return nil, fmt.Errorf("list settings: %w", err)
	}
	if err := envconfig.Usaget(prefix, vars, io.Discard, list); err != nil {
		return nil, fmt.Errorf("list settings: %w", err)
	}
	return found, nil
}

// write gives a setting a value from somewhere else than the environment.
func (s *setting) write(value, origin string) {
	*s.value, s.origin, s.set = value, origin, true
}

// flags returns the names of the flags that set s.
func (s *setting) flags() []string {
	if names := s.tag.Get("flag"); names != "" {
		return strings.Split(names, ",")
	}
	return nil
}

// fillDefaults gives all settings that nobody wrote their default.
func fillDefaults(settings []*setting) {
	for _, s := range settings {
		if !s.set {
			*s.value = s.tag.Get("default")
		}
	}
}
