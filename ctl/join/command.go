package join

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/process"
)

// flags are the flags of join, unparsed.
type flags struct {
	Options
	servers, pods, machines, services map[string]string
	virtual, imports, proxies         map[string]string
	output, directory, pullSecret     string
}

// Command is "semaphorectl join".
func Command(s *cli.Session) *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "join CLUSTER CLUSTER...",
		Short: "Join clusters, so that their pods can reach each other",
		Long: `Joins clusters, each with each other. First it checks all clusters, also from their nodes,
and prints all faults at once. Then it installs what is missing, and waits until pods of
the clusters reach each other. A second run changes nothing; after an interruption the next
run continues.

Clusters that are already joined stay joined. The tools are wireguard (encrypted tunnels
between nodes), mirror (services of other clusters by name) and policy (network sets for
Calico). The default is the first two, and policy in clusters with Calico.

The mirror also implements the Multi-Cluster Services API: a Service with a ServiceExport gets
a ServiceImport, and a name in clusterset.local, in all clusters with its namespace. For this
join installs the CRDs, unless there are newer ones or those of another implementation, and
configures CoreDNS 1.12.2 or later. --mcs=false leaves all of this out. --import-namespaces says
in which namespaces the other clusters import what a cluster exports: in these its exports can
serve, and for names that only others export define, what their clients request.

Agents read the nodes of all clusters from their API servers, or with --relay=on from
semaphore-relay, which reads them once for all agents of its cluster: from some 100 nodes in
any of the clusters API servers need it. --relay=auto decides by that number, and --relay=off
moves back. Without the flag agents stay as they are. They move one after the other, under
traffic.

Pods of different clusters may have the same addresses. Where pod subnets overlap, join
proposes virtual subnets, by which other clusters know these pods, and asks before it uses them;
without a terminal choose them with --virtual-subnets. All remotes of a cluster whose virtual
subnets change must be among the arguments.

What it installs is the Helm release semaphore in sys-semaphore: values that you change with helm
upgrade stay. A cluster that another release, Argo CD or Flux has installed isn't changed: join prints
the values that are missing there, and hands over tokens when they are set.

With --output yaml it changes nothing, and writes the values of the chart to files, for a Git
repository, helm upgrade or helm template. These contain no Secrets: hand tokens over with
semaphorectl tokens.`,
		Example: `  semaphorectl join aws gcp
  semaphorectl join --context aws=prod-eu --context gcp=prod-us aws gcp merit
  semaphorectl join --check aws gcp
  semaphorectl join --relay=on aws gcp
  semaphorectl join --pod-subnets aws=10.2.0.0/16 --api-server aws=https://api.aws.example:6443 aws gcp
  semaphorectl join --virtual-subnets aws=100.77.0.0/16,gcp=100.78.0.0/16 aws gcp
  semaphorectl join --output yaml --directory clusters aws gcp`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, names []string) error {
			ctx, cancel := s.Context(cmd.Context())
			defer cancel()
			if err := f.parse(names); err != nil {
				return cli.Usage(err)
			}
			f.MultiClusterGiven = cmd.Flags().Changed("mcs")
			if cmd.Flags().Changed("image-pull-secret") {
				f.PullSecret = &f.pullSecret
			}
			clusters, err := s.Clusters(names)
			if err != nil {
				return err
			}
			if f.output == "yaml" {
				f.NoProbe, f.Adopt, f.Files = true, true, true
				a := newInstallation(ctx, s, clusters, f.Options)
				if err := a.preflight(ctx); err != nil {
					return err
				}
				return a.write(f.directory)
			}
			return Join(ctx, s, clusters, f.Options)
		},
	}
	fs := cmd.Flags()
	fs.StringSliceVar(&f.Tools, "tools", nil, "tools to install: wireguard, mirror, policy")
	fs.StringVar(&f.Image, "image", DefaultImage(), "image of the programs, with a tag or a digest")
	fs.StringVar(&f.pullSecret, "image-pull-secret", "", "name of the Secret in sys-semaphore with the registry's credentials; without this flag a later join keeps what was given before")
	fs.StringToStringVar(&f.servers, "api-server", nil, "URL at which other clusters' nodes reach an API server, as in aws=https://api.aws.example:6443")
	fs.StringToStringVar(&f.proxies, "proxy-url", nil, "proxy through which the other clusters reach an API server, as in gcp=http://10.66.2.9:3128; gcp= for none; without this flag a later join keeps what was given before")
	fs.StringToStringVar(&f.pods, "pod-subnets", nil, `pod subnets of a cluster, as in "aws=10.2.0.0/16 fd00:10:2::/48"`)
	fs.StringToStringVar(&f.machines, "node-subnets", nil, `subnets of a cluster's nodes, as in "aws=10.66.1.0/24 fd00:66::1:0/112"`)
	fs.StringToStringVar(&f.services, "service-subnets", nil, `subnets of a cluster's ClusterIPs, if its API server doesn't show them, as in "aws=10.96.0.0/16 fd00:96::/112"`)
	fs.StringToStringVar(&f.virtual, "virtual-subnets", nil, `subnets by which other clusters know the pods of one, as in "aws=100.77.0.0/16 fd00:c9::/48" or, of one with several, "aws=10.2.0.0/16=100.77.0.0/16"; aws= for none`)
	fs.StringToStringVar(&f.imports, "import-namespaces", nil, `namespaces in which the other clusters import what a cluster exports, as in "aws=shop team-*"; aws= for none (default: all but kube-*); without this flag a later join keeps what was given before`)
	fs.BoolVar(&f.MultiCluster, "mcs", true, "set up the Multi-Cluster Services API; without this flag a later join keeps what was given before")
	fs.StringVar(&f.Relay, "relay", "", "where agents read nodes: on (from semaphore-relay), off (from API servers), auto (on where a cluster has 100 nodes or more); without this flag a later join keeps what was given before")
	fs.BoolVar(&f.Adopt, "adopt", false, "adopt a manual installation")
	fs.BoolVar(&f.Check, "check", false, "run all checks, and change nothing")
	fs.BoolVarP(&f.Yes, "yes", "y", false, "accept the ranges of pods and nodes that clusters report, without confirmation")
	fs.BoolVar(&f.NoProbe, "no-probe", false, "skip the checks that need temporary pods")
	fs.StringVarP(&f.output, "output", "o", "", "yaml: write the values of the chart to files, and change nothing")
	fs.StringVar(&f.directory, "directory", "kube-semaphore", "directory of the files of --output yaml")
	return cmd
}

// released is the image of this release by its digest, which the linker sets.
var released string

// DefaultImage is the image of this build.
func DefaultImage() string {
	if released != "" {
		return released
	}
	version, _, _ := strings.Cut(process.Version(), "-dirty")
	return "kube-semaphore:" + version
}

func (f *flags) parse(names []string) error {
	var errs []error
	for _, tool := range f.Tools {
		if !slices.Contains(manifests.Tools(), tool) {
			errs = append(errs, fmt.Errorf("--tools %s: expected wireguard, mirror or policy", tool))
		}
	}
	if f.pullSecret != "" {
		if faults := validation.IsDNS1123Subdomain(f.pullSecret); len(faults) > 0 {
			errs = append(errs, fmt.Errorf("--image-pull-secret %q: expected the name of a Secret", f.pullSecret))
		}
	}
	if f.Relay != "" && !slices.Contains([]string{relayAuto, relayOn, relayOff}, f.Relay) {
		errs = append(errs, fmt.Errorf("--relay %s: expected auto, on or off", f.Relay))
	}
	if f.output != "" && f.output != "yaml" {
		errs = append(errs, fmt.Errorf("--output %s: expected yaml", f.output))
	}
	subnets := func(flag string, given map[string]string) map[string][]netip.Prefix {
		all, err := parseEach(flag, given, names, inspect.Prefixes)
		errs = append(errs, err)
		return all
	}
	f.Pods, f.Machines, f.Services = subnets("pod-subnets", f.pods), subnets("node-subnets", f.machines), subnets("service-subnets", f.services)
	var virtual, imports error
	f.Virtual, virtual = parseEach("virtual-subnets", f.virtual, names, parseVirtual)
	f.Imports, imports = parseEach("import-namespaces", f.imports, names, func(text string) (namespaces config.Namespaces, err error) {
		err = namespaces.Decode(strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == ',' }), ","))
		return namespaces, err
	})
	_, proxies := parseEach("proxy-url", f.proxies, names, func(text string) (*url.URL, error) {
		if text == "" {
			return nil, nil
		}
		return config.ParseProxy(text)
	})
	_, servers := parseEach("api-server", f.servers, names, inspect.ParseServer)
	errs = append(errs, virtual, imports, proxies, servers)
	f.Servers, f.Proxies = f.servers, f.proxies
	return errors.Join(errs...)
}

// parseEach parses the values of a flag, which are by cluster. Errors don't repeat a value, which may have
// a password.
func parseEach[T any](flag string, given map[string]string, clusters []string, parse func(string) (T, error)) (map[string]T, error) {
	parsed, errs := map[string]T{}, []error(nil)
	for _, name := range slices.Sorted(maps.Keys(given)) {
		value, err := parse(given[name])
		if err != nil {
			errs = append(errs, fmt.Errorf("--%s %s=...: %w", flag, name, err))
		}
		if !slices.Contains(clusters, name) {
			errs = append(errs, fmt.Errorf("--%s %s=...: cluster %s isn't among the arguments", flag, name, name))
		}
		parsed[name] = value
	}
	return parsed, errors.Join(errs...)
}

// write writes a folder of files for each cluster, and prints the next steps.
func (a *installation) write(directory string) error {
	for i, f := range a.facts {
		values, err := a.wanted[i].Values()
		var text []byte
		if err == nil {
			text, err = yaml.Marshal(values)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		all, err := zones(a.wanted[i])
		if err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		blocks, err := f.DNS.Blocks(all)
		if err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		folder := filepath.Join(directory, f.Name)
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
		for name, content := range map[string][]byte{
			"values.yaml": append([]byte("# Values of the chart, without tokens: semaphorectl tokens hands them over.\n"), text...), "Corefile": []byte(blocks + "\n"),
		} {
			if err := os.WriteFile(filepath.Join(folder, name), content, 0o644); err != nil {
				return err
			}
		}
	}
	a.Done("wrote %s; next steps, with the chart of this release, deploy/chart:", directory)
	for _, c := range a.clusters {
		a.Say("  helm --kube-context %s upgrade --install %s deploy/chart --namespace %s --create-namespace --values %s",
			cli.Quote(c.Context), manifests.Release, cli.Namespace, cli.Quote(filepath.Join(directory, c.Name, "values.yaml")))
	}
	a.Say("  %s", a.Line(append([]string{"tokens"}, strings.Split(names(a.clusters), ", ")...)...))
	for i, f := range a.facts {
		where := "the configuration of its CoreDNS"
		switch dns := f.DNS; {
		case dns != nil && dns.Owner.Name != "":
			where = "what " + dns.Owner.Name + " applies: " + dns.Owner.Instead
		case dns != nil:
			where = dns.Target()
		}
		if f.Installed.Relay && !a.wanted[i].Relay && !a.wanted[i].RelayAlone {
			a.Say("%s: the values no longer have semaphore-relay. When all agents are rolled out, delete it: %s", f.Name, a.clusters[i].Kubectl(
				"-n %s delete deployment %s", cli.Namespace, inspect.Relay))
		}
		a.Say("%s: add the server blocks in %s to %s", f.Name, filepath.Join(directory, f.Name, "Corefile"), where)
	}
	return nil
}

// LeaveCommand is "semaphorectl leave".
func LeaveCommand(s *cli.Session) *cobra.Command {
	var alone bool
	var gone string
	cmd := &cobra.Command{
		Use:   "leave CLUSTER...",
		Short: "Separate clusters, and uninstall what they no longer need",
		Long: `Separates clusters, each from each other, and waits until that is complete. A single
cluster leaves all of its neighbours. These need kubeconfig contexts, too, unless --alone
leaves them unchanged. First its endpoints are withdrawn everywhere, so that no requests are
lost.

--gone removes a cluster that no longer exists, or that isn't trusted any more, from the
settings of others, without changing it.

A cluster without remaining neighbours is uninstalled: its agents remove devices, routes,
rules and annotations from their nodes, then all objects are deleted. Private keys stay on
the nodes, in /var/lib/semaphore-wireguard, so that a node keeps its key if it joins again.

After that, packets to the other clusters' pods follow the ordinary routes, unencrypted if
there are any.`,
		Example: `  semaphorectl leave aws gcp
  semaphorectl leave merit
  semaphorectl leave --alone merit
  semaphorectl leave --gone merit aws gcp`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			ctx, cancel := s.Context(cmd.Context())
			defer cancel()
			if gone != "" {
				return leaveGone(ctx, s, gone, names)
			}
			if len(names) == 1 && !alone {
				return leaveAll(ctx, s, names[0])
			}
			clusters, err := s.Clusters(names)
			if err != nil {
				return err
			}
			return Leave(ctx, s, clusters, Options{})
		},
	}
	cmd.Flags().StringVar(&gone, "gone", "", "cluster to remove from the settings of the others without changing it, as one that no longer exists")
	cmd.Flags().BoolVar(&alone, "alone", false, "uninstall a single cluster, and leave its neighbours unchanged")
	cmd.MarkFlagsMutuallyExclusive("alone", "gone")
	return cmd
}

// leaveAll separates one cluster from all of its neighbours, which stay joined.
func leaveAll(ctx context.Context, s *cli.Session, name string) error {
	one, err := s.Cluster(name)
	if err != nil {
		return err
	}
	s.Say("reading the neighbours of %s", name)
	a := newInstallation(ctx, s, []*cli.Cluster{one}, Options{})
	if err := a.mayLeave(ctx); err != nil {
		return err
	}
	// The settings of the leaving cluster determine which contexts are needed.
	remotes := a.facts[0].Installed.Settings.Remotes()
	names := []string{name}
	for _, remote := range remotes {
		names = append(names, string(remote))
	}
	if len(remotes) > 0 {
		s.Say("its neighbours, according to its settings: %s", strings.Join(names[1:], ", "))
	}
	clusters, err := s.Clusters(names)
	if err != nil {
		return cli.Hint(err, "neighbours need contexts, too, or --alone leaves them unchanged")
	}
	a = newInstallation(ctx, s, clusters, Options{})
	if err := a.mayLeave(ctx); err != nil {
		return err
	}
	// The list of neighbours comes from the leaving cluster, which may be hostile: each is
	// separated only if it is joined according to its own settings.
	err = a.separate(ctx, func(f *inspect.Facts) ([]cluster.Name, bool) {
		if f.Name == name {
			return remotes, true
		}
		return []cluster.Name{cluster.Name(name)}, false
	})
	if err != nil {
		return err
	}
	if len(remotes) == 0 {
		s.Warn("%s has no neighbours in its settings: if others have it in theirs, remove it there: semaphorectl leave --gone %s <cluster>...", name, name)
		return cli.Judged(false, true)
	}
	return nil
}
