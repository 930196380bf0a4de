package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestCommittedPlotsAreOfTheFigures draws the plots again. After a change of figures run
// make plots.
func TestCommittedPlotsAreOfTheFigures(t *testing.T) {
	docs := filepath.Join("..", "..", "..", "docs")
	files, err := filepath.Glob(filepath.Join(docs, "benchmarks", "*.jsonl"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	drawn, err := draw(files)
	if err != nil {
		t.Fatal(err)
	}
	for name, svg := range drawn {
		committed, err := os.ReadFile(filepath.Join(docs, "images", name))
		if err != nil {
			t.Error(err)
			continue
		}
		if diff := cmp.Diff(string(committed), string(svg)); diff != "" {
			t.Errorf("%s isn't of docs/benchmarks; run make plots (-committed +drawn):\n%s", name, diff)
		}
	}
	committed, err := filepath.Glob(filepath.Join(docs, "images", "bench-*"))
	if err != nil || len(committed) != len(drawn) {
		t.Errorf("docs/images has %q, which are to be %d plots: %v", committed, len(drawn), err)
	}
}

func TestNewestFiguresAreDrawn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.jsonl")
	lines := []string{
		`{"name":"a","unit":"s","ours":2,"machine":"m","date":"2026-02-01","command":"c"}`,
		`{"name":"a","unit":"s","ours":1,"with":"w","machine":"m","date":"2026-01-31","command":"c"}`,
		`{"name":"a","unit":"s","ours":3,"machine":"m","date":"2026-02-01","command":"c"}`,
	}
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	f := figures{}
	if err := f.read(path); err != nil {
		t.Fatal(err)
	}
	for with, want := range map[string]float64{"": 3, "w": 1} {
		if r, err := f.get("a", "s", with); err != nil || *r.Ours != want {
			t.Errorf("beside %q: %+v, %v, want %v", with, r, err, want)
		}
	}
	if _, err := f.get("a", "MB", ""); err == nil {
		t.Error("found a figure in another unit")
	}
	if _, err := throughput(f); err == nil {
		t.Error("a plot was drawn without its figures")
	}
}

func TestChart(t *testing.T) {
	c := chart{
		Title: `a < "b" & c`, Series: []string{"x"}, Line: 1,
		Groups: []group{{Label: "<g>", Bars: []bar{{Value: 0, Text: "0"}, {Value: 2, Low: 1, High: 4, Text: "2"}}}},
	}
	picture, err := c.svg()
	if err != nil {
		t.Fatal(err)
	}
	decoder := xml.NewDecoder(strings.NewReader(string(picture)))
	for err == nil {
		_, err = decoder.Token()
	}
	if !errors.Is(err, io.EOF) {
		t.Errorf("not XML: %v", err)
	}
	// The longest is the end of the spread, so the bar of 2 is half as long, and 0 is visible.
	for _, want := range []string{`width="222"`, `width="1"`, "H690"} {
		if !strings.Contains(string(picture), want) {
			t.Errorf("no %s in\n%s", want, picture)
		}
	}
	for _, c := range []chart{{}, {Groups: []group{{Bars: []bar{{Value: -1}}}}}} {
		if _, err := c.svg(); err == nil {
			t.Errorf("%+v was drawn", c)
		}
	}
}
