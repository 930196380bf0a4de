package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/kernel/wire"
)

// mark precedes the lines of the testing package in the output of a test binary under
// -test.v=test2json. Output of tests doesn't have it.
const mark = '\x16'

// result is how one package's tests ended.
type result struct {
	pkg                     string
	passed, failed, skipped int
	code                    int
	took                    time.Duration
	ended                   bool
}

// ok reports whether the package proves something: it ended well, and a test
// that wasn't skipped ran.
func (r result) ok() bool { return r.ended && r.code == 0 && r.failed == 0 && r.passed > 0 }

// String describes the result in the manner of go test.
func (r result) String() string {
	counts := fmt.Sprintf("%d passed, %d failed, %d skipped", r.passed, r.failed, r.skipped)
	took := r.took.Seconds()
	switch {
	case r.ok():
		return fmt.Sprintf("ok  \t%s\t%.1fs\t%s", r.pkg, took, counts)
	case !r.ended:
		return fmt.Sprintf("FAIL\t%s\tdid not end\t%s", r.pkg, counts)
	case r.code == 0 && r.failed == 0:
		return fmt.Sprintf("FAIL\t%s\t%.1fs\tno test ran: %s", r.pkg, took, counts)
	}
	return fmt.Sprintf("FAIL\t%s\t%.1fs\texit status %d: %s", r.pkg, took, r.code, counts)
}

// reporter turns the machine's messages into what go test would print: the
// verdict of each test as it comes, and all output of a package that fails.
type reporter struct {
	out io.Writer
	// verbose prints all output as it comes.
	verbose bool
	// up is the machine's description of itself, empty before it has started.
	up string
	// fault is why the machine gave up.
	fault   string
	results []result
	log     bytes.Buffer // output of the current package, whole lines
	partial []byte       // of its last line
}

// receive takes one message.
func (r *reporter) receive(m wire.Message) {
	switch m.Kind {
	case wire.KindUp:
		r.up = m.Text
		fmt.Fprintf(r.out, "machine: %s\n", m.Text)
	case wire.KindStart:
		r.log.Reset()
		r.results = append(r.results, result{pkg: m.Program})
		fmt.Fprintf(r.out, "run \t%s\n", m.Program)
	case wire.KindOutput:
		r.output(m.Output)
	case wire.KindExit:
		r.flush()
		last := r.current()
		last.code, last.took, last.ended = m.Code, m.Took, true
		r.conclude(*last)
	case wire.KindFault:
		r.fault = m.Text
	case wire.KindAlive, wire.KindDone:
	}
}

// finish ends the report when the machine is gone: a package that was running
// is shown with what it printed.
func (r *reporter) finish() {
	if len(r.results) > 0 && !r.current().ended {
		r.flush()
		r.conclude(*r.current())
	}
}

// failed reports whether anything went wrong, given how many packages were to run.
func (r *reporter) failed(want int) bool {
	for _, result := range r.results {
		if !result.ok() {
			return true
		}
	}
	return r.fault != "" || len(r.results) != want || want == 0
}

func (r *reporter) current() *result {
	if len(r.results) == 0 {
		r.results = append(r.results, result{pkg: "unknown"})
	}
	return &r.results[len(r.results)-1]
}

func (r *reporter) conclude(result result) {
	if !result.ok() && !r.verbose {
		_, _ = r.out.Write(r.log.Bytes())
	}
	fmt.Fprintln(r.out, result)
}

// output splits a piece of output into lines.
func (r *reporter) output(piece []byte) {
	r.partial = append(r.partial, piece...)
	for {
		line, rest, found := bytes.Cut(r.partial, []byte{'\n'})
		if !found {
			return
		}
		r.line(string(line))
		r.partial = rest
	}
}

func (r *reporter) flush() {
	if len(r.partial) > 0 {
		r.line(string(r.partial))
		r.partial = nil
	}
}

// line takes one line of a test. What a test prints without ending the line is
// followed by the mark of the next event.
func (r *reporter) line(line string) {
	text, event, marked := strings.Cut(line, string(mark))
	if text != "" || !marked {
		r.print(text)
	}
	if !marked {
		return
	}
	// Between tests a test binary changes to no test: an event of no interest.
	if strings.TrimSpace(event) == "=== NAME" {
		return
	}
	r.print(event)
	verdict, rest, _ := strings.Cut(event, ": ")
	name, _, _ := strings.Cut(rest, " ")
	failed := verdict == "--- FAIL"
	// Only whole tests count; of subtests the failed ones are shown.
	if whole := !strings.Contains(name, "/"); whole {
		last := r.current()
		switch verdict {
		case "--- PASS":
			last.passed++
		case "--- FAIL":
			last.failed++
		case "--- SKIP":
			last.skipped++
		default:
			return
		}
	} else if !failed {
		return
	}
	if !r.verbose {
		fmt.Fprintf(r.out, "    %s\n", event)
	}
}

func (r *reporter) print(line string) {
	if r.verbose {
		fmt.Fprintln(r.out, line)
		return
	}
	fmt.Fprintln(&r.log, line)
}
