package status

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/judge"
)

const about = `Shows clusters in one view: the installed programs, the paths between all nodes of different
clusters in both directions, and what is wrong: doctor prints the causes among that with remedies.

The reports of agents and controllers are read through the API servers: by running their
command "status" in their pods, or by fetching their status page through the API server's
proxy. The kubeconfig needs rights to list nodes, and pods, Events, DaemonSets and
Deployments in sys-semaphore, and to create pods/exec or get pods/proxy there.

Exit codes: 0 no faults found, 1 faults found, 2 no faults found, and something is unknown.`

// Command returns the command.
func Command(session *cli.Session) *cobra.Command {
	output := ""
	cmd := &cobra.Command{
		Use:   "status CLUSTER...",
		Short: "Show joined clusters and the paths between their nodes",
		Long:  about,
		Example: `  semaphorectl status aws gcp
  semaphorectl status aws gcp -o html > mesh.html`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "" && output != "wide" && output != "json" && output != "html" {
				return cli.Usage(fmt.Errorf("-o %q: wide, json or html", output))
			}
			clusters, err := session.Clusters(args)
			if err != nil {
				return err
			}
			ctx, cancel := session.Context(cmd.Context())
			defer cancel()
			return show(ctx, session, clusters, output)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "output format: wide (a line for each path), json, html (a page for browsers)")
	return cmd
}

func show(ctx context.Context, session *cli.Session, clusters []*cli.Cluster, output string) error {
	view, err := Of(ctx, time.Now(), inspect.Collect(ctx, clusters))
	if err != nil {
		return err
	}
	switch output {
	case "json":
		err = cli.JSON(session.Out, view)
	case "html":
		err = view.HTML(session.Out)
	default:
		err = view.Text(session.Out, output == "wide")
	}
	if err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return cli.Judged(view.Verdict == judge.Wrong, view.Verdict == judge.Unknown)
}
