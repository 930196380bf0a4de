package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// TestRestartWritesNoRoutes restarts an agent while all API servers are unreachable. The
// new process can't compute the sources of routes: it must neither remove nor rewrite
// them, even when a device listens on another port because its own is taken.
func TestRestartWritesNoRoutes(t *testing.T) {
	nstest.Root(t)
	const port, key = "a port is taken at the start", "a key can't be read at the start"
	for _, fault := range []string{"", port, key} {
		t.Run(cmp.Or(fault, "undisturbed"), func(t *testing.T) {
			cfg := testConfig(t)
			cfg.RouteSrc = "10.2.1.1"
			addLocal(t, "10.2.1.1/32")
			first, stop := runAgent(t, cfg)
			polltest.Until(t, time.Minute, "routes with the source", func() bool { return strings.Count(routesOf(t), " src 10.2.1.1") == 1 })
			polltest.Until(t, time.Minute, "the devices", func() bool { return first.remotes[0].present() && first.remotes[1].present() })
			polltest.Until(t, time.Minute, "all routes", func() bool { return strings.Count(routesOf(t), "\n") == 4 })
			for _, r := range first.remotes {
				// The kernel adds the local route of an address asynchronously.
				polltest.Until(t, time.Minute, "the route of the address for probes", func() bool { return hasLocal(t, tunnel.LinkLocal(r.device.PublicKey())) })
			}
			stop()
			before := routesOf(t)

			written := watchWrites(t)
			switch fault {
			case port:
				cfg.Remotes = slices.Clone(cfg.Remotes)
				cfg.Remotes[0].ListenPort = takePort(t)
			case key:
				file := filepath.Join(cfg.KeyPath, first.remotes[0].device.Name()+".key")
				if err := errors.Join(os.Remove(file), os.Mkdir(file, 0o700)); err != nil {
					t.Fatal(err)
				}
			}
			cfg.RouteSrc = config.RouteSrcAuto
			second, stop := runAgent(t, cfg)
			polltest.Until(t, time.Minute, "the device of the other remote", second.remotes[1].present)
			if fault != "" {
				polltest.Until(t, time.Minute, "the fault of the device", func() bool {
					return statusOf(second).Failure("device gcp") != ""
				})
			}
			if fault != key {
				polltest.Until(t, time.Minute, "the device", second.remotes[0].present)
			}
			// One more pass, with all that is known by now.
			passed := &second.find("routes").passed
			passed.Store(false)
			second.happened(kernelChanged, nil)
			polltest.Until(t, time.Minute, "another pass", passed.Load)
			stop()
			if got := routesOf(t); got != before {
				t.Errorf("routes:\n%s\nbefore:\n%s", got, before)
			}
			if got := written(); len(got) > 0 {
				t.Errorf("written at the start:\n%s", strings.Join(got, "\n"))
			}
			if err := second.cleanup(t.Context()); err != nil && !strings.Contains(err.Error(), "annotations") {
				t.Log(err) // no API server is there to take annotations off
			}
		})
	}
}

// runAgent runs an agent until the returned function is called.
func runAgent(t *testing.T, cfg config.Wireguard) (a *agent, stop func()) {
	t.Helper()
	a, err := newAgent(cfg, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	tasks := a.tasks()
	done := make(chan error, len(tasks))
	for _, task := range tasks {
		go func() { done <- task.Run(ctx) }()
	}
	return a, func() {
		t.Helper()
		cancel()
		for range tasks {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if err := a.close(); err != nil {
			t.Error(err)
		}
	}
}

func addLocal(t *testing.T, address string) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.AddrReplace(lo, &netlink.Addr{IPNet: ipNet(address)}); err != nil {
		t.Fatal(err)
	}
}

// hasLocal reports whether the kernel has the local route of an address.
func hasLocal(t *testing.T, address netip.Addr) bool {
	t.Helper()
	to := ipNet(netip.PrefixFrom(address, address.BitLen()).String())
	found, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Dst: to, Table: unix.RT_TABLE_LOCAL}, netlink.RT_FILTER_DST|netlink.RT_FILTER_TABLE)
	if err != nil {
		t.Fatal(err)
	}
	return len(found) > 0
}

func ipNet(text string) *net.IPNet {
	p := netip.MustParsePrefix(text)
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// routesOf formats our routes, a line each.
func routesOf(t *testing.T) string {
	t.Helper()
	found, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: 115}, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
	if err != nil {
		t.Fatal(err)
	}
	var lines strings.Builder
	for _, r := range found {
		fmt.Fprintf(&lines, "%s table %d dev %d type %d", r.Dst, r.Table, r.LinkIndex, r.Type)
		if r.Src != nil {
			fmt.Fprintf(&lines, " src %s", r.Src)
		}
		lines.WriteString("\n")
	}
	return lines.String()
}

// takePort binds a UDP port and returns it.
func takePort(t *testing.T) int {
	t.Helper()
	conn, err := net.ListenUDP("udp", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn.LocalAddr().(*net.UDPAddr).Port
}

// watchWrites records all of the kernel's events about routes and policy rules until the
// returned function is called. Link events are left out: the link of an embedded device
// loses its carrier with its process.
func watchWrites(t *testing.T) (written func() []string) {
	t.Helper()
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(socket.Close)
	return func() (events []string) {
		t.Helper()
		// Events arrive in order, so a marker route ends the record.
		mark := netlink.NewRule()
		mark.Priority, mark.Table = 77, unix.RT_TABLE_MAIN
		if err := netlink.RuleAdd(mark); err != nil {
			t.Fatal(err)
		}
		if err := netlink.RuleDel(mark); err != nil {
			t.Fatal(err)
		}
		for {
			messages, _, err := socket.Receive()
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range messages {
				attrs, err := nl.ParseRouteAttr(m.Data[unix.SizeofRtMsg:])
				if err != nil {
					t.Fatal(err)
				}
				marked := func(a syscall.NetlinkRouteAttr) bool {
					return a.Attr.Type == nl.FRA_PRIORITY && nl.NativeEndian().Uint32(a.Value) == 77
				}
				isRule := m.Header.Type == unix.RTM_NEWRULE || m.Header.Type == unix.RTM_DELRULE
				if isRule && slices.ContainsFunc(attrs, marked) {
					if m.Header.Type == unix.RTM_DELRULE {
						return events
					}
					continue
				}
				events = append(events, fmt.Sprintf("event %d: %x", m.Header.Type, m.Data))
			}
		}
	}
}
