// Command bench measures semaphore-wireguard and prints one table. Each line is the ratio
// to a reference that ran on the same machine at the same time, because absolute numbers
// depend more on the machine than on the program.
//
//	go run ./e2e/bench                        # everything, some minutes
//	go run ./e2e/bench -only throughput       # one part, or several
//	go run ./e2e/bench -only live -nodes 500  # the cost of probes, with peers that answer
//	go run ./e2e/bench -only messages         # TCP, requests and HTTP, beside pods without a tunnel
//	go run ./e2e/bench -only overlap          # what maps of pod subnets cost
//	go run ./e2e/bench -only relay-memory     # agents that read semaphore-relay's objects, and itself
//	go run ./e2e/bench -only relay-changes -nodes 1000
//	go run ./e2e/bench -only throughput -agent ./new -against ./old
//
// Linux only, needs root. It works in namespaces of the testbed, which are
// removed at the end, also when it is interrupted.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/bench/measure"
	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
)

// options are what the command line says.
type options struct {
	only    []string
	pairs   int
	seconds time.Duration
	nodes   int
	against string
	agent   string
	json    string
}

// bench is one run.
type bench struct {
	options
	self  string // path of this program, which also sends and receives traffic
	tools tools.Binaries
	table table
}

func main() {
	if len(os.Args) > 1 && slices.Contains(trafficModes(), os.Args[1]) {
		exit(traffic(os.Args[1], os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == farMode {
		exit(far(os.Args[2:]))
	}
	opts, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		exit(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	exit(run(ctx, opts))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// parts are what can be asked for by name, in the order in which they run.
func parts() []string {
	return []string{"throughput", "filter", "messages", "overlap", "nodes", "blocks", "live", "moves", "relay-memory", "relay-changes"}
}

func parse(args []string) (options, error) {
	var opts options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	only := flags.String("only", strings.Join(parts(), ","), "parts to run")
	flags.IntVar(&opts.pairs, "pairs", 5, "how often each comparison is made")
	flags.DurationVar(&opts.seconds, "time", 4*time.Second, "how long one transfer takes")
	flags.IntVar(&opts.nodes, "nodes", 5000, "nodes of the remote cluster in parts nodes, blocks, live, relay-memory and relay-changes")
	flags.StringVar(&opts.against, "against", "",
		"another build of semaphore-wireguard to compare the throughput with, instead of wireguard-go")
	flags.StringVar(&opts.agent, "agent", "", "build of semaphore-wireguard to measure, instead of the tree's")
	flags.StringVar(&opts.json, "json", "", "file to append the rows to, one JSON object per line")
	if err := flags.Parse(args); err != nil {
		return opts, err
	}
	opts.only = strings.Split(*only, ",")
	for _, name := range opts.only {
		if !slices.Contains(parts(), name) {
			return opts, fmt.Errorf("-only: there is no part %q, only %s", name, strings.Join(parts(), ", "))
		}
	}
	if opts.pairs < 1 || opts.nodes < 1 {
		return opts, errors.New("-pairs and -nodes take numbers from 1")
	}
	return opts, nil
}

func run(ctx context.Context, opts options) (err error) {
	b := &bench{options: opts}
	if b.self, err = os.Executable(); err != nil {
		return err
	}
	if b.tools, err = tools.Build(ctx, os.Stderr, tools.Etcd, tools.KubeAPIServer, tools.Kubectl); err != nil {
		return err
	}
	started := time.Now()
	if b.wants("throughput") || b.wants("filter") {
		err = b.inTestbed(ctx, b.pairOfNodes)
	}
	if err == nil && b.wants("messages") {
		err = b.inTestbed(ctx, b.messages)
	}
	if err == nil && b.wants("overlap") {
		err = b.inTestbed(ctx, b.overlap)
	}
	if err == nil && b.wants("nodes") {
		err = b.inTestbed(ctx, b.manyNodes)
	}
	if err == nil && b.wants("blocks") {
		err = b.inTestbed(ctx, b.manyBlocks)
	}
	if err == nil && b.wants("live") {
		err = b.inTestbed(ctx, b.live)
	}
	if err == nil && b.wants("moves") {
		err = b.inTestbed(ctx, b.moves)
	}
	if err == nil && b.wants("relay-memory") {
		err = b.inTestbed(ctx, b.relayMemory)
	}
	if err == nil && b.wants("relay-changes") {
		err = b.inTestbed(ctx, b.relayChanges)
	}
	// What was measured before an error, or ^C, is worth its print.
	_, printErr := b.table.WriteTo(os.Stdout)
	jsonErr := measure.Append(b.json, "./e2e/bench", b.table.results())
	b.say("took %s", time.Since(started).Round(time.Second))
	return errors.Join(err, printErr, jsonErr)
}

func (b *bench) wants(part string) bool { return slices.Contains(b.only, part) }

// say reports progress.
func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...)
}

// arena is where a part happens: a testbed of its own with the programs built.
type arena struct {
	tb    *testbed.Testbed
	agent string // path of semaphore-wireguard
	plain string // path of wireguard-go
}

// inTestbed calls do with a testbed that ends with it.
func (b *bench) inTestbed(ctx context.Context, do func(context.Context, *arena) error) (err error) {
	tb, err := testbed.New(testbed.Config{Tools: b.tools})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tb.Close()) }()
	// The testbed's folder goes with it, however this process ends.
	bin := filepath.Join(tb.Dir(), "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		return err
	}
	b.say("building semaphore-wireguard and wireguard-go")
	a := &arena{tb: tb}
	if a.agent, err = b.buildAgent(ctx, bin); err != nil {
		return err
	}
	if a.plain, err = programs.BuildWireGuardGo(ctx, bin); err != nil {
		return err
	}
	return do(ctx, a)
}

func (b *bench) buildAgent(ctx context.Context, dir string) (string, error) {
	if b.agent != "" {
		return filepath.Abs(b.agent)
	}
	// As in releases.
	return programs.Build(ctx, programs.WireGuard, dir, "-ldflags=-s -w")
}

// clusters starts control planes and lets agents in.
func (b *bench) clusters(ctx context.Context, a *arena, configs ...testbed.ClusterConfig) ([]*testbed.Cluster, error) {
	b.say("starting API servers")
	clusters, err := a.tb.StartClusters(ctx, configs...)
	if err != nil {
		return nil, err
	}
	return clusters, programs.Grant(ctx, programs.WireGuard, clusters...)
}
