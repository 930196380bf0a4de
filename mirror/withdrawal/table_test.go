package withdrawal

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/pathreport"
)

var epoch = time.Unix(1e9, 0)

func after(seconds float64) time.Time {
	return epoch.Add(time.Duration(seconds * float64(time.Second)))
}

// Down is a report that nodes of aws are down.
func down(of string, nodes ...string) *pathreport.Report {
	return &pathreport.Report{Node: of, Remotes: map[string]pathreport.Down{"aws": {Nodes: nodes}}}
}

// allBut is a report that all nodes of aws are down but some.
func allBut(of string, nodes ...string) *pathreport.Report {
	return &pathreport.Report{Node: of, Remotes: map[string]pathreport.Down{"aws": {AllBut: true, Nodes: nodes}}}
}

// table returns one with so many ready local nodes, l0, l1 and so on, and endpoints
// on a1, a2 and a3 of aws.
func table(ready int) *Table[string] {
	p := New[string]()
	for i := range ready {
		p.SetNode(fmt.Sprintf("l%d", i), true)
	}
	for _, n := range []string{"a1", "a2", "a3"} {
		p.Place(Node{"aws", n}, "x/"+n, 1)
	}
	return p
}

// judged judges, and returns which nodes of aws are withdrawn.
func judged(p *Table[string], now time.Time) string {
	p.Judge(now, func(Node, bool) {})
	var all []string
	for n, v := range p.verdicts {
		if v.withdrawn {
			all = append(all, n.Name)
		}
	}
	slices.Sort(all)
	return fmt.Sprint(all)
}

func TestMajorityWithdraws(t *testing.T) {
	for _, c := range []struct {
		name    string
		ready   int
		reports []*pathreport.Report
		want    string
	}{
		{"no reports", 3, nil, "[]"},
		{"one of one", 1, []*pathreport.Report{down("l0", "a1")}, "[a1]"},
		{"one of two: it may be its own cable", 2, []*pathreport.Report{allBut("l0")}, "[]"},
		{"two of two", 2, []*pathreport.Report{allBut("l0"), allBut("l1")}, "[a1 a2 a3]"},
		{"two of three", 3, []*pathreport.Report{down("l0", "a1"), down("l2", "a1", "a2")}, "[a1]"},
		{"in both forms", 3, []*pathreport.Report{down("l0", "a1"), allBut("l1", "a2")}, "[a1]"},
		{"all but one that others report", 3, []*pathreport.Report{down("l0", "a2"), allBut("l1", "a2"), down("l2", "a2")}, "[a2]"},
		{"of nodes that aren't ready, or aren't there", 1, []*pathreport.Report{allBut("l7"), allBut("l8")}, "[]"},
		{"without any ready node", 0, []*pathreport.Report{allBut("l0")}, "[]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := table(c.ready)
			for _, r := range c.reports {
				p.Report(r.Node, r, epoch)
			}
			if got := judged(p, epoch); got != c.want {
				t.Errorf("withdrawn: %s, want %s", got, c.want)
			}
		})
	}
}

func TestReadyNodesAreCounted(t *testing.T) {
	p := table(3)
	p.Report("l0", allBut("l0"), epoch)
	p.Report("l1", allBut("l1"), epoch)
	if got := judged(p, epoch); got != "[a1 a2 a3]" {
		t.Error(got)
	}
	p.SetNode("l3", true)
	if got := judged(p, epoch); got != "[]" {
		t.Error("two of four:", got)
	}
	p.SetNode("l2", false)
	if got := judged(p, after(300)); got != "[]" {
		t.Error("of old reports:", got)
	}
}

func TestReportsExpireByTheOwnClock(t *testing.T) {
	p := table(1)
	p.Report("l0", down("l0", "a1"), epoch)
	judged(p, epoch)
	if got := p.Due(); !got.Equal(after(90)) {
		t.Error("looks again at", got.Sub(epoch))
	}
	p.Report("l0", down("l0", "a1"), after(60)) // renewed
	if got := judged(p, after(149)); got != "[a1]" {
		t.Error("renewed:", got)
	}
	if got := judged(p, after(151)); got != "[]" || len(p.counted) != 0 || len(p.reports) != 0 || len(p.remotes) != 0 {
		t.Error("expired:", got)
	}
	// While reading fails, renewals may be missed.
	p = table(1)
	p.Report("l0", down("l0", "a1"), epoch)
	p.readFailed = after(80)
	if got := judged(p, after(160)); got != "[a1]" {
		t.Error("not readable:", got)
	}
	if got := judged(p, after(171)); got != "[]" {
		t.Error("readable again, and not renewed:", got)
	}
}

func TestNodeThatWasUnknownToAReport(t *testing.T) {
	p := table(1)
	p.Report("l0", allBut("l0", "a2"), epoch)
	judged(p, epoch)
	p.Place(Node{"aws", "a9"}, "x/y", 1)
	p.Place(Node{"merit", "m1"}, "x/y", 1)
	if got := judged(p, epoch); got != "[a1 a3 a9]" {
		t.Error(got)
	}
}

// TestFlappingPathIsHeld lets a path flap in many rhythms, and counts how often
// its endpoints do.
func TestFlappingPathIsHeld(t *testing.T) {
	for _, period := range []float64{0.5, 1, 2, 3, 5, 8, 13, 21, 34, 70} {
		p, changes, start := table(1), 0, epoch
		for at := 0.0; at < 300; at += 0.1 {
			now := start.Add(time.Duration(at * float64(time.Second)))
			if int(at/period)%2 == 0 {
				p.Report("l0", allBut("l0"), now)
			} else {
				p.Report("l0", nil, now)
			}
			p.Judge(now, func(n Node, _ bool) {
				if n.Name == "a1" {
					changes++
				}
			})
		}
		t.Logf("up and down each %v s for 300 s: %d changes", period, changes)
		if changes > 30 {
			t.Errorf("up and down each %v s: %d changes", period, changes)
		}
	}
}

// TestWorstFlapping takes a path down again as soon as it is restored.
func TestWorstFlapping(t *testing.T) {
	p, changes, is := table(1), 0, false
	for tenths := range 3000 {
		now := after(float64(tenths) / 10)
		if is = p.Withdrawn(Node{"aws", "a1"}); is {
			p.Report("l0", nil, now)
		} else {
			p.Report("l0", allBut("l0"), now)
		}
		p.Judge(now, func(n Node, _ bool) {
			if n.Name == "a1" {
				changes++
			}
		})
	}
	t.Logf("%d changes in 300 s", changes)
	if changes > 30 {
		t.Errorf("%d changes in 300 s", changes)
	}
}

func TestSteadyPathComesBackAtOnceAgain(t *testing.T) {
	p := table(1)
	outage := func(at float64) (back float64) {
		p.Report("l0", down("l0", "a1"), after(at))
		judged(p, after(at))
		p.Report("l0", nil, after(at+5))
		for ; judged(p, after(at+5+back)) != "[]"; back += 0.5 {
			if due := p.Due(); !due.After(after(at + 5 + back)) {
				t.Fatal("due in the past")
			}
		}
		return back
	}
	for i, c := range []struct{ at, want float64 }{{0, 0}, {20, 4}, {60, 8}, {400, 0}} {
		if got := outage(c.at); got != c.want {
			t.Errorf("outage %d comes back after %v s, want %v", i, got, c.want)
		}
	}
	judged(p, after(900))
	if len(p.verdicts) != 0 || len(p.due) != 0 || !p.Due().IsZero() {
		t.Error("something is remembered for ever")
	}
}

// TestPathTable changes reports, nodes and endpoints at random, and compares the table with
// one that is computed from all of them.
func TestPathTable(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		p, now := New[string](), epoch
		ready, seen := map[string]bool{}, map[string]*received{}
		local := func() string { return fmt.Sprintf("l%d", r.IntN(5)) }
		remote := func() []string {
			var some []string
			for i := range 4 {
				if r.IntN(2) == 0 {
					some = append(some, fmt.Sprintf("a%d", i))
				}
			}
			return some
		}
		for i := range 4 {
			p.Place(Node{"aws", fmt.Sprintf("a%d", i)}, "x/y", 1)
		}
		for range 60 {
			now = now.Add(time.Duration(r.IntN(20)) * time.Second)
			switch node := local(); r.IntN(5) {
			case 0:
				ready[node] = !ready[node]
				p.SetNode(node, ready[node])
			case 1:
				delete(seen, node)
				p.Report(node, nil, now)
			case 2:
				if s := seen[node]; s != nil {
					s.seen = now
					again := *s.Report
					p.Report(node, &again, now)
				}
			default:
				report := down(node, remote()...)
				if r.IntN(2) == 0 {
					report = allBut(node, remote()...)
				}
				seen[node] = &received{report, now}
				p.Report(node, report, now)
			}
			p.Judge(now, func(Node, bool) {})
			total := 0
			for _, is := range ready {
				if is {
					total++
				}
			}
			for i := range 4 {
				n, count := Node{"aws", fmt.Sprintf("a%d", i)}, 0
				for node, s := range seen {
					d := s.Remotes["aws"]
					if ready[node] && now.Before(s.seen.Add(pathreport.Expiry)) && d.Has(n.Name) {
						count++
					}
				}
				if got := p.Down(n); got != count {
					t.Fatalf("seed %d: %d report %s down, want %d", seed, got, n.Name, count)
				}
				// One that most report is withdrawn; one that they don't may be held.
				if most := 2*count > total; most && !p.Withdrawn(n) || !most && p.Withdrawn(n) && p.due[n].IsZero() {
					t.Fatalf("seed %d: %s is withdrawn: %v, reported by %d of %d", seed, n.Name, p.Withdrawn(n), count, total)
				}
			}
		}
	}
}
