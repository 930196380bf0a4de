package status

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/judge"
)

// watchPeriod is the pause between two views of --watch.
const watchPeriod = 2 * time.Second

const about = `Shows clusters in one view: the installed programs, the paths between all nodes of different
clusters in both directions, and what is wrong: doctor prints the causes among that with remedies.

The reports of agents and controllers are read through the API servers: by running their
command "status" in their pods, or by fetching their status page through the API server's
proxy. The kubeconfig needs rights to list nodes, and pods, Events, DaemonSets and
Deployments in sys-semaphore, and to create pods/exec or get pods/proxy there.

Exit codes: 0 no faults found, 1 faults found, 2 no faults found, and something is unknown.`

// Command returns the command.
func Command(session *cli.Session) *cobra.Command {
	output, watch := "", false
	cmd := &cobra.Command{
		Use:   "status CLUSTER...",
		Short: "Show joined clusters and the paths between their nodes",
		Long:  about,
		Example: `  semaphorectl status aws gcp
  semaphorectl status aws gcp --watch
  semaphorectl status aws gcp -o html > mesh.html`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: session.CompleteClusters,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case output != "" && output != "wide" && output != "json" && output != "html":
				return cli.Usage(fmt.Errorf("-o %q: wide, json or html", output))
			case watch && (output == "json" || output == "html"):
				return cli.Usage(errors.New("--watch is for people: without -o, or with -o wide"))
			}
			clusters, err := session.Clusters(args)
			if err != nil {
				return err
			}
			if !watch {
				ctx, cancel := session.Context(cmd.Context())
				defer cancel()
				return show(ctx, session, clusters, output)
			}
			return repeat(cmd.Context(), session, clusters, output)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "output format: wide (a line for each path), json, html (a page for browsers)")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "refresh the view until interrupted")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]cobra.Completion{"wide", "json", "html"}, cobra.ShellCompDirectiveNoFileComp))
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

// repeat refreshes the view on a cleared screen until ctx is done.
func repeat(ctx context.Context, session *cli.Session, clusters []*cli.Cluster, output string) error {
	for {
		bounded, cancel := session.Context(ctx)
		view, err := Of(bounded, time.Now(), inspect.Collect(bounded, clusters))
		cancel()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		// ECMA-48: move the cursor to the upper left, and clear the screen.
		if _, err := fmt.Fprint(session.Out, "\x1b[H\x1b[2J"); err != nil {
			return err
		}
		if err := view.Text(session.Out, output == "wide"); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(watchPeriod):
		}
	}
}
