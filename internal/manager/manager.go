// Package manager runs a controller as the program of a Deployment: access to the clusters,
// leader election, metrics, probes and status.
package manager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"k8s.io/client-go/rest"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/manager/signals"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/kube-semaphore/kube-semaphore/internal/authz"
	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/process"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
	"github.com/kube-semaphore/kube-semaphore/internal/tokens"
)

// grace bounds the shutdown after a signal.
const grace = 10 * time.Second

// Controller is what a Manager runs.
type Controller interface {
	// Tasks returns the tasks of every replica.
	Tasks() []run.Task
	// Lead does the leader's work until ctx ends.
	Lead(ctx context.Context) error
	// Health and Ready are those of run.ServersConfig.
	Health() error
	Ready() error
}

// Config describes a Manager. Only Adapt may be nil.
type Config struct {
	config.Base
	// Program is the program's name. That of its metrics is the same with underscores.
	Program string
	// Cluster is the local cluster's name for logs and status.
	Cluster string
	// FromRemotes and FromLocal are those of tokens.CredentialCheckConfig.
	FromRemotes, FromLocal []string
	// Adapt changes the access to the local cluster.
	Adapt  func(*rest.Config)
	Logger *slog.Logger
}

// Manager is a program of a Deployment. Registry gets its metrics before Manage.
type Manager struct {
	cfg Config

	Access   *rest.Config // of the local cluster
	Client   kube.Client  // of the local cluster
	Registry *prometheus.Registry
	// CredentialChecks are of the credentials for remotes.
	CredentialChecks *tokens.CredentialChecks

	// Set by Manage.

	Election  *Election
	Servers   run.Servers
	Status    func() any
	runnables []manager.Runnable
}

// New returns a manager. It makes no request.
func New(cfg Config) (*Manager, error) {
	m := &Manager{cfg: cfg, Registry: prometheus.NewRegistry()}
	m.CredentialChecks = tokens.NewCredentialChecks(tokens.CredentialCheckConfig{
		Remotes: cfg.Remotes, UserAgent: m.userAgent(), Cluster: cfg.Cluster, Local: cfg.Local,
		FromRemotes: cfg.FromRemotes, FromLocal: cfg.FromLocal,
	})
	var err error
	m.Access, err = kube.RESTConfig(kube.ClientConfig{Access: cfg.Local, UserAgent: m.userAgent(), Logger: cfg.Logger.With("cluster", cfg.Cluster)})
	if err == nil {
		if cfg.Adapt != nil {
			cfg.Adapt(m.Access)
		}
		m.Client, err = kube.NewClient(m.Access)
	}
	if err != nil {
		return nil, fmt.Errorf("access to the local cluster %s: %w", cfg.Cluster, err)
	}
	m.Registry.MustRegister(
		run.BuildInfo(m.metrics()), tokens.NewCollector(m.metrics(), cfg.TokenFiles()),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return m, nil
}

func (m *Manager) userAgent() string {
	return fmt.Sprintf("%s/%s (%s)", m.cfg.Program, process.Version(), m.cfg.Cluster)
}

// metrics returns the prefix of the program's metrics.
func (m *Manager) metrics() string { return strings.ReplaceAll(m.cfg.Program, "-", "_") }

// Remote returns the access to a remote, and its bounds.
func (m *Manager) Remote(r *config.Remote) (client func() (kube.Client, error), bounds kube.Bounds) {
	bounds = kube.Bounds{Answer: int64(r.MaxAnswer), Objects: r.MaxObjects}
	return kube.LazyClient(kube.ClientConfig{
		Access: r.Access, UserAgent: m.userAgent(), Bounds: bounds, Logger: m.cfg.Logger.With("cluster", r.Name),
	}), bounds
}

// Manage prepares the servers and the election of a controller. The election is that of the
// Lease lease in the namespace; status is that of run.ServersConfig.
func (m *Manager) Manage(c Controller, elect bool, namespace, lease string, status func() any) error {
	m.Status = status
	var err error
	if m.Election, err = newElection(m.Access, elect, namespace, lease, m.cfg.ListenAddress, m.cfg.Logger); err != nil {
		return err
	}
	servers := run.ServersConfig{
		ProbeAddress: m.cfg.ProbeAddress, ProbeSocket: m.cfg.ProbeSocket, ListenAddress: m.cfg.ListenAddress,
		Gatherer: m.Registry, Health: c.Health, Ready: c.Ready, Status: status, Logger: m.cfg.Logger,
	}
	if m.cfg.ListenAuth == config.ListenAuthToken {
		servers.Guard = authz.New(m.Client, m.cfg.Logger).Wrap
	}
	m.Servers = run.NewServers(servers)
	for _, task := range append(m.Servers.Tasks(), c.Tasks()...) {
		m.runnables = append(m.runnables, everywhere{task})
	}
	m.runnables = append(m.runnables, manager.RunnableFunc(func(ctx context.Context) error {
		return ended(ctx, "leader's work", m.Election.lead(ctx, c.Lead))
	}))
	return nil
}

// everywhere is a task of every replica.
type everywhere struct{ run.Task }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (everywhere) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable.
func (e everywhere) Start(ctx context.Context) error { return ended(ctx, e.String(), e.Run(ctx)) }

// ended returns the error of a task that has returned err, which ends the program.
func ended(ctx context.Context, task string, err error) error {
	switch {
	case ctx.Err() != nil && (err == nil || errors.Is(err, context.Canceled)):
		return nil
	case err == nil:
		return fmt.Errorf("%s: ended by itself", task)
	default:
		return fmt.Errorf("%s: %w", task, err)
	}
}

// Run runs the program until it is terminated, or the leader election is lost.
func (m *Manager) Run() error {
	m.cfg.Logger.Info("starting", "version", process.Build(), "cluster", m.cfg.Cluster, "remotes", len(m.cfg.Remotes))
	defer process.Ballast()()
	ctrllog.SetLogger(run.ClientLog(m.cfg.Logger))
	ctx := signals.SetupSignalHandler()
	defer context.AfterFunc(ctx, func() { m.cfg.Logger.Info("shutting down", "grace", grace) })()
	return m.start(ctx)
}

// start runs the program until ctx ends, or the leader election is lost. The process must exit
// then: its pending writes must not reach the next leader's objects.
func (m *Manager) start(ctx context.Context) error {
	all, err := manager.New(m.Access, manager.Options{
		LeaderElection: m.Election.Elected(), LeaderElectionResourceLockInterface: m.Election,
		// Its servers lack the bounds of run.Servers, their socket, and another try to listen.
		Metrics: server.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		GracefulShutdownTimeout: new(grace), Logger: run.ClientLog(m.cfg.Logger),
		// All runnables end at once, not one group after the other.
		BaseContext: func() context.Context { return ctx },
	})
	if err != nil {
		return err
	}
	for _, r := range m.runnables {
		if err := all.Add(r); err != nil {
			return err
		}
	}
	err = all.Start(ctx)
	m.Election.release(context.WithoutCancel(ctx))
	return err
}

// Runner returns a function that runs the manager which prepare returns for a configuration.
func Runner[C any](prepare func(C, *slog.Logger) (*Manager, error)) func(C, *slog.Logger) error {
	return func(cfg C, log *slog.Logger) error {
		m, err := prepare(cfg, log)
		if err != nil {
			return err
		}
		return m.Run()
	}
}
