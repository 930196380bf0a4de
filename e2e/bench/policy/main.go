// Command policy measures semaphore-policy between two real API servers, as a
// process with the service accounts of deploy/, and prints a table:
//
//	go run ./e2e/bench/policy                 # some minutes
//	go run ./e2e/bench/policy -memory 0       # without the 50,000 pods
//
// Linux only, needs root. Nothing is left behind.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/bench/measure"
	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
	"github.com/kube-semaphore/kube-semaphore/policy"
)

const apps = 100 // sets

type options struct {
	pods   int
	memory int
	period time.Duration
	rates  []int
	bare   int
	json   string
}

func main() {
	var opts options
	flag.IntVar(&opts.pods, "pods", 5000, "pods of the remote cluster, in 100 sets")
	flag.IntVar(&opts.memory, "memory", 50000, "pods to measure the memory with; 0: don't")
	flag.DurationVar(&opts.period, "time", 20*time.Second, "how long pods change at each rate")
	flag.IntVar(&opts.bare, "bare", 200, "changes a second for a bare controller of client-go, to compare with; 0: none")
	flag.StringVar(&opts.json, "json", "", "file to append the figures to, one JSON object per line")
	rates := flag.String("rates", "20,50,200", "changes a second")
	flag.Parse()
	for text := range strings.SplitSeq(*rates, ",") {
		rate, err := strconv.Atoi(text)
		if err != nil || rate < 1 {
			fmt.Fprintf(os.Stderr, "bench: -rates: %q is not a number of changes a second\n", text)
			os.Exit(2)
		}
		opts.rates = append(opts.rates, rate)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var err error
	if remote := os.Getenv(bareVariable); remote != "" {
		err = runBare(ctx, remote)
	} else {
		err = run(ctx, opts)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench is one run.
type bench struct {
	options
	*measure.Stage
	sets  policy.SetClient
	pods  *crowd
	table *tabwriter.Writer
	// results are the figures of the table.
	results []measure.Result
}

func run(ctx context.Context, opts options) (err error) {
	root, err := tools.Root(ctx)
	if err != nil {
		return err
	}
	b := &bench{options: opts, table: tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)}
	if b.Stage, err = measure.NewStage(ctx, programs.Policy, "aws", "gcp", filepath.Join(root, "policy", "testdata", "v1.yaml")); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	// Those of the crowd, which lives in no real subnet.
	b.Program.Env[programs.Variable(b.Remote.Name, "POD_SUBNETS")] = "10.0.0.0/8"
	cfg, err := measure.Client(ctx, b.Local, programs.Namespace, "bench", rbacv1.PolicyRule{
		APIGroups: []string{"crd.projectcalico.org"}, Resources: []string{"globalnetworksets"}, Verbs: []string{"list", "watch"},
	})
	if err != nil {
		return err
	}
	calico, err := policy.NewCalico(cfg, "auto")
	if err != nil {
		return err
	}
	if b.sets, err = calico.Sets(ctx); err != nil {
		return err
	}
	fmt.Fprintln(b.table, "WHAT\tMEASURED\tORIGINAL")
	err = b.measure(ctx)
	return errors.Join(err, b.table.Flush(), measure.Append(opts.json, "./e2e/bench/policy", b.results))
}

func (b *bench) measure(ctx context.Context) error {
	if err := b.firstSync(ctx); err != nil {
		return err
	}
	for _, rate := range b.rates {
		if err := b.changes(ctx, rate, ""); err != nil {
			return err
		}
	}
	if b.options.bare > 0 {
		if err := b.bare(ctx, b.options.bare); err != nil {
			return err
		}
	}
	if b.memory > 0 {
		return b.resident(ctx)
	}
	return nil
}
