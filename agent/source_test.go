package agent

import (
	"log/slog"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/peers"
)

// TestWholeNodesAreRead lists nodes whole when their metadata doesn't suffice to decide, after a random
// part of the time over which agents spread lists, and no more than once.
func TestWholeNodesAreRead(t *testing.T) {
	const spread = time.Minute
	d := &direct{
		Watch: kube.NewWatch(kube.WatchConfig[*peers.Node]{
			Cluster: "gcp", Kind: "nodes", Logger: slog.New(slog.DiscardHandler), Metrics: kube.NewMetrics("test", "test_failures_total"), Notify: func() {},
		}),
		cluster: "gcp", reader: kube.NewNodeReader(nil, nil), spread: func() time.Duration { return spread }, log: slog.New(slog.DiscardHandler),
	}
	const fine, undecided = false, true
	now := time.Unix(1_800_000_000, 0)
	for i, c := range []struct {
		after  time.Duration
		state  bool
		whole  bool
		waits  bool
		reason string
	}{
		{0, fine, false, false, "metadata suffices"},
		{0, undecided, false, true, "the list is spread"},
		{0, fine, false, false, "what was undecided is gone"},
		{0, undecided, false, true, "it is back"},
		{spread, undecided, true, false, "it is time"},
		{0, undecided, true, false, "they are not read yet"},
		{time.Hour, fine, true, false, "they are read whole until a restart"},
	} {
		now = now.Add(c.after)
		if due := d.Decided(now, c.state); d.reader.Whole() != c.whole || due.IsZero() == c.waits || due.After(now.Add(spread)) {
			t.Errorf("%d, %s: whole %v, due %v", i, c.reason, d.reader.Whole(), due)
		}
	}
}
