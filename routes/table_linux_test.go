package routes

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

const (
	subnet4 = "10.4.0.0/16"
	subnet6 = "fd04::/48"
)

func TestSyncInstallsBothFamiliesAndThenWritesNothing(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		device := addDevice(t, "wireguard.gcp")
		addAddress(t, "lo", "10.1.3.1/32", "fd01:0:0:3::1/128")
		table := newTable(t)
		want := Desired(prefixes(subnet4, subnet6), device,
			[]netip.Addr{netip.MustParseAddr("10.1.3.1"), netip.MustParseAddr("fd01:0:0:3::1")})

		if diff := cmp.Diff(Changes{Added: 4}, mustSync(t, table, want)); diff != "" {
			t.Errorf("first pass (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{
			"10.4.0.0/16 dev wireguard.gcp src 10.1.3.1 protocol 115",
			"unreachable 10.4.0.0/16 protocol 115 metric 4294967295",
			"fd04::/48 dev wireguard.gcp src fd01:0:0:3::1 protocol 115 metric 1024",
			"unreachable fd04::/48 dev lo protocol 115 metric 4294967295",
		}, shown(t, table, subnet4, subnet6)); diff != "" {
			t.Errorf("routes (-want +got):\n%s", diff)
		}

		events := countEvents(t)
		for range 3 {
			if changes := mustSync(t, table, want); changes != (Changes{}) {
				t.Errorf("a pass with nothing to do made %+v", changes)
			}
		}
		if n := events(); n != 0 {
			t.Errorf("passes with nothing to do caused %d events", n)
		}
	})
}

func TestSyncRemovesUnwantedRoutes(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		gcp, merit := addDevice(t, "wireguard.gcp"), addDevice(t, "wireguard.merit")
		table := newTable(t)
		addRoute(t, netlink.Route{LinkIndex: gcp, Protocol: unix.RTPROT_STATIC, Scope: unix.RT_SCOPE_LINK, Table: OwnTable}, "10.4.7.0/24")
		wantGCP := Desired(prefixes(subnet4, subnet6), gcp, nil)
		wantMerit := Desired(prefixes("10.6.0.0/16"), merit, nil)
		mustSync(t, table, append(wantGCP, wantMerit...))

		if diff := cmp.Diff(Changes{Removed: 4}, mustSync(t, table, wantMerit)); diff != "" {
			t.Errorf("after a remote was removed (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{
			"10.4.7.0/24 dev wireguard.gcp protocol static",
			"10.6.0.0/16 dev wireguard.merit protocol 115",
			"unreachable 10.6.0.0/16 protocol 115 metric 4294967295",
		}, shown(t, table, subnet4, subnet6, "10.6.0.0/16", "10.4.7.0/24")); diff != "" {
			t.Errorf("routes (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(Changes{Removed: 2}, mustSync(t, table, nil)); diff != "" {
			t.Errorf("clean-up (-want +got):\n%s", diff)
		}
		if got := shown(t, table, "10.6.0.0/16", "10.4.7.0/24"); len(got) != 1 {
			t.Errorf("after clean-up: %v, want only the foreign route", got)
		}
	})
}

func TestSyncReplacesWithoutAGap(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		devices := []int{addDevice(t, "wireguard.gcp"), addDevice(t, "wireguard.gcp2")}
		addAddress(t, "lo", "10.1.3.1/32", "10.1.3.2/32", "fd01:0:0:3::1/128", "fd01:0:0:3::2/128")
		sources := [][]netip.Addr{
			{netip.MustParseAddr("10.1.3.1"), netip.MustParseAddr("fd01:0:0:3::1")},
			{netip.MustParseAddr("10.1.3.2"), netip.MustParseAddr("fd01:0:0:3::2")},
			nil,
		}
		table := newTable(t)
		subnets := prefixes(subnet4, subnet6)
		mustSync(t, table, Desired(subnets, devices[0], nil))
		mustFence(t, table, subnet4, subnet6)
		lookups := watchLookups(t, devices, netip.MustParseAddr("10.4.1.1"), netip.MustParseAddr("fd04::1"))

		for i := range 300 {
			device, src := devices[i/3%2], sources[i%3]
			changes := mustSync(t, table, Desired(subnets, device, src))
			if want := (Changes{Replaced: 2}); i > 0 && changes != want {
				t.Fatalf("flip %d: %+v, want %+v", i, changes, want)
			}
		}
		if n := lookups(); n < 300 {
			t.Errorf("only %d lookups during 300 flips", n)
		}
		if got := shown(t, table, subnet4, subnet6); len(got) != 4 {
			t.Errorf("left over after flips: %s", strings.Join(got, "\n"))
		}
	})
}

func TestSyncContinuesAfterARefusedRoute(t *testing.T) {
	absent := netip.MustParseAddr("10.99.0.1")
	tests := map[string]struct {
		prepare func(t *testing.T, device int)
		src     []netip.Addr
		want    error
	}{
		"device down": {
			prepare: func(t *testing.T, _ int) { must(t, netlink.LinkSetDown(link(t, "wireguard.gcp"))) },
			want:    unix.ENETDOWN,
		},
		"device gone": {
			prepare: func(t *testing.T, _ int) { must(t, netlink.LinkDel(link(t, "wireguard.gcp"))) },
			want:    unix.ENODEV,
		},
		"source that isn't local": {
			prepare: func(*testing.T, int) {},
			src:     []netip.Addr{absent},
			want:    unix.EINVAL,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				gcp, merit := addDevice(t, "wireguard.gcp"), addDevice(t, "wireguard.merit")
				test.prepare(t, gcp)
				table := newTable(t)
				want := append(Desired(prefixes(subnet4), gcp, test.src), Desired(prefixes("10.6.0.0/16"), merit, nil)...)

				_, err := table.Sync(t.Context(), want)
				var fault *Error
				if !errors.As(err, &fault) || !errors.Is(err, test.want) {
					t.Fatalf("got error %v, want an Error with %v", err, test.want)
				}
				if got := fault.Route.Prefix.String(); got != subnet4 || fault.Route.Guard {
					t.Errorf("the error names %s", fault.Route)
				}
				if diff := cmp.Diff([]string{
					"unreachable 10.4.0.0/16 protocol 115 metric 4294967295",
					"10.6.0.0/16 dev wireguard.merit protocol 115",
					"unreachable 10.6.0.0/16 protocol 115 metric 4294967295",
				}, shown(t, table, subnet4, "10.6.0.0/16")); diff != "" {
					t.Errorf("routes (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestSyncKeepsTheOldRouteWhenTheNewOneIsRefused(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		gcp := addDevice(t, "wireguard.gcp")
		table := newTable(t)
		mustSync(t, table, Desired(prefixes(subnet4), gcp, nil))
		absent := []netip.Addr{netip.MustParseAddr("10.99.0.1")}
		if _, err := table.Sync(t.Context(), Desired(prefixes(subnet4), gcp, absent)); !errors.Is(err, unix.EINVAL) {
			t.Errorf("got error %v, want EINVAL", err)
		}
		if got := shown(t, table, subnet4); len(got) != 2 {
			t.Errorf("routes %q, want the old one and the guard", got)
		}
	})
}

func TestSyncAcceptsADeviceWithoutCarrier(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		gcp := addDevice(t, "wireguard.gcp")
		table := newTable(t)
		must(t, netlink.LinkSetDown(link(t, peerOf("wireguard.gcp"))))
		want := Desired(prefixes(subnet4, subnet6), gcp, nil)
		if diff := cmp.Diff(Changes{Added: 4}, mustSync(t, table, want)); diff != "" {
			t.Errorf("installed without carrier (-want +got):\n%s", diff)
		}
		setUp(t, peerOf("wireguard.gcp"))
		must(t, netlink.LinkSetDown(link(t, peerOf("wireguard.gcp"))))
		if changes := mustSync(t, table, want); changes != (Changes{}) {
			t.Errorf("loss of carrier made %+v", changes)
		}
	})
}

func TestSyncStopsWhenItsContextEnds(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		table := newTable(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		changes, err := table.Sync(ctx, Desired(prefixes(subnet4), 0, nil))
		if !errors.Is(err, context.Canceled) || changes != (Changes{}) {
			t.Errorf("made %+v with error %v", changes, err)
		}
	})
}

// watchLookups adds default routes to the namespace, and then looks up the routes to the
// targets in a loop. The returned function stops that and returns the number of lookups.
// The test fails when a packet would not have gone to one of the devices.
func watchLookups(t *testing.T, devices []int, targets ...netip.Addr) (stop func() int) {
	t.Helper()
	uplink := addDevice(t, "uplink")
	addRoute(t, netlink.Route{LinkIndex: uplink}, "0.0.0.0/0")
	addRoute(t, netlink.Route{LinkIndex: uplink}, "::/0")
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	must(t, err)
	quit, done := make(chan struct{}), make(chan int)
	go func() {
		defer handle.Close()
		asked := 0
		defer func() { done <- asked }()
		for {
			for _, target := range targets {
				select {
				case <-quit:
					return
				default:
				}
				device, err := lookup(handle, target)
				// A lookup whose result is released meanwhile doesn't find the new route. With IPv4 it
				// continues with the next one of the prefix, which is the guard (fib_dead in
				// fib_table_lookup). With IPv6 it gives the kernel's null route: at the last rule that is
				// an error, before it the next rule decides (ip6_pol_route, __fib6_rule_action), and the
				// exit filter stops the packet. The next lookup finds the new route, unless that is being
				// replaced as well.
				released := func() bool {
					if target.Is4() {
						return errors.Is(err, unix.EHOSTUNREACH)
					}
					return err == nil && device == uplink || errors.Is(err, unix.ENETUNREACH)
				}
				for tries := 0; released() && tries < 100; tries++ {
					device, err = lookup(handle, target)
				}
				asked++
				if err != nil || !slices.Contains(devices, device) {
					t.Errorf("lookup %d: packets to %s go to device %d, error %v", asked, target, device, err)
					return
				}
			}
		}
	}()
	return func() int {
		close(quit)
		return <-done
	}
}
