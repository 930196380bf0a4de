package main

import (
	"fmt"
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/kube-semaphore/kube-semaphore/internal/authz"
	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/leader"
	"github.com/kube-semaphore/kube-semaphore/internal/process"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
	"github.com/kube-semaphore/kube-semaphore/internal/tokens"
	"github.com/kube-semaphore/kube-semaphore/peers/relay"
)

// program is one replica.
type program struct {
	cfg        config.Relay
	log        *slog.Logger
	registry   *prometheus.Registry
	guard      func(http.Handler) http.Handler // of metrics and status; nil: none
	servers    run.Servers
	controller *relay.Controller
	replica    *leader.Replica
	trials     *tokens.Trials // of credentials for remotes
}

// newProgram prepares everything. It makes no request.
func newProgram(cfg config.Relay, log *slog.Logger) (*program, error) {
	p := &program{cfg: cfg, log: log, registry: prometheus.NewRegistry()}
	userAgent := fmt.Sprintf("semaphore-relay/%s (%s)", process.Version(), cfg.ClusterName)
	p.trials = tokens.NewTrials(tokens.TrialConfig{
		Remotes: cfg.Remotes, UserAgent: userAgent, Cluster: cfg.ClusterName, Local: cfg.Local,
		FromRemotes: []string{"/api/v1/nodes?limit=1"}, FromLocal: []string{"/version"},
	})
	local, err := kube.RESTConfig(kube.ClientConfig{Access: cfg.Local, UserAgent: userAgent, Logger: log.With("cluster", cfg.ClusterName)})
	if err != nil {
		return nil, fmt.Errorf("access to the local cluster %s: %w", cfg.ClusterName, err)
	}
	client, err := kube.NewClient(local)
	if err != nil {
		return nil, fmt.Errorf("access to the local cluster %s: %w", cfg.ClusterName, err)
	}
	if cfg.ListenAuth == config.ListenAuthToken {
		p.guard = authz.New(client, log).Wrap
	}
	var remotes []relay.RemoteConfig
	for i := range cfg.Remotes {
		r := &cfg.Remotes[i]
		bounds := kube.Bounds{Answer: int64(r.MaxAnswer), Objects: r.MaxObjects}
		remotes = append(remotes, relay.RemoteConfig{
			Name: r.Name, Bounds: bounds, MaxPrefixes: r.MaxPrefixes,
			Client: kube.LazyClient(kube.ClientConfig{
				Access: r.Access, UserAgent: userAgent, Bounds: bounds, Logger: log.With("cluster", r.Name),
			}),
		})
	}
	metrics, watches := relay.NewMetrics(), kube.NewMetrics("semaphore_relay", "semaphore_relay_watch_failures_total")
	p.controller = relay.New(relay.Config{
		Cluster: cfg.ClusterName, Client: client, Namespace: cfg.Namespace, Remotes: remotes,
		Logger: log, Metrics: metrics, Watches: watches,
	})
	p.replica, err = leader.New(leader.Config{
		Election: cfg.LeaderElection, Leases: client.Leases(cfg.Namespace),
		Namespace: cfg.Namespace, Name: "semaphore-relay", Listen: cfg.ListenAddress,
		Lead: p.controller.Lead, Logger: log,
	})
	if err != nil {
		return nil, err
	}
	p.registry.MustRegister(
		metrics, watches, relay.NewCollector(p.controller), run.BuildInfo("semaphore_relay"),
		tokens.NewCollector("semaphore_relay", cfg.TokenFiles()), p.replica.Collector("semaphore_relay"),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return p, nil
}

// tasks returns all tasks of the process.
func (p *program) tasks() []run.Task {
	p.servers = run.NewServers(run.ServersConfig{
		ProbeAddress: p.cfg.ProbeAddress, ProbeSocket: p.cfg.ProbeSocket, ListenAddress: p.cfg.ListenAddress, Guard: p.guard, Gatherer: p.registry,
		Health: p.controller.Health, Ready: p.controller.Ready, Status: p.status, Logger: p.log,
	})
	return append(append(p.servers.Tasks(), p.controller.Watches()...), p.replica)
}

func (p *program) status() any {
	r := p.controller.Status()
	r.Version, r.Leading, r.Leader = process.Build(), p.replica.Leads(), p.replica.Leader()
	r.NotServed, r.Credentials = p.servers.Failing(), p.trials.Report()
	if err := p.replica.Err(); err != nil {
		r.ElectionError = err.Error()
	}
	return r
}
