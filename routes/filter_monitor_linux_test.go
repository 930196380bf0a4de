package routes

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

func TestFlushedFilterIsBackWithinASecond(t *testing.T) {
	for name, script := range map[string]string{
		"flush ruleset": "flush ruleset",
		"flush table":   "flush table inet " + FilterTable,
		"delete table":  "delete table inet " + FilterTable,
	} {
		t.Run(name, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				mustFilter(t, gcpOrigin())
				nft(t, "add table ip others")
				events := start(t, NewFilterMonitor(slog.New(slog.NewTextHandler(t.Output(), nil)), nil))
				quiet(t, events)
				// Changes of foreign tables cause no notification.
				nft(t, "add chain ip others one { type filter hook input priority 0; }; add rule ip others one counter")
				nft(t, "add table inet "+FilterTable+"-other; delete table inet "+FilterTable+"-other")
				select {
				case <-events:
					t.Error("notified of tables of others")
				case <-time.After(100 * time.Millisecond):
				}

				nft(t, script)
				deadline := time.After(repairTime)
				for enforced := false; !enforced; {
					select {
					case <-events:
						mustFilter(t, gcpOrigin())
					case <-deadline:
						t.Fatalf("not back after %s", repairTime)
					}
					var err error
					enforced, err = enforces(t, gcpOrigin())
					must(t, err)
				}
			})
		})
	}
}

// Without nf_tables, which is required, only the filter fails, with its error.
func TestKernelWithoutNetfilter(t *testing.T) {
	host := nstest.New(t)
	err := nstest.WithoutNetfilter(host, func() error {
		f := newFilter(t)
		if err := RequireFilter(t.Context()); !errors.Is(err, ErrNoFilter) {
			t.Errorf("required: %v", err)
		}
		_, syncErr := f.Sync(t.Context(), rulesetOf(gcpOrigin()))
		enforced, lookErr := enforces(t, gcpOrigin())
		_, removeErr := f.Sync(t.Context(), Ruleset{})
		table := newTable(t)
		_, fenceErr := table.Fence(t.Context(), prefixes(subnet4))
		if !errors.Is(syncErr, ErrNoFilter) || !errors.Is(lookErr, ErrNoFilter) || enforced || removeErr != nil || fenceErr != nil {
			t.Errorf("sync %v, look %v %v, remove %v, fence %v", syncErr, enforced, lookErr, removeErr, fenceErr)
		}
		_, err := table.Sync(t.Context(), Desired(prefixes(subnet4), 0, nil))
		return err
	})
	must(t, err)
}

func TestFilterWithoutTheCapability(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		f := newFilter(t)
		// On its own thread, which ends with its dropped capabilities.
		must(t, nstest.Current(t).Do(func() error {
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var data [2]unix.CapUserData
			if err := unix.Capget(&header, &data[0]); err != nil {
				return err
			}
			data[0].Effective &^= 1 << unix.CAP_NET_ADMIN
			if err := unix.Capset(&header, &data[0]); err != nil {
				return err
			}
			_, err := f.Sync(t.Context(), rulesetOf(gcpOrigin()))
			if !errors.Is(err, unix.EPERM) || errors.Is(err, ErrNoFilter) {
				t.Errorf("error %v, want %v", err, unix.EPERM)
			}
			return nil
		}))
	})
}

// NET_ADMIN is sufficient.
func TestFilterWithNothingButTheCapability(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		must(t, nstest.Current(t).Do(func() error {
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var data [2]unix.CapUserData
			data[0].Effective, data[0].Permitted = 1<<unix.CAP_NET_ADMIN, 1<<unix.CAP_NET_ADMIN|1<<unix.CAP_SYS_ADMIN
			if err := unix.Capset(&header, &data[0]); err != nil {
				return err
			}
			f := newFilter(t)
			_, err := f.Sync(t.Context(), rulesetOf(gcpOrigin()))
			if err == nil {
				_, err = f.Sync(t.Context(), Ruleset{})
			}
			// Leaving the namespace again needs more capabilities.
			data[0].Effective = data[0].Permitted
			return errors.Join(err, unix.Capset(&header, &data[0]))
		}))
	})
}
