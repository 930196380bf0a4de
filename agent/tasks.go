package agent

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/reconcile"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
)

// change is what triggers tasks. It has no data: a pass reads what it needs.
type change uint64

// Changes. Those of a remote trigger no task of another one.
const (
	kernelChanged change = 1 << iota // links, addresses, routes, rules, nf_tables or forwarding
	hostAddrsChanged
	thisNodeChanged    // its object
	podPrefixesChanged // of this node
	localNodesChanged
	localAPIAnswers
	clusterAddrsChanged
	refusalsChanged
	relayChanged
	translationChanged
	pathChanged

	nodesChanged
	linkChanged     // a device's link or what serves it, or the MTU it should have
	deviceChanged   // made or repaired by us, or with another listen port
	underlayChanged // of the paths to peers, by the kernel
	sharedFound     // pod subnets with nodes inside, which the packet filter doesn't exempt yet
	hostPrepared    // for a remote's peers
	sessionsDue
)

// String describes changes as docs/architecture.md does.
func (c change) String() string {
	var all []string
	for i, name := range []string{
		"the kernel", "addresses of this host", "this node", "prefixes of its pods", "nodes or services of this cluster", "the local API server answers",
		"addresses of this cluster", "refused remotes", "objects of the relay", "translation", "a path's state",
		"remote nodes", "a link", "a device", "paths to endpoints", "nodes inside pod subnets", "host is prepared for peers", "sessions are due",
	} {
		if c&(1<<i) != 0 {
			all = append(all, name)
		}
	}
	return strings.Join(all, ", ")
}

// task is a loop of the agent. A pass makes its steps in their order.
type task struct {
	name, does string
	on         change  // what triggers a pass
	remote     *remote // nil: it is one of all remotes
	standby    bool    // it runs while another agent of this node is active, too
	rate       reconcile.Config
	steps      []*step

	loop  *reconcile.Loop
	after atomic.Uint64 // changes since the last pass
}

// newTable returns all tasks. docs/architecture.md has the same table.
func (a *agent) newTable() []*task {
	orphans := a.step("orphans", a.removeOrphans)
	orphans.on = refusalsChanged // Once is enough: only a restart changes which remotes are configured.
	table := []*task{{
		name: "this cluster", does: "what no endpoint or pod subnet of a remote may overlap",
		on: localNodesChanged | thisNodeChanged | podPrefixesChanged | hostAddrsChanged, standby: true,
		rate:  reconcile.Config{MinInterval: time.Second, Resync: slowPass},
		steps: []*step{a.step("addresses of this cluster", a.local.build), a.step("subnets of remotes", a.admission.recheck)},
	}, {
		name: "service ranges", does: "reads the ranges of services from the local API server",
		on: localAPIAnswers, standby: true,
		rate:  reconcile.Config{Resync: servicesPeriod},
		steps: []*step{a.step("service ranges", a.local.readServices)},
	}, {
		name: "host", does: "what all remotes need in the kernel of this node",
		on:    kernelChanged | thisNodeChanged | podPrefixesChanged | refusalsChanged | deviceChanged | sharedFound,
		rate:  reconcile.Config{MinInterval: hostSpacing, Burst: hostBurst, Resync: slowPass, BackoffMax: slowPass},
		steps: a.host.steps(),
	}, {
		name: "publish", does: "key, endpoint and prefixes of this node as annotations of its object",
		on:    thisNodeChanged | podPrefixesChanged | refusalsChanged | deviceChanged | translationChanged,
		rate:  reconcile.Config{MinInterval: burstSpacing, Due: a.publisher.Due},
		steps: []*step{a.step("publish", a.publish)},
	}, {
		name: "attempts to connect", does: "deletes connections that wait for a response from where a path is down",
		on:    pathChanged,
		rate:  reconcile.Config{MinInterval: unrepliedSpacing, RestShare: unrepliedRest, Due: a.unreplied.next},
		steps: []*step{a.step("attempts to connect", a.unreplied.delete)},
	}, {
		name: "housekeeping", does: "saves the last applied peers, removes devices and peers of remotes that are no longer configured",
		rate:  reconcile.Config{Resync: saveSpacing},
		steps: []*step{a.step("save peers", a.savePeers), orphans},
	}}
	if a.relayed != nil {
		table = append(table, &task{
			name: "objects of semaphore-relay", does: "nodes of all clusters by what the relay has stored", on: relayChanged, standby: true,
			rate:  reconcile.Config{MinInterval: burstSpacing, RestShare: restShare},
			steps: []*step{a.step("objects of semaphore-relay", a.relayed.sort)},
		})
	}
	if a.reporter != nil {
		table = append(table, &task{
			name: "report of paths", does: "nodes whose path is down, for the service mirror", on: pathChanged,
			rate:  reconcile.Config{MinInterval: burstSpacing, Due: a.reporter.Due},
			steps: []*step{a.step("report of paths", a.reporter.Reconcile)},
		})
	}
	if a.events != nil {
		events := a.events.Loop(a.conditions)
		table = append(table, &task{
			name: "events", does: "rejected nodes as Events of the agent's pod", rate: events,
			steps: []*step{a.step("events", events.Reconcile)},
		})
	}
	for _, r := range a.remotes {
		table = append(table, r.newTable()...)
	}
	return table
}

// newTable returns the tasks of a remote.
func (r *remote) newTable() []*task {
	a, of := r.agent, " "+r.cfg.Name
	resync := slowPass
	if r.cfg.ResyncPeriod > 0 {
		resync = min(resync, r.cfg.ResyncPeriod)
	}
	device, peers := a.repairing("device"+of, r.ensureDevice), a.repairing("peers"+of, r.syncPeers)
	device.on = linkChanged | refusalsChanged
	peers.observe = a.metrics.peerObserver(peers.name, r.device.Name())
	return []*task{{
		name: "remote" + of, does: "the remote's device, its peers, and the MTU of the paths to them", remote: r,
		on: hostAddrsChanged | thisNodeChanged | clusterAddrsChanged | refusalsChanged | nodesChanged | linkChanged | underlayChanged | hostPrepared,
		rate: reconcile.Config{
			MinInterval: burstSpacing, RestShare: restShare, Resync: resync, BackoffMin: linkRetry, BackoffMax: slowPass, Due: r.controller.ReconcileDue,
		},
		steps: []*step{device, peers, a.repairing("MTU"+of, r.fitMTU)},
	}, {
		name: "sessions" + of, does: "first handshakes, those with silent peers, and keepalives", remote: r, on: sessionsDue,
		rate:  reconcile.Config{MinInterval: burstSpacing, Due: r.controller.TendDue},
		steps: []*step{a.step("sessions"+of, r.controller.Tend)},
	}, {
		name: "paths" + of, does: "probes of all peers", remote: r,
		rate:  reconcile.Config{Due: r.controller.ProbeDue},
		steps: []*step{a.step("paths"+of, r.unlessRefused(r.controller.Probe))},
	}}
}

// makeLoops makes the loops of the table.
func (a *agent) makeLoops() {
	a.table = a.newTable()
	for _, t := range a.table {
		t.rate.Name, t.rate.Trigger, t.rate.Reconcile = t.name, reconcile.NewTrigger(), t.pass
		t.rate.Logger = slog.New(slog.DiscardHandler) // Its steps log.
		t.loop = reconcile.NewLoop(t.rate)
	}
}

// find returns the step of that name; nil: there is none.
func (a *agent) find(name string) *step {
	for _, t := range a.table {
		for _, s := range t.steps {
			if s.name == name {
				return s
			}
		}
	}
	return nil
}

// pass makes the steps that are due.
func (t *task) pass(ctx context.Context) error {
	var errs []error
	after := change(t.after.Swap(0))
	for _, s := range t.steps {
		if s.due(time.Now(), after) {
			errs = append(errs, s.run(ctx))
		}
	}
	return errors.Join(errs...)
}

// happened triggers the tasks that a change concerns; with a remote, not those of others. It doesn't
// block.
func (a *agent) happened(c change, to *remote) {
	for _, t := range a.table {
		if t.on&c != 0 && (to == nil || t.remote == nil || t.remote == to) {
			t.after.Or(uint64(c))
			t.rate.Trigger.Fire()
		}
	}
}

// loops returns the loops that run on standby, too, or those that don't.
func (a *agent) loops(standby bool) (tasks []run.Task) {
	for _, t := range a.table {
		if t.standby == standby {
			tasks = append(tasks, t.loop)
		}
	}
	return tasks
}
