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
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
	"github.com/kube-semaphore/kube-semaphore/e2e/tools"
	"github.com/kube-semaphore/kube-semaphore/policy"
)

const (
	namespace = "sys-semaphore"
	apps      = 100 // sets
	port      = 8080
)

type options struct {
	pods   int
	memory int
	period time.Duration
	rates  []int
}

func main() {
	var opts options
	flag.IntVar(&opts.pods, "pods", 5000, "pods of the remote cluster, in 100 sets")
	flag.IntVar(&opts.memory, "memory", 50000, "pods to measure the memory with; 0: don't")
	flag.DurationVar(&opts.period, "time", 20*time.Second, "how long pods change at each rate")
	rates := flag.String("rates", "20,200,1000", "changes a second")
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
	err := run(ctx, opts)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// say reports progress.
func say(format string, args ...any) { fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...) }

// bench is one run.
type bench struct {
	options
	tb            *testbed.Testbed
	local, remote *testbed.Cluster
	node          *testbed.Node
	command       sandbox.Command
	sets          policy.SetClient
	pods          *crowd
	table         *tabwriter.Writer
}

func run(ctx context.Context, opts options) (err error) {
	binaries, err := tools.Build(ctx, tools.Config{Progress: os.Stderr}, tools.Etcd, tools.KubeAPIServer, tools.Kubectl)
	if err != nil {
		return err
	}
	b := &bench{options: opts, table: tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)}
	if b.tb, err = testbed.New(testbed.Config{Tools: binaries}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.tb.Close()) }()
	if err := b.prepare(ctx); err != nil {
		return err
	}
	fmt.Fprintln(b.table, "WHAT\tMEASURED\tORIGINAL")
	err = b.measure(ctx)
	return errors.Join(err, b.table.Flush())
}

func (b *bench) measure(ctx context.Context) error {
	process, err := b.firstSync(ctx)
	if err != nil {
		return err
	}
	for _, rate := range b.rates {
		if err := b.changes(ctx, rate); err != nil {
			return err
		}
	}
	if b.memory > 0 {
		if err := b.resident(ctx, process); err != nil {
			return err
		}
	}
	return b.restart(ctx, process)
}

// prepare starts the clusters, grants what deploy/ does, and builds the program.
func (b *bench) prepare(ctx context.Context) error {
	say("starting API servers")
	clusters, err := b.tb.StartClusters(ctx, testbed.ClusterConfig{Name: "aws"}, testbed.ClusterConfig{Name: "gcp"})
	if err != nil {
		return err
	}
	b.local, b.remote = clusters[0], clusters[1]
	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	for _, c := range clusters {
		if err := createNamespace(ctx, c, namespace); err != nil {
			return err
		}
	}
	if err := b.local.Apply(ctx, root+"/policy/testdata/v1.yaml", root+"/deploy/policy/rbac.yaml"); err != nil {
		return err
	}
	if err := b.remote.Apply(ctx, root+"/deploy/remote/policy.yaml"); err != nil {
		return err
	}
	account, err := b.local.Credentials(ctx, namespace, "semaphore-policy")
	if err != nil {
		return err
	}
	neighbour, err := b.remote.Credentials(ctx, namespace, "semaphore-policy-remote")
	if err != nil {
		return err
	}
	if b.node, err = b.local.AddNode(ctx, testbed.NodeConfig{}); err != nil {
		return err
	}
	say("building semaphore-policy")
	binary := filepath.Join(b.tb.Dir(), "semaphore-policy")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", binary, "./cmd/semaphore-policy")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build semaphore-policy: %w\n%s", err, out)
	}
	mount, env := account.InCluster()
	b.command = sandbox.Command{
		Name: "policy", Path: binary, Mounts: []sandbox.Mount{mount},
		Env: append(env, "SEMAPHORE_CLUSTER_NAME=aws", "SEMAPHORE_REMOTES=gcp", fmt.Sprintf("SEMAPHORE_LISTEN_ADDRESS=:%d", port),
			fmt.Sprintf("SEMAPHORE_PROBE_ADDRESS=:%d", port+1),
			"SEMAPHORE_REMOTE_GCP_KUBECONFIG="+neighbour.Kubeconfig()),
	}
	calico, err := policy.NewCalico(b.local.RESTConfig(), "auto")
	if err != nil {
		return err
	}
	b.sets, err = calico.Sets(ctx)
	return err
}

// moduleRoot is the folder of the module's go.mod.
func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	return filepath.Dir(strings.TrimSpace(string(out))), nil
}
