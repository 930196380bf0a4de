// Package survey reads what there is to know of clusters that are joined: what their
// agents and controllers report, and what the API servers have. It changes nothing and
// judges nothing. What can't be read is a fact, too, with its reason.
package survey

import (
	"cmp"
	"slices"
	"time"

	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/cli"
)

// Fact is something that was read, or wasn't.
type Fact[T any] struct {
	Value T
	// Source is the command that shows the same to a person.
	Source string
	// Err says why it isn't known; empty: it is.
	Err string
}

// Known tells whether it was read.
func (f Fact[T]) Known() bool { return f.Err == "" }

// Cluster is what is known of one cluster.
type Cluster struct {
	// Name is what the clusters call it, Context what the kubeconfig does.
	Name, Context string
	// Taken is when this was read, by our clock.
	Taken time.Time
	// Clock is by how much the API server's clock is ahead of ours.
	Clock Fact[time.Duration]
	// Kubernetes is the API server's version.
	Kubernetes Fact[string]
	Nodes      Fact[[]Node]
	Pods       Fact[[]Pod] // those of our namespace
	Workloads  Fact[[]Workload]
	Warnings   Fact[[]Event]
	// Corefile is all of CoreDNS's configuration.
	Corefile Fact[string]
	// Pools are Calico's; nil when Calico's API isn't served.
	Pools Fact[[]Pool]

	Agents   []Reported[Agent]
	Mirrors  []Reported[Mirror]
	Policies []Reported[Policy]
}

// Node is a Node object.
type Node struct {
	Name      string
	Ready     string // the condition's status: True, False or Unknown
	Kernel    string
	Addresses []string
	PodCIDRs  []string
	// Annotations are those that agents publish.
	Annotations map[string]string
	// Renewed is when the kubelet, by its own clock, last renewed its lease; zero: not known.
	Renewed time.Time
}

// Pod is a pod of ours.
type Pod struct {
	Name, Node, IP string
	// Program is the value of the label app.kubernetes.io/name.
	Program  string
	Phase    string
	Ready    bool
	Deleting bool
	Restarts int32
	// Waiting is the reason of a container that doesn't run, as CrashLoopBackOff, and
	// Ended what its last run said of its end.
	Waiting, Ended string
}

// Workload is a DaemonSet or Deployment of ours.
type Workload struct {
	Kind, Name    string
	Wanted, Ready int32
	Image         string
}

// Event is a Warning in our namespace.
type Event struct {
	Reason, About, Message string
	Last                   time.Time
}

// Pool is an IP pool of Calico.
type Pool struct {
	Name, CIDR         string
	Disabled, NoExport bool
}

// Reported is the report of one pod's program.
type Reported[R any] struct {
	Pod Pod
	Fact[*R]
}

// Acting returns the reports of the agents that act, by their pods' nodes. Of two on a node
// the one that stands by doesn't count.
func (c *Cluster) Acting() map[string]*Agent {
	acting := map[string]*Agent{}
	for i := range c.Agents {
		if a := &c.Agents[i]; a.Known() && (acting[a.Pod.Node] == nil || a.Value.Standby == nil) {
			acting[a.Pod.Node] = a.Value
		}
	}
	return acting
}

// Workload returns one of ours, and whether it is known to be there.
func (c *Cluster) Workload(name string) (Workload, bool) {
	for _, w := range c.Workloads.Value {
		if w.Name == name {
			return w, true
		}
	}
	return Workload{}, false
}

// Kubectl is cli.Kubectl for this cluster.
func (c *Cluster) Kubectl(format string, args ...any) string {
	return cli.Kubectl(c.Context, format, args...)
}

func byName[T any](list []T, name func(*T) string) []T {
	slices.SortFunc(list, func(a, b T) int { return cmp.Compare(name(&a), name(&b)) })
	return list
}
