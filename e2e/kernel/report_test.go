package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/e2e/kernel/wire"
)

const (
	passing = "\x16=== RUN   TestA\n    a_test.go:1: a log\n\x16--- PASS: TestA (0.01s)\n"
	failing = "\x16=== RUN   TestB\n\x16=== RUN   TestB/sub\n    b_test.go:2: wrong\n\x16--- FAIL: TestB/sub (0.00s)\n\x16--- FAIL: TestB (0.02s)\nFAIL\n"
	skipped = "\x16=== RUN   TestC\n\x16--- SKIP: TestC (0.00s)\nPASS\n"
)

// story returns the messages about a package that prints output in pieces of n bytes and
// exits with code.
func story(pkg, output string, n, code int) []wire.Message {
	messages := []wire.Message{{Kind: wire.KindStart, Program: pkg}}
	for len(output) > 0 {
		piece := output[:min(n, len(output))]
		output = output[len(piece):]
		messages = append(messages, wire.Message{Kind: wire.KindOutput, Program: pkg, Output: []byte(piece)})
	}
	return append(messages, wire.Message{Kind: wire.KindExit, Program: pkg, Code: code, Took: 1500 * time.Millisecond})
}

func TestReportCounts(t *testing.T) {
	for name, test := range map[string]struct {
		output string
		code   int
		want   result
		ok     bool
	}{
		"all passed":             {passing + "PASS\n", 0, result{passed: 1}, true},
		"some skipped":           {passing + skipped, 0, result{passed: 1, skipped: 1}, true},
		"one failed":             {passing + failing, 1, result{passed: 1, failed: 1}, false},
		"all skipped":            {skipped, 0, result{skipped: 1}, false},
		"no tests":               {"testing: warning: no tests to run\nPASS\n", 0, result{}, false},
		"passed, then exit 2":    {passing + "panic: after the tests\n", 2, result{passed: 1}, false},
		"a verdict that is text": {passing + "--- FAIL: TestX (0.0s)\n", 0, result{passed: 1}, true},
		"a line without its end": {"\x16=== RUN   TestA\nhalf\x16--- PASS: TestA (0.00s)\nPASS", 0, result{passed: 1}, true},
	} {
		t.Run(name, func(t *testing.T) {
			for _, pieces := range []int{1, 7, 1 << 20} {
				report := &reporter{out: &bytes.Buffer{}}
				for _, m := range story("p", test.output, pieces, test.code) {
					report.receive(m)
				}
				report.finish()
				want := test.want
				want.pkg, want.code, want.ended, want.took = "p", test.code, true, 1500*time.Millisecond
				if diff := cmp.Diff([]result{want}, report.results, cmp.AllowUnexported(result{})); diff != "" {
					t.Errorf("pieces of %d (-want +got):\n%s", pieces, diff)
				}
				if report.results[0].ok() != test.ok || report.failed(1) == test.ok {
					t.Errorf("ok: %v, failed: %v, want ok: %v", report.results[0].ok(), report.failed(1), test.ok)
				}
			}
		})
	}
}

func TestReportShowsOutputOfFailedPackagesOnly(t *testing.T) {
	var out bytes.Buffer
	report := &reporter{out: &out}
	report.receive(wire.Message{Kind: wire.KindUp, Text: "Linux"})
	for _, m := range append(story("good", passing, 1000, 0), story("bad", failing, 1000, 1)...) {
		report.receive(m)
	}
	report.finish()
	want := `machine: Linux
run 	good
    --- PASS: TestA (0.01s)
ok  	good	1.5s	1 passed, 0 failed, 0 skipped
run 	bad
    --- FAIL: TestB/sub (0.00s)
    --- FAIL: TestB (0.02s)
=== RUN   TestB
=== RUN   TestB/sub
    b_test.go:2: wrong
--- FAIL: TestB/sub (0.00s)
--- FAIL: TestB (0.02s)
FAIL
FAIL	bad	1.5s	exit status 1: 0 passed, 1 failed, 0 skipped
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestVerboseReportShowsEverythingOnce(t *testing.T) {
	var out bytes.Buffer
	report := &reporter{out: &out, verbose: true}
	for _, m := range story("bad", failing, 1000, 1) {
		report.receive(m)
	}
	if got := strings.Count(out.String(), "b_test.go:2: wrong"); got != 1 {
		t.Errorf("the log is there %d times:\n%s", got, out.String())
	}
	if got := strings.Count(out.String(), "--- FAIL: TestB "); got != 1 {
		t.Errorf("the verdict is there %d times:\n%s", got, out.String())
	}
}

func TestMachineThatDiedLeavesItsLastWords(t *testing.T) {
	var out bytes.Buffer
	report := &reporter{out: &out}
	cut := story("tunnel", passing+"\x16=== RUN   TestCrash\nlast words", 1000, 0)
	for _, m := range cut[:len(cut)-1] {
		report.receive(m)
	}
	report.finish()
	report.finish()
	if !report.failed(1) {
		t.Error("a package that did not end has not failed")
	}
	for _, want := range []string{"last words\n", "FAIL\ttunnel\tdid not end\t1 passed"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
}

func TestFewerPackagesThanPlannedIsAFailure(t *testing.T) {
	report := &reporter{out: &bytes.Buffer{}}
	if !report.failed(0) || !report.failed(1) {
		t.Error("nothing ran and that's no failure")
	}
	for _, m := range story("p", passing, 1000, 0) {
		report.receive(m)
	}
	if report.failed(1) || !report.failed(2) {
		t.Errorf("one package ran: failed(1) %v, failed(2) %v", report.failed(1), report.failed(2))
	}
	report.receive(wire.Message{Kind: wire.KindFault, Text: "no memory"})
	if !report.failed(1) {
		t.Error("a machine that gave up is no failure")
	}
}

func FuzzReport(f *testing.F) {
	f.Add([]byte(passing + failing + skipped))
	f.Add([]byte("\x16--- PASS: \x16--- FAIL:"))
	f.Fuzz(func(_ *testing.T, output []byte) {
		report := &reporter{out: &bytes.Buffer{}}
		report.output(output)
		report.finish()
	})
}
