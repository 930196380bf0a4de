package handover

import (
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/cli"
)

// Command is "semaphorectl tokens".
func Command(s *cli.Session) *cobra.Command {
	var revoke bool
	cmd := &cobra.Command{
		Use:   "tokens CLUSTER CLUSTER...",
		Short: "Hand joined clusters new tokens for each other",
		Long: `Hands each of the clusters tokens for reading the others: one for each tool, which may
read what that tool reads and nothing else. They last 30 days; semaphore-tokens renews
them in the clusters from then on.

With --revoke all tokens that were handed over before, and what they were renewed to,
end within some ten seconds.`,
		Example: `  semaphorectl tokens aws gcp
  semaphorectl tokens --revoke aws gcp
  semaphorectl tokens --context aws=prod-eu aws gcp`,
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: s.CompleteClusters,
		RunE: func(cmd *cobra.Command, names []string) error {
			ctx, cancel := s.Context(cmd.Context())
			defer cancel()
			clusters, err := s.Clusters(names)
			if err != nil {
				return err
			}
			mode := All
			if revoke {
				mode = Revoke
			}
			var errs []error
			for _, from := range clusters {
				for _, to := range clusters {
					if from == to {
						continue
					}
					tools, err := Hand(ctx, from, to, mode)
					if err != nil {
						errs = append(errs, err)
						continue
					}
					s.Done("%s has new tokens for %s: %s", to.Name, from.Name, strings.Join(tools, ", "))
				}
			}
			return errors.Join(errs...)
		},
	}
	cmd.Flags().BoolVar(&revoke, "revoke", false, "take back all tokens that were handed over before")
	return cmd
}
