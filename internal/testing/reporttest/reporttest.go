// Package reporttest tests the rendering of reports by the status commands.
package reporttest

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/internal/report"
)

// Now is the time of the pages, so that ages don't depend on the duration of a test.
var Now = time.Now()

// Printed is the result of a command.
type Printed struct {
	Code           int
	Stdout, Stderr string
}

// Run serves a report as a program does, and runs the command on it.
func Run[R any](t testing.TB, command report.Command[R], served R, args ...string) Printed {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if err := json.NewEncoder(w).Encode(served); err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	show := command.Show
	command.Show = func(p *report.Page, r *R) {
		p.Now = Now
		show(p, r)
	}
	var stdout, stderr strings.Builder
	code := command.Run(t.Context(), append([]string{"-address", server.Listener.Addr().String()}, args...), &stdout, &stderr)
	return Printed{code, stdout.String(), stderr.String()}
}

// Wrong returns the problems of a page, a line each, and the text before them.
func (p Printed) Wrong() (lines []string, before string) {
	before, wrong, found := strings.Cut(p.Stdout, "\nwrong:\n  ")
	if !found {
		return nil, before
	}
	return strings.Split(strings.TrimSuffix(wrong, "\n"), "\n  "), before
}

// Finds runs the command on a report, and fails the test unless the page has exactly these
// problems, and contains the text shown before them.
func Finds[R any](t testing.TB, command report.Command[R], report R, wrong []string, shown string) {
	t.Helper()
	got := Run(t, command, report)
	lines, tables := got.Wrong()
	if diff := cmp.Diff(wrong, lines); diff != "" || got.Code != 1 {
		t.Errorf("code %d, wrong (-want +got):\n%s", got.Code, diff)
	}
	if !strings.Contains(tables, shown) {
		t.Errorf("printed:\n%s\nwant in it:\n%s", got.Stdout, shown)
	}
}
