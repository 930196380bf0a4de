// Package gather implements "semaphorectl gather": one archive with what a person needs who is
// to find out what is wrong in clusters to which they have no access.
//
//	objects, Events, logs, survey ──▶ hide secrets ──▶ FILE, a gzipped tar archive
//	of each cluster, bounded          in all texts
package gather

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
)

const about = `Writes an archive to attach to a report: for each cluster what status and doctor read, objects of
Kube-Semaphore, nodes, Events, CoreDNS's configuration, and the last 2,000 lines of each of our
containers and of the one before it. It changes nothing in the clusters.

No Secret is read. Tokens, private keys, passwords in URLs and values of environment variables
that aren't settings of ours are replaced by [REDACTED]. Read the first file of the archive,
README.txt: it names what you may want to look at before you send it.`

// Command returns the command.
func Command(session *cli.Session) *cobra.Command {
	file := ""
	cmd := &cobra.Command{
		Use:               "gather CLUSTER... -o FILE",
		Short:             "Write an archive for a report",
		Long:              about,
		Example:           `  semaphorectl gather aws gcp -o report.tar.gz`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: session.CompleteClusters,
		RunE: func(cmd *cobra.Command, names []string) error {
			if file == "" {
				return cli.Usage(errors.New("-o: the archive's path is missing, as in -o report.tar.gz"))
			}
			clusters, err := session.Clusters(names)
			if err != nil {
				return err
			}
			ctx, cancel := session.Context(cmd.Context())
			defer cancel()
			return write(ctx, session, clusters, file)
		},
	}
	cmd.Flags().StringVarP(&file, "output", "o", "", "path of the archive, a gzipped tar file that doesn't exist yet")
	return cmd
}

// write writes the archive. If that fails, no file is left.
func write(ctx context.Context, session *cli.Session, clusters []*cli.Cluster, path string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return cli.Usage(fmt.Errorf("-o %s: it exists already; name a file that doesn't", path))
	}
	if err != nil {
		return fmt.Errorf("-o: %w", err)
	}
	unread, err := collect(ctx, clusters, file)
	if err := errors.Join(err, file.Close()); err != nil {
		return errors.Join(fmt.Errorf("write the archive: %w", err), os.Remove(path))
	}
	for _, line := range unread {
		session.Warn("%s", line)
	}
	if _, err := fmt.Fprintf(session.Out, "%s\n%s is written.\n", notice, path); err != nil {
		return err
	}
	return cli.Judged(false, len(unread) > 0)
}
