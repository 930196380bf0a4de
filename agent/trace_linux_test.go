package agent

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
)

// traceMark is the destination of a marker route: once a trace has seen it, it has seen
// all earlier events.
const traceMark = "203.0.113.77/32"

// trace is what "ip monitor route rule link" prints in the namespace of a node.
type trace struct {
	n      *testNode
	socket *nl.NetlinkSocket
	done   sync.WaitGroup

	mu    sync.Mutex
	lines []string
	marks int
	err   error
}

// watch starts a trace.
func (n *testNode) watch(t *testing.T) *trace {
	t.Helper()
	w := &trace{n: n}
	check(t, n.ns.Do(func() (err error) {
		w.socket, err = nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK,
			unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE)
		return err
	}), w.socket.SetReceiveBufferSize(flowBuffer, true))
	w.done.Go(func() {
		for {
			messages, _, err := w.socket.Receive()
			if err != nil {
				w.mu.Lock()
				w.err = err
				w.mu.Unlock()
				return
			}
			w.add(messages)
		}
	})
	t.Cleanup(func() {
		w.socket.Close()
		w.done.Wait()
	})
	return w
}

func (w *trace) add(messages []syscall.NetlinkMessage) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range messages {
		line := traceLine(m)
		switch {
		case strings.Contains(line, traceMark):
			w.marks++
		case line != "":
			w.lines = append(w.lines, line)
		}
	}
}

// take returns what has been printed since the last call.
func (w *trace) take(t *testing.T) []string {
	t.Helper()
	w.mu.Lock()
	before := w.marks
	w.mu.Unlock()
	check(t, w.n.ns.Do(func() error { return addRoute(traceMark, "") }), w.n.ns.Do(func() error { return delRoute(traceMark) }))
	polltest.Until(t, patience, "the trace to see what the test has done itself", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.marks == before+2 || w.err != nil
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	check(t, w.err)
	lines := slices.Clone(w.lines)
	w.lines = nil
	return lines
}

// traceLine describes an event, much as ip(8) does.
func traceLine(m syscall.NetlinkMessage) string {
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		info := nl.DeserializeIfInfomsg(m.Data)
		attrs := routeAttrs(m.Data[info.Len():])
		return fmt.Sprintf("%slink %s flags %#x", deleted(m, unix.RTM_DELLINK), strings.TrimRight(string(attrs[unix.IFLA_IFNAME]), "\x00"), info.Flags)
	case unix.RTM_NEWRULE, unix.RTM_DELRULE:
		return fmt.Sprintf("%srule family %d", deleted(m, unix.RTM_DELRULE), m.Data[0])
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		route := nl.DeserializeRtMsg(m.Data)
		attrs := routeAttrs(m.Data[route.Len():])
		line := deleted(m, unix.RTM_DELROUTE)
		if route.Type == unix.RTN_UNREACHABLE {
			line += "unreachable "
		}
		dst, _ := netip.AddrFromSlice(attrs[unix.RTA_DST])
		line += fmt.Sprintf("%s proto %d", netip.PrefixFrom(dst, int(route.Dst_len)), route.Protocol)
		if oif := attrs[unix.RTA_OIF]; len(oif) == 4 {
			line += fmt.Sprintf(" dev %d", nl.NativeEndian().Uint32(oif))
		}
		if src := attrs[unix.RTA_PREFSRC]; len(src) > 0 {
			line += " src " + net.IP(src).String()
		}
		return line
	}
	return ""
}

func deleted(m syscall.NetlinkMessage, kind uint16) string {
	if m.Header.Type == kind {
		return "Deleted "
	}
	return ""
}

func routeAttrs(data []byte) map[uint16][]byte {
	found := map[uint16][]byte{}
	attrs, err := nl.ParseRouteAttr(data)
	if err != nil {
		return found
	}
	for _, a := range attrs {
		found[a.Attr.Type] = a.Value
	}
	return found
}
