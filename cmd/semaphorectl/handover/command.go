package handover

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/cli"
)

// Command is "semaphorectl tokens".
func Command(s *cli.Session) *cobra.Command {
	var revoke bool
	var only []string
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
  semaphorectl tokens --revoke --from gcp aws gcp
  semaphorectl tokens --context aws=prod-eu aws gcp`,
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: s.CompleteClusters,
		RunE: func(cmd *cobra.Command, names []string) error {
			ctx, cancel := s.Context(cmd.Context())
			defer cancel()
			for _, name := range only {
				if !slices.Contains(names, name) {
					return cli.Usage(fmt.Errorf("--from %s: no cluster %s is asked for", name, name))
				}
			}
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
					if from == to || len(only) > 0 && !slices.Contains(only, from.Name) {
						continue
					}
					tools, none, err := Hand(ctx, from, to, mode)
					if err != nil {
						errs = append(errs, err)
						continue
					}
					for _, tool := range none {
						s.Warn("%s: no Secret %s, so %s gets nothing for %s", from.Name, account(tool, to.Name), to.Name, tool)
					}
					s.Done("%s has new tokens for %s: %s", to.Name, from.Name, strings.Join(tools, ", "))
				}
			}
			return errors.Join(errs...)
		},
	}
	cmd.Flags().BoolVar(&revoke, "revoke", false, "take back all tokens that were handed over before")
	cmd.Flags().StringSliceVar(&only, "from", nil, "hand over tokens of these clusters only (default: of all)")
	return cmd
}
