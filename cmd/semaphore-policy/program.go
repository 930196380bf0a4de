package main

import (
	"fmt"
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/kube-semaphore/kube-semaphore/internal/bearer"
	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/event"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/process"
	"github.com/kube-semaphore/kube-semaphore/internal/reconcile"
	"github.com/kube-semaphore/kube-semaphore/internal/replica"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
	"github.com/kube-semaphore/kube-semaphore/internal/tokens"
	"github.com/kube-semaphore/kube-semaphore/policy"
)

// program is one replica.
type program struct {
	cfg        config.Policy
	log        *slog.Logger
	registry   *prometheus.Registry
	guard      func(http.Handler) http.Handler // of metrics and status; nil: none
	servers    run.Servers
	controller *policy.Controller
	replica    *replica.Replica
	pools      *pools
	trials     *tokens.Trials // of credentials for remotes
}

// newProgram prepares everything. It makes no request.
func newProgram(cfg config.Policy, log *slog.Logger) (*program, error) {
	p := &program{cfg: cfg, log: log, registry: prometheus.NewRegistry()}
	userAgent := fmt.Sprintf("semaphore-policy/%s (%s)", process.Version(), p.localName())
	p.trials = tokens.NewTrials(tokens.TrialConfig{
		Remotes: cfg.Remotes, UserAgent: userAgent, Cluster: p.localName(), Local: cfg.Local,
		FromRemotes: []string{"/api/v1/pods?limit=1"}, FromLocal: []string{"/version"},
	})
	local, err := kube.RESTConfig(kube.ClientConfig{Access: cfg.Local, UserAgent: userAgent, Logger: log.With("cluster", p.localName())})
	if err != nil {
		return nil, fmt.Errorf("access to the local cluster %s: %w", p.localName(), err)
	}
	calico, err := policy.NewCalico(local, cfg.CalicoAPI)
	if err != nil {
		return nil, err
	}
	p.pools = newPools(calico, cfg.Remotes)
	var remotes []policy.RemoteConfig
	for i := range cfg.Remotes {
		r := &cfg.Remotes[i]
		bounds := kube.Bounds{Answer: int64(r.MaxAnswer), Objects: r.MaxObjects}
		remotes = append(remotes, policy.RemoteConfig{
			Rules: policy.Rules{
				Cluster: r.Name, Subnets: r.PodSubnets, IncludeHostNetwork: cfg.IncludeHostNetwork,
				MaxSets: r.MaxSets, MaxAddresses: r.MaxAddresses,
			},
			Client: kube.LazyClient(kube.ClientConfig{
				Access: r.Access, UserAgent: userAgent, Bounds: bounds, Logger: log.With("cluster", r.Name),
			}),
			Bounds:       bounds,
			ResyncPeriod: r.ResyncPeriod,
			StaleAfter:   r.StaleAfter,
		})
	}
	client, err := kube.NewClient(local)
	if err != nil {
		return nil, fmt.Errorf("access to the local cluster %s: %w", p.localName(), err)
	}
	if cfg.ListenAuth == config.ListenAuthToken {
		p.guard = bearer.New(client, log).Wrap
	}
	var events *event.Recorder
	if pod := cfg.Pod; pod.Known() {
		// No spread: only the leader writes Events.
		events = event.NewRecorder(event.Config{
			Client: client, Component: "semaphore-policy", About: event.Pod(pod.Namespace, pod.Name, pod.UID),
		})
	}
	metrics := policy.NewMetrics()
	watches := kube.NewMetrics("semaphore_policy", "kube_policy_semaphore_pod_watcher_failures")
	p.controller = policy.New(policy.Config{
		Cluster:          p.localName(),
		Labels:           policy.Labels{Domain: cfg.LabelDomain, ManagedBy: cfg.ManagedBy},
		Calico:           calico,
		Remotes:          remotes,
		FullResyncPeriod: cfg.FullResyncPeriod,
		RemovalGrace:     cfg.RemovalGrace,
		Departed:         cfg.Departed,
		// The flags of the original mean a process for each remote: strays may be another's.
		KeepStrays: cfg.ClusterName == "",
		Events:     events,
		Logger:     log, Metrics: metrics, Watches: watches,
	})
	if p.replica, err = p.newReplica(client); err != nil {
		return nil, err
	}
	p.registry.MustRegister(
		metrics, watches, policy.NewCollector(p.controller), run.BuildInfo("semaphore_policy"),
		tokens.NewCollector("semaphore_policy", cfg.TokenFiles()),
		p.replica.Collector("semaphore_policy"),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return p, nil
}

// localName is the local cluster's name for logs and status: the flags of the original
// program have none.
func (p *program) localName() string {
	if p.cfg.ClusterName == "" {
		return "local"
	}
	return p.cfg.ClusterName
}

// newReplica sets up leader election. With the flags of the original program there is one
// process for each remote, so each remote has its own Lease.
func (p *program) newReplica(client kube.Client) (*replica.Replica, error) {
	name := "semaphore-policy"
	if p.cfg.ClusterName == "" {
		name += "-" + p.cfg.Remotes[0].Name
	}
	return replica.New(replica.Config{
		Election: p.cfg.LeaderElection, Leases: client.Leases(p.cfg.Namespace),
		Namespace: p.cfg.Namespace, Name: name, Listen: p.cfg.ListenAddress,
		Lead: p.controller.Lead, Logger: p.log,
	})
}

// tasks returns all tasks of the process.
func (p *program) tasks() []run.Task {
	p.servers = run.NewServers(run.ServersConfig{
		ProbeAddress: p.cfg.ProbeAddress, ProbeSocket: p.cfg.ProbeSocket, ListenAddress: p.cfg.ListenAddress, Guard: p.guard, Gatherer: p.registry,
		Health: p.controller.Health, Ready: p.controller.Ready, Status: p.status, Logger: p.log,
	})
	tasks := append(p.servers.Tasks(), p.controller.Watches()...)
	tasks = append(tasks, reconcile.NewLoop(reconcile.Config{
		Name: "IP pools", Reconcile: p.pools.read, Trigger: reconcile.NewTrigger(), Resync: poolsPeriod, Logger: p.log,
	}))
	return append(tasks, p.replica)
}

func (p *program) status() any {
	r := p.controller.Status()
	r.Version, r.Cluster, r.Leading, r.Leader = process.Build(), p.localName(), p.replica.Leads(), p.replica.Leader()
	r.NotServed, r.Pools, r.Credentials = p.servers.Failing(), p.pools.status(), p.trials.Report()
	if err := p.replica.Err(); err != nil {
		r.ElectionError = err.Error()
	}
	return r
}
