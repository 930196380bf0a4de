package routes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A subscription that breaks is renewed after the first of these times, which
// doubles up to the second while it goes on breaking.
const (
	resubscribeFirst   = 50 * time.Millisecond
	resubscribeLongest = 5 * time.Second
)

// monitorBuffer is the size in bytes of the queue of events in the kernel. A
// burst, such as the removal of a bridge with hundreds of links, should fit.
const monitorBuffer = 1 << 20

// Monitor tells when something in the kernel changed in a way that may concern
// what is ours there.
type Monitor struct {
	name     string
	log      *slog.Logger
	notify   func()
	prefixes []netip.Prefix
	buffer   int
	// subscribed returns a socket that has the events, and concerns tells those
	// that may mean work for us. In doubt they do.
	subscribed func() (*nl.NetlinkSocket, error)
	concerns   func(syscall.NetlinkMessage) bool
}

// NewMonitor prepares a monitor of links, addresses, routes and policy rules that
// calls notify
//
//   - when a link or an address changed, was added or removed: together with
//     these the kernel takes IPv4 routes off the device, and the preferred
//     source off IPv6 routes, without an event for the route;
//   - when a route of ours changed, or anybody's route to one of prefixes, which
//     are the remote pod subnets: it may have replaced ours;
//   - when a policy rule was added or removed: it may be one of ours;
//   - each time it has subscribed, because earlier events are unknown.
//
// notify is called on the goroutine of Run and must not block. It carries no
// state: whoever is notified looks at the routing table.
func NewMonitor(log *slog.Logger, notify func(), prefixes ...netip.Prefix) *Monitor {
	m := &Monitor{name: "route monitor", log: log, notify: notify, prefixes: slices.Clone(prefixes), buffer: monitorBuffer}
	m.subscribed, m.concerns = subscribeToRoutes, m.concernsRoutes
	return m
}

// NewFilterMonitor prepares a monitor that calls notify when anybody changed the
// table of [Filter], and each time it has subscribed. About notify NewMonitor says
// more. Where the kernel has no nf_tables it goes on trying.
func NewFilterMonitor(log *slog.Logger, notify func()) *Monitor {
	return &Monitor{
		name: "source filter monitor", log: log, notify: notify, buffer: monitorBuffer,
		subscribed: subscribeToFilters, concerns: concernsFilter,
	}
}

// String names the monitor in logs.
func (m *Monitor) String() string { return m.name }

// Run watches the network namespace of the calling thread until ctx ends, and
// returns nil then. A subscription that fails or loses events (ENOBUFS, see
// netlink(7)) is logged and renewed.
func (m *Monitor) Run(ctx context.Context) error {
	wait, told := resubscribeFirst, ""
	for {
		healthy, err := m.watch(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if healthy {
			wait, told = resubscribeFirst, ""
		}
		level := slog.LevelWarn
		if err.Error() == told {
			level = slog.LevelDebug
		}
		told = err.Error()
		m.log.Log(ctx, level, "lost a subscription to events of the kernel", "monitor", m.name, "err", err, "retry_after", wait)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		wait = min(2*wait, resubscribeLongest)
	}
}

// watch subscribes and reads events until something fails. It reports whether
// anything was received.
func (m *Monitor) watch(ctx context.Context) (healthy bool, err error) {
	socket, err := m.subscribe()
	if err != nil {
		return false, err
	}
	// Closing the socket is what ends a Receive that waits.
	stop := context.AfterFunc(ctx, socket.Close)
	defer func() {
		if stop() {
			socket.Close()
		}
	}()
	m.notify()
	for {
		messages, from, err := socket.Receive()
		if err != nil {
			return healthy, fmt.Errorf("receive events: %w", err)
		}
		healthy = true
		if from.Pid == nl.PidKernel && slices.ContainsFunc(messages, m.concerns) {
			m.notify()
		}
	}
}

func subscribeToRoutes() (*nl.NetlinkSocket, error) {
	return nl.Subscribe(unix.NETLINK_ROUTE,
		unix.RTNLGRP_LINK,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
		unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE)
}

func subscribeToFilters() (*nl.NetlinkSocket, error) {
	return nl.Subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
}

func (m *Monitor) subscribe() (*nl.NetlinkSocket, error) {
	socket, err := m.subscribed()
	if err != nil {
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	// Going beyond net.core.rmem_max takes NET_ADMIN; without it the kernel
	// grants what it allows to everybody.
	err = socket.SetReceiveBufferSize(m.buffer, true)
	if errors.Is(err, unix.EPERM) {
		err = socket.SetReceiveBufferSize(m.buffer, false)
	}
	if err != nil {
		socket.Close()
		return nil, fmt.Errorf("set size of receive buffer: %w", err)
	}
	return socket, nil
}

// concernsFilter reports whether an event is of the table of ours. The first
// attribute of all events but that of a new generation is the name of the table.
func concernsFilter(msg syscall.NetlinkMessage) bool {
	switch {
	case msg.Header.Type&0xff == unix.NFT_MSG_NEWGEN:
		return false
	case len(msg.Data) < genHeader:
		return true
	}
	attrs, err := nl.ParseRouteAttr(msg.Data[genHeader:])
	if err != nil || len(attrs) == 0 {
		return true
	}
	return string(bytes.TrimRight(attrs[0].Value, "\x00")) == FilterTable
}

func (m *Monitor) concernsRoutes(msg syscall.NetlinkMessage) bool {
	switch msg.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK, unix.RTM_NEWADDR, unix.RTM_DELADDR,
		unix.RTM_NEWRULE, unix.RTM_DELRULE:
		return true
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return m.concernsRoute(msg.Data)
	default:
		return false
	}
}

func (m *Monitor) concernsRoute(data []byte) bool {
	if len(data) < unix.SizeofRtMsg {
		return true
	}
	header := nl.DeserializeRtMsg(data)
	if header.Protocol == Protocol {
		return true
	}
	attrs, err := nl.ParseRouteAttr(data[unix.SizeofRtMsg:])
	if err != nil {
		return true
	}
	for _, attr := range attrs {
		if attr.Attr.Type == unix.RTA_DST {
			addr, _ := netip.AddrFromSlice(attr.Value)
			return slices.Contains(m.prefixes, netip.PrefixFrom(addr, int(header.Dst_len)))
		}
	}
	return false
}
