package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/probe"
	"github.com/kube-semaphore/kube-semaphore/internal/printable"
	"github.com/kube-semaphore/kube-semaphore/internal/reach"
)

const about = `Tests connections between temporary pods of joined clusters, in both directions, and prints
the expected and the actual results: whether pods answer, whether they see the pod's own
source address, or the virtual one, whether full-size packets get through, the latency, the throughput of a TCP
stream, and whether names of mirrored services are resolved. With semaphore-policy and
Calico it then guards the pods with a network policy that admits a network set: a pod
without the label must be denied, and one with it admitted.

With --drain it drains one of the clusters for a while instead, as for maintenance, and sends
requests to its global services and imports from pods of the others meanwhile: none may be lost,
and all must leave that cluster. It is undone at the end, also after an interruption. This needs
the right to patch the Service kubernetes in its namespace default.

The pods run in kube-system, on --nodes nodes of each cluster, with the installed image.
The policy selects only these pods. Pods and policy are deleted at the end, also after an
interruption; the next run deletes those of a killed one.

Exit codes: 0 all results are as expected; 1 some aren't; 2 some tests couldn't be run.
Tests that don't apply, such as names without a mirror, are printed as not tried and don't
affect the exit code.`

// skippable returns the values of --skip.
func skippable() []string { return []string{throughput, name, "policy"} }

// Command is "semaphorectl verify".
func Command(s *cli.Session) *cobra.Command {
	plan, output, skip, on, duration, which := probe.Plan{}, "", []string(nil), []string(nil), time.Duration(0), ""
	cmd := &cobra.Command{
		Use:   "verify CLUSTER CLUSTER...",
		Short: "Test connections between pods of joined clusters",
		Long:  about,
		Example: `  semaphorectl verify aws gcp
  semaphorectl verify aws gcp --nodes 10 -o json
  semaphorectl verify aws gcp --skip throughput,policy
  semaphorectl verify aws gcp --on aws/aws-1,gcp/gcp-2 --duration 30s --streams 4
  semaphorectl verify aws gcp merit --drain gcp`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := check(output, skip, plan.Nodes); err != nil {
				return cli.Usage(err)
			}
			if which != "" && !cmd.Flags().Changed("duration") {
				duration = drainFor
			}
			if err := errors.Join(stream(&plan, duration), nodes(&plan, on, args), drainable(cmd, which, duration, args)); err != nil {
				return cli.Usage(err)
			}
			clusters, err := s.Clusters(args)
			if err != nil {
				return err
			}
			ctx, cancel := s.Context(cmd.Context())
			defer cancel()
			unwanted := slices.Clone(skip)
			if slices.Contains(skip, "policy") {
				unwanted = append(unwanted, policy)
			}
			s.Say("testing %s with temporary pods in %s", strings.Join(args, ", "), probe.Namespace)
			report, err := (*Report)(nil), error(nil)
			if which != "" {
				report, err = drain(ctx, s, clusters, plan, which, duration)
			} else {
				report, err = run(ctx, s, clusters, plan, unwanted)
			}
			if ctx.Err() != nil {
				return errors.Join(context.Cause(ctx), err)
			}
			if err != nil {
				return err
			}
			if err := report.print(s.Out, output); err != nil {
				return fmt.Errorf("print: %w", err)
			}
			return cli.Judged(report.Verdict == Wrong, report.Verdict == Unknown)
		},
	}
	fs := cmd.Flags()
	fs.IntVar(&plan.Nodes, "nodes", 3, fmt.Sprintf("number of nodes of each cluster that run pods, at most %d", probe.MaxNodes))
	fs.StringSliceVar(&on, "on", nil, "nodes that run pods instead of the first ones, as in aws/aws-1")
	fs.DurationVar(&duration, "duration", 2*time.Second, fmt.Sprintf("duration of the TCP streams from the first pod of the first cluster, at most %ds", reach.MaxStreamFor))
	fs.IntVar(&plan.Streams, "streams", 1, fmt.Sprintf("number of TCP streams at the same time, at most %d", reach.MaxStreams))
	fs.StringVar(&which, "drain", "", "drain this cluster for --duration (default 20s) instead, and ask its services from pods of the others")
	fs.StringVar(&plan.Image, "image", "", "image of the pods (default: the installed image)")
	fs.StringSliceVar(&skip, "skip", nil, "tests to skip: "+strings.Join(skippable(), ", "))
	fs.StringVarP(&output, "output", "o", "", "output format: json")
	return cmd
}

func check(output string, skip []string, nodes int) error {
	var errs []error
	if output != "" && output != "json" {
		errs = append(errs, fmt.Errorf("-o %q: json", output))
	}
	for _, what := range skip {
		if !slices.Contains(skippable(), what) {
			errs = append(errs, fmt.Errorf("--skip %s: expected %s", what, strings.Join(skippable(), ", ")))
		}
	}
	if nodes < 1 || nodes > probe.MaxNodes {
		errs = append(errs, fmt.Errorf("--nodes %d: 1 to %d", nodes, probe.MaxNodes))
	}
	return errors.Join(errs...)
}

// stream sets the streams of a plan.
func stream(plan *probe.Plan, duration time.Duration) error {
	plan.StreamFor = int(duration / time.Second)
	var errs []error
	if duration < time.Second || duration > reach.MaxStreamFor*time.Second || duration%time.Second != 0 {
		errs = append(errs, fmt.Errorf("--duration %s: 1s to %ds, in whole seconds", duration, reach.MaxStreamFor))
	}
	if plan.Streams < 1 || plan.Streams > reach.MaxStreams {
		errs = append(errs, fmt.Errorf("--streams %d: 1 to %d", plan.Streams, reach.MaxStreams))
	}
	return errors.Join(errs...)
}

// drainable checks the flags of --drain.
func drainable(cmd *cobra.Command, which string, duration time.Duration, clusters []string) error {
	if which == "" {
		return nil
	}
	var errs []error
	if !slices.Contains(clusters, which) {
		errs = append(errs, fmt.Errorf("--drain %s: expected a cluster of the arguments", which))
	}
	if duration < drainAtLeast {
		errs = append(errs, fmt.Errorf("--duration %s: with --drain at least %s", duration, drainAtLeast))
	}
	for _, flag := range []string{"skip", "streams"} {
		if cmd.Flags().Changed(flag) {
			errs = append(errs, fmt.Errorf("--%s has no effect with --drain", flag))
		}
	}
	return errors.Join(errs...)
}

// nodes sets the nodes of a plan.
func nodes(plan *probe.Plan, on, clusters []string) error {
	plan.On = map[string][]string{}
	var errs []error
	for _, word := range on {
		of, node, _ := strings.Cut(word, "/")
		if !slices.Contains(clusters, of) || inspect.CheckName("Node", "metadata.name", node) != nil {
			errs = append(errs, fmt.Errorf("--on %s: expected a cluster of the arguments and a node of it, as in %s/node-1", word, clusters[0]))
			continue
		}
		plan.On[of] = append(plan.On[of], node)
		if len(plan.On[of]) > probe.MaxNodes {
			errs = append(errs, fmt.Errorf("--on: more than %d nodes of %s", probe.MaxNodes, of))
		}
	}
	return errors.Join(errs...)
}

// run reads clusters, runs the tests, and judges the results.
func run(ctx context.Context, s *cli.Session, clusters []*cli.Cluster, plan probe.Plan, skip []string) (*Report, error) {
	known, all := make([]cluster, len(clusters)), inspect.Collect(ctx, clusters, inspect.ForPods()...)
	var group sync.WaitGroup
	for i, c := range clusters {
		if err := missing(c.Name, plan.On[c.Name], all[i]); err != nil {
			return nil, err
		}
	}
	for i, c := range clusters {
		group.Go(func() {
			known[i] = know(ctx, c, all[i])
			if n := len(all[i].Nodes.Value); n > plan.Nodes && len(plan.On[c.Name]) == 0 {
				s.Say("%s: pods on %d of its %d nodes, see --nodes", c.Name, min(plan.Nodes, known[i].nodes), n)
			}
		})
	}
	group.Wait()
	plan.Throughput = !slices.Contains(skip, throughput)
	plan.Asks, plan.Guards = map[[2]string][]reach.ServiceRequest{}, map[string]*probe.Guard{}
	for i := range known {
		if known[i].guard != nil && !slices.Contains(skip, policy) {
			plan.Guards[known[i].name] = known[i].guard
		}
		for j := range known {
			if i != j && !slices.Contains(skip, name) {
				plan.Asks[[2]string{known[i].name, known[j].name}] = known[i].names[known[j].name]
			}
		}
	}
	tried, err := probe.Mesh(ctx, clusters, all, plan)
	if tried == nil {
		return nil, err
	}
	return judge(known, tried, skip), err
}

// missing returns an error unless all chosen nodes of a cluster can run pods.
func missing(cluster string, chosen []string, c *inspect.Cluster) error {
	able := probe.Pick(c.Nodes.Value, len(c.Nodes.Value))
	for _, node := range chosen {
		if c.Unread() == nil && !slices.Contains(able, node) {
			return fmt.Errorf("--on %s/%s: the cluster has no node of this name that is ready and runs Linux", cluster, node)
		}
	}
	return nil
}

// maxNames bounds the resolved names of each remote.
const maxNames = 3

func know(ctx context.Context, c *cli.Cluster, survey *inspect.Cluster) cluster {
	_, mirror := survey.Workload(inspect.ServiceMirror)
	k := cluster{
		name: c.Name, nodes: len(probe.Pick(survey.Nodes.Value, probe.MaxNodes)), mirror: mirror,
		subnets: survey.Settings.Value.SubnetMap(), names: map[string][]reach.ServiceRequest{},
	}
	k.guard, k.state, k.unguarded = guard(ctx, c, survey)
	if err := survey.Unread(); err != nil {
		k.unread = err.Error()
	}
	if !k.mirror {
		return k
	}
	imports, err := inspect.ReadImports(ctx, c)
	for i := range imports {
		// Headless: without ready pods it has no addresses.
		if s := &imports[i]; s.Origin != "" && !s.Headless && len(s.ClusterIPs) > 0 && len(k.names[s.Origin]) < maxNames {
			k.names[s.Origin] = append(k.names[s.Origin], reach.ServiceRequest{Name: s.DNS(), Want: s.ClusterIPs})
		}
	}
	if err != nil {
		k.unlisted = "list services of " + cli.Namespace + ": " + err.Error()
	}
	return k
}

func (r *Report) print(to io.Writer, output string) error {
	if output == "json" {
		return cli.JSON(to, r)
	}
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	_, err := fmt.Fprintln(w, "FROM\tTO\tWHAT\tEXPECTED\tFOUND\t")
	for i := range r.Rows {
		row := &r.Rows[i]
		mark := map[State]string{Right: "✓", Wrong: "✗ wrong: ", Unknown: "? not known: ", Skipped: "- not tried: "}[row.State]
		if row.State == Right {
			mark += " "
		}
		cells := []string{row.From, strings.TrimSpace(row.To + " " + row.Address), row.What, row.Expected, row.Found}
		for i, cell := range cells {
			cells[i] = printable.Text(cmp.Or(cell, "-"), printable.Short)
		}
		cells[len(cells)-1] = mark + cells[len(cells)-1]
		_, _ = fmt.Fprintln(w, strings.Join(cells, "\t")) // Flush returns the error.
	}
	return errors.Join(err, w.Flush())
}
