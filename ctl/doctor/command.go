// Package doctor implements "semaphorectl doctor": it surveys clusters, tests with temporary pods, and
// prints the causes that judge finds.
package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/judge"
	"github.com/kube-semaphore/kube-semaphore/ctl/probe"
	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

const about = `Finds out why joined clusters don't work. It prints causes, each with its evidence, the
command that shows it, and a remedy. Faults that follow from a printed cause are only
counted. At the end it prints what was asked and answered, and what wasn't asked.

It reads the reports of agents and controllers and objects of the API servers. Then it asks
what clients ask: temporary pods in kube-system, on --nodes nodes of each cluster, send
requests to pods of the other clusters, and to mirrored and global services by name, by
ClusterIP and at their endpoints; a temporary Service shows whether new ClusterIPs are
served. HTTP services get a GET request for /. Pods and Services are deleted at the end.

With --no-probe it creates nothing in the clusters, and what pods get is unknown; with
--paths-only it isn't reported as unknown.

Exit codes: 0 no fault, and everything that was asked was answered; 1 faults were found; 2 no
fault was found, and something couldn't be checked.`

// Command returns the command.
func Command(session *cli.Session) *cobra.Command {
	output, pathsOnly, without, plan := "", false, false, probe.Plan{Fresh: true}
	cmd := &cobra.Command{
		Use:   "doctor CLUSTER...",
		Short: "Find faults of joined clusters and their causes",
		Long:  about,
		Example: `  semaphorectl doctor aws gcp
  semaphorectl doctor aws gcp --no-probe
  semaphorectl doctor aws gcp --paths-only -o json`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "" && output != "json" {
				return cli.Usage(fmt.Errorf("-o %q: json", output))
			}
			if plan.Nodes < 1 || plan.Nodes > probe.MaxNodes {
				return cli.Usage(fmt.Errorf("--nodes %d: 1 to %d", plan.Nodes, probe.MaxNodes))
			}
			clusters, err := session.Clusters(args)
			if err != nil {
				return err
			}
			ctx, cancel := session.Context(cmd.Context())
			defer cancel()
			taken := inspect.Collect(ctx, clusters)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			var results *probe.Results
			failed := error(nil)
			if !without && !pathsOnly && len(clusters) > 1 {
				results, failed = try(ctx, session, clusters, taken, plan)
				if ctx.Err() != nil {
					return errors.Join(context.Cause(ctx), failed)
				}
			}
			d, err := judge.Diagnose(ctx, taken, results, !pathsOnly)
			if err != nil {
				return err
			}
			if failed != nil {
				d.Untested(failed)
			}
			if err := show(session.Out, d, output); err != nil {
				return fmt.Errorf("print: %w", err)
			}
			return cli.Judged(d.Verdict == judge.Wrong, d.Verdict == judge.Unknown)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "output format: json")
	cmd.Flags().BoolVar(&pathsOnly, "paths-only", false, "like --no-probe, and don't report as unknown that connections of pods weren't tested")
	cmd.Flags().BoolVar(&without, "no-probe", false, "create nothing in the clusters: don't test what pods get")
	cmd.Flags().Bool("probe", true, "the default")
	_ = cmd.Flags().MarkHidden("probe") // It exists.
	cmd.Flags().IntVar(&plan.Nodes, "nodes", probe.MaxNodes, fmt.Sprintf("number of nodes of each cluster that run pods, at most %d", probe.MaxNodes))
	cmd.Flags().StringVar(&plan.Image, "image", "", "image of the pods (default: the installed image)")
	return cmd
}

func show(to io.Writer, d *judge.Diagnosis, output string) error {
	if output == "json" {
		return cli.JSON(to, d)
	}
	var b strings.Builder
	line := func(indent, format string, args ...any) {
		b.WriteString(indent + printable.Text(fmt.Sprintf(format, args...), 2*printable.Short) + "\n")
	}
	for i := range d.Causes {
		c := &d.Causes[i]
		line("✗ ", "%s: %s", c.ID, c.What)
		for _, e := range c.Evidence {
			if e.Text != "" {
				line("    ", "%s", e.Text)
			}
			if e.Command != "" {
				line("      ", "$ %s", e.Command)
			}
		}
		if c.More > 0 {
			line("    ", "and %d more of this cause", c.More)
		}
		line("    → ", "%s", c.Remedy)
		b.WriteString("\n")
	}
	if d.Consequences > 0 {
		line("", "%s of the same causes", cli.Count(d.Consequences, "further fault"))
	}
	for _, o := range d.Unknown {
		line("? ", "unknown: %s: %s", o.What, cmp.Or(o.Why, "no evidence"))
		if o.Command != "" {
			line("      ", "$ %s", o.Command)
		}
	}
	for _, what := range d.Asked {
		line("✓ ", "%s", what)
	}
	for _, o := range d.NotAsked {
		line("- ", "not asked: %s: %s", o.What, o.Why)
	}
	if d.Verdict == judge.Well {
		line("", "no faults found")
	}
	_, err := io.WriteString(to, b.String())
	return err
}

// try tests what pods of the clusters that can be read get as clients.
func try(ctx context.Context, session *cli.Session, clusters []*cli.Cluster, taken []*inspect.Cluster, plan probe.Plan) (*probe.Results, error) {
	var readable []*cli.Cluster
	var read []*inspect.Cluster
	for i, c := range clusters {
		if taken[i].Kubernetes.Known() {
			readable, read = append(readable, c), append(read, taken[i])
		}
	}
	if len(readable) < 2 {
		return nil, nil
	}
	session.Say("testing connections with temporary pods in %s", probe.Namespace)
	plan.Asks = judge.Asks(read)
	results, err := probe.Mesh(ctx, readable, read, plan)
	if results != nil && slices.ContainsFunc(results.Connections, func(l probe.Connection) bool { return l.Error+l.Datagrams != "" }) {
		// What agents have counted meanwhile shows where packets end.
		for i, later := range inspect.Collect(ctx, readable, inspect.Reports) {
			read[i].Later = later.Acting()
		}
	}
	return results, err
}
