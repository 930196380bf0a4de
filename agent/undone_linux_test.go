package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/logtest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
	"github.com/kube-semaphore/kube-semaphore/routes"
)

// Whatever another program removes or changes again and again is repaired, and a fault in
// the status.
func TestAnotherProgramUndoesRepairs(t *testing.T) {
	nstest.QuickRoot(t)
	silent := slog.New(slog.DiscardHandler)
	table, err := routes.NewTable(silent, 0)
	check(t, err)
	defer table.Close()
	for _, c := range []struct {
		loop string
		undo func(ctx context.Context) error
	}{
		{"packet filter", func(ctx context.Context) error {
			_, err := routes.NewFilter(silent).Sync(ctx, routes.Ruleset{})
			return err
		}},
		{"routes", func(ctx context.Context) error {
			_, err := table.Fence(ctx, nil)
			return err
		}},
		{"source addresses", func(ctx context.Context) error {
			_, err := routes.SyncICMP(ctx, silent, nil)
			return err
		}},
		{"forwarding", func(context.Context) error {
			err := os.WriteFile("/proc/sys/net/ipv4/conf/wireguard.gcp/forwarding", []byte("0"), 0)
			if errors.Is(err, os.ErrNotExist) {
				return nil
			}
			return err
		}},
		{"device gcp", func(context.Context) error {
			link, err := netlink.LinkByName("wireguard.gcp")
			if _, missing := errors.AsType[netlink.LinkNotFoundError](err); missing {
				return nil
			}
			if err != nil {
				return err
			}
			return netlink.LinkSetMTU(link, 1300)
		}},
	} {
		t.Run(c.loop, func(t *testing.T) {
			cfg := testConfig(t)
			cfg.RouteSrc = config.RouteSrcNone
			var logs logtest.Buffer
			a := startAgent(t, cfg, &logs)
			polltest.Until(t, time.Minute, "both devices", func() bool { return a.remotes[0].present() && a.remotes[1].present() })
			var undone []string
			polltest.Until(t, 2*time.Minute, "the fault in the status", func() bool {
				check(t, c.undo(t.Context()))
				undone = nil
				for _, condition := range statusOf(a).Conditions {
					if condition.Reason == statuspage.ReasonUndone && condition.Since != nil {
						undone = append(undone, condition.Object)
					}
				}
				return slices.Contains(undone, c.loop)
			})
			if len(undone) > 1 {
				t.Errorf("undone: %q", undone)
			}
			if t.Failed() {
				t.Log(logs.String())
			}
		})
	}
}
