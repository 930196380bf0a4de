package routes

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
)

// networkd is its path in Debian's package systemd.
const networkd = "/lib/systemd/systemd-networkd"

// startNetworkd runs systemd-networkd in the namespace of the calling thread, with its own
// /run, for one link. /sys is read-only, as on a host without udev. dropIn is the content
// of a file in networkd.conf.d; empty: none.
func startNetworkd(t *testing.T, link, dropIn string) {
	t.Helper()
	if _, err := os.Stat(networkd); err != nil {
		t.Fatalf("needs systemd-networkd, which \"make deps\" installs: %v", err)
	}
	const script = `
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mount -t sysfs -o ro sysfs /sys
mkdir -p /run/systemd/network /run/systemd/netif/links /run/systemd/netif/leases /run/systemd/networkd.conf.d
chown -R systemd-network: /run/systemd/netif
[ -z "$2" ] || cp "$2" /run/systemd/networkd.conf.d/
printf '[Match]\nName=%s\n[Network]\nLinkLocalAddressing=no\n[Route]\nDestination=198.51.100.0/24\nScope=link\n' "$1" >/run/systemd/network/10-test.network
exec "$0"`
	cmd := exec.Command("unshare", "--mount", "sh", "-c", script, networkd, link, dropIn)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
		if t.Failed() {
			t.Logf("systemd-networkd:\n%s", output.String())
		}
	})
}

// When systemd-networkd configures a link it removes foreign routes and rules. With the
// drop-in file of deploy/networkd it keeps rules and guards.
func TestNetworkdLeavesOursWithTheDropIn(t *testing.T) {
	nstest.Root(t) // networkd switches to another user.
	if os.Getenv("SEMAPHORE_TEST_KERNEL") != "" {
		t.Skip("the emulated machine has no systemd: this is proven outside of it")
	}
	file, err := filepath.Abs("../deploy/networkd/10-semaphore.conf")
	must(t, err)
	for name, tt := range map[string]struct {
		dropIn        string
		rules, routes int // of ours that stay: of two subnets 2 rules, 2 guards and 2 device routes
	}{
		"without": {"", 0, 2},
		"with":    {file, 2, 4},
	} {
		t.Run(name, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				table := newTable(t)
				subnets := []string{"10.4.0.0/16", "fd04::/48"}
				want := Desired(prefixes(subnets...), addTunnel(t, "gcp"), nil)
				mustSync(t, table, want)
				mustFence(t, table, subnets...)
				startNetworkd(t, "eth1", tt.dropIn)
				// For a link that exists before networkd has read rules and routes, it assumes
				// none. Adding one later makes it read them.
				for range 2 {
					addDevice(t, "eth1")
					polltest.Until(t, time.Minute, "systemd-networkd to configure the link", func() bool {
						return len(list(t, table, unix.RT_TABLE_MAIN, "198.51.100.0/24")) > 0
					})
					must(t, netlink.LinkDel(link(t, "eth1")))
				}
				state := func() (rules, routes int) {
					have, stray, err := table.fences([]int{unix.AF_INET, unix.AF_INET6})
					must(t, err)
					installed, err := table.Installed(nil)
					must(t, err)
					return len(have) + len(stray), len(installed)
				}
				polltest.Until(t, time.Minute, "what is left", func() bool {
					rules, routes := state()
					return rules == tt.rules && routes == tt.routes
				})
				mustSync(t, table, want)
				mustFence(t, table, subnets...)
				if rules, routes := state(); rules != 2 || routes != 4 {
					t.Errorf("after a repair: %d rules, %d routes", rules, routes)
				}
			})
		})
	}
}
