package policy

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/keep"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/synctest"
)

// The turn of a removal doesn't wait for the end of a back-off, that of an addition does.
func TestTurnOfARemovalDoesntWaitForABackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		tries := 0
		c := &Controller{}
		c.writer = keep.NewWriter(keep.WriterConfig[Identity]{
			Apply:    func(context.Context, Identity) error { tries++; return errors.New("refused") },
			RetryMin: time.Hour, RetryMax: time.Hour, Logger: slog.New(slog.DiscardHandler),
		})
		go func() { _ = c.writer.Run(ctx) }()
		id := Identity{Cluster: "gcp"}
		for _, turn := range []struct {
			urgent bool
			want   int
		}{{false, 1}, {false, 1}, {true, 2}} {
			c.turn(id, turn.urgent)
			time.Sleep(time.Second)
			synctest.Wait()
			if tries != turn.want {
				t.Errorf("%d tries after a turn, urgent: %v, want %d", tries, turn.urgent, turn.want)
			}
		}
		cancel()
		synctest.Wait()
	})
}
