package tunnel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
)

// lockstep sends packets one by one, each as soon as the one before has arrived, so that none
// is lost in a full queue.
type lockstep struct {
	send       net.Conn
	receive    *net.UDPConn
	sent, lost int
	stop       atomic.Bool
	done       chan error
	what       string
}

// late is the time after which a packet counts as lost.
const late = 5 * time.Second

// startLockstep sends from a pod of one site to an address of another.
func startLockstep(t *testing.T, what string, from, to *site, at netip.Addr) *lockstep {
	t.Helper()
	l := &lockstep{what: what, done: make(chan error, 1)}
	err := to.ns.Do(func() (err error) {
		l.receive, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at, 0)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.receive.Close() })
	err = from.ns.Do(func() (err error) {
		local := &net.UDPAddr{IP: from.pods[0].AsSlice()}
		l.send, err = (&net.Dialer{LocalAddr: local}).Dial("udp", l.receive.LocalAddr().String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.send.Close() })
	go func() { l.done <- l.run() }()
	return l
}

func (l *lockstep) run() error {
	packet := make([]byte, 8)
	for !l.stop.Load() {
		l.sent++
		binary.BigEndian.PutUint64(packet, uint64(l.sent))
		if _, err := l.send.Write(packet); err != nil {
			// The kernel's device returns an error for packets without a peer.
			l.lost++
			continue
		}
		if err := l.receive.SetReadDeadline(time.Now().Add(late)); err != nil {
			return err
		}
		for got := uint64(0); got != uint64(l.sent); {
			n, err := l.receive.Read(packet)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				l.lost++
				break
			}
			if err != nil || n != len(packet) {
				return fmt.Errorf("read %d bytes: %w", n, err)
			}
			got = binary.BigEndian.Uint64(packet)
		}
	}
	return nil
}

func (l *lockstep) check(t *testing.T) {
	t.Helper()
	l.stop.Store(true)
	if err := <-l.done; err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %d of %d packets lost", l.what, l.lost, l.sent)
	if l.lost > 0 {
		t.Errorf("%s: packets are lost", l.what)
	}
}

// A prefix that moves between two peers is at one of them all the time, and a peer's other
// prefixes aren't affected.
func TestNothingIsLostWhilePrefixesMove(t *testing.T) {
	eachBackend(t, func(t *testing.T, backend string) {
		a, b := twoSites(t, backend, Userspace)
		// Two devices on the same host, so that a packet arrives through either.
		other := *b
		other.agent = startAgent(t, b.ns, Config{
			Name: DeviceName("other"), Alias: Alias("other"), KeyPath: t.TempDir(),
			Backend: Userspace, ListenPort: 51830, MTU: 1420,
		})
		other.configure(t, a.peerOf(0))
		staying, moving := addr("10.2.8.%d", 1), addr("10.2.9.%d", 1)
		if err := b.ns.Do(func() error {
			return errors.Join(
				addAddress("lo", netip.PrefixFrom(staying, 32)), addAddress("lo", netip.PrefixFrom(moving, 32)),
				// Packets arrive through one device and are answered through the other.
				os.WriteFile("/proc/sys/net/ipv4/conf/all/rp_filter", []byte("0"), 0o644),
				os.WriteFile("/proc/sys/net/ipv4/conf/"+DeviceName("other")+"/rp_filter", []byte("0"), 0o644),
			)
		}); err != nil {
			t.Fatal(err)
		}
		one, two := b.peerOf(0), other.peerOf(0)
		one.AllowedIPs, two.AllowedIPs = prefixes("10.2.8.0/24"), nil
		for i := range 2000 {
			one.AllowedIPs = append(one.AllowedIPs, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 2, byte(16 + i/256), byte(i)}), 32))
		}
		place := func(round int) []Peer {
			one, two := one, two
			one.AllowedIPs = one.AllowedIPs[:len(one.AllowedIPs)-round%2] // The last one is added and removed.
			if round%2 == 0 {
				one.AllowedIPs = append(one.AllowedIPs[:len(one.AllowedIPs):len(one.AllowedIPs)], netip.PrefixFrom(moving, 32))
			} else {
				two.AllowedIPs = prefixes("10.2.9.1/32")
			}
			return []Peer{one, two}
		}
		meet(t, a, b, 0)
		a.configure(t, place(0)...)
		polltest.Until(t, time.Minute, "a session with the other device", func() bool {
			return !a.peer(t, other.key).LastHandshake.IsZero()
		})
		flows := []*lockstep{
			startLockstep(t, "to a prefix that moves", a, b, moving),
			startLockstep(t, "to a prefix that stays", a, b, staying),
		}
		rounds := unlessShort(50, 10) // even
		for round := range rounds {
			a.configure(t, place(round+1)...)
		}
		for _, flow := range flows {
			flow.check(t)
		}
		a.call(t, request{Call: "later"})
		if changes := a.configure(t, place(rounds)...); changes.Any() {
			t.Errorf("a full comparison finds something: %+v", changes)
		}
		if n := len(a.call(t, request{Call: "status"}).Status.Peers); n != 2 {
			t.Errorf("the device has %d peers, want 2", n)
		}
	})
}
