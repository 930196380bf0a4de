// Package verify implements "semaphorectl verify". It tests connections between temporary
// pods of joined clusters, and compares the results with what is expected.
//
//	clusters ──▶ pods        ──▶ rows: expected, found, and a state ──▶ table, exit code
//	             probe.Mesh      pure
//
// Without a result the state is Unknown or Skipped.
package verify

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/ctl/probe"
	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/reach"
)

// State is the state of a row.
type State string

// The states of rows.
const (
	Right State = "right"
	Wrong State = "wrong"
	// Unknown is the state of a test that couldn't be run.
	Unknown State = "not known"
	// Skipped is the state of a test that doesn't apply, or was skipped.
	Skipped State = "not tried"
)

// The tests.
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

// Row is the result of one test.
type Row struct {
	From     string `json:"from"`
	To       string `json:"to"`
	Address  string `json:"address,omitempty"` // of the tested pod
	What     string `json:"what"`
	State    State  `json:"state"`
	Expected string `json:"expected,omitempty"`
	Found    string `json:"found"`
	// Stream has the figures of a stream, Requests those of asking a service.
	Stream   *reach.Stream `json:"stream,omitempty"`
	Requests *Requests     `json:"requests,omitempty"`
}

// Requests are the numbers of requests, and of those without a response.
type Requests struct {
	Sent int `json:"sent"`
	Lost int `json:"lost"`
}

// Report is the result of the command.
type Report struct {
	Verdict State `json:"verdict"` // right, wrong or not known
	Rows    []Row `json:"rows"`
}

// cluster is the facts about a cluster that are needed to judge the results of its pods.
type cluster struct {
	name string
	// unread is why its facts couldn't be read.
	unread string
	// subnets are the virtual subnets of its pods.
	subnets config.SubnetMap
	// nodes is the number of nodes that can run pods.
	nodes int
	// mirror is whether semaphore-service-mirror is installed.
	mirror bool
	// guard is how to test network policies; without it unguarded is why they can't be
	// tested, and state the state of that.
	guard     *probe.Guard
	unguarded string
	state     State
	// unlisted is why its mirrors couldn't be listed.
	unlisted string
	// names are the names of mirrors to resolve, with their ClusterIPs, by remote.
	names map[string][]reach.ServiceRequest
}

// judge compares the results of pods with what is expected. skip are the skipped tests.
func judge(clusters []cluster, tried *probe.Results, skip []string) *Report {
	r := &Report{Verdict: Right, Rows: []Row{}}
	subnets := map[string]config.SubnetMap{}
	for i := range clusters {
		subnets[clusters[i].name] = clusters[i].subnets
	}
	for i := range tried.Connections {
		r.Rows = append(r.Rows, connection(&tried.Connections[i], subnets[tried.Connections[i].From.Cluster])...)
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
	r.settle()
	// No pod ran.
	if len(tried.Connections) == 0 && r.Verdict == Right {
		r.Verdict = Unknown
	}
	return r
}

// settle sets the verdict by the rows.
func (r *Report) settle() {
	for i := range r.Rows {
		switch s := r.Rows[i].State; {
		case s == Wrong, s == Unknown && r.Verdict == Right:
			r.Verdict = s
		}
	}
}

// connection judges the connection of a pod to another one:
//
//	no response over TCP            answer wrong, no further rows
//	real instead of virtual source  source address wrong
//	other source address            source address wrong
//	no response over UDP            full-size packets wrong
//	carries less than its MTU       full-size packets wrong
func connection(l *probe.Connection, subnets config.SubnetMap) []Row {
	row := func(what string, right bool, expected, found string) Row {
		state := Right
		if !right {
			state = Wrong
		}
		return Row{From: l.From.String(), To: l.To.String(), Address: l.Address, What: what, State: state, Expected: expected, Found: found}
	}
	const answers = "a pod answers"
	switch {
	case l.Skipped != "":
		first := row(answer, false, answers, l.Skipped)
		first.State = Unknown
		return []Row{first}
	case l.Error != "":
		return []Row{row(answer, false, answers, l.Error)}
	}
	rows := []Row{row(answer, true, answers, "it does")}
	own := "own"
	if len(subnets) > 0 {
		own = "virtual"
	}
	seen, err := netip.ParseAddr(l.Seen)
	switch {
	case l.Seen == "":
		rows = append(rows, row(source, true, "the pod's "+own, "its "+own))
	case err == nil && subnets.Virtual(seen) != seen:
		rows = append(rows, row(source, false, "the pod's "+own, l.Seen+": it is the real one, "+l.From.Node+" doesn't translate"))
	default:
		rows = append(rows, row(source, false, "the pod's "+own, l.Seen+": it is masqueraded"))
	}
	if l.Datagrams != "" {
		return append(rows, row(mtu, false, "datagrams are answered", l.Datagrams))
	}
	full := fmt.Sprintf("%d bytes get through", l.MTU)
	if l.Carries < l.MTU {
		rows = append(rows, row(mtu, false, full, fmt.Sprintf("%d at most; larger ones are lost silently", l.Carries)))
	} else {
		rows = append(rows, row(mtu, l.MTU > 0, full, "they do"))
	}
	return append(rows, row(latency, true, "a response to datagrams", fmt.Sprintf("%.1f ms", float64(l.RTT)/1000)))
}

func streams(tried *probe.Results, skip []string) []Row {
	if slices.Contains(skip, throughput) {
		return []Row{{What: throughput, State: Skipped, Found: "--skip"}}
	}
	var rows []Row
	for _, s := range tried.Streams {
		r := Row{From: s.From.String(), To: s.To.String(), What: throughput, State: Right, Expected: "a stream is received", Found: rate(&s.Stream), Stream: &s.Stream}
		if s.Error != "" || s.Rate <= 0 {
			r.State, r.Found = Wrong, cmp.Or(s.Error, "nothing was received")
		}
		rows = append(rows, r)
	}
	if len(rows) == 0 {
		rows = append(rows, Row{What: throughput, State: Unknown, Found: "no pair of pods ran"})
	}
	return rows
}

// rate describes what was measured of a stream.
func rate(s *reach.Stream) string {
	text := fmt.Sprintf("%.0f Mbit/s", s.Rate/1e6)
	if s.Sent > 0 {
		text += fmt.Sprintf("; round trip meanwhile %.1f ms, longest %.1f ms, %d of %d lost", float64(s.Busy)/1000, float64(s.Longest)/1000, s.Lost, s.Sent)
	}
	return text
}

func names(c *cluster, remote string, tried *probe.Results, skip []string) []Row {
	row := Row{From: c.name, To: remote, What: name, State: Skipped, Expected: "names of its services are resolved"}
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
	case len(c.names[remote]) == 0:
		row.Found = "it mirrors no service of " + remote
		return []Row{row}
	}
	var rows []Row
	for i := range tried.Requests {
		n := &tried.Requests[i]
		if n.From.Cluster != c.name || n.Remote != remote {
			continue
		}
		r := Row{From: n.From.String(), To: remote, What: name, State: Right, Expected: n.Name + " is " + strings.Join(n.Want, " and "), Found: "it is"}
		switch {
		case n.Skipped != "":
			r.State, r.Found = Unknown, n.Skipped
		case n.Result.Name != "" || len(n.Result.Found) > 0:
			r.State, r.Found = Wrong, cmp.Or(n.Result.Name, strings.Join(n.Result.Found, " "))
		}
		rows = append(rows, r)
	}
	if len(rows) == 0 {
		row.State, row.Found = Unknown, "no pod ran"
		rows = append(rows, row)
	}
	return rows
}
