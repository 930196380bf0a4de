package routes

import (
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

// TestKernelWithoutIPv6 is for a machine booted with ipv6.disable=1, as make test-kernel
// does. It is skipped elsewhere.
func TestKernelWithoutIPv6(t *testing.T) {
	cmdline, err := os.ReadFile("/proc/cmdline")
	must(t, err)
	if !strings.Contains(string(cmdline), "ipv6.disable=1") {
		t.Skip("NOT TESTED HERE: this kernel has IPv6; go run ./e2e/kernel -append ipv6.disable=1 -run IPv6 ./routes")
	}
	nstest.Run(t, func(t *testing.T) {
		// The kernel itself returns the error.
		if _, err := netlink.RuleList(unix.AF_INET6); err == nil {
			t.Error("the kernel lists rules of IPv6")
		}
		table := newTable(t)
		wg := addDevice(t, "wireguard.gcp")
		addAddress(t, "lo", "10.1.3.1/32")
		src, err := Source(prefixes("10.1.3.0/24", "fd01:0:0:3::/64"))
		must(t, err)
		subnets := prefixes(subnet4, subnet6)
		if diff := cmp.Diff(Changes{Added: 2}, mustSync(t, table, Desired(subnets, wg, src))); diff != "" {
			t.Errorf("routes (-want +got):\n%s", diff)
		}
		fenced, err := table.Fence(t.Context(), subnets)
		must(t, err)
		if fenced.Changes != (Changes{Added: 1}) || len(fenced.Subnets) != 2 {
			t.Errorf("rules: %+v, want those of IPv4, and both subnets to count as fenced", fenced)
		}
		if device, err := lookup(table.handle, netip.MustParseAddr("10.4.1.1")); err != nil || device != wg {
			t.Errorf("packets go to device %d, error %v", device, err)
		}
		installed, err := table.Installed(nil)
		must(t, err)
		if sources, err := Sources(installed); err != nil || len(sources) != 1 {
			t.Errorf("sources %v, %v", sources, err)
		}
		filter := NewFilter(slog.New(slog.NewTextHandler(t.Output(), nil)))
		origins := []Origin{{Device: "wireguard.gcp", Subnets: subnets}}
		if _, err := filter.Sync(t.Context(), rulesetOf(origins)); err != nil {
			t.Errorf("source filter: %v", err)
		}
		if enforced, err := enforces(t, origins); err != nil || !enforced {
			t.Errorf("source filter: enforced %t, %v", enforced, err)
		}
		events := start(t, NewMonitor(MonitorConfig{Logger: table.log}))
		quiet(t, events)
		mustSync(t, table, nil)
		<-events
		mustFence(t, table)
	})
}
