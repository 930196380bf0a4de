package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/kube-semaphore/internal/bearer"
	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/event"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/leader"
	"github.com/kube-semaphore/kube-semaphore/internal/reconcile"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
	"github.com/kube-semaphore/kube-semaphore/internal/tokens"
	"github.com/kube-semaphore/kube-semaphore/internal/version"
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
	election   *leader.Election // nil: this replica always leads
	pools      *pools
}

// newProgram prepares everything. It makes no request.
func newProgram(cfg config.Policy, log *slog.Logger) (*program, error) {
	p := &program{cfg: cfg, log: log, registry: prometheus.NewRegistry()}
	userAgent := fmt.Sprintf("semaphore-policy/%s (%s)", version.Number(), p.localName())
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
		bounds := kube.Bounds{Answer: r.MaxAnswer, Objects: r.MaxObjects}
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
	client, err := kubernetes.NewForConfig(local)
	if err != nil {
		return nil, fmt.Errorf("access to the local cluster %s: %w", p.localName(), err)
	}
	if cfg.ListenAuth == config.ListenAuthToken {
		p.guard = bearer.New(client, log).Wrap
	}
	var events *event.Recorder
	if pod := cfg.Pod; pod.Known() {
		// Only the replica that leads tells anything: it needn't wait.
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
		// With the flags of the original there is a process for each remote.
		KeepStrays: cfg.ClusterName == "",
		Events:     events,
		Logger:     log, Metrics: metrics, Watches: watches,
	})
	if cfg.LeaderElection {
		if p.election, err = p.newElection(client); err != nil {
			return nil, err
		}
	}
	p.registry.MustRegister(
		metrics, watches, policy.NewCollector(p.controller), version.Collector("semaphore_policy"),
		tokens.NewCollector("semaphore_policy", cfg.TokenFiles()),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "semaphore_policy_leader",
			Help: "Whether this replica is the one that writes.",
		}, func() float64 {
			if p.leads() {
				return 1
			}
			return 0
		}),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return p, nil
}

// localName is the local cluster's name, for people: the flags of the original
// program don't give one.
func (p *program) localName() string {
	if p.cfg.ClusterName == "" {
		return "local"
	}
	return p.cfg.ClusterName
}

// newElection makes the replicas of one installation agree. Where the flags of
// the original program are used there is one process for each remote, and each
// must be able to lead.
func (p *program) newElection(client kubernetes.Interface) (*leader.Election, error) {
	// In a pod the host is the pod. Elsewhere two replicas may share a host,
	// but not the address that they listen on.
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("name this replica: %w", err)
	}
	name := "semaphore-policy"
	if p.cfg.ClusterName == "" {
		name += "-" + p.cfg.Remotes[0].Name
	}
	return leader.New(leader.Config{
		Client: client, Namespace: p.cfg.Namespace, Name: name, Identity: host + p.cfg.ListenAddress,
		Lead: p.controller.Lead, Logger: p.log,
	})
}

// tasks returns everything that runs until the process ends.
func (p *program) tasks() []run.Task {
	p.servers = run.NewServers(run.ServersConfig{
		ProbeAddress: p.cfg.ProbeAddress, ListenAddress: p.cfg.ListenAddress, Guard: p.guard, Gatherer: p.registry,
		Health: p.controller.Health, Ready: p.controller.Ready, Status: p.status, Logger: p.log,
	})
	tasks := append([]run.Task{p.servers.Probes, p.servers.Status}, p.controller.Watches()...)
	tasks = append(tasks, reconcile.NewLoop(reconcile.Config{
		Name: "IP pools", Reconcile: p.pools.read, Trigger: reconcile.NewTrigger(), Resync: poolsPeriod, Logger: p.log,
	}))
	if p.election == nil {
		return append(tasks, alone{p.controller})
	}
	return append(tasks, p.election)
}

func (p *program) leads() bool { return p.election == nil || p.election.IsLeader() }

// policyReport is what /status serves.
type policyReport struct {
	Version string `json:"version"`
	Cluster string `json:"cluster"`
	// Leading says whether this replica is the one that writes, Leader which
	// one is.
	Leading bool   `json:"leading"`
	Leader  string `json:"leader,omitempty"`
	// ElectionError is why the last request for the lease failed.
	ElectionError string `json:"electionError,omitempty"`
	// NotServed says which of its addresses it doesn't serve, and why.
	NotServed map[string]string `json:"notServed,omitempty"`
	// Pools are Calico's IP pools, as far as remotes need them.
	Pools poolReport `json:"ipPools"`
	policy.Status
}

func (p *program) status() any {
	r := policyReport{Version: version.String(), Cluster: p.localName(), Leading: p.leads(), NotServed: p.servers.Failing(), Pools: p.pools.status(), Status: p.controller.Status()}
	if p.election != nil {
		r.Leader = p.election.Leader()
		if err := p.election.Err(); err != nil {
			r.ElectionError = err.Error()
		}
	}
	return r
}

// alone is what leads where there is no election.
type alone struct{ controller *policy.Controller }

// String names the task.
func (alone) String() string { return "network sets" }

// Run writes until ctx ends.
func (a alone) Run(ctx context.Context) error {
	if err := a.controller.Lead(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
