package main

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/manager"
	"github.com/kube-semaphore/kube-semaphore/internal/process"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/mirror"
)

// mirrorProgram mirrors services of other clusters into this one.
func mirrorProgram() run.Program[config.Mirror] {
	command := mirror.StatusCommand()
	return run.Program[config.Mirror]{
		Name: command.Program, Load: config.LoadMirror, Run: manager.Runner(prepareMirror), Status: command.Main, Probe: command.Probe,
	}
}

// prepareMirror makes no request.
func prepareMirror(cfg config.Mirror, log *slog.Logger) (*manager.Manager, error) {
	const name, prefix = "semaphore-service-mirror", "semaphore_service_mirror"
	reads := []string{"/api/v1/services?limit=1", "/apis/discovery.k8s.io/v1/endpointslices?limit=1"}
	requests, watches := kube.NewRequestMetrics(prefix), kube.NewMetrics(prefix, prefix+"_watcher_failures_total")
	m, err := manager.New(manager.Config{
		Base: cfg.Base, Program: name, Cluster: cfg.ClusterName, FromRemotes: reads, FromLocal: reads, Logger: log,
		Adapt: func(access *rest.Config) {
			access.ContentType = "application/vnd.kubernetes.protobuf"
			access.Wrap(requests.Wrap)
		},
	})
	if err != nil {
		return nil, err
	}
	settings := mirror.Config{
		Cluster: cfg.ClusterName, Namespace: cfg.MirrorNamespace, Client: m.Client,
		LocalMinimum: cfg.LocalMinimum, ReportNamespace: cmp.Or(cfg.Namespace, cfg.MirrorNamespace),
		MultiCluster: cfg.MultiCluster != config.MultiClusterOff, MultiClusterRequired: cfg.MultiCluster == config.MultiClusterOn,
		RemovalGrace: cfg.RemovalGrace, Departed: cfg.Departed, WatchMetrics: watches, Logger: log,
	}
	for _, s := range []struct {
		text string
		to   *labels.Selector
	}{{cfg.MirrorSelector, &settings.MirrorSelector}, {cfg.GlobalSelector, &settings.GlobalSelector}, {cfg.RoutingStrategyLabel, &settings.LocalFirstSelector}} {
		if s.text == "" {
			continue
		}
		if *s.to, err = labels.Parse(s.text); err != nil {
			return nil, fmt.Errorf("label selector %q: %w", s.text, err)
		}
	}
	for i := range cfg.Remotes {
		r := &cfg.Remotes[i]
		client, bounds := m.Remote(r)
		settings.Remotes = append(settings.Remotes, mirror.Remote{
			Name: r.Name, Prefix: r.ServicePrefix, PodSubnets: r.PodSubnets, PodSubnetsMap: r.PodSubnetsMap, ResyncPeriod: r.ResyncPeriod, StaleAfter: r.StaleAfter,
			Client: client, Bounds: bounds, Tier: r.Tier, Imports: r.Imports.Contains, Made: mirror.Bounds{Services: cfg.ServicesOf(r), Slices: r.MaxSlices, Addresses: r.MaxAddresses},
		})
	}
	controller := mirror.New(settings)
	m.Registry.MustRegister(controller.Metrics(), watches, requests)
	err = m.Manage(controller, cfg.LeaderElection, cfg.Namespace, name, func() any {
		s := controller.Status()
		s.Version, s.Cluster, s.NotServed, s.Credentials = process.Build(), cfg.ClusterName, m.Servers.Failing(), m.CredentialChecks.Report()
		if m.Election.Elected() {
			s.Election = &statuspage.Election{Leader: m.Election.Leader()}
			if err := m.Election.Err(); err != nil {
				s.Election.Error = err.Error()
			}
		}
		if err := errors.Join(controller.Ready(), controller.Health()); err != nil {
			s.NotReady = err.Error()
		}
		return s
	})
	return m, err
}
