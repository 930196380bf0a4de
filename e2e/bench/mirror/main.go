// Command mirror measures semaphore-service-mirror against two real API
// servers, all on this machine, and prints a table.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/kube-semaphore/e2e/bench/measure"
	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
)

func main() {
	b := &bench{multi: map[string]kube.Client{}}
	flag.IntVar(&b.services, "services", 1000, "services of the remote cluster")
	flag.IntVar(&b.endpoints, "endpoints", 10, "endpoints of each")
	flag.DurationVar(&b.load, "load", 30*time.Second, "how long each load lasts")
	flag.IntVar(&b.runs, "runs", 3, "how often to mirror from nothing")
	flag.BoolVar(&b.imports, "imports", false, "measure imports of exported services instead, beside mirrors")
	flag.StringVar(&b.json, "json", "", "file to append the figures to, one JSON object per line")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := b.run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

type bench struct {
	services, endpoints, runs int
	load                      time.Duration
	json                      string
	imports                   bool

	*measure.Stage
	local, remote kubernetes.Interface
	slices        metadata.Getter        // of the local cluster
	multi         map[string]kube.Client // for exports and imports, by cluster
	table         []string
	results       []measure.Result
}

func (b *bench) row(what, format string, args ...any) {
	line := fmt.Sprintf("%-46s %s", what, fmt.Sprintf(format, args...))
	b.table = append(b.table, line)
	measure.Say("%s", line)
}

func (b *bench) run(ctx context.Context) (err error) {
	if b.Stage, err = measure.NewStage(ctx, programs.ServiceMirror, "gcp", "aws"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	b.Program.Env["SEMAPHORE_LOG_LEVEL"] = "warn"
	// More than is allowed by default. A namespace has half at most.
	b.Program.Env[programs.Variable(b.Remote.Name, "MAX_SERVICES")] = strconv.Itoa(2 * b.services)
	b.Program.Env[programs.Variable(b.Remote.Name, "MAX_SLICES")] = strconv.Itoa(2 * b.services)
	b.Program.Env[programs.Variable(b.Remote.Name, "MAX_ADDRESSES")] = strconv.Itoa(2 * b.services * b.endpoints)
	if err := b.clients(ctx); err != nil {
		return err
	}
	measure.Say("creating %d services with %d endpoints each", b.services, b.endpoints)
	if err := b.fill(ctx, b.remote, b.mirrors(), 0, b.services); err != nil {
		return err
	}
	steps := []func(context.Context) error{b.fromNothing}
	for _, rate := range []int{20, 200} {
		steps = append(steps, func(ctx context.Context) error { return b.changes(ctx, b.mirrors(), rate) })
	}
	if b.imports {
		steps = b.importSteps()
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	fmt.Println()
	for _, line := range b.table {
		fmt.Println(line)
	}
	return measure.Append(b.json, "./e2e/bench/mirror", b.results)
}

// clients reaches both clusters.
func (b *bench) clients(ctx context.Context) error {
	for c, to := range map[*testbed.Cluster]*kubernetes.Interface{b.Local: &b.local, b.Remote: &b.remote} {
		cfg, err := measure.Client(ctx, c, programs.Namespace, "bench", rbacv1.PolicyRule{
			APIGroups: []string{"", "discovery.k8s.io"}, Resources: []string{"namespaces", "services", "endpointslices"}, Verbs: []string{"*"},
		}, rbacv1.PolicyRule{APIGroups: []string{v1beta1.GroupName}, Resources: []string{"serviceexports", "serviceimports"}, Verbs: []string{"*"}})
		if err != nil {
			return err
		}
		if *to, err = kubernetes.NewForConfig(cfg); err != nil {
			return err
		}
		if b.multi[c.Name], err = kube.NewClient(cfg); err != nil {
			return err
		}
		if c != b.Local {
			continue
		}
		inside, err := metadata.NewForConfig(cfg)
		if err != nil {
			return err
		}
		b.slices = inside.Resource(discoveryv1.SchemeGroupVersion.WithResource("endpointslices"))
	}
	return nil
}
