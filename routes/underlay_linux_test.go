package routes

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

func addrs(texts ...string) []netip.Addr {
	var all []netip.Addr
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

// onUnderlay gives the current namespace two links to the underlay, and default routes
// over the first.
func onUnderlay(t *testing.T) {
	t.Helper()
	addDevice(t, "eth0")
	addDevice(t, "eth1")
	addAddress(t, "eth0", "192.0.2.1/24", "fd00:192::1/64")
	addAddress(t, "eth1", "198.51.100.1/24", "fd00:198::1/64")
	setMTU(t, "eth1", 9000)
	for via, to := range map[string]string{"192.0.2.254": "0.0.0.0/0", "fd00:192::254": "::/0"} {
		addRoute(t, netlink.Route{LinkIndex: link(t, "eth0").Attrs().Index, Gw: addrs(via)[0].AsSlice()}, to)
	}
}

func mustNet(t *testing.T, text string) *net.IPNet {
	t.Helper()
	_, n, err := net.ParseCIDR(text)
	must(t, err)
	return n
}

func setMTU(t *testing.T, name string, mtu int) {
	t.Helper()
	must(t, netlink.LinkSetMTU(link(t, name), mtu))
}

func TestPathsOverRealRoutes(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		onUnderlay(t)
		eth0, eth1 := link(t, "eth0").Attrs().Index, link(t, "eth1").Attrs().Index
		addRoute(t, netlink.Route{LinkIndex: eth0, Gw: addrs("192.0.2.254")[0].AsSlice(), MTU: 1300, MTULock: true}, "203.0.113.0/24")
		addRoute(t, netlink.Route{LinkIndex: eth0, Gw: addrs("fd00:192::254")[0].AsSlice(), MTU: 1350}, "fd00:203::/64")
		addRoute(t, netlink.Route{MultiPath: []*netlink.NexthopInfo{
			{LinkIndex: eth1, Gw: addrs("198.51.100.254")[0].AsSlice()}, {LinkIndex: eth0, Gw: addrs("192.0.2.254")[0].AsSlice()},
		}}, "10.9.0.0/16")
		addRoute(t, netlink.Route{Type: unix.RTN_UNREACHABLE}, "10.8.0.0/16")
		addRoute(t, netlink.Route{LinkIndex: eth0, MTU: 5000}, "10.7.0.0/16") // more than the link carries

		want := map[string]tunnel.UnderlayPath{
			"192.0.2.7":    {MTU: 1500},
			"198.51.100.7": {MTU: 9000},
			"fd00:198::7":  {MTU: 9000},
			"8.8.8.8":      {MTU: 1500, Routed: true},
			"2001:db8::1":  {MTU: 1500, Routed: true},
			"203.0.113.7":  {MTU: 1300, Routed: true, Stated: true},
			"fd00:203::7":  {MTU: 1350, Routed: true, Stated: true},
			"10.9.0.1":     {MTU: 1500, Routed: true},
			"10.7.0.1":     {MTU: 1500, Stated: true},
			"10.8.0.1":     {}, // no route
			"192.0.2.1":    {}, // this host
			"fd00:192::1":  {},
		}
		for to, path := range want {
			var wanted []tunnel.UnderlayPath
			if path.MTU > 0 {
				path.To = netip.MustParseAddr(to)
				wanted = []tunnel.UnderlayPath{path}
			}
			// The kernel adds routes of an IPv6 address asynchronously.
			polltest.Until(t, time.Minute, "the path to "+to, func() bool {
				found, err := NewUnderlay(0).Paths(addrs(to))
				must(t, err)
				diff := cmp.Diff(wanted, found, cmpopts.EquateComparable(netip.Addr{}))
				if diff != "" {
					t.Logf("to %s (-want +got):\n%s", to, diff)
				}
				return diff == ""
			})
		}
	})
}

func TestNoPathsWithoutRoutes(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		found, err := NewUnderlay(0).Paths(addrs("8.8.8.8", "2001:db8::1"))
		must(t, err)
		if len(found) > 0 {
			t.Errorf("paths without any link: %v", found)
		}
	})
}

// Path MTUs from routers' "packet too big" messages are ignored, since these can be forged.
func TestLearnedPathMTUsAreIgnored(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		router, far := nstest.New(t), nstest.New(t)
		nstest.Pair(t, nstest.Current(t), router, "eth0", "near")
		nstest.Pair(t, router, far, "narrow", "eth0")
		addAddress(t, "eth0", "192.0.2.1/24")
		addRoute(t, netlink.Route{LinkIndex: link(t, "eth0").Attrs().Index, Gw: addrs("192.0.2.254")[0].AsSlice()}, "0.0.0.0/0")
		must(t, router.Do(func() error {
			narrow, err := netlink.LinkByName("narrow")
			return errors.Join(err, os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0), netlink.LinkSetMTU(narrow, 1400),
				giveAddress("near", "192.0.2.254/24"), giveAddress("narrow", "198.51.100.254/24"))
		}))

		to := addrs("198.51.100.1")
		conn, err := net.DialUDP("udp4", nil, &net.UDPAddr{IP: to[0].AsSlice(), Port: 9})
		must(t, err)
		defer conn.Close()
		polltest.Until(t, time.Minute, "the kernel to learn the path's MTU", func() bool {
			_, _ = conn.Write(make([]byte, 1450)) // refused once the kernel has learned it
			found, err := netlink.RouteGet(to[0].AsSlice())
			must(t, err)
			return found[0].MTU == 1400
		})
		found, err := NewUnderlay(0).Paths(to)
		must(t, err)
		if len(found) != 1 || found[0].MTU != 1500 {
			t.Errorf("got %v, want the link's MTU of 1500", found)
		}
	})
}

func giveAddress(name, address string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	addr, err := netlink.ParseAddr(address)
	if err != nil {
		return err
	}
	return netlink.AddrAdd(l, addr)
}

// The path to an endpoint inside a pod subnet is that of marked packets: never through the
// device itself, whose MTU would be derived from itself.
func TestPathsToEndpointsInsidePodSubnets(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		onUnderlay(t)
		table := newTable(t)
		wg := addDevice(t, "wg0")
		setUp(t, "wg0")
		setMTU(t, "wg0", 1420)
		const mark = 0x1073
		table.mark = mark
		subnets := prefixes(subnet4, subnet6)
		mustSync(t, table, Desired(subnets, wg, nil))
		mustFence(t, table, subnet4, subnet6)
		u := NewUnderlay(mark)
		notified := start(t, NewMonitor(MonitorConfig{Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), Underlays: []*Underlay{u}}))
		<-notified // subscribed
		to := addrs("10.4.7.2", "fd04::2")
		want := func(mtu int) {
			t.Helper()
			polltest.Until(t, time.Minute, fmt.Sprintf("paths with an MTU of %d", mtu), func() bool {
				found, err := u.Paths(to)
				must(t, err)
				return len(found) == 2 && found[0].MTU == mtu && found[1].MTU == mtu
			})
		}
		want(1500)
		must(t, netlink.LinkSetMTU(link(t, "eth0"), 1400))
		want(1400)
	})
}

// Only changes of the cached paths cause notifications.
func TestUnderlayMonitorFollowsPaths(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		onUnderlay(t)
		u := NewUnderlay(0)
		looked := map[netip.Addr]int{}
		u.lookUp = func(to netip.Addr, mtus map[int]int) (cachedPath, error) {
			looked[to]++
			return lookUp(to, 0, mtus)
		}
		notified := start(t, NewMonitor(MonitorConfig{Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), Underlays: []*Underlay{u}}))
		<-notified // subscribed

		near, far, six := addrs("192.0.2.7")[0], addrs("8.8.8.8")[0], addrs("2001:db8::1")[0]
		mtus := func() map[netip.Addr]int {
			t.Helper()
			found, err := u.Paths([]netip.Addr{near, far, six})
			must(t, err)
			got := map[netip.Addr]int{}
			for _, p := range found {
				got[p.To] = p.MTU
			}
			return got
		}
		want := func(mtu4near, mtu4far, mtu6 int) {
			t.Helper()
			wanted := map[netip.Addr]int{near: mtu4near, far: mtu4far, six: mtu6}
			polltest.Until(t, time.Minute, "the MTUs", func() bool { return cmp.Equal(wanted, mtus(), cmpopts.EquateComparable(netip.Addr{})) })
		}
		notifiedOf := func(what string) {
			t.Helper()
			select {
			case <-notified:
			case <-time.After(time.Minute):
				t.Fatalf("%s: no notification", what)
			}
		}
		want(1500, 1500, 1500)

		setMTU(t, "eth0", 1400)
		notifiedOf("a smaller MTU of the link")
		want(1400, 1400, 1400)

		addRoute(t, netlink.Route{LinkIndex: link(t, "eth1").Attrs().Index, Gw: addrs("198.51.100.254")[0].AsSlice()}, "8.0.0.0/8")
		notifiedOf("a route over another link")
		want(1400, 9000, 1400)

		must(t, netlink.RouteDel(&netlink.Route{Dst: mustNet(t, "8.0.0.0/8")}))
		notifiedOf("a route that is gone")
		want(1400, 1400, 1400)

		must(t, netlink.RouteReplace(&netlink.Route{
			LinkIndex: link(t, "eth0").Attrs().Index, Gw: addrs("fd00:192::254")[0].AsSlice(), MTU: 1360, Dst: mustNet(t, "::/0"),
		}))
		notifiedOf("an MTU of a route")
		want(1400, 1400, 1360)

		// Pods come and go, and others announce routes.
		clear(looked)
		addDevice(t, "cali1")
		setMTU(t, "eth1", 1500)
		addRoute(t, netlink.Route{LinkIndex: link(t, "cali1").Attrs().Index}, "10.1.0.9/32")
		addRoute(t, netlink.Route{LinkIndex: link(t, "eth1").Attrs().Index}, "10.2.0.0/16")
		setMTU(t, "eth0", 1401) // marks that all earlier events were read
		notifiedOf("another MTU of the link")
		want(1401, 1401, 1360)
		if looked[near] != 1 || looked[far] != 1 || looked[six] != 1 {
			t.Errorf("looked up after one change that concerns each: %v", looked)
		}

		must(t, netlink.LinkSetDown(link(t, "eth0")))
		notifiedOf("a link that is down")
		polltest.Until(t, time.Minute, "no path", func() bool { return len(mtus()) == 0 })
	})
}

func TestUnderlayCachesPaths(t *testing.T) {
	now := time.Now()
	looked := 0
	u := &Underlay{now: func() time.Time { return now }, lookUp: func(to netip.Addr, _ map[int]int) (cachedPath, error) {
		looked++
		return cachedPath{path: tunnel.UnderlayPath{To: to, MTU: 1500}, links: map[int]int{2: 1500}}, nil
	}}
	want := func(lookups, paths int, to ...string) {
		t.Helper()
		looked = 0
		found, err := u.Paths(addrs(to...))
		must(t, err)
		if looked != lookups || len(found) != paths {
			t.Errorf("%v: %d lookups and %d paths, want %d and %d", to, looked, len(found), lookups, paths)
		}
	}
	want(2, 2, "192.0.2.1", "192.0.2.2", "192.0.2.1")
	want(0, 2, "192.0.2.1", "192.0.2.2")
	want(1, 3, "192.0.2.1", "192.0.2.2", "198.51.100.1")
	want(0, 1, "198.51.100.1")
	want(1, 2, "198.51.100.1", "192.0.2.1") // was dropped from the cache
	for _, c := range []struct {
		prefix  string
		changed bool
		lookups int
	}{
		{"198.51.100.0/24", true, 1}, {"198.51.100.1/32", true, 1}, {"0.0.0.0/0", true, 2},
		{"198.51.100.2/32", false, 0}, {"198.51.0.0/24", false, 0}, {"::/0", false, 0},
	} {
		if got := u.routeChanged(netip.MustParsePrefix(c.prefix)); got != c.changed {
			t.Errorf("route to %s: changed %v, want %v", c.prefix, got, c.changed)
		}
		want(c.lookups, 2, "198.51.100.1", "192.0.2.1")
	}
	if u.linkChanged(3, 1400) || u.linkChanged(2, 1500) || !u.linkChanged(2, 1400) {
		t.Error("a link that isn't used, or hasn't changed, concerns us; or one that has doesn't")
	}
	want(2, 2, "198.51.100.1", "192.0.2.1")
	now = now.Add(trustedFor)
	want(2, 2, "198.51.100.1", "192.0.2.1")
	u.invalidate()
	want(2, 2, "198.51.100.1", "192.0.2.1")

	u.lookUp = func(netip.Addr, map[int]int) (cachedPath, error) { return cachedPath{}, errors.New("no netlink") }
	if _, err := u.Paths(addrs("192.0.2.9")); err == nil {
		t.Error("no error")
	}
}
