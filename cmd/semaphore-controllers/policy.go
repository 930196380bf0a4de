package main

import (
	"cmp"
	"log/slog"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/event"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/manager"
	"github.com/kube-semaphore/kube-semaphore/internal/process"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
	"github.com/kube-semaphore/kube-semaphore/policy"
)

// policyProgram keeps Calico GlobalNetworkSets in the local cluster that hold the addresses of
// labelled pods in remote clusters.
func policyProgram() run.Program[config.Policy] {
	command := policy.StatusCommand()
	return run.Program[config.Policy]{
		Name: command.Program, Load: config.LoadPolicy, Run: manager.Runner(preparePolicy), Status: command.Main, Probe: command.Probe,
	}
}

// preparePolicy makes no request.
func preparePolicy(cfg config.Policy, log *slog.Logger) (*manager.Manager, error) {
	// The flags of the original program don't name the local cluster, and mean a process for
	// each remote.
	cluster, lease, single := cmp.Or(cfg.ClusterName, "local"), "semaphore-policy", cfg.ClusterName == ""
	if single {
		lease += "-" + cfg.Remotes[0].Name
	}
	m, err := manager.New(manager.Config{
		Base: cfg.Base, Program: "semaphore-policy", Cluster: cluster, Logger: log,
		FromRemotes: []string{"/api/v1/pods?limit=1"}, FromLocal: []string{"/version"},
	})
	if err != nil {
		return nil, err
	}
	calico, err := policy.NewCalico(m.Access, cfg.CalicoAPI)
	if err != nil {
		return nil, err
	}
	settings := policy.Config{
		Cluster: cluster, Labels: policy.Labels{Domain: cfg.LabelDomain, ManagedBy: cfg.ManagedBy}, Calico: calico,
		FullResyncPeriod: cfg.FullResyncPeriod, RemovalGrace: cfg.RemovalGrace, Departed: cfg.Departed,
		KeepStrays: single, // they may be another process's
		Logger:     log, Metrics: policy.NewMetrics(), Watches: kube.NewMetrics("semaphore_policy", "kube_policy_semaphore_pod_watcher_failures"),
	}
	if pod := cfg.Pod; pod.Known() {
		// No spread: only the leader writes Events.
		settings.Events = event.NewRecorder(event.Config{
			Client: m.Client, Component: "semaphore-policy", About: event.Pod(pod.Namespace, pod.Name, pod.UID),
		})
	}
	for i := range cfg.Remotes {
		r := &cfg.Remotes[i]
		client, bounds := m.Remote(r)
		settings.Remotes = append(settings.Remotes, policy.RemoteConfig{
			Rules: policy.Rules{
				Cluster: r.Name, Map: r.PodSubnetsMap, Subnets: r.PodSubnets, IncludeHostNetwork: cfg.IncludeHostNetwork,
				MaxSets: r.MaxSets, MaxAddresses: r.MaxAddresses,
			},
			Client: client, Bounds: bounds, ResyncPeriod: r.ResyncPeriod, StaleAfter: r.StaleAfter,
		})
	}
	controller := policy.New(settings)
	report := func() any {
		s := controller.Status()
		s.Version, s.Cluster, s.Leading, s.Leader = process.Build(), cluster, m.Election.Leads(), m.Election.Leader()
		s.NotServed, s.Credentials = m.Servers.Failing(), m.CredentialChecks.Report()
		if err := m.Election.Err(); err != nil {
			s.ElectionError = err.Error()
		}
		return s
	}
	if err := m.Manage(controller, cfg.LeaderElection, cfg.Namespace, lease, report); err != nil {
		return nil, err
	}
	m.Registry.MustRegister(settings.Metrics, settings.Watches, policy.NewCollector(controller), m.Election.Collector("semaphore_policy"))
	return m, nil
}
