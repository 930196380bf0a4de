package testbed

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
)

// Start creates a testbed for a test and closes it at its end. It builds the
// tools that cfg.Tools lacks of etcd, kube-apiserver, kubectl and those named.
// When the test has failed, the ends of all logs are printed. Start calls
// nstest.Root.
func Start(t testing.TB, cfg Config, more ...string) *Testbed {
	t.Helper()
	nstest.Root(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	names := append([]string{tools.Etcd, tools.KubeAPIServer, tools.Kubectl}, more...)
	binaries, err := tools.Build(ctx, t.Output(), names...)
	if err != nil {
		t.Fatal(err)
	}
	for name, path := range cfg.Tools {
		binaries[name] = path
	}
	cfg.Tools = binaries
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	tb, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			tb.printLogs(t, 40)
		}
		if err := tb.Close(); err != nil {
			t.Errorf("close testbed: %v", err)
		}
	})
	return tb
}

func (tb *Testbed) printLogs(t testing.TB, lines int) {
	paths, err := filepath.Glob(tb.LogPath("*"))
	if err != nil {
		t.Error(err)
	}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
			continue
		}
		all := strings.Split(strings.TrimRight(string(content), "\n"), "\n")
		t.Logf("end of %s:\n%s", filepath.Base(path), strings.Join(all[max(0, len(all)-lines):], "\n"))
	}
}
