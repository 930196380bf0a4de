package join

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/cli"
	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/facts"
	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/manifests"
	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
	"github.com/kube-semaphore/kube-semaphore/internal/process"
)

// flags are those of join as they are written.
type flags struct {
	Options
	servers, pods, machines map[string]string
	output, directory       string
}

// Command is "semaphorectl join".
func Command(s *cli.Session) *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "join CLUSTER CLUSTER...",
		Short: "Join clusters, so that their pods reach each other",
		Long: `Joins clusters, each with each. It looks at all of them first, also from their nodes, and
says all that is in the way at once. Then it installs what is missing, and waits until
pods of the clusters reach each other. Run again, it changes nothing; interrupted, the
next run goes on.

Clusters that are joined already stay joined. The tools are wireguard (encrypted tunnels
between nodes), mirror (names of services of other clusters) and policy (network sets for
Calico); by default the first two, and the third where Calico is.

With --output yaml it changes nothing, and writes the same as files for a Git repository,
for kubectl apply -k. Secrets aren't in there: hand them over with semaphorectl tokens.`,
		Example: `  semaphorectl join aws gcp
  semaphorectl join --context aws=prod-eu --context gcp=prod-us aws gcp merit
  semaphorectl join --check aws gcp
  semaphorectl join --pod-subnets aws=10.2.0.0/16 --api-server aws=https://api.aws.example:6443 aws gcp
  semaphorectl join --output yaml --directory clusters aws gcp`,
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: s.CompleteClusters,
		RunE: func(cmd *cobra.Command, names []string) error {
			ctx, cancel := s.Context(cmd.Context())
			defer cancel()
			if err := f.parse(names); err != nil {
				return cli.Usage(err)
			}
			clusters, err := s.Clusters(names)
			if err != nil {
				return err
			}
			if f.output == "yaml" {
				f.NoProbe, f.Adopt = true, true
				a := newAll(ctx, s, clusters, f.Options)
				if err := a.preflight(ctx); err != nil {
					return err
				}
				return a.write(f.directory)
			}
			return Join(ctx, s, clusters, f.Options)
		},
	}
	fs := cmd.Flags()
	fs.StringSliceVar(&f.Tools, "tools", nil, "what to install: wireguard, mirror, policy")
	fs.StringVar(&f.Image, "image", DefaultImage(), "the image, with a tag or a digest")
	fs.StringToStringVar(&f.servers, "api-server", nil, "where other clusters' nodes reach an API server, as in aws=https://api.aws.example:6443")
	fs.StringToStringVar(&f.pods, "pod-subnets", nil, `where a cluster's pods are, as in "aws=10.2.0.0/16 fd00:10:2::/48"`)
	fs.StringToStringVar(&f.machines, "node-subnets", nil, `where a cluster's nodes are, as in "aws=10.66.1.0/24 fd00:66::1:0/112"`)
	fs.BoolVar(&f.Adopt, "adopt", false, "take over what was installed by hand")
	fs.BoolVar(&f.Check, "check", false, "look at everything, and change nothing")
	fs.BoolVarP(&f.Yes, "yes", "y", false, "take the ranges of pods and nodes that clusters name themselves, without asking")
	fs.BoolVar(&f.NoProbe, "no-probe", false, "start no temporary pods: what only nodes can find out stays unknown")
	fs.StringVarP(&f.output, "output", "o", "", "yaml: write files, and change nothing")
	fs.StringVar(&f.directory, "directory", "kube-semaphore", "where --output yaml writes to")
	for name, words := range map[string][]string{"tools": manifests.Tools(), "output": {"yaml"}} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)) // Both flags are there.
	}
	return cmd
}

// DefaultImage is the image of this build.
func DefaultImage() string {
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
	if f.output != "" && f.output != "yaml" {
		errs = append(errs, fmt.Errorf("--output %s: expected yaml", f.output))
	}
	subnets := func(flag string, given map[string]string) map[string][]netip.Prefix {
		parsed := map[string][]netip.Prefix{}
		for _, name := range slices.Sorted(maps.Keys(given)) {
			prefixes, err := facts.Prefixes(given[name])
			if err != nil {
				errs = append(errs, fmt.Errorf("--%s %s: %w", flag, name, err))
			}
			if !slices.Contains(names, name) {
				errs = append(errs, fmt.Errorf("--%s %s=...: no cluster %s is asked for", flag, name, name))
			}
			parsed[name] = prefixes
		}
		return parsed
	}
	f.Pods, f.Machines = subnets("pod-subnets", f.pods), subnets("node-subnets", f.machines)
	for _, name := range slices.Sorted(maps.Keys(f.servers)) {
		if _, err := facts.ParseServer(f.servers[name]); err != nil {
			errs = append(errs, fmt.Errorf("--api-server %s=...: %w", name, err))
		}
		if !slices.Contains(names, name) {
			errs = append(errs, fmt.Errorf("--api-server %s=...: no cluster %s is asked for", name, name))
		}
	}
	f.Servers = f.servers
	return errors.Join(errs...)
}

// write writes a folder of files for each cluster, and says what to do with them.
func (a *all) write(directory string) error {
	for i, f := range a.facts {
		files, err := a.wanted[i].Files()
		if err != nil {
			return err
		}
		corefile := ""
		if f.DNS != nil {
			corefile = f.DNS.Corefile
		}
		blocks, err := blocks(a.settings[i], corefile)
		if err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		files["Corefile"] = []byte(blocks + "\n")
		folder := filepath.Join(directory, f.Name)
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
		for name, content := range files {
			if err := os.WriteFile(filepath.Join(folder, name), content, 0o644); err != nil {
				return err
			}
		}
	}
	a.Done("wrote %s; then:", directory)
	for _, c := range a.clusters {
		a.Say("  %s", cli.Kubectl(c.Context, "apply -k %s", filepath.Join(directory, c.Name)))
	}
	a.Say("  semaphorectl tokens %s", strings.ReplaceAll(names(a.clusters), ",", ""))
	a.Say("and add the server blocks in the files Corefile to CoreDNS's, where they are")
	return nil
}

// LeaveCommand is "semaphorectl leave".
func LeaveCommand(s *cli.Session) *cobra.Command {
	var alone bool
	var gone string
	cmd := &cobra.Command{
		Use:   "leave CLUSTER...",
		Short: "Take clusters apart, and what was installed out",
		Long: `Takes clusters apart, each from each, and waits until that is done. One cluster alone
leaves all of its neighbours; they have to have contexts, too, unless --alone says that
they are to be left as they are. A cluster that no longer answers, or isn't trusted any
longer, is taken out of others with --gone: it isn't asked.

A cluster that has no neighbour left keeps nothing: first its agents remove devices,
routes, rules and annotations from their nodes, then all objects go. Private keys stay on
the nodes, in /var/lib/semaphore-wireguard, so that a node that comes back is known.

From then on packets to the other clusters' pods take the ordinary way, unencrypted if
there is one.`,
		Example: `  semaphorectl leave aws gcp
  semaphorectl leave merit
  semaphorectl leave --alone merit
  semaphorectl leave --gone merit aws gcp`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: s.CompleteClusters,
		RunE: func(cmd *cobra.Command, names []string) error {
			ctx, cancel := s.Context(cmd.Context())
			defer cancel()
			if gone != "" {
				return forgetGone(ctx, s, gone, names)
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
	cmd.Flags().StringVar(&gone, "gone", "", "a cluster that these are to forget, and that isn't asked")
	cmd.Flags().BoolVar(&alone, "alone", false, "take out a single cluster, and leave its neighbours as they are")
	cmd.MarkFlagsMutuallyExclusive("alone", "gone")
	return cmd
}

// leaveAll takes one cluster from each of its neighbours, which stay with each other.
func leaveAll(ctx context.Context, s *cli.Session, name string) error {
	one, err := s.Cluster(name)
	if err != nil {
		return err
	}
	s.Say("looking for the neighbours of %s", name)
	a := newAll(ctx, s, []*cli.Cluster{one}, Options{})
	if err := a.mayLeave(); err != nil {
		return err
	}
	// Only now it is known which contexts are needed, by the word of the cluster that leaves.
	remotes := a.facts[0].Installed.Settings.Remotes()
	names := []string{name}
	for _, remote := range remotes {
		names = append(names, string(remote))
	}
	if len(remotes) > 0 {
		s.Say("its neighbours, by its own word: %s", strings.Join(names[1:], ", "))
	}
	clusters, err := s.Clusters(names)
	if err != nil {
		return cli.Hint(err, "neighbours have to have contexts, too, or --alone leaves them as they are")
	}
	one, neighbours := clusters[0], clusters[1:]
	if err := newAll(ctx, s, neighbours, Options{}).mayLeave(); err != nil {
		return err
	}
	for _, neighbour := range neighbours {
		if err := leaveNeighbour(ctx, s, neighbour, one); err != nil {
			return err
		}
	}
	if err := Leave(ctx, s, []*cli.Cluster{one}, Options{}); err != nil {
		return err
	}
	if len(remotes) == 0 {
		s.Warn("%s names no neighbours: if others have it, semaphorectl leave --gone %s <cluster>... takes it out of them", name, name)
		return cli.Judged(false, true)
	}
	return nil
}

// forgetGone takes a cluster out of others, without asking it.
func forgetGone(ctx context.Context, s *cli.Session, gone string, names []string) error {
	if _, err := cluster.ParseName(gone); err != nil {
		return cli.Usage(fmt.Errorf("--gone: %w", err))
	}
	if slices.Contains(names, gone) {
		return cli.Usage(fmt.Errorf("--gone %s: name the clusters that are to forget it", gone))
	}
	clusters, err := s.Clusters(names)
	if err != nil {
		return err
	}
	if err := newAll(ctx, s, clusters, Options{}).mayLeave(); err != nil {
		return err
	}
	var errs []error
	for _, c := range clusters {
		errs = append(errs, leaveNeighbour(ctx, s, c, &cli.Cluster{Name: gone}))
	}
	return errors.Join(errs...)
}
