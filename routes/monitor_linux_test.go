package routes

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/logtest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
)

// repairTime bounds the wait for a notification and the repair. Both take milliseconds; a
// busy machine gets more.
const repairTime = time.Minute

func TestDisturbedRoutesAreRepairedWithinASecond(t *testing.T) {
	tests := map[string]func(t *testing.T, table *Table){
		"all routes of ours deleted": func(t *testing.T, _ *Table) {
			must(t, flushOurs(OwnTable))
		},
		"guard deleted": func(t *testing.T, table *Table) {
			for _, dst := range installed(t, table) {
				must(t, netlink.RouteDel(&netlink.Route{Dst: dst, Type: unix.RTN_UNREACHABLE, Priority: guardMetric, Table: OwnTable}))
			}
		},
		"device down and up": func(t *testing.T, _ *Table) {
			must(t, netlink.LinkSetDown(link(t, "wireguard.gcp")))
			setUp(t, "wireguard.gcp")
		},
		"device deleted and created": func(t *testing.T, _ *Table) {
			must(t, netlink.LinkDel(link(t, "wireguard.gcp")))
			addDevice(t, "wireguard.gcp")
		},
		"address of the preferred source removed": func(t *testing.T, _ *Table) {
			for _, first := range []string{"10.1.3.1/24", "fd01:0:0:3::1/64"} {
				addr, err := netlink.ParseAddr(first)
				must(t, err)
				must(t, netlink.AddrDel(link(t, "cni0"), addr))
			}
		},
	}
	// Each family alone: the events of one must not stand in for the other's.
	for _, subnet := range []string{subnet4, subnet6} {
		for name, disturb := range tests {
			t.Run(name+", "+subnet, func(t *testing.T) { testRepair(t, subnet, disturb) })
		}
	}
}

func testRepair(t *testing.T, subnet string, disturb func(t *testing.T, table *Table)) {
	t.Helper()
	nstest.Run(t, func(t *testing.T) {
		addDevice(t, "wireguard.gcp")
		addDevice(t, "cni0")
		addAddress(t, "cni0", "10.1.3.1/24", "10.1.3.2/32", "fd01:0:0:3::1/64", "fd01:0:0:3::2/128")
		table := newTable(t)
		// The work of the agent's loop, on the test's goroutine, which is in the namespace.
		pass := func() {
			device := 0
			if l, err := netlink.LinkByName("wireguard.gcp"); err == nil {
				device = l.Attrs().Index
			}
			src, err := Source(prefixes("10.1.3.0/24", "fd01:0:0:3::/64"))
			must(t, err)
			mustSync(t, table, Desired(prefixes(subnet), device, src))
		}
		pass()
		monitor := NewMonitor(MonitorConfig{Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), Devices: []string{"wireguard.gcp"}})
		events := startAll(t, monitor)
		quiet(t, events)

		disturb(t, table)
		deadline := time.After(repairTime)
		for !repaired(t, table, subnet) {
			select {
			case <-events:
				pass()
			case <-deadline:
				t.Fatalf("after %s: %s", repairTime, strings.Join(shown(t, table, subnet), "\n"))
			}
		}
	})
}

// installed returns the destinations of our guards.
func installed(t *testing.T, table *Table) (to []*net.IPNet) {
	t.Helper()
	must(t, table.dump(OwnTable, true, func(msg *netlink.Route) {
		if msg.Protocol == Protocol && msg.Type == unix.RTN_UNREACHABLE {
			to = append(to, msg.Dst)
		}
	}))
	return to
}

// repaired reports whether guard and route of the subnet exist, through the current device.
func repaired(t *testing.T, table *Table, subnet string) bool {
	t.Helper()
	l, err := netlink.LinkByName("wireguard.gcp")
	if err != nil {
		return false
	}
	src, err := Source(prefixes("10.1.3.0/24", "fd01:0:0:3::/64"))
	must(t, err)
	have, err := table.read(nil)
	must(t, err)
	add, remove := Diff(have.ours, Desired(prefixes(subnet), l.Attrs().Index, src))
	return len(add)+len(remove) == 0
}

func TestMonitorIgnoresUnrelatedRoutes(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		eth0 := addDevice(t, "eth0")
		events := start(t, NewMonitor(MonitorConfig{Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}))
		quiet(t, events)

		addRoute(t, netlink.Route{LinkIndex: eth0, Protocol: unix.RTPROT_BIRD, Scope: unix.RT_SCOPE_LINK}, "10.4.9.0/24")
		addRoute(t, netlink.Route{LinkIndex: eth0, Protocol: unix.RTPROT_BIRD, Scope: unix.RT_SCOPE_LINK}, "10.0.0.0/8")
		addRoute(t, netlink.Route{LinkIndex: eth0, Protocol: unix.RTPROT_BIRD}, "::/0")
		select {
		case <-events:
			t.Error("notified of foreign routes")
		case <-time.After(100 * time.Millisecond):
		}
		addRoute(t, netlink.Route{LinkIndex: eth0, Protocol: unix.RTPROT_BIRD, Scope: unix.RT_SCOPE_LINK, Table: OwnTable}, subnet4)
		select {
		case <-events:
		case <-time.After(repairTime):
			t.Error("not notified of a foreign route in our own table")
		}
	})
}

func TestMonitorRenewsASubscriptionThatLostEvents(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		eth0 := addDevice(t, "eth0")
		var log logtest.Buffer
		monitor := NewMonitor(MonitorConfig{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		monitor.buffer = 1 // the kernel uses its minimum
		blocked, release := make(chan struct{}), make(chan struct{})
		var once sync.Once
		events := make(chan struct{}, 1)
		monitor.notify = func(Concern) {
			once.Do(func() {
				close(blocked)
				<-release
			})
			fire(events)
		}
		run(t, monitor)

		<-blocked
		for i := range 200 {
			r := netlink.Route{LinkIndex: eth0, Protocol: Protocol, Scope: unix.RT_SCOPE_LINK}
			addRoute(t, r, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 9, byte(i), 0}), 24).String())
		}
		close(release)
		polltest.Until(t, time.Minute, "the monitor says that it lost events", func() bool {
			return strings.Contains(log.String(), unix.ENOBUFS.Error())
		})
		quiet(t, events)
		addRoute(t, netlink.Route{LinkIndex: eth0, Protocol: Protocol, Scope: unix.RT_SCOPE_LINK}, subnet4)
		select {
		case <-events:
		case <-time.After(repairTime):
			t.Error("deaf after the loss")
		}
	})
}

func TestMonitorNotifiesOfInvalidEvents(t *testing.T) {
	monitor := NewMonitor(MonitorConfig{Logger: slog.New(slog.DiscardHandler)})
	tests := map[string]struct {
		kind uint16
		data []byte
		want Concern
	}{
		"link":                        {kind: unix.RTM_NEWLINK, want: ConcernLinks | ConcernRoutes},
		"address":                     {kind: unix.RTM_DELADDR, want: ConcernAddresses},
		"policy rule":                 {kind: unix.RTM_DELRULE, want: ConcernRoutes},
		"policy rule without a mark":  {kind: unix.RTM_DELRULE, data: make([]byte, unix.SizeofRtMsg), want: ConcernRoutes},
		"route that is cut off":       {kind: unix.RTM_NEWROUTE, data: make([]byte, 3), want: ConcernRoutes},
		"route with broken attribute": {kind: unix.RTM_NEWROUTE, data: append(make([]byte, unix.SizeofRtMsg), 1, 0, 1, 0), want: ConcernRoutes},
		"default route":               {kind: unix.RTM_NEWROUTE, data: make([]byte, unix.SizeofRtMsg)},
		"neighbour":                   {kind: unix.RTM_NEWNEIGH},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			msg := syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: test.kind}, Data: test.data}
			if got := monitor.concerns(msg); got != test.want {
				t.Errorf("got %b, want %b", got, test.want)
			}
		})
	}
}

func TestMonitorClassifiesEvents(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		// Left down: a link that comes up causes more events asynchronously.
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "wireguard.gcp"
		must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "gcp-peer"}))
		eth0 := addDevice(t, "eth0")
		monitor := NewMonitor(MonitorConfig{
			Logger: slog.New(slog.DiscardHandler), Devices: []string{"wireguard.gcp"},
		})
		socket, err := monitor.subscribe()
		must(t, err)
		defer socket.Close()
		table := newTable(t)
		foreign := func(to string, number int) netlink.Route {
			_, dst, _ := net.ParseCIDR(to)
			return netlink.Route{LinkIndex: eth0, Scope: unix.RT_SCOPE_LINK, Protocol: unix.RTPROT_BIRD, Dst: dst, Table: number}
		}
		rule := func(protocol uint8) *netlink.Rule {
			r := netlink.NewRule()
			r.Priority, r.Table, r.Protocol = 90, unix.RT_TABLE_MAIN, protocol
			return r
		}
		add := func(r netlink.Route) { must(t, netlink.RouteAdd(&r)) }
		for _, step := range []struct {
			name string
			do   func()
			want Concern
		}{
			{"a link of others", func() { addDevice(t, "pod") }, 0},
			{"our device", func() { must(t, netlink.LinkSetMTU(link(t, "wireguard.gcp"), 1400)) }, ConcernLinks | ConcernRoutes},
			{"an address", func() { addAddress(t, "lo", "10.96.0.10/32", "fd96::10/128") }, ConcernAddresses},
			{"a route elsewhere", func() { add(foreign("10.9.0.0/16", 0)); add(foreign("fd09::/48", 0)) }, 0},
			{"a wider route", func() { add(foreign("10.0.0.0/8", 0)) }, 0},
			{"a route to a part, IPv4", func() { add(foreign("10.4.9.0/24", 0)) }, 0},
			{"a route to a part, IPv6", func() { add(foreign("fd04:0:0:9::/64", 0)) }, 0},
			{"the same in a table of others", func() { add(foreign("10.4.9.0/24", 99)) }, 0},
			{"a route to all of it", func() { add(foreign(subnet4, 0)) }, 0},
			{"a route in our table", func() { add(foreign("10.9.0.0/16", OwnTable)) }, ConcernRoutes},
			{"a rule of others", func() { must(t, netlink.RuleAdd(rule(0))) }, 0},
			{"a rule of ours", func() { must(t, netlink.RuleAdd(rule(Protocol))) }, ConcernRoutes},
			{"a route of ours", func() { mustSync(t, table, Desired(prefixes(subnet6), 0, nil)) }, ConcernRoutes},
		} {
			step.do()
			// Events arrive in order, so a marker ends those of the step.
			mark := foreign("203.0.113.0/24", 0)
			add(mark)
			must(t, netlink.RouteDel(&mark))
			// Links get link-local addresses asynchronously.
			got := concernsUntil(t, monitor, socket, mark.Dst.IP)
			if aside := ConcernAddresses | ConcernForwarding; got&^aside != step.want&^aside || got&step.want != step.want {
				t.Errorf("%s: %b, want %b", step.name, got, step.want)
			}
		}
	})
}

// concernsUntil joins the concerns of all events up to the removal of a route.
func concernsUntil(t *testing.T, monitor *Monitor, socket *nl.NetlinkSocket, end net.IP) (all Concern) {
	t.Helper()
	for {
		messages, _, err := socket.Receive()
		must(t, err)
		for i, msg := range messages {
			if msg.Header.Type == unix.RTM_DELROUTE {
				if dst, _ := attribute(msg.Data, unix.SizeofRtMsg, unix.RTA_DST); end.Equal(dst) {
					if i != len(messages)-1 {
						t.Fatal("events behind the last one")
					}
					return all
				}
			}
			all |= monitor.concerns(msg)
		}
	}
}

// start runs the monitor and returns its notifications, at most one waiting, except those of
// addresses: links get link-local ones asynchronously.
func start(t *testing.T, monitor *Monitor) <-chan struct{} {
	t.Helper()
	return notified(t, monitor, ConcernAll&^ConcernAddresses|ConcernFilter)
}

// startAll is start with those of addresses.
func startAll(t *testing.T, monitor *Monitor) <-chan struct{} {
	t.Helper()
	return notified(t, monitor, ConcernAll)
}

func notified(t *testing.T, monitor *Monitor, of Concern) <-chan struct{} {
	t.Helper()
	events := make(chan struct{}, 1)
	monitor.notify = func(c Concern) {
		if c&of != 0 {
			fire(events)
		}
	}
	run(t, monitor)
	return events
}

func fire(events chan<- struct{}) {
	select {
	case events <- struct{}{}:
	default:
	}
}

// run runs the monitor in the namespace of the test. At the end of the test it must return
// when its context ends, and leave no goroutine.
func run(t *testing.T, monitor *Monitor) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	namespace := nstest.Current(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- namespace.Do(func() error { return monitor.Run(ctx) }) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("monitor ended with %v", err)
			}
		case <-time.After(time.Minute):
			t.Error("monitor didn't end with its context")
		}
		goleak.VerifyNone(t, before)
	})
}

// quiet waits for the notification after subscribing, and until no more come for a
// while.
func quiet(t *testing.T, events <-chan struct{}) {
	t.Helper()
	select {
	case <-events:
	case <-time.After(time.Minute):
		t.Fatal("no notification after subscribing")
	}
	for {
		select {
		case <-events:
		case <-time.After(200 * time.Millisecond):
			return
		}
	}
}
