// Package inspect reads clusters for an administrator. It changes nothing and draws no
// conclusions; what can't be read is a value with an error.
//
//	Cluster   the state of an installation: reports of agents and controllers, and the
//	          objects that they read and write. Commands ask the questions that they need.
//	Facts     what join plans by: the ranges of pods and services, network plugin, DNS,
//	          addresses and CA of the API server, what is installed.
package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/coredns"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

// Fact is a value that was read, or the error.
type Fact[T any] struct {
	Value T
	// Source is a command that shows the value to a person.
	Source string
	// Err is the error of reading the value, or empty.
	Err string
}

// Known reports whether the fact was read.
func (f Fact[T]) Known() bool { return f.Err == "" }

// Cluster is the facts about one cluster.
type Cluster struct {
	// Name is the cluster's name in the configuration.
	Name string
	cli.Access
	// Taken is the time of the survey, by our clock.
	Taken time.Time
	// Clock is by how much the API server's clock is ahead of ours.
	Clock Fact[time.Duration]
	// Kubernetes is the API server's version.
	Kubernetes Fact[string]
	// Nodes are those that agents run on.
	Nodes     Fact[[]Node]
	Pods      Fact[[]Pod] // in our namespace
	Workloads Fact[[]Workload]
	Warnings  Fact[[]Event]
	// DNS is the cluster's CoreDNS; nil: it has none.
	DNS Fact[*coredns.Setup]
	// Pools are Calico's IP pools; nil if Calico's API isn't served.
	Pools Fact[[]Pool]

	// Imports are the mirrors and global services of this cluster, Exports the Services of
	// this cluster with the label for mirrors, Shared those with the label for global ones.
	Imports, Exports, Shared Fact[[]KubeService]
	// Settings are those of our programs; nil: there are none.
	Settings Fact[Settings]

	Agents []Reported[statuspage.Agent]
	// Later are the reports of the active agents after temporary pods have tested connections, by
	// node; nil: not read.
	Later    map[string]*statuspage.Agent
	Mirrors  []Reported[statuspage.Mirror]
	Policies []Reported[statuspage.Policy]
	Relays   []Reported[statuspage.Relay]
	// Stored is what semaphore-relay had stored before the agents reported: by cluster, the newest
	// resource version of its objects.
	Stored Fact[map[string]string]
}

// Pod is a pod of our programs.
type Pod struct {
	Name, Node, IP string
	// Program is the value of the label app.kubernetes.io/name.
	Program  string
	Phase    string
	Ready    bool
	Deleting bool
	Restarts int32
	// Waiting is the reason of a waiting container, such as CrashLoopBackOff, Ended the reason
	// and message of its last termination.
	Waiting, Ended string
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

// Acting returns the reports of active agents, by their pods' nodes. Of two agents on a node
// the one on standby is dropped.
func (c *Cluster) Acting() map[string]*statuspage.Agent {
	acting := map[string]*statuspage.Agent{}
	for i := range c.Agents {
		if a := &c.Agents[i]; a.Known() && (acting[a.Pod.Node] == nil || a.Value.Standby == nil) {
			acting[a.Pod.Node] = a.Value
		}
	}
	return acting
}

// Workload returns a workload, and whether it exists.
func (c *Cluster) Workload(name string) (Workload, bool) {
	for _, w := range c.Workloads.Value {
		if w.Name == name {
			return w, true
		}
	}
	return Workload{}, false
}

// Image returns the image of our programs; empty: none is installed.
func (c *Cluster) Image() (image string) {
	for _, w := range c.Workloads.Value {
		if _, ours := programs[w.Name]; ours {
			image = cmp.Or(w.Image, image)
		}
	}
	return image
}

// Misnamed returns the name of the cluster in its settings if that isn't Name.
func (c *Cluster) Misnamed() string { return Installed{Settings: c.Settings.Value}.Misnamed(c.Name) }

// Unread returns why what temporary pods need isn't known; nil: it is.
func (c *Cluster) Unread() error {
	if !c.Kubernetes.Known() {
		return errors.New(c.Kubernetes.Err)
	}
	var errs []error
	for _, of := range [][2]string{{"nodes", c.Nodes.Err}, {"the installed programs", c.Workloads.Err}, {"the settings", c.Settings.Err}} {
		if of[1] != "" {
			errs = append(errs, fmt.Errorf("read %s: %s", of[0], of[1]))
		}
	}
	return errors.Join(errs...)
}

func byName[T any](list []T, name func(*T) string) []T {
	slices.SortFunc(list, func(a, b T) int { return cmp.Compare(name(&a), name(&b)) })
	return list
}
