package main

import (
	"log/slog"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/manager"
	"github.com/kube-semaphore/kube-semaphore/internal/process"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
	"github.com/kube-semaphore/kube-semaphore/peers/relay"
)

// relayProgram reads the nodes of all clusters once, and stores what agents need of them in the
// API of its own cluster.
func relayProgram() run.Program[config.Relay] {
	command := relay.StatusCommand()
	return run.Program[config.Relay]{
		Name: command.Program, Load: config.LoadRelay, Run: manager.Runner(prepareRelay), Status: command.Main, Probe: command.Probe,
	}
}

// prepareRelay makes no request.
func prepareRelay(cfg config.Relay, log *slog.Logger) (*manager.Manager, error) {
	m, err := manager.New(manager.Config{
		Base: cfg.Base, Program: "semaphore-relay", Cluster: cfg.ClusterName, Logger: log,
		FromRemotes: []string{"/api/v1/nodes?limit=1"}, FromLocal: []string{"/version"},
	})
	if err != nil {
		return nil, err
	}
	settings := relay.Config{
		Cluster: cfg.ClusterName, Client: m.Client, Namespace: cfg.Namespace, Logger: log,
		Metrics: relay.NewMetrics(), Watches: kube.NewMetrics("semaphore_relay", "semaphore_relay_watch_failures_total"),
	}
	for i := range cfg.Remotes {
		r := &cfg.Remotes[i]
		client, bounds := m.Remote(r)
		settings.Remotes = append(settings.Remotes, relay.RemoteConfig{Name: r.Name, Client: client, Bounds: bounds, MaxPrefixes: r.MaxPrefixes, PodSubnetsMap: r.PodSubnetsMap})
	}
	controller := relay.New(settings)
	report := func() any {
		s := controller.Status()
		s.Version, s.Leading, s.Leader = process.Build(), m.Election.Leads(), m.Election.Leader()
		s.NotServed, s.Credentials = m.Servers.Failing(), m.CredentialChecks.Report()
		if err := m.Election.Err(); err != nil {
			s.ElectionError = err.Error()
		}
		return s
	}
	if err := m.Manage(controller, cfg.LeaderElection, cfg.Namespace, "semaphore-relay", report); err != nil {
		return nil, err
	}
	m.Registry.MustRegister(settings.Metrics, settings.Watches, relay.NewCollector(controller), m.Election.Collector("semaphore_relay"))
	return m, nil
}
