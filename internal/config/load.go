package config

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/internal/process"
)

// podNamespaceFile has the pod's namespace; the kubelet mounts it.
const podNamespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// cleanupFlag is the flag of programs that can remove their setup.
const cleanupFlag = "cleanup"

// LoadWireguard reads the configuration of semaphore-wireguard from args (the
// command line without the program's name) and the process environment.
//
// The warnings are about settings without effect or in conflict. The error joins all errors of
// the configuration; it is flag.ErrHelp after -help or -version, whose output is on stdout.
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

// LoadRelay is LoadWireguard for semaphore-relay.
func LoadRelay(args []string) (cfg Relay, warnings []string, err error) {
	return loadRelay(args, os.Stdout, podNamespaceFile)
}

// LoadTokens is LoadWireguard for semaphore-tokens.
func LoadTokens(args []string) (cfg Tokens, warnings []string, err error) {
	return loadTokens(args, os.Stdout, podNamespaceFile)
}

func loadWireguard(args []string, out io.Writer, namespaceFile string) (cfg Wireguard, warnings []string, err error) {
	var own agentSources
	l := newLoader("semaphore-wireguard", "keeps a WireGuard mesh with the nodes of remote clusters", &cfg.Base, &cfg, &own)
	l.flags.BoolVar(&cfg.Cleanup, cleanupFlag, false, "remove everything that this program set up on the node, except the keys, and exit")
	relayed := func() bool { return strings.EqualFold(l.setting(&cfg.RemotesFrom).text, RemotesFromRelay) }
	if err := l.load(args, out, needs{wireguard: true, noAccess: relayed}); err != nil {
		return Wireguard{}, nil, err
	}
	// Not on all addresses: those of the node inside the podCIDRs are reachable for pods
	// of remote clusters.
	l.addresses(net.JoinHostPort(cmp.Or(own.HostIP, "127.0.0.1"), "7773"), "127.0.0.1:7774")
	l.checkSubnetMap(&cfg)
	namespace := cmp.Or(own.Namespace, readPodNamespace(namespaceFile))
	l.pod(&cfg.Pod, namespace)
	if cfg.RemotesFrom == RemotesFromRelay {
		if cfg.Namespace = namespace; namespace == "" {
			l.fault(&own.Namespace, "required outside of a pod: the namespace of semaphore-relay's objects")
		}
	}
	return finish(l, cfg)
}

func loadMirror(args []string, out io.Writer, namespaceFile string) (cfg Mirror, warnings []string, err error) {
	l := newLoader("semaphore-service-mirror", "mirrors services of remote clusters", &cfg.Base, &cfg)
	l.flags.Func("config", "alias of -clusters-config", func(v string) error {
		l.setting(&l.ClustersConfig).write(v, "-config")
		return nil
	})
	if err := l.load(args, out, needs{servicePrefix: true}); err != nil {
		return Mirror{}, nil, err
	}
	l.addresses(":8080", ":8081")
	podNamespace := readPodNamespace(namespaceFile)
	otherwise := cmp.Or(cfg.Namespace, podNamespace)
	if cfg.LeaderElection || cfg.Namespace != "" {
		l.namespace(&cfg.Namespace, podNamespace)
	}
	l.namespace(&cfg.MirrorNamespace, otherwise)
	if cfg.MirrorSelector == "" && cfg.GlobalSelector == "" && cfg.MultiCluster == MultiClusterOff {
		l.fault(&cfg.MirrorSelector, "empty, as is %s: nothing is left to do", l.setting(&cfg.GlobalSelector).origin)
	}
	l.warnings = slices.Concat(l.warnings, prefixWarnings(cfg.Remotes), ignoredWarnings(&cfg))
	return finish(l, cfg)
}

func loadPolicy(args []string, out io.Writer, namespaceFile string) (cfg Policy, warnings []string, err error) {
	l := newLoader("semaphore-policy", "keeps Calico network sets of the pods of remote clusters", &cfg.Base, &cfg)
	l.target = inspect("", new(targetVars))
	if err := l.load(args, out, needs{}); err != nil {
		return Policy{}, nil, err
	}
	l.addresses(":8080", ":8081")
	podNamespace := readPodNamespace(namespaceFile)
	if cfg.LeaderElection || cfg.Namespace != "" {
		l.namespace(&cfg.Namespace, podNamespace)
	}
	l.pod(&cfg.Pod, cmp.Or(cfg.Namespace, podNamespace))
	return finish(l, cfg)
}

func loadRelay(args []string, out io.Writer, namespaceFile string) (cfg Relay, warnings []string, err error) {
	l := newLoader("semaphore-relay", "stores the nodes of all clusters for the agents of this one", &cfg.Base, &cfg)
	if err := l.load(args, out, needs{}); err != nil {
		return Relay{}, nil, err
	}
	l.addresses(":8080", ":8081")
	l.namespace(&cfg.Namespace, readPodNamespace(namespaceFile))
	return finish(l, cfg)
}

func loadTokens(args []string, out io.Writer, namespaceFile string) (cfg Tokens, warnings []string, err error) {
	l := newLoader("semaphore-tokens", "renews the tokens for remote clusters that expire", &cfg.Base, &cfg)
	l.once = "renew the tokens that are past a third of their lifetime, and exit, with 1 if a token couldn't be renewed"
	l.flags.BoolVar(&cfg.All, "all", false, "renew all tokens, and exit")
	if err := l.load(args, out, needs{}); err != nil {
		return Tokens{}, nil, err
	}
	l.addresses(":8080", ":8081")
	l.namespace(&cfg.Namespace, readPodNamespace(namespaceFile))
	return finish(l, cfg)
}

// finish returns the configuration, or its errors.
func finish[C any](l *loader, cfg C) (C, []string, error) {
	if err := errors.Join(l.faults.all...); err != nil {
		var none C
		return none, l.warnings, err
	}
	return cfg, l.warnings, nil
}

// loader merges the sources of one program's configuration.
type loader struct {
	program, purpose string
	once             string // usage of a program that runs to completion
	flags            *flag.FlagSet
	sources
	base     *Base
	structs  []any
	settings []*setting // of structs: common ones and the program's own
	target   []*setting // flags of the original policy tool, for semaphore-policy
	remotes  []*rawRemote
	faults   faults
	warnings []string
}

// newLoader returns a loader of the common settings and of the fields of own.
func newLoader(program, purpose string, base *Base, own ...any) *loader {
	l := &loader{program: program, purpose: purpose, base: base, flags: flag.NewFlagSet(program, flag.ContinueOnError)}
	// Errors and usage are reported by load and help.
	l.flags.SetOutput(io.Discard)
	l.structs = slices.Concat(own, []any{&l.sources})
	for _, vars := range l.structs {
		l.settings = append(l.settings, inspect(prefix, vars)...)
	}
	return l
}

// load reads flags, environment and file; the first one that has a setting wins.
func (l *loader) load(args []string, out io.Writer, need needs) error {
	lookUp(l.settings)
	showVersion := l.flags.Bool("version", false, "print the version and exit")
	for _, s := range slices.Concat(l.settings, l.target) {
		for _, name := range s.list("flag") {
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
		// An error means that stdout is closed: there is nowhere to report it.
		_, _ = fmt.Fprintln(out, l.program, process.Build())
		return flag.ErrHelp
	}
	if l.flags.NArg() > 0 {
		l.faults.add(l.flags.Arg(0), "unexpected argument: only flags are allowed")
	}
	l.readClusters()
	l.decode(need)
	l.warnings = append(l.warnings, l.unknownVariables(os.Environ())...)
	return nil
}

// decode parses the texts of all settings.
func (l *loader) decode(need needs) {
	remotes := parseRemotes(&l.faults, l.setting(&l.base.ClusterName).text, l.remotes, need)
	fill(&l.faults, prefix, l.settings, l.structs...)
	// envconfig has made empty ones for SEMAPHORE_REMOTES.
	l.base.Remotes = remotes
	l.base.Local.Kubeconfig = l.Kubeconfig
}

// readClusters reads the local cluster's name and the remotes from the file, the flags of
// the original policy tool, or the environment.
func (l *loader) readClusters() {
	name, remotes, file := l.setting(&l.base.ClusterName), l.setting(&l.base.Remotes), l.setting(&l.ClustersConfig)
	if file.set {
		for _, s := range append([]*setting{name, remotes}, l.target...) {
			if s.set {
				l.faults.add(s.origin, "set together with %s, which replaces it", file.origin)
			}
		}
		l.readFile(file)
		return
	}
	target := firstSet(l.target)
	if !name.set && target == nil {
		l.faults.add(name.origin, "required: the name of this cluster; alternatively set %s", file.origin)
	}
	switch {
	case target != nil && remotes.set:
		l.faults.add(remotes.origin, "set together with %s, which defines the only remote", target.origin)
	case target != nil:
		l.readTarget(target)
	case remotes.set:
		for name := range strings.SplitSeq(remotes.text, ",") {
			remote := newRawRemote(strings.TrimSpace(name), remotes.origin)
			lookUp(remote.settings)
			l.remotes = append(l.remotes, remote)
		}
	default:
		l.faults.add(remotes.origin, "required: the names of the remote clusters, such as gcp,merit; alternatively set %s", file.origin)
	}
}

// setting returns the setting of a field.
func (l *loader) setting(field any) *setting { return settingOf(l.settings, field) }

// fault adds an error about a field.
func (l *loader) fault(field any, format string, args ...any) {
	l.faults.add(l.setting(field).origin, format, args...)
}

// addresses sets the defaults of the addresses that the program listens on.
func (l *loader) addresses(listen, probe string) {
	b := l.base
	b.ListenAddress, b.ProbeAddress = cmp.Or(b.ListenAddress, listen), cmp.Or(b.ProbeAddress, probe)
	if sameAddress(b.ListenAddress, b.ProbeAddress) {
		l.fault(&b.ProbeAddress, "%q and %s %q are the same port of the same address",
			b.ProbeAddress, l.setting(&b.ListenAddress).origin, b.ListenAddress)
	}
}

// sameAddress reports whether one process can't listen on both addresses: the ports are
// equal, and the hosts are equal or one of them is a wildcard.
func sameAddress(a, b string) bool {
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	if errA != nil || errB != nil || portA != portB || portA == "0" {
		return false
	}
	all := func(host string) bool { return host == "" || host == "0.0.0.0" || host == "::" }
	return hostA == hostB || all(hostA) || all(hostB)
}

// namespace sets the default of a namespace.
func (l *loader) namespace(field *string, otherwise string) {
	if *field = cmp.Or(*field, otherwise); *field == "" {
		l.fault(field, "required outside of a pod: a namespace")
	}
}

// pod completes the program's own pod, if its name and UID are set.
func (l *loader) pod(pod *Pod, namespace string) {
	name, uid := l.setting(&pod.Name), l.setting(&pod.UID)
	switch {
	case !name.set && !uid.set:
		return
	case !uid.set:
		l.fault(&pod.UID, "required with %s: from metadata.uid", name.origin)
	case !name.set:
		l.fault(&pod.Name, "required with %s: from metadata.name", uid.origin)
	}
	pod.Namespace = namespace
}

// readPodNamespace returns the pod's namespace, empty outside of a pod.
func readPodNamespace(file string) string {
	content, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(content))
}
