package kubelet_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

var injected = flag.String("faults", "", "regular expression of the faults that TestDoctorScore injects; empty: none")

// fault is injected into running clusters and removed again.
type fault struct {
	kind, name string
	// named matches a cause with its evidence that a user can act on; one that doesn't match
	// is a symptom.
	named string
	// delay is how long the fault lasts before doctor is asked. Default: settle.
	delay  time.Duration
	inject func(t *testing.T)
	remove func(t *testing.T)
}

const (
	// settle is the time after which a user would ask.
	settle = 10 * time.Second
	// asks is how often doctor may be asked until it names a fault.
	asks = 3
)

// diagnosis is part of the output of "semaphorectl doctor -o json".
type diagnosis struct {
	Verdict string
	Causes  []struct {
		ID, What, Remedy string
		Evidence         []struct{ Text string }
	}
	Unknown []struct{ What, Why string }
}

// outcome is how doctor has judged a fault, from the best to the worst.
type outcome int

const (
	named   outcome = iota
	symptom         // it has reported a consequence of the fault
	unknown         // it has reported that something couldn't be asked
	green           // it has reported that all is well
)

func (o outcome) String() string {
	return [...]string{"named", "symptom", "unknown", "GREEN"}[o]
}

// judge returns the outcome of a diagnosis, and the first words of its causes.
func (f *fault) judge(d *diagnosis) (outcome, string) {
	pattern := regexp.MustCompile("(?i)" + f.named)
	var said []string
	best := unknown
	for _, c := range d.Causes {
		if best == unknown {
			best = symptom
		}
		text := c.ID + ": " + c.What
		for _, e := range c.Evidence {
			text += "; " + e.Text
		}
		if pattern.MatchString(text) {
			best = named
		}
		said = append(said, c.ID)
	}
	slices.Sort(said)
	said = slices.Compact(said)
	if d.Verdict == "well" {
		return green, "all is well"
	}
	if len(said) == 0 {
		for _, u := range d.Unknown {
			said = append(said, u.What)
		}
	}
	return best, strings.Join(said, ", ")
}

// TestDoctorScore injects faults into two joined clusters with kubelets, CoreDNS and
// kube-proxy, one after the other, and prints what doctor says of each. A fault that doctor
// calls well fails the test.
func TestDoctorScore(t *testing.T) {
	if *injected == "" {
		t.Skip("-faults isn't given: no faults are injected")
	}
	chosen := regexp.MustCompile(*injected)
	l := startLab(t, "aws", "gcp")
	p := &patients{lab: l}
	p.addNode(t)
	l.startDNS(t)
	l.serveCalico(t)
	for i := range l.clusters {
		l.serveMeter(t, i)
	}
	l.ctl(t, "join", "--yes", "--image", ourImage(), "aws", "gcp")
	l.answerByName(t, 0, 1)
	p.recovers(t, "after joining")

	type line struct {
		fault
		outcome
		said  string
		after time.Duration
	}
	var table []line
	count, kinds := map[outcome]int{}, map[string]bool{}
	for _, f := range p.faults() {
		if !chosen.MatchString(f.kind + "/" + f.name) {
			continue
		}
		t.Logf("FAULT %s/%s", f.kind, f.name)
		began := time.Now()
		f.inject(t)
		pause(t, max(f.delay, settle))
		result := line{fault: f, outcome: unknown}
		worst := named
		for range asks {
			d := p.ask(t)
			if d == nil {
				result.said = "no diagnosis"
				continue
			}
			result.outcome, result.said = f.judge(d)
			for i := range d.Causes {
				t.Logf("CAUSE %+v", d.Causes[i])
			}
			if len(d.Causes) == 0 {
				t.Logf("UNKNOWN %+v", d.Unknown)
			}
			if result.outcome == green {
				worst = green
			}
			if result.outcome == named {
				break
			}
		}
		result.outcome = max(result.outcome, worst)
		result.after = time.Since(began)
		f.remove(t)
		p.recovers(t, f.name)
		t.Logf("RESULT %-10s %-62s %-8s %s", f.kind, f.name, result.outcome, result.said)
		table = append(table, result)
		count[result.outcome]++
		kinds[f.kind] = true
	}
	for _, r := range table {
		t.Logf("FIGURE %-10s %-62s %-8s %s (%.0f s)", r.kind, r.name, r.outcome, r.said, r.after.Seconds())
		if r.outcome == green {
			t.Errorf("%s: doctor says that all is well", r.name)
		}
	}
	t.Logf("FIGURE of %d faults of %d kinds (%s): %d named, %d by a symptom, %d unknown, %d called well",
		len(table), len(kinds), strings.Join(slices.Sorted(maps.Keys(kinds)), ", "), count[named], count[symptom], count[unknown], count[green])
}

// patients are two joined clusters. aws has two nodes, gcp has one.
type patients struct {
	*lab
	second *testbed.Node
}

// addNode adds a second node to aws.
func (p *patients) addNode(t *testing.T) {
	t.Helper()
	var err error
	p.second, _, err = p.startKubelet(t.Context(), p.clusters[0])
	must(t, err)
}

// pause lets time pass in which a fault takes effect: users ask at any time.
func pause(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}

// ask returns doctor's diagnosis; nil if it printed none.
func (p *patients) ask(t *testing.T) *diagnosis {
	t.Helper()
	kubeconfig, err := p.testbed.Kubeconfig()
	must(t, err)
	// From a machine that no fault affects. The exit code is the verdict.
	out, err := p.testbed.Run(t.Context(), "env", "KUBECONFIG="+kubeconfig, "HOME="+t.TempDir(), p.tool, "doctor", "-o", "json", "aws", "gcp")
	var d diagnosis
	// Progress is printed before the diagnosis.
	at := strings.Index(out, "{\n")
	if at < 0 {
		t.Logf("no diagnosis: %v: %s", err, out)
		return nil
	}
	if err := json.NewDecoder(strings.NewReader(out[at:])).Decode(&d); err != nil {
		t.Logf("decode the diagnosis: %v", err)
		return nil
	}
	return &d
}

// recovers waits until doctor calls the clusters well.
func (p *patients) recovers(t *testing.T, what string) {
	t.Helper()
	must(t, testbed.Wait(within(t, 6*time.Minute), "the clusters to be well again: "+what, func(context.Context) error {
		d := p.ask(t)
		if d == nil {
			return errors.New("no diagnosis")
		}
		if d.Verdict != "well" {
			return fmt.Errorf("%s: %+v %+v", d.Verdict, d.Causes, d.Unknown)
		}
		return nil
	}))
}

// onNode returns a function that runs a line of a shell on a node.
func onNode(node *testbed.Node, line string) func(t *testing.T) {
	return func(t *testing.T) {
		t.Helper()
		if out, err := node.Run(context.WithoutCancel(t.Context()), "sh", "-ec", line); err != nil {
			t.Fatalf("%s: %s: %v\n%s", node.Name, line, err, out)
		}
	}
}

// kubectlIn returns a function that runs lines of kubectl's arguments in a cluster.
func (p *patients) kubectlIn(cluster int, lines ...string) func(t *testing.T) {
	return func(t *testing.T) {
		t.Helper()
		for _, line := range lines {
			p.kubectl(t, cluster, strings.Fields(line)...)
		}
	}
}

func all(steps ...func(t *testing.T)) func(t *testing.T) {
	return func(t *testing.T) {
		t.Helper()
		for _, step := range steps {
			step(t)
		}
	}
}

// setting changes a setting of a workload of aws by a variable, which goes before the
// ConfigMap, and waits for the rollout unless the program refuses it.
func (p *patients) setting(kind, name, assignment string, rollout bool) func(t *testing.T) {
	workload := kind + "/" + name
	lines := []string{"-n " + programs.Namespace + " set env " + workload + " " + assignment}
	if rollout {
		lines = append(lines, "-n "+programs.Namespace+" rollout status --timeout=150s "+workload)
	}
	return p.kubectlIn(0, lines...)
}

// manifest returns functions that apply a manifest in a cluster, and delete it.
func (p *patients) manifest(cluster int, text string) (inject, remove func(t *testing.T)) {
	file := func(t *testing.T) string {
		t.Helper()
		path := filepath.Join(t.TempDir(), "fault.yaml")
		must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	return func(t *testing.T) { p.kubectl(t, cluster, "apply", "-f", file(t)) },
		func(t *testing.T) { p.kubectl(t, cluster, "delete", "--ignore-not-found", "-f", file(t)) }
}

// withoutVersion removes from an object or list what a server has added, so that it can be
// created again.
func withoutVersion(t *testing.T, text string) string {
	t.Helper()
	var o map[string]any
	decode(t, text, &o)
	objects := []any{o}
	if items, ok := o["items"].([]any); ok {
		objects = items
	}
	for _, object := range objects {
		if metadata, ok := object.(map[string]any)["metadata"].(map[string]any); ok {
			for _, field := range []string{"uid", "resourceVersion", "creationTimestamp", "managedFields"} {
				delete(metadata, field)
			}
		}
	}
	clean, err := json.Marshal(o)
	must(t, err)
	return string(clean)
}

// apiAddress returns the address in an API server's URL.
func apiAddress(api string) string {
	parsed, err := url.Parse(api)
	if err != nil {
		return ""
	}
	return parsed.Hostname()
}
