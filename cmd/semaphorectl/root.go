package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/doctor"
	"github.com/kube-semaphore/kube-semaphore/ctl/handover"
	"github.com/kube-semaphore/kube-semaphore/ctl/join"
	"github.com/kube-semaphore/kube-semaphore/ctl/status"
	"github.com/kube-semaphore/kube-semaphore/ctl/verify"
	"github.com/kube-semaphore/kube-semaphore/internal/process"
)

const about = `Joins Kubernetes clusters, so that their pods can reach each other: encrypted, by name and
subject to network policies.

Arguments are the names of clusters, as in their configuration. By default a cluster's
kubeconfig context has the same name; --context selects another one.

Exit codes:
  0   success, or no faults found
  1   an error occurred, or faults were found
  2   no faults found, and something couldn't be checked
  64  wrong arguments`

// newRoot returns the command with its subcommands.
func newRoot(session *cli.Session, name string) *cobra.Command {
	root := &cobra.Command{
		Use:         "semaphorectl",
		Short:       "Joins Kubernetes clusters and diagnoses their faults",
		Long:        about,
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: name},
		Version:     process.Build(),
		Args:        cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmd.Help()
		},
	}
	session.Flags(root.PersistentFlags())
	root.AddCommand(
		join.Command(session),
		join.LeaveCommand(session),
		handover.Command(session),
		status.Command(session),
		doctor.Command(session),
		verify.Command(session),
		versionCommand(session),
	)
	return root
}

func versionCommand(session *cli.Session) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this build",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(session.Out, "semaphorectl", process.Build())
			return err
		},
	}
}
