package routes

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
)

// The original tool's fault: without the device, packets to remote pods leave unencrypted
// through the default route.
func TestNothingLeavesThroughTheDefaultRouteWhenTheDeviceIsGone(t *testing.T) {
	n := newNode(t)
	targets := []string{"10.4.1.1:80", "[fd04::1]:80"}

	// Without our routes all probes leave in plaintext, which proves that the capture sees
	// them. All must have arrived before the next step.
	n.probe(t, targets)
	for seen := 0; seen < 2*len(targets); {
		if to, _ := header(n.capture.next(t)); remote(to) {
			seen++
		}
	}

	var table *Table
	var device int
	n.do(t, n.host, func() error {
		table = newTable(t)
		device = addDevice(t, "wireguard.gcp")
		return nil
	})
	mustRoute(t, table, Desired(prefixes(subnet4, subnet6), device, nil))
	n.probe(t, targets)
	if leaked := n.capture.leaked(t, n); leaked != 0 {
		t.Errorf("%d packets leaked past the device", leaked)
	}

	n.do(t, n.host, func() error { return netlink.LinkDel(link(t, "wireguard.gcp")) })
	n.do(t, n.host, func() error {
		for _, target := range targets {
			start := time.Now()
			err := dial(target) // A timeout has another error.
			if !errors.Is(err, unix.EHOSTUNREACH) {
				t.Errorf("%s: got %v, want %v", target, err, unix.EHOSTUNREACH)
			}
			t.Logf("%s: failed after %s", target, time.Since(start))
		}
		return nil
	})
	// The pod receives ICMP. (Its TCP needs one retransmission to give up over IPv6, where
	// an ICMP error that arrives while connect(2) holds the socket is only a soft error.)
	n.do(t, n.pod, func() error {
		answers, err := newCapture(link(t, "eth0").Attrs().Index)
		if err != nil {
			return err
		}
		defer answers.close()
		for _, target := range targets {
			start := time.Now()
			send(target)
			for received := false; !received; {
				received = unreachable(answers.next(t))
			}
			t.Logf("the pod received \"unreachable\" for %[2]s after %[1]s", time.Since(start), target)
		}
		return nil
	})
	n.probe(t, targets)
	if leaked := n.capture.leaked(t, n); leaked != 0 {
		t.Errorf("%d packets leaked after the device was deleted", leaked)
	}

	// A pass without the device leaves only the guards in place.
	mustSync(t, table, Desired(prefixes(subnet4, subnet6), 0, nil))
	n.probe(t, targets)
	if leaked := n.capture.leaked(t, n); leaked != 0 {
		t.Errorf("%d packets leaked after a pass without the device", leaked)
	}
}

// uplinkTargets are addresses of the uplink with closed ports.
var uplinkTargets = []string{"192.0.2.2:9", "[2001:db8::2]:9"}

// node is a host with a pod behind it and a default route to an uplink, on whose
// other end all packets are captured.
type node struct {
	host, pod, uplink *nstest.Namespace
	capture           *capture
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{host: nstest.New(t), pod: nstest.New(t), uplink: nstest.New(t)}
	nstest.Pair(t, n.host, n.uplink, "eth0", "eth0")
	nstest.Pair(t, n.host, n.pod, "cni0", "eth0")
	n.do(t, n.uplink, func() (err error) {
		addAddress(t, "eth0", "192.0.2.2/24", "2001:db8::2/64")
		addRoute(t, netlink.Route{Gw: net.ParseIP("192.0.2.1")}, "10.1.3.0/24")
		addRoute(t, netlink.Route{Gw: net.ParseIP("2001:db8::1")}, "fd01:0:0:3::/64")
		n.capture, err = newCapture(link(t, "eth0").Attrs().Index)
		return err
	})
	t.Cleanup(n.capture.close)
	n.do(t, n.host, func() error {
		addAddress(t, "eth0", "192.0.2.1/24", "2001:db8::1/64")
		addAddress(t, "cni0", "10.1.3.1/24", "fd01:0:0:3::1/64")
		addRoute(t, netlink.Route{Gw: net.ParseIP("192.0.2.2")}, "0.0.0.0/0")
		addRoute(t, netlink.Route{Gw: net.ParseIP("2001:db8::2")}, "::/0")
		return errors.Join(
			os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0),
			os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0),
		)
	})
	n.do(t, n.pod, func() error {
		addAddress(t, "eth0", "10.1.3.5/24", "fd01:0:0:3::5/64")
		addRoute(t, netlink.Route{Gw: net.ParseIP("10.1.3.1")}, "0.0.0.0/0")
		addRoute(t, netlink.Route{Gw: net.ParseIP("fd01:0:0:3::1")}, "::/0")
		return nil
	})
	// An answer from the uplink proves that all neighbours are resolved: packets that wait
	// for that could arrive in the middle of another step.
	for _, namespace := range []*nstest.Namespace{n.host, n.pod} {
		for _, target := range uplinkTargets {
			polltest.Until(t, time.Minute, "the uplink to answer", func() bool {
				return errors.Is(namespace.Do(func() error { return dial(target) }), unix.ECONNREFUSED)
			})
		}
	}
	return n
}

// do runs f in a namespace, on another goroutine than the test: a failed must ends that
// goroutine, and is an error here.
func (n *node) do(t *testing.T, namespace *nstest.Namespace, f func() error) {
	t.Helper()
	must(t, namespace.Do(f))
}

// probe sends a UDP packet from the host and from the pod to each target.
func (n *node) probe(t *testing.T, targets []string) {
	t.Helper()
	for _, namespace := range []*nstest.Namespace{n.host, n.pod} {
		for _, target := range targets {
			n.do(t, namespace, func() error {
				send(target)
				return nil
			})
		}
	}
}

// send sends a UDP packet. An error is a result, not a fault.
func send(target string) {
	conn, err := net.Dial("udp", target)
	if err != nil {
		return
	}
	_, _ = conn.Write([]byte("plaintext"))
	_ = conn.Close()
}

const dialTime = 2 * time.Second

func dial(target string) error {
	ctx, cancel := context.WithTimeout(context.Background(), dialTime)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", target)
	if err != nil {
		return err
	}
	return conn.Close()
}

// capture sees every packet that arrives at a link.
type capture struct{ fd int }

func newCapture(index int) (*capture, error) {
	everything := uint16(unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8) // in network order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(everything))
	if err != nil {
		return nil, err
	}
	return &capture{fd: fd}, errors.Join(
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: everything, Ifindex: index}),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 60}),
	)
}

func (c *capture) close() { _ = unix.Close(c.fd) }

// next waits for a packet.
func (c *capture) next(t *testing.T) []byte {
	t.Helper()
	packet := make([]byte, 65536)
	for {
		size, _, err := unix.Recvfrom(c.fd, packet, 0)
		if errors.Is(err, unix.EINTR) {
			continue // interrupted by a signal of Go's runtime
		}
		must(t, err)
		return packet[:size]
	}
}

// leaked counts the packets for the remote pod subnets that were captured since the last
// call. Packets that host and pod send to the uplink now, by the same path as a leak, mark
// the end.
func (c *capture) leaked(t *testing.T, n *node) (count int) {
	t.Helper()
	n.probe(t, uplinkTargets)
	for marks := 2 * len(uplinkTargets); marks > 0; {
		switch to, protocol := header(c.next(t)); {
		case remote(to):
			count++
		case protocol == unix.IPPROTO_UDP:
			marks--
		}
	}
	return count
}

func remote(to netip.Addr) bool {
	return netip.MustParsePrefix(subnet4).Contains(to) || netip.MustParsePrefix(subnet6).Contains(to)
}

// header reads destination and protocol of an IP packet.
func header(packet []byte) (to netip.Addr, protocol byte) {
	switch {
	case len(packet) >= 20 && packet[0]>>4 == 4:
		to, _ = netip.AddrFromSlice(packet[16:20])
		return to, packet[9]
	case len(packet) >= 40 && packet[0]>>4 == 6:
		to, _ = netip.AddrFromSlice(packet[24:40])
		return to, packet[6]
	default:
		return netip.Addr{}, 0
	}
}

// unreachable reports whether the packet is the ICMP message "destination
// unreachable": type 3 of ICMP (RFC 792), type 1 of ICMPv6 (RFC 4443).
func unreachable(packet []byte) bool {
	switch _, protocol := header(packet); protocol {
	case unix.IPPROTO_ICMP:
		return len(packet) > 20 && packet[20] == 3
	case unix.IPPROTO_ICMPV6:
		return len(packet) > 40 && packet[40] == 1
	default:
		return false
	}
}
