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

// podNamespaceFile is where Kubernetes puts a pod's namespace.
const podNamespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

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
	var own agentSources
	l := newLoader("semaphore-wireguard", "keeps a WireGuard mesh with the nodes of remote clusters", &cfg.Base, &cfg, &own)
	l.probe = true
	l.flags.BoolVar(&cfg.Cleanup, cleanupFlag, false, "remove everything that this program ever set up on the node, but for the keys, and end")
	if err := l.load(args, out, needs{wireguard: true}); err != nil {
		return Wireguard{}, nil, err
	}
	// On all addresses metrics and status would also be on those that the node has
	// inside the podCIDRs, for the pods of remote clusters.
	l.addresses(net.JoinHostPort(cmp.Or(own.HostIP, "127.0.0.1"), "7773"), "127.0.0.1:7774")
	l.pod(&cfg.Pod, cmp.Or(own.Namespace, readPodNamespace(namespaceFile)))
	return finish(l, cfg)
}

func loadMirror(args []string, out io.Writer, namespaceFile string) (cfg Mirror, warnings []string, err error) {
	l := newLoader("semaphore-service-mirror", "mirrors services of remote clusters", &cfg.Base, &cfg)
	l.flags.Func("config", "the same as -clusters-config", func(v string) error {
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
	if cfg.MirrorSelector == "" && cfg.GlobalSelector == "" {
		l.fault(&cfg.MirrorSelector, "empty, as is %s: nothing is left to do", l.setting(&cfg.GlobalSelector).origin)
	}
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

func loadTokens(args []string, out io.Writer, namespaceFile string) (cfg Tokens, warnings []string, err error) {
	l := newLoader("semaphore-tokens", "renews the tokens for remote clusters that expire", &cfg.Base, &cfg)
	l.once = "renew the tokens of which a third of their life is over, and end; the exit code is 1 if one couldn't be renewed"
	l.flags.BoolVar(&cfg.All, "all", false, "renew the others, too, and end")
	if err := l.load(args, out, needs{}); err != nil {
		return Tokens{}, nil, err
	}
	l.addresses(":8080", ":8081")
	l.namespace(&cfg.Namespace, readPodNamespace(namespaceFile))
	return finish(l, cfg)
}

// finish returns a configuration that has no fault.
func finish[C any](l *loader, cfg C) (C, []string, error) {
	if err := errors.Join(l.faults.all...); err != nil {
		var none C
		return none, l.warnings, err
	}
	return cfg, l.warnings, nil
}

// loader brings the sources of one program's configuration together.
type loader struct {
	program, purpose string
	probe            bool   // whether the program can ask for its own probes
	once             string // what a program does that doesn't go on until a signal comes
	flags            *flag.FlagSet
	sources
	base     *Base
	settings []*setting // common ones and the program's own
	target   []*setting // flags of the original policy tool; none unless the program takes them
	remotes  []*rawRemote
	faults   faults
	warnings []string
}

// newLoader returns a loader of a configuration: what is common, and the structs of
// which all fields are settings of the program.
func newLoader(program, purpose string, base *Base, own ...any) *loader {
	l := &loader{program: program, purpose: purpose, base: base, flags: flag.NewFlagSet(program, flag.ContinueOnError)}
	// What is to be said about flags is in the errors; help has a form of its own.
	l.flags.SetOutput(io.Discard)
	for _, vars := range append(own, &l.sources) {
		l.settings = append(l.settings, inspect(prefix, vars)...)
	}
	return l
}

// load reads flags, environment and file, in falling order of precedence.
func (l *loader) load(args []string, out io.Writer, need needs) error {
	lookUp(l.settings)
	showVersion := l.flags.Bool("version", false, "print which build this is, and end")
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
		// Nothing is to be done about a stdout that is closed.
		_, _ = fmt.Fprintln(out, l.program, process.Build())
		return flag.ErrHelp
	}
	if l.flags.NArg() > 0 {
		l.faults.add(l.flags.Arg(0), "arguments that aren't flags have no meaning")
	}
	l.readClusters()
	l.decode(need)
	l.warnings = append(l.warnings, l.unknownVariables(os.Environ())...)
	return nil
}

// decode makes the configuration of the texts.
func (l *loader) decode(need needs) {
	l.base.Remotes = parseRemotes(&l.faults, l.setting(&l.base.ClusterName).text, l.remotes, need)
	decode(&l.faults, l.settings)
	l.base.Local.Kubeconfig = l.Kubeconfig
}

// readClusters finds the local cluster's name and the remotes, in the one of
// their three places where they are.
func (l *loader) readClusters() {
	name, remotes, file := l.setting(&l.base.ClusterName), l.setting(&l.base.Remotes), l.setting(&l.ClustersConfig)
	if file.set {
		for _, s := range append([]*setting{name, remotes}, l.target...) {
			if s.set {
				l.faults.add(s.origin, "set together with %s, which takes its place", file.origin)
			}
		}
		l.readFile(file)
		return
	}
	target := firstSet(l.target)
	if !name.set && target == nil {
		l.faults.add(name.origin, "required: the name of this cluster; or %s", file.origin)
	}
	switch {
	case target != nil && remotes.set:
		l.faults.add(remotes.origin, "set together with %s, which is about the only remote", target.origin)
	case target != nil:
		l.readTarget(target)
	case remotes.set:
		for name := range strings.SplitSeq(remotes.text, ",") {
			remote := newRawRemote(strings.TrimSpace(name), remotes.origin)
			lookUp(remote.settings)
			l.remotes = append(l.remotes, remote)
		}
	default:
		l.faults.add(remotes.origin, "required: the remote clusters, as in gcp,merit; or %s", file.origin)
	}
}

// setting returns the setting that a field belongs to.
func (l *loader) setting(field any) *setting { return settingOf(l.settings, field) }

// fault notes what is wrong with a field.
func (l *loader) fault(field any, format string, args ...any) {
	l.faults.add(l.setting(field).origin, format, args...)
}

// addresses fills in the addresses that a program listens on where they aren't set.
func (l *loader) addresses(listen, probe string) {
	b := l.base
	b.ListenAddress, b.ProbeAddress = cmp.Or(b.ListenAddress, listen), cmp.Or(b.ProbeAddress, probe)
	if sameAddress(b.ListenAddress, b.ProbeAddress) {
		l.fault(&b.ProbeAddress, "%q and %s %q are the same port of the same address",
			b.ProbeAddress, l.setting(&b.ListenAddress).origin, b.ListenAddress)
	}
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

// namespace fills in a namespace where it isn't set.
func (l *loader) namespace(field *string, otherwise string) {
	if *field = cmp.Or(*field, otherwise); *field == "" {
		l.fault(field, "required outside of a pod: a namespace")
	}
}

// pod completes the pod that the process runs in; outside of one there is nothing.
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

// readPodNamespace returns the pod's namespace, or nothing outside of a pod.
func readPodNamespace(file string) string {
	content, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(content))
}
