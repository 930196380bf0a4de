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

const about = `Says why clusters aren't joined as they should be: causes, each with its evidence, the
command that shows it, and what to do. What a cause explains isn't told again.

It reads what the agents, the controllers and the API servers know, and makes nothing in
the clusters. Agents probe the paths between all nodes all the time, with small and
full-size packets: it asks them. Whether pods' own packets get through they don't know.
--probe tries it, with temporary pods in kube-system on some nodes, as semaphorectl verify
does; --paths-only leaves it open without counting it.

Exit codes: 0 all is well, of everything that was looked at there is a sign; 1 something
is wrong; 2 nothing is known to be wrong, and something isn't known.`

// Command returns the command.
func Command(session *cli.Session) *cobra.Command {
	output, pathsOnly, try, plan := "", false, false, probe.Plan{}
	cmd := &cobra.Command{
		Use:   "doctor CLUSTER...",
		Short: "Say what is wrong with clusters that are joined, and why",
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
			if plan.Nodes < 1 || plan.Nodes > probe.MostNodes {
				return cli.Usage(fmt.Errorf("--nodes %d: 1 to %d", plan.Nodes, probe.MostNodes))
			}
			clusters, err := session.Clusters(args)
			if err != nil {
				return err
			}
			ctx, cancel := session.Context(cmd.Context())
			defer cancel()
			taken := survey.Take(ctx, clusters)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			var tried *probe.Tried
			if try && len(clusters) > 1 {
				session.Say("trying what pods reach, with temporary pods in %s", probe.Namespace)
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
	cmd.Flags().StringVarP(&output, "output", "o", "", "json")
	cmd.Flags().BoolVar(&pathsOnly, "paths-only", false, "don't count as unknown that no pod's own request was tried")
	cmd.Flags().BoolVar(&try, "probe", false, "have temporary pods try what pods reach")
	cmd.Flags().IntVar(&plan.Nodes, "nodes", 3, fmt.Sprintf("with --probe: on how many nodes of each cluster pods run, %d at most", probe.MostNodes))
	cmd.Flags().StringVar(&plan.Image, "image", "", "with --probe: the pods' image (default: the one that is installed)")
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
			line("    ", "and %d more of the kind", c.More)
		}
		line("    → ", "%s", c.Remedy)
		b.WriteString("\n")
	}
	if d.Consequences > 0 {
		line("", "%d things more are wrong that follow from these", d.Consequences)
	}
	for _, o := range d.Unknown {
		line("? ", "not known: %s: %s", o.What, cmp.Or(o.Why, "no evidence"))
		if o.Command != "" {
			line("      ", "$ %s", o.Command)
		}
	}
	if d.Verdict == Well {
		line("✓ ", "all is well, as far as agents and API servers see")
	}
	_, err := io.WriteString(to, b.String())
	return err
}
