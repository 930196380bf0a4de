package main

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/internal/bearer"
	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/process"
	"github.com/kube-semaphore/kube-semaphore/internal/replica"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
	"github.com/kube-semaphore/kube-semaphore/internal/status"
	"github.com/kube-semaphore/kube-semaphore/internal/tokens"
	"github.com/kube-semaphore/kube-semaphore/mirror"
)

// oneService and oneSlice are requests for a part of what the mirror reads of clusters.
const (
	oneService = "/api/v1/services?limit=1"
	oneSlice   = "/apis/discovery.k8s.io/v1/endpointslices?limit=1"
)

// lease is the name of the Lease for leader election.
const lease = "semaphore-service-mirror"

// program is the process: the controller and its servers.
type program struct {
	cfg        config.Mirror
	log        *slog.Logger
	registry   *prometheus.Registry
	guard      func(http.Handler) http.Handler // of metrics and status; nil: none
	servers    run.Servers
	controller *mirror.Controller
	replica    *replica.Replica
	trials     *tokens.Trials // of credentials for remotes
}

// newProgram prepares everything and makes no request.
func newProgram(cfg config.Mirror, log *slog.Logger) (*program, error) {
	p := &program{cfg: cfg, log: log, registry: prometheus.NewRegistry()}
	watches := kube.NewMetrics("semaphore_service_mirror", "semaphore_service_mirror_watcher_failures_total")
	requests := newRequestMetrics()

	userAgent := fmt.Sprintf("semaphore-service-mirror/%s (%s)", process.Version(), cfg.ClusterName)
	p.trials = tokens.NewTrials(tokens.TrialConfig{
		Remotes: cfg.Remotes, UserAgent: userAgent, Cluster: cfg.ClusterName, Local: cfg.Local,
		FromRemotes: []string{oneService, oneSlice}, FromLocal: []string{oneService, oneSlice},
	})
	client, err := localClient(cfg, userAgent, requests, log)
	if err != nil {
		return nil, fmt.Errorf("access to the local cluster %s: %w", cfg.ClusterName, err)
	}
	if cfg.ListenAuth == config.ListenAuthToken {
		p.guard = bearer.New(client, log).Wrap
	}
	settings := mirror.Config{
		Cluster: cfg.ClusterName, Namespace: cfg.MirrorNamespace, Client: client,
		LocalMinimum: cfg.LocalMinimum, ReportNamespace: cmp.Or(cfg.Namespace, cfg.MirrorNamespace),
		LegacyEndpoints: cfg.LegacyEndpoints, MultiCluster: cfg.MultiCluster != config.MultiClusterOff, RemovalGrace: cfg.RemovalGrace, Departed: cfg.Departed, WatchMetrics: watches, Logger: log,
	}
	for _, s := range []struct {
		text string
		to   *labels.Selector
	}{
		{cfg.MirrorSelector, &settings.MirrorSelector},
		{cfg.GlobalSelector, &settings.GlobalSelector},
		{cfg.RoutingStrategyLabel, &settings.LocalFirstSelector},
	} {
		if s.text == "" {
			continue
		}
		if *s.to, err = labels.Parse(s.text); err != nil {
			return nil, fmt.Errorf("label selector %q: %w", s.text, err)
		}
	}
	for i := range cfg.Remotes {
		r := &cfg.Remotes[i]
		bounds := kube.Bounds{Answer: int64(r.MaxAnswer), Objects: r.MaxObjects}
		settings.Remotes = append(settings.Remotes, mirror.Remote{
			Name: r.Name, Prefix: r.ServicePrefix, PodSubnets: r.PodSubnets,
			ResyncPeriod: r.ResyncPeriod, StaleAfter: r.StaleAfter,
			Client: kube.LazyClient(kube.ClientConfig{
				Access: r.Access, UserAgent: userAgent, Bounds: bounds, Logger: log.With("cluster", r.Name),
			}),
			Bounds: bounds, Made: mirror.Bounds{Services: r.MaxServices, Slices: r.MaxSlices, Addresses: r.MaxAddresses},
		})
	}
	p.controller = mirror.New(settings)
	p.registry.MustRegister(
		p.controller.Metrics(), watches, requests, run.BuildInfo("semaphore_service_mirror"),
		tokens.NewCollector("semaphore_service_mirror", cfg.TokenFiles()),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	p.replica, err = replica.New(replica.Config{
		Election: cfg.LeaderElection, Leases: client.Leases(cfg.Namespace),
		Namespace: cfg.Namespace, Name: lease, Listen: cfg.ListenAddress,
		Lead: p.controller.Lead, Logger: log,
	})
	return p, err
}

// localClient returns a client for the local cluster whose requests are counted.
func localClient(cfg config.Mirror, userAgent string, requests *requestMetrics, log *slog.Logger) (kube.Client, error) {
	access, err := kube.RESTConfig(kube.ClientConfig{Access: cfg.Local, UserAgent: userAgent, Logger: log})
	if err != nil {
		return nil, err
	}
	access.ContentType = "application/vnd.kubernetes.protobuf"
	access.Wrap(requests.wrap)
	// Each response about Endpoints warns that the API is deprecated.
	access.WarningHandlerWithContext = rest.NoWarnings{}
	return kube.NewClient(access)
}

// tasks returns all tasks of the process.
func (p *program) tasks() []run.Task {
	p.servers = run.NewServers(run.ServersConfig{
		ProbeAddress: p.cfg.ProbeAddress, ProbeSocket: p.cfg.ProbeSocket, ListenAddress: p.cfg.ListenAddress, Guard: p.guard, Gatherer: p.registry,
		Health: p.controller.Health, Ready: p.controller.Ready, Status: p.status, Logger: p.log,
	})
	tasks := append(p.servers.Tasks(), p.controller.Tasks()...)
	return append(tasks, p.replica)
}

func (p *program) status() any {
	r := p.controller.Status()
	r.Version, r.Cluster, r.NotServed, r.Credentials = process.Build(), p.cfg.ClusterName, p.servers.Failing(), p.trials.Report()
	if p.replica.Elected() {
		r.Election = &status.Election{Leader: p.replica.Leader()}
		if err := p.replica.Err(); err != nil {
			r.Election.Error = err.Error()
		}
	}
	if err := errors.Join(p.controller.Ready(), p.controller.Health()); err != nil {
		r.NotReady = err.Error()
	}
	return r
}

// prefixWarnings returns a warning for each pair of remotes whose mirrors can have the
// same name.
func prefixWarnings(remotes []config.Remote) []string {
	var warnings []string
	for i := range remotes {
		for j := range remotes {
			if a, b := &remotes[i], &remotes[j]; i != j && strings.HasPrefix(b.ServicePrefix, a.ServicePrefix+"-") {
				warnings = append(warnings, fmt.Sprintf(
					"service prefixes %q of %s and %q of %s: a namespace of %s can give its mirrors names that those of %s would have, and keeps those that are free",
					a.ServicePrefix, a.Name, b.ServicePrefix, b.Name, a.Name, b.Name))
			}
		}
	}
	return warnings
}

// ignoredWarnings returns a warning for each remote that is configured although it left.
func ignoredWarnings(cfg *config.Mirror) []string {
	var warnings []string
	for i := range cfg.Remotes {
		if name := cfg.Remotes[i].Name; slices.Contains(cfg.Departed, name) {
			warnings = append(warnings, fmt.Sprintf("remote %s is ignored, because it is in SEMAPHORE_DEPARTED_REMOTES as well", name))
		}
	}
	return warnings
}
