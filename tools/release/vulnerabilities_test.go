package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"flag"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// entry is a made-up vulnerability of the standard library, as the database has
// them (https://go.dev/security/vuln/database#schema).
const entry = `{
  "schema_version": "1.3.1", "id": "GO-2026-0001", "modified": "2026-01-01T00:00:00Z", "published": "2026-01-01T00:00:00Z",
  "summary": "Parsing is dangerous", "details": "Parsing is dangerous.",
  "affected": [{
    "package": {"name": "stdlib", "ecosystem": "Go"},
    "ranges": [{"type": "SEMVER", "events": [{"introduced": "0"}]}],
    "ecosystem_specific": {"imports": [{"path": "net/url", "symbols": ["Parse"]}]}
  }],
  "database_specific": {"url": "https://pkg.go.dev/vuln/GO-2026-0001"}
}`

// serve offers files as a vulnerability database, each compressed as the real
// one has them, and returns its address.
func serve(t *testing.T, files map[string]string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, ok := files[strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/"), ".json.gz")]
		if !ok {
			http.NotFound(w, r)
			return
		}
		compressed := gzip.NewWriter(w)
		_, _ = io.WriteString(compressed, content)
		_ = compressed.Close()
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// vulnerable is a database that knows entry.
func vulnerable() map[string]string {
	return map[string]string{
		"index/db":        `{"modified": "2026-01-01T00:00:00Z"}`,
		"index/modules":   `[{"path": "stdlib", "vulns": [{"id": "GO-2026-0001", "modified": "2026-01-01T00:00:00Z"}]}]`,
		"index/vulns":     `[{"id": "GO-2026-0001", "modified": "2026-01-01T00:00:00Z"}]`,
		"ID/GO-2026-0001": entry,
	}
}

// check runs the command on a module whose main function has the given body.
func check(ctx context.Context, t *testing.T, db, body string) (string, error) {
	t.Helper()
	root := t.TempDir()
	write(t, filepath.Join(root, "go.mod"), "module example.org/ours\n\ngo 1.26.0\n")
	write(t, filepath.Join(root, "main.go"), "package main\n\nimport \"net/url\"\n\nfunc main() {\n\t"+body+"\n}\n")
	var stdout, stderr bytes.Buffer
	err := vulnerabilitiesCommand(ctx, invocation{
		root: root, flags: flag.NewFlagSet("", flag.ContinueOnError), args: []string{"-db", db}, stdout: &stdout, stderr: &stderr,
	})
	return stdout.String() + stderr.String(), err
}

const (
	reaches = `_, _ = url.Parse("https://example.org")`
	avoids  = `_ = url.PathEscape("a b")`
)

// TestVulnerabilities runs the real govulncheck.
func TestVulnerabilities(t *testing.T) {
	if testing.Short() {
		t.Skip("builds govulncheck; the whole test run does that")
	}
	broken := vulnerable()
	delete(broken, "ID/GO-2026-0001")
	for _, c := range []struct {
		name, body string
		files      map[string]string
		out        string // part of what is printed
		err        string // part of the error, empty for none
	}{
		{"code that calls what is vulnerable", reaches, vulnerable(), "GO-2026-0001", "reaches known vulnerabilities"},
		{"code that only imports it", avoids, vulnerable(), "doesn't appear to call", ""},
		{"code that doesn't compile", "undefinedThing()", vulnerable(), "undefinedThing", "govulncheck"},
		{"a database that contradicts itself", reaches, broken, "GO-2026-0001", "govulncheck"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := check(t.Context(), t, serve(t, c.files), c.body)
			if !strings.Contains(out, c.out) {
				t.Errorf("printed, without %q:\n%s", c.out, out)
			}
			switch {
			case c.err == "" && err != nil:
				t.Errorf("error %v, want none", err)
			case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
				t.Errorf("error %v, want one that says %q", err, c.err)
			}
			if strings.Contains(out, "not checked") {
				t.Errorf("claims that nothing was checked:\n%s", out)
			}
		})
	}
}

func TestVulnerabilitiesNotCheckedWithoutDatabase(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := "http://" + listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, db, reason string }{
		{"a closed port", closed, "refused"},
		{"something else answers", serve(t, nil), "404"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := check(t.Context(), t, c.db, reaches)
			if err != nil {
				t.Errorf("error %v, want none", err)
			}
			if !strings.HasPrefix(out, "not checked: ") || !strings.Contains(out, c.reason) {
				t.Errorf("printed %q, want that nothing was checked, and why: %s", out, c.reason)
			}
		})
	}
}

// TestVulnerabilitiesNotCheckedWhenTheDatabaseGoesAway serves the first request,
// by which the database is found, and no other.
func TestVulnerabilitiesNotCheckedWhenTheDatabaseGoesAway(t *testing.T) {
	if testing.Short() {
		t.Skip("builds govulncheck; the whole test run does that")
	}
	var requests atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if requests.Add(1) > 1 {
			w.WriteHeader(http.StatusBadGateway)
		}
	}))
	t.Cleanup(server.Close)
	out, err := check(t.Context(), t, server.URL, reaches)
	if err != nil || !strings.Contains(out, "not checked: ") || !strings.Contains(out, "502") {
		t.Errorf("error %v, printed %q, want that nothing was checked, and why", err, out)
	}
	if requests.Load() < 3 {
		t.Errorf("%d requests, want govulncheck's between two of ours", requests.Load())
	}
}

func TestVulnerabilitiesInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if out, err := check(ctx, t, serve(t, vulnerable()), reaches); err == nil || strings.Contains(out, "not checked") {
		t.Errorf("error %v, printed %q: an interrupted check is no passed one", err, out)
	}
}
