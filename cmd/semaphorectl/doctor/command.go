package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/cli"
	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/facts"
	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/probe"
	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/survey"
	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

const about = `Finds out why joined clusters don't work. It prints causes, each with its evidence, the
command that shows it, and a remedy. Faults that follow from a printed cause are only
counted.

It reads the reports of agents and controllers and objects of the API servers, and changes
nothing. Agents continuously probe the paths between all nodes, with small and full-size
packets. They can't see whether pods' own packets arrive: --probe tests it with temporary
pods in kube-system on some nodes, as semaphorectl verify does; with --paths-only it isn't
reported as unknown.

Exit codes: 0 no fault, and everything could be checked; 1 faults were found; 2 no fault
was found, and something couldn't be checked.`

// Command returns the command.
func Command(session *cli.Session) *cobra.Command {
	output, pathsOnly, try, plan := "", false, false, probe.Plan{}
	cmd := &cobra.Command{
		Use:   "doctor CLUSTER...",
		Short: "Find faults of joined clusters and their causes",
		Long:  about,
		Example: `  semaphorectl doctor aws gcp
  semaphorectl doctor aws gcp --probe
  semaphorectl doctor aws gcp --paths-only -o json`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: session.CompleteClusters,
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
			taken := survey.Collect(ctx, clusters)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			var tried *probe.Tried
			if try && len(clusters) > 1 {
				session.Say("testing connections with temporary pods in %s", probe.Namespace)
				if tried, err = probe.Mesh(ctx, clusters, facts.ReadAll(ctx, clusters), plan); err != nil {
					return err
				}
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
			}
			d, err := Diagnose(ctx, taken, tried, !pathsOnly)
			if err != nil {
				return err
			}
			if err := d.print(session.Out, output); err != nil {
				return fmt.Errorf("print: %w", err)
			}
			return cli.Judged(d.Verdict == Wrong, d.Verdict == Unknown)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "output format: json")
	cmd.Flags().BoolVar(&pathsOnly, "paths-only", false, "don't report as unknown that connections of pods weren't tested")
	cmd.Flags().BoolVar(&try, "probe", false, "test connections between clusters with temporary pods")
	cmd.Flags().IntVar(&plan.Nodes, "nodes", 3, fmt.Sprintf("with --probe: number of nodes of each cluster that run pods, at most %d", probe.MaxNodes))
	cmd.Flags().StringVar(&plan.Image, "image", "", "with --probe: image of the pods (default: the installed image)")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]cobra.Completion{"json"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (d *Diagnosis) print(to io.Writer, output string) error {
	if output == "json" {
		body, err := json.MarshalIndent(d, "", "  ")
		if err == nil {
			_, err = to.Write(append(printable.JSON(body), '\n'))
		}
		return err
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
		line("", "%d further faults follow from these", d.Consequences)
	}
	for _, o := range d.Unknown {
		line("? ", "unknown: %s: %s", o.What, cmp.Or(o.Why, "no evidence"))
		if o.Command != "" {
			line("      ", "$ %s", o.Command)
		}
	}
	if d.Verdict == Well {
		line("✓ ", "no faults found by agents and API servers")
	}
	_, err := io.WriteString(to, b.String())
	return err
}
