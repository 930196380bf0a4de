package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/cli"
	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/doctor"
	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/handover"
	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/join"
	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/status"
	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/verify"
	"github.com/kube-semaphore/kube-semaphore/internal/process"
)

const about = `Joins Kubernetes clusters, so that their pods reach each other: encrypted, by name and
under network policies.

Clusters are named as in their configuration. A cluster's kubeconfig context has its
name, unless --context says otherwise.

Exit codes:
  0   done, or all is well
  1   something failed, or is wrong
  2   nothing is known to be wrong, and something couldn't be found out
  64  wrong arguments`

// newRoot makes the command with all that are beneath it.
func newRoot(session *cli.Session, name string) *cobra.Command {
	root := &cobra.Command{
		Use:         "semaphorectl",
		Short:       "Joins Kubernetes clusters, and says what is wrong with them",
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
		Short: "Print which build this is",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(session.Out, "semaphorectl", process.Build())
			return err
		},
	}
}
