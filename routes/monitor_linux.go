package routes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/errlog"
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

// Concern says what an event of the kernel may mean work for. More than one may be
// set.
type Concern uint8

// Concerns.
const (
	// Routes of ours or policy rules of ours, or their sources.
	ConcernRoutes Concern = 1 << iota
	// Links, those of our devices.
	ConcernLinks
	// Addresses of this host, any of them.
	ConcernAddresses
	// Foreign routes to a remote pod subnet or a part of one.
	ConcernForeign
	// Filter stands for the table of [Filter].
	ConcernFilter
	// Underlay stands for the ways that an [Underlay] knows.
	ConcernUnderlay

	// ConcernAll is all that a monitor of routes knows: what happened isn't known.
	ConcernAll = ConcernRoutes | ConcernLinks | ConcernAddresses | ConcernForeign
)

// Monitor tells when something in the kernel changed in a way that may concern
// what is ours there.
type Monitor struct {
	name   string
	log    *slog.Logger
	notify func(Concern)
	buffer int
	// subscribed returns a socket that has the events, and concerns tells those
	// that may mean work for us. In doubt they do.
	subscribed func() (*nl.NetlinkSocket, error)
	concerns   func(syscall.NetlinkMessage) Concern
	everything Concern // what a gap between events may concern
}

// MonitorConfig is what a monitor looks for.
type MonitorConfig struct {
	Logger *slog.Logger
	// Notify is called on the goroutine of Run and must not block. It carries no
	// state: whoever is notified looks at the kernel.
	Notify  func(Concern)
	Subnets []netip.Prefix // the remote pod subnets
	Devices []string       // names of our links
	// Source reports whether an address that came or went may change the source of
	// routes. nil: any may.
	Source func(netip.Addr) bool
}

// NewMonitor prepares a monitor of links, addresses, routes and policy rules that
// calls Notify
//
//   - when a link of ours changed, was added or removed, also under another name:
//     together with these the kernel takes routes off the device, without an event
//     for the route;
//   - when an address changed, was added or removed: with it the kernel takes IPv4
//     routes that have it as their source, and the source off IPv6 routes;
//   - when a route of ours changed, or one in our table, or anybody's route to a
//     remote pod subnet: it may have replaced ours;
//   - when somebody has a route to a part of a remote pod subnet;
//   - when a policy rule of ours was added or removed;
//   - each time it has subscribed, because earlier events are unknown.
//
// Other events cost their reception and nothing more, however many there are.
func NewMonitor(cfg MonitorConfig) *Monitor {
	w := &watcher{MonitorConfig: cfg, indices: map[int32]bool{}}
	return &Monitor{
		name: "route monitor", log: cfg.Logger, notify: cfg.Notify, buffer: monitorBuffer,
		subscribed: subscribeToRoutes, concerns: w.concerns, everything: ConcernAll,
	}
}

// NewFilterMonitor prepares a monitor that calls notify when anybody changed the
// table of [Filter], and each time it has subscribed. notify must not block. Where
// the kernel has no nf_tables it goes on trying.
func NewFilterMonitor(log *slog.Logger, notify func()) *Monitor {
	return &Monitor{
		name: "source filter monitor", log: log, notify: func(Concern) { notify() }, buffer: monitorBuffer,
		subscribed: subscribeToFilters, concerns: concernsFilter, everything: ConcernFilter,
	}
}

// String names the monitor in logs.
func (m *Monitor) String() string { return m.name }

// Run watches the network namespace of the calling thread until ctx ends, and
// returns nil then. A subscription that fails or loses events (ENOBUFS, see
// netlink(7)) is logged and renewed.
func (m *Monitor) Run(ctx context.Context) error {
	wait := resubscribeFirst
	losses := errlog.Log{Logger: m.log, Level: slog.LevelWarn, Failing: "lost a subscription to events of the kernel"}
	for {
		healthy, err := m.watch(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if healthy {
			wait = resubscribeFirst
			losses.Note(ctx, nil)
		}
		losses.Note(ctx, err, "monitor", m.name, "retry_after", wait)
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
	defer socket.Close()
	// The library's Receive takes 64 KiB of memory anew for each event, which a storm
	// of them makes the collector's work. A copy of the descriptor is read here.
	fd, err := unix.FcntlInt(uintptr(socket.GetFd()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return false, fmt.Errorf("copy the socket: %w", err)
	}
	file := os.NewFile(uintptr(fd), "netlink")
	defer file.Close()
	conn, err := file.SyscallConn()
	if err != nil {
		return false, fmt.Errorf("read events: %w", err)
	}
	// Closing the file is what ends a read that waits.
	defer context.AfterFunc(ctx, func() { _ = file.Close() })()
	m.notify(m.everything)
	buffer := make([]byte, nl.RECEIVE_BUFFER_SIZE)
	for {
		messages, fromKernel, err := receive(conn, buffer)
		if err != nil {
			return healthy, fmt.Errorf("receive events: %w", err)
		}
		healthy = true
		if !fromKernel {
			continue
		}
		var concern Concern
		for _, msg := range messages {
			concern |= m.concerns(msg)
		}
		if concern != 0 {
			m.notify(concern)
		}
	}
}

// receive waits for events. They are in the buffer, until the next call.
func receive(conn syscall.RawConn, buffer []byte) (messages []syscall.NetlinkMessage, fromKernel bool, err error) {
	var (
		size     int
		from     unix.Sockaddr
		innerErr error
	)
	err = conn.Read(func(fd uintptr) bool {
		size, from, innerErr = unix.Recvfrom(int(fd), buffer, 0)
		return !errors.Is(innerErr, unix.EAGAIN)
	})
	if err := errors.Join(err, innerErr); err != nil {
		return nil, false, err
	}
	sender, ok := from.(*unix.SockaddrNetlink)
	messages, err = syscall.ParseNetlinkMessage(buffer[:size])
	return messages, ok && sender.Pid == nl.PidKernel, err
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
func concernsFilter(msg syscall.NetlinkMessage) Concern {
	switch {
	case msg.Header.Type&0xff == unix.NFT_MSG_NEWGEN:
		return 0
	case len(msg.Data) < genHeader:
		return ConcernFilter
	}
	attrs, err := nl.ParseRouteAttr(msg.Data[genHeader:])
	if err != nil || len(attrs) == 0 || string(bytes.TrimRight(attrs[0].Value, "\x00")) == FilterTable {
		return ConcernFilter
	}
	return 0
}
