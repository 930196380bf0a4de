package testbed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// PingResult is the result of a series of echo requests.
type PingResult struct {
	Sent, Received int
	// LongestGap is the longest time in which no reply came, from the first
	// request to the end.
	LongestGap time.Duration
}

// Ping sends one echo request a second until a reply comes, or ctx ends.
func (h *Host) Ping(ctx context.Context, to netip.Addr) error {
	return h.PingUntilReply(ctx, to, time.Second)
}

// PingUntilReply sends an echo request at each interval until a reply comes, or ctx
// ends.
func (h *Host) PingUntilReply(ctx context.Context, to netip.Addr, interval time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	result, err := h.pingSeries(ctx, to, interval, 0, cancel)
	if err != nil {
		return err
	}
	if result.Received == 0 {
		return fmt.Errorf("ping %s from %s: no reply to %d requests", to, h.Name, result.Sent)
	}
	return nil
}

// PingSeries sends an echo request at each interval until ctx ends, and waits for the last replies
// until none has come for five seconds: this machine may pause for some of them.
func (h *Host) PingSeries(ctx context.Context, to netip.Addr, interval time.Duration) (PingResult, error) {
	return h.pingSeries(ctx, to, interval, 5*time.Second, func() {})
}

// pingProtocol is how one family does echo (RFC 792, RFC 4443).
type pingProtocol struct {
	network string
	number  int // IP protocol
	request icmp.Type
	reply   icmp.Type
}

func pingProtocolOf(to netip.Addr) pingProtocol {
	if to.Is4() {
		return pingProtocol{"ip4:icmp", 1, ipv4.ICMPTypeEcho, ipv4.ICMPTypeEchoReply}
	}
	return pingProtocol{"ip6:ipv6-icmp", 58, ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply}
}

// pingID distinguishes the series of one process: raw sockets receive all replies.
func (tb *Testbed) pingID() int { return int(uint16(tb.pings.Add(1))) }

func (h *Host) pingSeries(ctx context.Context, to netip.Addr, interval, patience time.Duration, onReply func()) (PingResult, error) {
	protocol := pingProtocolOf(to)
	var socket *net.IPConn
	if err := h.Space().Do(func() (err error) {
		socket, err = net.ListenIP(protocol.network, nil)
		return err
	}); err != nil {
		return PingResult{}, fmt.Errorf("ping from %s: %w", h.Name, err)
	}
	if err := enlarge(socket); err != nil {
		return PingResult{}, errors.Join(err, socket.Close())
	}
	id := h.tb.pingID()
	var received atomic.Int64
	type gaps struct {
		longest time.Duration // between replies
		last    time.Time     // of a reply
	}
	replies, heard := make(chan struct{}, 1), make(chan gaps, 1)
	start := time.Now()
	go func() {
		longest, last := listen(socket, protocol, to, id, start, func() {
			received.Add(1)
			onReply()
			select {
			case replies <- struct{}{}:
			default:
			}
		})
		heard <- gaps{longest, last}
	}()
	sent := 0
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for ctx.Err() == nil {
		sent++
		message := icmp.Message{Type: protocol.request, Body: &icmp.Echo{ID: id, Seq: sent & 0xffff, Data: make([]byte, 24)}}
		packet, err := message.Marshal(nil)
		if err != nil {
			return PingResult{}, errors.Join(err, socket.Close())
		}
		// Errors count as lost: a guard route makes sending itself fail.
		_, _ = socket.WriteTo(packet, &net.IPAddr{IP: to.AsSlice()})
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
	end := time.Now()
	for late := time.After(patience); late != nil && int(received.Load()) < sent; {
		select {
		case <-replies:
			late = time.After(patience)
		case <-late:
			late = nil
		}
	}
	if err := socket.Close(); err != nil {
		return PingResult{}, err
	}
	gap := <-heard
	return PingResult{Sent: sent, Received: int(received.Load()), LongestGap: max(gap.longest, end.Sub(gap.last))}, nil
}

// enlarge gives a socket a buffer for what comes while this process pauses.
func enlarge(socket *net.IPConn) error {
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	failed := error(nil)
	err = raw.Control(func(fd uintptr) {
		failed = os.NewSyscallError("enlarge the buffer", unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20))
	})
	return errors.Join(err, failed)
}

// listen reports each reply until the socket is closed, and returns the longest time between two
// and when the last one came.
func listen(socket *net.IPConn, protocol pingProtocol, from netip.Addr, id int, start time.Time, onReply func()) (longest time.Duration, last time.Time) {
	buffer := make([]byte, 1500)
	last = start
	for {
		n, source, err := socket.ReadFrom(buffer)
		now := time.Now()
		if err != nil {
			return longest, last
		}
		message, err := icmp.ParseMessage(protocol.number, buffer[:n])
		if err != nil || message.Type != protocol.reply {
			continue
		}
		echo, ok := message.Body.(*icmp.Echo)
		address, isIP := source.(*net.IPAddr)
		if !ok || !isIP || echo.ID != id || !address.IP.Equal(from.AsSlice()) {
			continue
		}
		longest = max(longest, now.Sub(last))
		last = now
		onReply()
	}
}
