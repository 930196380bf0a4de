package verify

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/cli"
	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/facts"
	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/manifests"
	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/probe"
	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

const about = `Has temporary pods of clusters that are joined try each other, in both directions, and
prints what was expected and what was found: whether they answer, whether the source
address is the asking pod's own, whether full-size packets get through, the latency, what
one TCP stream carries, and whether names of mirrored services are resolved. Where
semaphore-policy and Calico are installed it then guards the pods with a network policy
that lets in a network set: a pod without the label must be denied, and one with it let in.

The pods are in kube-system, on --nodes nodes of each cluster, and have the image that is
installed. The policy is about them alone. All of it is removed at the end, also when you
interrupt it, and the next run removes what a killed one left.

Exit codes: 0 all is as expected; 1 something isn't; 2 something that was to be tried
couldn't be. What there is nothing to try of, as names without a mirror, is told as not
tried, and doesn't count.`

// skippable are what --skip takes.
func skippable() []string { return []string{throughput, name, "policy"} }

// Command is "semaphorectl verify".
func Command(s *cli.Session) *cobra.Command {
	plan, output, skip := probe.Plan{}, "", []string(nil)
	cmd := &cobra.Command{
		Use:   "verify CLUSTER CLUSTER...",
		Short: "Have pods of clusters that are joined try each other",
		Long:  about,
		Example: `  semaphorectl verify aws gcp
  semaphorectl verify aws gcp --nodes 10 -o json
  semaphorectl verify aws gcp --skip throughput,policy`,
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: s.CompleteClusters,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := check(output, skip, plan.Nodes); err != nil {
				return cli.Usage(err)
			}
			clusters, err := s.Clusters(args)
			if err != nil {
				return err
			}
			ctx, cancel := s.Context(cmd.Context())
			defer cancel()
			unwanted := slices.Clone(skip)
			if slices.Contains(skip, "policy") {
				unwanted = append(unwanted, policy)
			}
			s.Say("trying %s, with temporary pods in %s", strings.Join(args, ", "), probe.Namespace)
			report, err := run(ctx, s, clusters, plan, unwanted)
			if ctx.Err() != nil {
				return errors.Join(context.Cause(ctx), err)
			}
			if err != nil {
				return err
			}
			if err := report.print(s.Out, output); err != nil {
				return fmt.Errorf("print: %w", err)
			}
			return cli.Judged(report.Verdict == Wrong, report.Verdict == Unknown)
		},
	}
	fs := cmd.Flags()
	fs.IntVar(&plan.Nodes, "nodes", 3, fmt.Sprintf("on how many nodes of each cluster pods run, %d at most", probe.MostNodes))
	fs.StringVar(&plan.Image, "image", "", "the pods' image (default: the one that is installed)")
	fs.StringSliceVar(&skip, "skip", nil, "what not to try: "+strings.Join(skippable(), ", "))
	fs.StringVarP(&output, "output", "o", "", "json")
	for flag, words := range map[string][]string{"output": {"json"}, "skip": skippable()} {
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)) // Both flags are there.
	}
	return cmd
}

func check(output string, skip []string, nodes int) error {
	var errs []error
	if output != "" && output != "json" {
		errs = append(errs, fmt.Errorf("-o %q: json", output))
	}
	for _, what := range skip {
		if !slices.Contains(skippable(), what) {
			errs = append(errs, fmt.Errorf("--skip %s: expected %s", what, strings.Join(skippable(), ", ")))
		}
	}
	if nodes < 1 || nodes > probe.MostNodes {
		errs = append(errs, fmt.Errorf("--nodes %d: 1 to %d", nodes, probe.MostNodes))
	}
	return errors.Join(errs...)
}

// run looks at clusters, has their pods try each other, and judges.
func run(ctx context.Context, s *cli.Session, clusters []*cli.Cluster, plan probe.Plan, skip []string) (*Report, error) {
	known, all := make([]cluster, len(clusters)), facts.ReadAll(ctx, clusters)
	var group sync.WaitGroup
	for i, c := range clusters {
		group.Go(func() {
			known[i] = know(ctx, c, all[i])
			if n := len(all[i].Nodes); n > plan.Nodes {
				s.Say("%s: pods on %d of its %d nodes; --nodes has more", c.Name, min(plan.Nodes, known[i].nodes), n)
			}
		})
	}
	group.Wait()
	plan.Throughput = !slices.Contains(skip, throughput)
	plan.Names, plan.Guards = map[[2]string][]string{}, map[string]*probe.Guard{}
	for i := range known {
		if known[i].guard != nil && !slices.Contains(skip, policy) {
			plan.Guards[known[i].name] = known[i].guard
		}
		for j := range known {
			if i != j && !slices.Contains(skip, name) {
				plan.Names[[2]string{known[i].name, known[j].name}] = known[i].pick(known[j].name)
			}
		}
	}
	tried, err := probe.Mesh(ctx, clusters, all, plan)
	if tried == nil {
		return nil, err
	}
	return judge(known, tried, skip), err
}

// Marks of mirrors (docs/service-mirror.md).
const (
	mirrored = "mirrored-svc=true"
	mark     = "mirror.semaphore.uw.io/"
)

// mostNames is how many names of each remote are resolved.
const mostNames = 3

func know(ctx context.Context, c *cli.Cluster, f *facts.Facts) cluster {
	k := cluster{
		name: c.Name, nodes: len(probe.Pick(f, probe.MostNodes)), mirror: slices.Contains(f.Installed.Tools, manifests.Mirror),
		addresses: map[string]string{}, named: map[string]int{},
	}
	k.guard, k.state, k.unguarded = guard(ctx, c, f)
	if len(f.Unread) > 0 {
		k.unread = errors.Join(f.Unread...).Error()
	}
	if !k.mirror {
		return k
	}
	err := cli.List(ctx, c.Client.CoreV1().Services(cli.Namespace), metav1.ListOptions{LabelSelector: mirrored}, func(svc *corev1.Service) error {
		remote := svc.Annotations[mark+"cluster"]
		if remote == "" || svc.Annotations[mark+"name"] == "" || k.named[remote] >= mostNames {
			return nil
		}
		ip := svc.Spec.ClusterIP
		if ip == "None" {
			return nil // Without ready pods it has no addresses, and nothing is wrong.
		}
		k.addresses[svc.Annotations[mark+"name"]+"."+svc.Annotations[mark+"namespace"]+".svc.cluster."+remote] = ip
		k.named[remote]++
		return nil
	})
	if err != nil {
		k.unlisted = "list services of " + cli.Namespace + ": " + err.Error()
	}
	return k
}

// pick are the names of a remote's services.
func (c *cluster) pick(remote string) []string {
	var picked []string
	for n := range c.addresses {
		if strings.HasSuffix(n, ".svc.cluster."+remote) {
			picked = append(picked, n)
		}
	}
	slices.Sort(picked)
	return picked
}

func (r *Report) print(to io.Writer, output string) error {
	if output == "json" {
		body, err := json.MarshalIndent(r, "", "  ")
		if err == nil {
			_, err = to.Write(append(printable.JSON(body), '\n'))
		}
		return err
	}
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	_, err := fmt.Fprintln(w, "FROM\tTO\tWHAT\tEXPECTED\tFOUND\t")
	for i := range r.Rows {
		row := &r.Rows[i]
		mark := map[State]string{Right: "✓", Wrong: "✗ wrong: ", Unknown: "? not known: ", Untried: "- not tried: "}[row.State]
		if row.State == Right {
			mark += " "
		}
		cells := []string{row.From, strings.TrimSpace(row.To + " " + row.Address), row.What, row.Expected, row.Found}
		for i, cell := range cells {
			cells[i] = printable.Text(cmp.Or(cell, "-"), printable.Short)
		}
		cells[len(cells)-1] = mark + cells[len(cells)-1]
		_, _ = fmt.Fprintln(w, strings.Join(cells, "\t")) // Flush says it.
	}
	return errors.Join(err, w.Flush())
}
