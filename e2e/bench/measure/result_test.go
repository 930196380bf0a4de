package measure

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCompared(t *testing.T) {
	got := Compared("TCP", "Gbit/s", "other", []float64{3, 1, 2}, []float64{2, 2, 1}, []float64{1.5, 0.5, 2})
	want := Result{Name: "TCP", Unit: "Gbit/s", With: "other", Ours: new(2.0), Beside: new(2.0), Ratio: new(1.5), Spread: []float64{0.5, 2}, Pairs: 3}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	// No packet lost beside ours: no ratio.
	got = Compared("lost", "packets", "other", []float64{1}, []float64{0}, []float64{math.Inf(1)})
	want = Result{Name: "lost", Unit: "packets", With: "other", Ours: new(1.0), Beside: new(0.0), Pairs: 1}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestAppendedResultsAreRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.jsonl")
	for _, value := range []float64{1.23456, 20000.4} {
		if err := Append(path, "./e2e/bench", []Result{Alone("start", "s", value)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := Append("", "./e2e/bench", []Result{Alone("start", "s", 1)}); err != nil {
		t.Error(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	results, err := Read(file)
	if err != nil || len(results) != 2 {
		t.Fatalf("%d results, %v", len(results), err)
	}
	if *results[0].Ours != 1.235 || *results[1].Ours != 20000 {
		t.Errorf("values %v and %v", *results[0].Ours, *results[1].Ours)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if m := results[0].Machine; !strings.Contains(m, "cores") || len(host) > 3 && strings.Contains(m, host) {
		t.Errorf("machine %q", m)
	}
	for _, text := range []string{`{"name":"a"}`, `{"name":"a","machine":"m","date":"d","command":"c","spread":[1]}`, `{"nam":"a"}`, "{"} {
		if _, err := Read(strings.NewReader(text)); err == nil {
			t.Errorf("%s was read", text)
		}
	}
}

func TestCommandLine(t *testing.T) {
	for _, args := range [][]string{{"-json", "f", "-pairs", "3"}, {"--json=f", "-pairs", "3"}, {"-pairs", "3", "-json", "f"}} {
		if got := commandLine("./e2e/bench", args); got != "go run ./e2e/bench -pairs 3" {
			t.Errorf("%q: %s", args, got)
		}
	}
	if got := commandLine("./e2e/bench/packets", []string{"-only", "TCP, 1 stream"}); got != `go run ./e2e/bench/packets -only "TCP, 1 stream"` {
		t.Error(got)
	}
}
