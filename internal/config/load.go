package config

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/kube-semaphore/internal/version"
)

// podNamespaceFile is where Kubernetes tells a pod its namespace.
const podNamespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// maxPeerMetrics is more than any cluster has nodes.
const maxPeerMetrics = 1_000_000

// cleanupFlag is the flag of programs that can remove what they set up.
const cleanupFlag = "cleanup"

// LoadWireguard reads the configuration of semaphore-wireguard from args (the
// command line without the program's name) and the process environment.
//
// The warnings are about settings that have no effect. The error joins all
// faults; it is flag.ErrHelp after -help or -version was answered, on stdout.
func LoadWireguard(args []string) (cfg Wireguard, warnings []string, err error) {
	return loadWireguard(args, os.Stdout, podNamespaceFile)
}

// LoadMirror is LoadWireguard for semaphore-service-mirror.
func LoadMirror(args []string) (cfg Mirror, warnings []string, err error) {
	return loadMirror(args, os.Stdout, podNamespaceFile)
}

// LoadPolicy is LoadWireguard for semaphore-policy.
func LoadPolicy(args []string) (cfg Policy, warnings []string, err error) {
	return loadPolicy(args, os.Stdout, podNamespaceFile)
}

// LoadTokens is LoadWireguard for semaphore-tokens.
func LoadTokens(args []string) (cfg Tokens, warnings []string, err error) {
	return loadTokens(args, os.Stdout, podNamespaceFile)
}

func loadWireguard(args []string, out io.Writer, namespaceFile string) (cfg Wireguard, warnings []string, err error) {
	var vars wireguardVars
	l, err := newLoader("semaphore-wireguard", "keeps a WireGuard mesh with the nodes of remote clusters", &vars)
	if err != nil {
		return Wireguard{}, nil, err
	}
	l.flags.BoolVar(&cfg.Cleanup, cleanupFlag, false, "remove everything that this program ever set up on the node, but for the keys, and end")
	if err := l.load(args, out); err != nil {
		return Wireguard{}, nil, err
	}
	cfg.Base = l.base(l.hostAddress(&vars.HostIP), "127.0.0.1:7774", needs{wireguard: true})
	if vars.NodeName == "" {
		l.faults.add(l.origin(&vars.NodeName), "required: the node that this runs on, from spec.nodeName")
	} else {
		cfg.NodeName = l.faults.valid(l.origin(&vars.NodeName), vars.NodeName, validation.IsDNS1123Subdomain)
	}
	if vars.Namespace != "" {
		l.namespace(&vars.Namespace, "")
	}
	cfg.Pod = l.pod(&vars.Pod, cmp.Or(vars.Namespace, readPodNamespace(namespaceFile)))
	cfg.Backend = l.faults.oneOf(l.origin(&vars.WG.Backend), vars.WG.Backend, BackendAuto, BackendKernel, BackendUserspace)
	cfg.KeyPath = filepath.Clean(vars.WG.KeyPath)
	if !filepath.IsAbs(cfg.KeyPath) {
		l.faults.add(l.origin(&vars.WG.KeyPath), "%q is not an absolute path", vars.WG.KeyPath)
	}
	cfg.RouteSrc = l.routeSrc(&vars.WG.RouteSrc)
	cfg.PeerMetrics = l.faults.integer(l.origin(&vars.WG.PeerMetrics), vars.WG.PeerMetrics, 0, maxPeerMetrics)
	if vars.LocalSubnets != "" {
		cfg.LocalSubnets = l.faults.subnets(l.origin(&vars.LocalSubnets), vars.LocalSubnets, "addresses of a cluster")
	}
	cfg.SourceFilter = l.faults.boolean(l.origin(&vars.WG.SourceFilter), vars.WG.SourceFilter)
	if err := l.faults.join(); err != nil {
		return Wireguard{}, l.warnings, err
	}
	return cfg, l.warnings, nil
}

func loadMirror(args []string, out io.Writer, namespaceFile string) (cfg Mirror, warnings []string, err error) {
	var vars mirrorVars
	l, err := newLoader("semaphore-service-mirror", "mirrors services of remote clusters", &vars)
	if err != nil {
		return Mirror{}, nil, err
	}
	l.flags.Func("config", "the same as -clusters-config", func(v string) error {
		l.setting(&l.common.ClustersConfig).write(v, "-config")
		return nil
	})
	l.fileGlobals = map[string]*string{
		"globalSvcLabelSelector":        &vars.GlobalSelector,
		"globalSvcRoutingStrategyLabel": &vars.GlobalRoutingStrategyLabel,
		"mirrorSvcLabelSelector":        &vars.MirrorSelector,
		"mirrorNamespace":               &vars.MirrorNamespace,
	}
	if err := l.load(args, out); err != nil {
		return Mirror{}, nil, err
	}
	cfg.Base = l.base(":8080", ":8081", needs{servicePrefix: true})
	cfg.LeaderElection = l.faults.boolean(l.origin(&vars.LeaderElection), vars.LeaderElection)
	podNamespace := readPodNamespace(namespaceFile)
	if cfg.LeaderElection {
		cfg.Namespace = l.namespace(&vars.Namespace, podNamespace)
	}
	cfg.MirrorNamespace = l.namespace(&vars.MirrorNamespace, cmp.Or(vars.Namespace, podNamespace))
	cfg.MirrorSelector = l.selector(&vars.MirrorSelector)
	cfg.GlobalSelector = l.selector(&vars.GlobalSelector)
	cfg.RoutingStrategyLabel = l.selector(&vars.GlobalRoutingStrategyLabel)
	if vars.MirrorSelector == "" && vars.GlobalSelector == "" {
		l.faults.add(l.origin(&vars.MirrorSelector), "empty, as is %s: nothing is left to do", l.origin(&vars.GlobalSelector))
	}
	cfg.LegacyEndpoints = l.faults.boolean(l.origin(&vars.MirrorLegacyEndpoints), vars.MirrorLegacyEndpoints)
	cfg.RemovalGrace = l.faults.duration(l.origin(&vars.RemovalGrace), vars.RemovalGrace)
	if err := l.faults.join(); err != nil {
		return Mirror{}, l.warnings, err
	}
	return cfg, l.warnings, nil
}

func loadPolicy(args []string, out io.Writer, namespaceFile string) (cfg Policy, warnings []string, err error) {
	var vars policyVars
	l, err := newLoader("semaphore-policy", "keeps Calico network sets of the pods of remote clusters", &vars)
	if err != nil {
		return Policy{}, nil, err
	}
	if err := l.acceptTarget(); err != nil {
		return Policy{}, nil, err
	}
	if err := l.load(args, out); err != nil {
		return Policy{}, nil, err
	}
	cfg.Base = l.base(":8080", ":8081", needs{})
	cfg.LeaderElection = l.faults.boolean(l.origin(&vars.LeaderElection), vars.LeaderElection)
	podNamespace := readPodNamespace(namespaceFile)
	if cfg.LeaderElection || vars.Namespace != "" {
		cfg.Namespace = l.namespace(&vars.Namespace, podNamespace)
	}
	cfg.Pod = l.pod(&vars.Pod, cmp.Or(cfg.Namespace, podNamespace))
	p := &vars.Policy
	cfg.LabelDomain = l.faults.valid(l.origin(&p.LabelDomain), p.LabelDomain, validation.IsDNS1123Subdomain)
	cfg.ManagedBy = l.faults.valid(l.origin(&p.ManagedBy), p.ManagedBy, validation.IsValidLabelValue)
	cfg.CalicoAPI = l.faults.oneOf(l.origin(&p.CalicoAPI), p.CalicoAPI, CalicoAPIAuto, CalicoAPIV3, CalicoAPIV1)
	cfg.IncludeHostNetwork = l.faults.boolean(l.origin(&p.IncludeHostNetwork), p.IncludeHostNetwork)
	cfg.FullResyncPeriod = l.faults.duration(l.origin(&p.FullResyncPeriod), p.FullResyncPeriod)
	cfg.RemovalGrace = l.faults.duration(l.origin(&vars.RemovalGrace), vars.RemovalGrace)
	if err := l.faults.join(); err != nil {
		return Policy{}, l.warnings, err
	}
	return cfg, l.warnings, nil
}

func loadTokens(args []string, out io.Writer, namespaceFile string) (cfg Tokens, warnings []string, err error) {
	var vars tokensVars
	l, err := newLoader("semaphore-tokens", "renews the tokens for remote clusters that expire", &vars)
	if err != nil {
		return Tokens{}, nil, err
	}
	l.once = "renew the tokens of which a third of their life is over, and end; the exit code is 1 if one couldn't be renewed"
	l.flags.BoolVar(&cfg.All, "all", false, "renew the others, too, and end")
	if err := l.load(args, out); err != nil {
		return Tokens{}, nil, err
	}
	cfg.Base = l.base(":8080", ":8081", needs{})
	cfg.Namespace = l.namespace(&vars.Namespace, readPodNamespace(namespaceFile))
	if err := l.faults.join(); err != nil {
		return Tokens{}, l.warnings, err
	}
	return cfg, l.warnings, nil
}

// loader brings the sources of one program's configuration together.
type loader struct {
	program, purpose string
	once             string // what a program does that doesn't go on until a signal comes
	flags            *flag.FlagSet
	settings         []*setting // common ones and the program's own
	common           commonVars
	fileGlobals      map[string]*string // settings that the file's global section has, by key
	target           targetVars
	targetSettings   []*setting // none unless the program takes these flags
	remotes          []*rawRemote
	local            string // the name of this cluster
	faults           faults
	warnings         []string
}

func newLoader(program, purpose string, own any) (*loader, error) {
	l := &loader{program: program, purpose: purpose, flags: flag.NewFlagSet(program, flag.ContinueOnError)}
	// What is to be said about flags is in the errors; help has a form of its own.
	l.flags.SetOutput(io.Discard)
	for _, vars := range []any{&l.common, own} {
		settings, err := read(prefix, vars, os.LookupEnv)
		if err != nil {
			return nil, err
		}
		l.settings = append(l.settings, settings...)
	}
	return l, nil
}

// load reads flags, environment and file, in falling order of precedence.
func (l *loader) load(args []string, out io.Writer) error {
	showVersion := l.flags.Bool("version", false, "print which build this is, and end")
	for _, s := range slices.Concat(l.settings, l.targetSettings) {
		for _, name := range s.flags() {
			l.flags.Func(name, s.tag.Get("desc"), func(v string) error {
				s.write(v, "-"+name)
				return nil
			})
		}
	}
	if err := l.flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			l.help(out)
			return flag.ErrHelp
		}
		return fmt.Errorf("%w (%s -help lists the settings)", err, l.program)
	}
	if *showVersion {
		// Nothing is to be done about a stdout that is closed.
		_, _ = fmt.Fprintln(out, l.program, version.String())
		return flag.ErrHelp
	}
	if l.flags.NArg() > 0 {
		l.faults.add(l.flags.Arg(0), "arguments that aren't flags have no meaning")
	}
	if err := l.readClusters(); err != nil {
		return err
	}
	fillDefaults(l.settings)
	l.warnings = append(l.warnings, l.unknownVariables(os.Environ())...)
	return nil
}

// readClusters finds the local cluster's name and the remotes, in the one of
// their three places where they are.
func (l *loader) readClusters() error {
	name, remotes, file := l.setting(&l.common.ClusterName), l.setting(&l.common.Remotes), l.setting(&l.common.ClustersConfig)
	l.local = l.common.ClusterName
	if file.set {
		for _, s := range append([]*setting{name, remotes}, l.targetSettings...) {
			if s.set {
				l.faults.add(s.origin, "set together with %s, which takes its place", file.origin)
			}
		}
		return l.readFile(file)
	}
	target := firstSet(l.targetSettings)
	switch {
	case name.set:
		l.faults.valid(name.origin, l.local, validation.IsDNS1123Label)
	case target == nil:
		l.faults.add(name.origin, "required: the name of this cluster; or %s", file.origin)
	}
	switch {
	case target != nil && remotes.set:
		l.faults.add(remotes.origin, "set together with %s, which is about the only remote", target.origin)
	case target != nil:
		return l.readTarget(target)
	case remotes.set:
		return l.readList(remotes)
	default:
		l.faults.add(remotes.origin, "required: the remote clusters, as in gcp,merit; or %s", file.origin)
	}
	return nil
}

// readList reads the variables of each remote of a list.
func (l *loader) readList(list *setting) error {
	for name := range strings.SplitSeq(*list.value, ",") {
		remote, err := newRawRemote(strings.TrimSpace(name), list.origin, os.LookupEnv)
		if err != nil {
			return err
		}
		l.remotes = append(l.remotes, remote)
	}
	return nil
}

// base makes what all programs have in common.
func (l *loader) base(listenAddress, probeAddress string, need needs) Base {
	c := &l.common
	b := Base{
		ClusterName:   l.local,
		Remotes:       parseRemotes(&l.faults, l.local, l.remotes, need),
		Local:         Access{Kubeconfig: c.Kubeconfig},
		ListenAddress: l.address(&c.ListenAddress, listenAddress),
		ListenAuth:    l.faults.oneOf(l.origin(&c.ListenAuth), c.ListenAuth, ListenAuthNone, ListenAuthToken),
		ProbeAddress:  l.address(&c.ProbeAddress, probeAddress),
		LogLevel:      l.faults.oneOf(l.origin(&c.LogLevel), c.LogLevel, "debug", "info", "warn", "error"),
		LogFormat:     l.faults.oneOf(l.origin(&c.LogFormat), c.LogFormat, "json", "text"),
	}
	if sameAddress(b.ListenAddress, b.ProbeAddress) {
		l.faults.add(l.origin(&c.ProbeAddress), "%q and %s %q are the same port of the same address",
			b.ProbeAddress, l.origin(&c.ListenAddress), b.ListenAddress)
	}
	return b
}

// setting returns the setting that a field belongs to.
func (l *loader) setting(field *string) *setting {
	i := slices.IndexFunc(l.settings, func(s *setting) bool { return s.value == field })
	return l.settings[i]
}

func (l *loader) origin(field *string) string { return l.setting(field).origin }

// hostAddress returns where the agent serves metrics and status by default. On
// all addresses it would also be on those that the node has inside the podCIDRs,
// for the pods of remote clusters.
func (l *loader) hostAddress(field *string) string {
	const port = "7773"
	if *field == "" {
		return net.JoinHostPort("127.0.0.1", port)
	}
	if ip, err := netip.ParseAddr(*field); err != nil || ip.IsUnspecified() {
		l.faults.add(l.origin(field), "%q is not an IP address of this node", *field)
	}
	return net.JoinHostPort(*field, port)
}

// sameAddress reports whether two addresses can't both be listened on: their
// ports are the same, and their hosts are or one of them stands for all.
func sameAddress(a, b string) bool {
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	if errA != nil || errB != nil || portA != portB || portA == "0" {
		return false
	}
	all := func(host string) bool { return host == "" || host == "0.0.0.0" || host == "::" }
	return hostA == hostB || all(hostA) || all(hostB)
}

func (l *loader) address(field *string, otherwise string) string {
	address := cmp.Or(*field, otherwise)
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		l.faults.add(l.origin(field), "%q is not an address and port such as :8080 or 127.0.0.1:8080", address)
	}
	return address
}

func (l *loader) routeSrc(field *string) string {
	if *field == RouteSrcAuto || *field == RouteSrcNone {
		return *field
	}
	address, err := netip.ParseAddr(*field)
	if err != nil || address.Zone() != "" || address.IsUnspecified() || address.IsLoopback() || address.IsMulticast() {
		l.faults.add(l.origin(field), "%q is neither auto, nor none, nor an address of this node", *field)
		return ""
	}
	return address.Unmap().String()
}

func (l *loader) namespace(field *string, otherwise string) string {
	name := cmp.Or(*field, otherwise)
	if name == "" {
		l.faults.add(l.origin(field), "required outside of a pod: a namespace")
		return ""
	}
	return l.faults.valid(l.origin(field), name, validation.IsDNS1123Label)
}

// pod returns the pod that the process runs in; nothing outside of one.
func (l *loader) pod(vars *podVars, namespace string) Pod {
	name, uid := l.setting(&vars.Name), l.setting(&vars.UID)
	switch {
	case !name.set && !uid.set:
		return Pod{}
	case !uid.set:
		l.faults.add(uid.origin, "required with %s: from metadata.uid", name.origin)
	case !name.set:
		l.faults.add(name.origin, "required with %s: from metadata.name", uid.origin)
	default:
		l.faults.valid(name.origin, vars.Name, validation.IsDNS1123Subdomain)
	}
	return Pod{Namespace: namespace, Name: vars.Name, UID: vars.UID}
}

func (l *loader) selector(field *string) string {
	if _, err := labels.Parse(*field); err != nil {
		l.faults.add(l.origin(field), "%q is not a label selector: %w", *field, err)
		return ""
	}
	return *field
}

// readPodNamespace returns the pod's namespace, or nothing outside of a pod.
func readPodNamespace(file string) string {
	content, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(content))
}
