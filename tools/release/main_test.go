package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// call runs a command as main would and returns what it prints.
func call(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	err := run(t.Context(), args, &stdout, &stderr)
	t.Cleanup(func() {
		if t.Failed() && stderr.Len() > 0 {
			t.Logf("stderr of %q:\n%s", args, stderr.String())
		}
	})
	return stdout.String(), err
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestRunRefusesWhatItDoesNotKnow(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"no command", nil, "usage"},
		{"an unknown command", []string{"publish"}, `"publish"`},
		{"an unknown flag", []string{"sbom", "-format", "xml"}, "-format"},
		{"an argument too many", []string{"licences", "MIT"}, `"MIT"`},
		{"two versions", []string{"notes", "v1.0.0", "v2.0.0"}, `"v2.0.0"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := call(t, c.args...)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one that says %s", err, c.want)
			}
			if out != "" {
				t.Errorf("printed %q beside the error", out)
			}
		})
	}
}

func TestHelpIsNoError(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if err := run(t.Context(), []string{"sbom", "-h"}, &stdout, &stderr); err != nil {
		t.Error(err)
	}
	if !strings.Contains(stderr.String(), "-version") {
		t.Errorf("help doesn't name the flags: %q", stderr.String())
	}
}

func TestGoOutputShowsWhatGoComplainsOf(t *testing.T) {
	_, err := goOutput(context.Background(), t.TempDir(), nil, "list", "example.org/nowhere")
	if err == nil || !strings.Contains(err.Error(), "example.org/nowhere") {
		t.Errorf("error %v, want the complaint of go list", err)
	}
}
