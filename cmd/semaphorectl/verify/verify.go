// Package verify is the command that has temporary pods of clusters that are joined try
// each other, and holds what they find against what is expected.
//
//	clusters ──▶ pods that try ──▶ rows: expected, found, and a state ──▶ table, exit code
//	             probe.Mesh        pure
//
// Nothing is right by default: what wasn't tried is told as that.
package verify

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/probe"
)

// State is what a row comes to.
type State string

// The states of rows.
const (
	Right State = "right"
	Wrong State = "wrong"
	// Unknown is what was to be tried, and wasn't.
	Unknown State = "not known"
	// Untried is what there is nothing to try of, or nobody wants.
	Untried State = "not tried"
)

// What is tried.
const (
	answer     = "answer"
	source     = "source address"
	mtu        = "full-size packets"
	latency    = "latency"
	throughput = "throughput"
	name       = "name"
	policy     = "network policy"
	set        = "network set"
)

// Row is one thing that was to be tried.
type Row struct {
	From     string `json:"from"`
	To       string `json:"to"`
	Address  string `json:"address,omitempty"` // of the pod that is tried
	What     string `json:"what"`
	State    State  `json:"state"`
	Expected string `json:"expected,omitempty"`
	Found    string `json:"found"`
}

// Report is what the command says.
type Report struct {
	Verdict State `json:"verdict"` // right, wrong or not known
	Rows    []Row `json:"rows"`
}

// cluster is what has to be known of a cluster to judge what its pods find.
type cluster struct {
	name string
	// unread says why its nodes aren't known.
	unread string
	// nodes is how many could have pods.
	nodes int
	// mirror tells whether semaphore-service-mirror is installed.
	mirror bool
	// guard is how network policies are tried here; without it unguarded says why they
	// aren't, and state whether that counts.
	guard     *probe.Guard
	unguarded string
	state     State
	// unlisted says why its mirrors couldn't be listed.
	unlisted string
	// addresses are the ClusterIPs of its mirrors, by name.
	addresses map[string]string
	// named is how many names were to be resolved, by remote.
	named map[string]int
}

// judge holds what pods have found against what is expected. skip are things that nobody
// wants to know.
func judge(clusters []cluster, tried *probe.Tried, skip []string) *Report {
	r := &Report{Verdict: Right, Rows: []Row{}}
	for i := range tried.Legs {
		r.Rows = append(r.Rows, leg(&tried.Legs[i])...)
	}
	for i := range clusters {
		c := &clusters[i]
		if c.nodes == 0 {
			r.Rows = append(r.Rows, Row{From: c.name, What: answer, State: Unknown, Expected: "nodes for pods", Found: cmp.Or(c.unread, "no node is ready")})
		}
	}
	r.Rows = append(r.Rows, streams(tried, skip)...)
	for i := range clusters {
		for j := range clusters {
			if i != j {
				r.Rows = append(r.Rows, names(&clusters[i], clusters[j].name, tried, skip)...)
			}
		}
	}
	for i := range clusters {
		r.Rows = append(r.Rows, policies(&clusters[i], clusters, tried, skip)...)
	}
	for i := range r.Rows {
		switch s := r.Rows[i].State; {
		case s == Wrong, s == Unknown && r.Verdict == Right:
			r.Verdict = s
		}
	}
	// Pods that nobody made found nothing.
	if len(tried.Legs) == 0 && r.Verdict == Right {
		r.Verdict = Unknown
	}
	return r
}

// leg judges what one pod has found out of another one:
//
//	no answer over TCP             answer wrong, nothing else is known
//	seen from another address      source address wrong
//	no answer over UDP             full-size packets wrong
//	carries less than its MTU      full-size packets wrong
func leg(l *probe.Leg) []Row {
	row := func(what string, right bool, expected, found string) Row {
		state := Right
		if !right {
			state = Wrong
		}
		return Row{From: l.From.String(), To: l.To.String(), Address: l.Address, What: what, State: state, Expected: expected, Found: found}
	}
	const answers = "a pod answers"
	switch {
	case l.Untried != "":
		first := row(answer, false, answers, l.Untried)
		first.State = Unknown
		return []Row{first}
	case l.Error != "":
		return []Row{row(answer, false, answers, l.Error)}
	}
	rows := []Row{row(answer, true, answers, "it does")}
	const own = "the asking pod's own"
	if l.Seen == "" {
		rows = append(rows, row(source, true, own, "its own"))
	} else {
		rows = append(rows, row(source, false, own, l.Seen+": it is masqueraded"))
	}
	if l.Datagrams != "" {
		return append(rows, row(mtu, false, "datagrams are answered", l.Datagrams))
	}
	full := fmt.Sprintf("%d bytes get through", l.MTU)
	if l.Carries < l.MTU {
		rows = append(rows, row(mtu, false, full, fmt.Sprintf("%d at most; larger ones get lost without a word", l.Carries)))
	} else {
		rows = append(rows, row(mtu, l.MTU > 0, full, "they do"))
	}
	return append(rows, row(latency, true, "an answer to datagrams", fmt.Sprintf("%.1f ms", float64(l.RTT)/1000)))
}

func streams(tried *probe.Tried, skip []string) []Row {
	if slices.Contains(skip, throughput) {
		return []Row{{What: throughput, State: Untried, Found: "--skip"}}
	}
	var rows []Row
	for _, s := range tried.Streams {
		r := Row{From: s.From.String(), To: s.To.String(), What: throughput, State: Right, Expected: "a stream is received", Found: fmt.Sprintf("%.0f Mbit/s", s.Rate/1e6)}
		if s.Error != "" || s.Rate <= 0 {
			r.State, r.Found = Wrong, cmp.Or(s.Error, "nothing of it")
		}
		rows = append(rows, r)
	}
	if len(rows) == 0 {
		rows = append(rows, Row{What: throughput, State: Unknown, Found: "no pair of pods was there for it"})
	}
	return rows
}

func names(c *cluster, remote string, tried *probe.Tried, skip []string) []Row {
	row := Row{From: c.name, To: remote, What: name, State: Untried, Expected: "names of its services are resolved"}
	switch {
	case slices.Contains(skip, name):
		row.Found = "--skip"
		return []Row{row}
	case !c.mirror && c.unread == "":
		row.Found = "semaphore-service-mirror isn't installed"
		return []Row{row}
	case c.unread != "" || c.unlisted != "":
		row.State, row.Found = Unknown, cmp.Or(c.unread, c.unlisted)
		return []Row{row}
	case c.named[remote] == 0:
		row.Found = "it mirrors no service of " + remote
		return []Row{row}
	}
	var rows []Row
	for _, n := range tried.Names {
		if n.From.Cluster != c.name || n.Remote != remote {
			continue
		}
		want := c.addresses[n.Name]
		r := Row{From: n.From.String(), To: remote, What: name, State: Right, Expected: n.Name + " is " + want, Found: strings.Join(n.Found.Addresses, " ")}
		switch {
		case n.Untried != "":
			r.State, r.Found = Unknown, n.Untried
		case n.Found.Error != "":
			r.State, r.Found = Wrong, n.Found.Error
		case !slices.Contains(n.Found.Addresses, want):
			r.State = Wrong
		}
		rows = append(rows, r)
	}
	if len(rows) == 0 {
		row.State, row.Found = Unknown, "no pod was there for it"
		rows = append(rows, row)
	}
	return rows
}
