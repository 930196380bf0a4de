package run

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/logtest"
)

func TestClientLogLevels(t *testing.T) {
	for _, c := range []struct {
		level slog.Level
		want  []string
	}{
		{slog.LevelInfo, nil},
		{slog.LevelDebug, []string{"Failed to watch", "Listing", "Backing off"}},
		{slog.LevelDebug - 4, []string{"Failed to watch", "Listing", "Backing off"}},
	} {
		var log logtest.Buffer
		l := ClientLog(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: c.level})).With("cluster", "gcp")).WithName("reflector").WithValues("kind", "nodes")
		l.Error(errors.New("refused"), "Failed to watch")
		l.Info("Listing")
		l.V(4).Info("Backing off")
		l.V(8).Info("Request Body")
		text := log.String()
		if n := strings.Count(text, "\n"); n != len(c.want) || strings.Count(text, "level=DEBUG") != n {
			t.Errorf("at level %v, want %q:\n%s", c.level, c.want, text)
		}
		for _, want := range c.want {
			if !strings.Contains(text, want) {
				t.Errorf("at level %v %q is missing:\n%s", c.level, want, text)
			}
		}
	}
}
