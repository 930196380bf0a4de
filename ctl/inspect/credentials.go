package inspect

import (
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

// Report is what the reports of all programs have in common.
type Report struct {
	Pod     Pod
	Program string
	// Source is the command that shows the report, Err the error of reading it.
	Source, Err string
	Version     string
	Credentials map[string]statuspage.CredentialCheck // by cluster
}

// Reports returns the reports of all programs of the cluster.
func (c *Cluster) Reports() []Report {
	type checks = map[string]statuspage.CredentialCheck
	return slices.Concat(
		reports(WireGuard, c.Agents, func(a *statuspage.Agent) (string, checks) { return a.Version, a.Credentials }),
		reports(ServiceMirror, c.Mirrors, func(m *statuspage.Mirror) (string, checks) { return m.Version, m.Credentials }),
		reports(NetworkPolicy, c.Policies, func(p *statuspage.Policy) (string, checks) { return p.Version, p.Credentials }),
		reports(Relay, c.Relays, func(r *statuspage.Relay) (string, checks) { return r.Version, r.Credentials }),
	)
}

func reports[R any](program string, of []Reported[R], common func(*R) (string, map[string]statuspage.CredentialCheck)) []Report {
	all := make([]Report, len(of))
	for i := range of {
		all[i] = Report{Pod: of[i].Pod, Program: program, Source: of[i].Source, Err: of[i].Err}
		if of[i].Known() {
			all[i].Version, all[i].Credentials = common(of[i].Value)
		}
	}
	return all
}

// CredentialCheck is the result of a program's request to a cluster, its own or a remote, with the
// credentials on disk.
type CredentialCheck struct {
	statuspage.CredentialCheck
	Program, Remote string
	Node            string // of an agent
	Source          string // shows the program's report
}

// CredentialChecks iterates over the results in the reports of all programs of the cluster.
func (c *Cluster) CredentialChecks() iter.Seq[CredentialCheck] {
	return func(yield func(CredentialCheck) bool) {
		for _, r := range c.Reports() {
			t := CredentialCheck{Program: r.Program, Source: r.Source}
			if r.Program == WireGuard {
				t.Node, t.Source = r.Pod.Node, strings.TrimSuffix(r.Source, " -o json")
			}
			for _, t.Remote = range slices.Sorted(maps.Keys(r.Credentials)) {
				if t.CredentialCheck = r.Credentials[t.Remote]; !yield(t) {
					return
				}
			}
		}
	}
}

// Overdue reports whether a token should have been renewed, by the cluster's clock.
func (c *Cluster) Overdue(t *statuspage.CredentialCheck) bool {
	return c.Clock.Known() && t.Overdue(c.Taken.Add(c.Clock.Value))
}
