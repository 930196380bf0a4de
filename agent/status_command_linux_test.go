package agent

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
)

// TestStatusOfARealAgent queries an agent whose API servers are all unreachable.
func TestStatusOfARealAgent(t *testing.T) {
	nstest.QuickRoot(t)
	a, err := newAgent(testConfig(t), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	a.cfg.ProbeAddress = "127.0.0.1:17774"
	a.tasks()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.servers.Probes.Run(ctx) }() // nothing else runs
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	polltest.Until(t, time.Minute, "the server to listen", func() bool { return a.servers.Probes.Err() == nil })
	t.Setenv("SEMAPHORE_PROBE_ADDRESS", a.cfg.ProbeAddress)
	var stdout, stderr strings.Builder
	if code := statusCommand().Run(t.Context(), nil, &stdout, &stderr); code != 1 || stderr.Len() > 0 {
		t.Errorf("code %d, stderr %q", code, stderr.String())
	}
	for _, want := range []string{
		"cluster aws, node aws-1\n", "wireguard.merit", "the node object of aws-1", "remote gcp: its nodes have not been read since start",
		"remote merit: device wireguard.merit:",
	} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("printed:\n%s\nwant in it: %s", stdout.String(), want)
		}
	}
}
