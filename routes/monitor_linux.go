package routes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/errlog"
)

// Back-off of renewing a failed subscription.
const (
	resubscribeFirst   = 50 * time.Millisecond
	resubscribeLongest = 5 * time.Second
)

// monitorBuffer is the size in bytes of the kernel's queue of events, for bursts such as
// the removal of a bridge with hundreds of links.
const monitorBuffer = 1 << 20

// Concern is a set of what an event of the kernel may affect.
type Concern uint8

// Concerns.
const (
	// ConcernRoutes are our routes and policy rules, and their sources.
	ConcernRoutes Concern = 1 << iota
	// ConcernLinks are the links of our devices.
	ConcernLinks
	// ConcernAddresses are all addresses of this host.
	ConcernAddresses
	// ConcernFilter are our tables of nf_tables.
	ConcernFilter
	// ConcernUnderlay are the paths of an [Underlay].
	ConcernUnderlay
	// ConcernForwarding is what [ForwardingOff] reads.
	ConcernForwarding

	// ConcernAll is everything that a Monitor watches, after lost events.
	ConcernAll = ConcernRoutes | ConcernLinks | ConcernAddresses | ConcernUnderlay | ConcernForwarding
)

// Monitor notifies of events of the kernel that may affect our objects there.
type Monitor struct {
	name   string
	log    *slog.Logger
	notify func(Concern)
	buffer int
	// subscribed opens a socket for the events, and concerns classifies them; when in
	// doubt, an event concerns us.
	subscribed func() (*nl.NetlinkSocket, error)
	concerns   func(syscall.NetlinkMessage) Concern
	everything Concern // after lost events
}

// MonitorConfig describes a monitor of links, addresses, routes and rules.
type MonitorConfig struct {
	Logger *slog.Logger
	// Notify is called on the goroutine of Run and must not block. It carries no state:
	// the receiver reads the kernel.
	Notify    func(Concern)
	Devices   []string    // names of our links
	Underlays []*Underlay // whose paths are watched
}

// NewMonitor returns a monitor of links, addresses, routes, policy rules and forwarding that calls
// Notify
//
//   - when one of our links changed, was added or removed, also under another name: with
//     it the kernel removes routes, without an event for them;
//   - when an address changed, was added or removed: with it the kernel removes IPv4
//     routes with that source, and the source of IPv6 routes;
//   - when one of our routes changed, or one in our table;
//   - when one of our policy rules was added or removed;
//   - when a link or a route of the underlays' paths changed;
//   - when forwarding was switched on or off, or a link without it was added;
//   - after each subscription, because earlier events are unknown.
//
// Other events cost only their reception.
func NewMonitor(cfg MonitorConfig) *Monitor {
	w := &watcher{MonitorConfig: cfg, indices: map[int32]bool{}}
	return &Monitor{
		name: "route monitor", log: cfg.Logger, notify: cfg.Notify, buffer: monitorBuffer,
		subscribed: w.subscribe, concerns: w.concerns, everything: ConcernAll,
	}
}

// NewFilterMonitor returns a monitor that calls notify when the table of [Filter] or of
// [SyncICMP] changed, and after each subscription. notify must not block. Where the kernel has no nf_tables it
// keeps retrying.
func NewFilterMonitor(log *slog.Logger, notify func()) *Monitor {
	return &Monitor{
		name: "packet filter monitor", log: log, notify: func(Concern) { notify() }, buffer: monitorBuffer,
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
	losses := errlog.Log{Logger: m.log, Level: slog.LevelWarn, Failing: "subscription to kernel events lost"}
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

// watch subscribes and reads events until it fails. healthy is set if any was received.
func (m *Monitor) watch(ctx context.Context) (healthy bool, err error) {
	socket, err := m.subscribe()
	if err != nil {
		return false, err
	}
	defer socket.Close()
	// The library's Receive allocates 64 KiB per event, too much garbage in a storm of
	// events. Read a copy of the descriptor instead.
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
	// Closing the file unblocks a pending read.
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

// receive waits for events, which alias the buffer.
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

func subscribeToFilters() (*nl.NetlinkSocket, error) {
	return nl.Subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
}

func (m *Monitor) subscribe() (*nl.NetlinkSocket, error) {
	socket, err := m.subscribed()
	if err != nil {
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	// Exceeding net.core.rmem_max needs NET_ADMIN; without it the kernel caps the size.
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

// concernsFilter classifies events of nf_tables. The first attribute of all events, except
// that of a new generation, is the name of the table.
func concernsFilter(msg syscall.NetlinkMessage) Concern {
	switch {
	case msg.Header.Type&0xff == unix.NFT_MSG_NEWGEN:
		return 0
	case len(msg.Data) < genHeader:
		return ConcernFilter
	}
	attrs, err := nl.ParseRouteAttr(msg.Data[genHeader:])
	if err != nil || len(attrs) == 0 {
		return ConcernFilter
	}
	switch string(bytes.TrimRight(attrs[0].Value, "\x00")) {
	case FilterTable, ICMPTable:
		return ConcernFilter
	}
	return 0
}
