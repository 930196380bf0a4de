package agent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

// icmpError is an ICMP error that arrived for a packet.
type icmpError struct {
	kind, code uint8
	info       uint32 // the MTU
	from       netip.Addr
}

func (e icmpError) String() string {
	return fmt.Sprintf("type %d code %d info %d from %s", e.kind, e.code, e.info, e.from)
}

// icmpErrorFor sends UDP packets of a size in bytes from the node's pod, that mustn't be
// fragmented, until an ICMP error arrives.
func (n *testNode) icmpErrorFor(t *testing.T, to netip.Addr, size, ttl int) (got icmpError) {
	t.Helper()
	var fd int
	check(t, n.pod.Do(func() (err error) {
		family, level, errs, discover, hops := unix.AF_INET, unix.IPPROTO_IP, unix.IP_RECVERR, unix.IP_MTU_DISCOVER, unix.IP_TTL
		var four [4]byte
		if to.Is4() {
			four = to.As4()
		}
		addr := unix.Sockaddr(&unix.SockaddrInet4{Port: 9, Addr: four})
		if to.Is6() {
			family, level, errs, discover, hops = unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_RECVERR, unix.IPV6_MTU_DISCOVER, unix.IPV6_UNICAST_HOPS
			addr = &unix.SockaddrInet6{Port: 9, Addr: to.As16()}
		}
		fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		return errors.Join(
			unix.SetsockoptInt(fd, level, errs, 1), unix.SetsockoptInt(fd, level, discover, unix.IP_PMTUDISC_DO),
			unix.SetsockoptInt(fd, level, hops, ttl), unix.Connect(fd, addr),
		)
	}))
	defer unix.Close(fd)
	headers := 28
	if to.Is6() {
		headers = 48
	}
	packet := make([]byte, size-headers)
	await(t, fmt.Sprintf("an ICMP error for %d bytes to %s with a hop limit of %d", size, to, ttl), func() bool {
		_, _ = unix.Write(fd, packet) // A pending error is in the queue, too.
		time.Sleep(50 * time.Millisecond)
		oob := make([]byte, 512)
		_, oobn, _, _, err := unix.Recvmsg(fd, make([]byte, 2048), oob, unix.MSG_ERRQUEUE)
		if err != nil {
			return false
		}
		messages, err := unix.ParseSocketControlMessage(oob[:oobn])
		check(t, err)
		for _, m := range messages {
			const extended = int(unsafe.Sizeof(unix.SockExtendedErr{}))
			if len(m.Data) < extended+24 && to.Is6() || len(m.Data) < extended+8 || m.Data[4] == unix.SO_EE_ORIGIN_LOCAL {
				continue
			}
			got = icmpError{kind: m.Data[5], code: m.Data[6], info: binary.NativeEndian.Uint32(m.Data[8:])}
			if to.Is6() {
				got.from = netip.AddrFrom16([16]byte(m.Data[extended+8:]))
			} else {
				got.from = netip.AddrFrom4([4]byte(m.Data[extended+4:]))
			}
			return true
		}
		return false
	})
	return got
}

// A node's ICMP errors reach remote pods: they learn an MTU behind the node, where their
// packets end, and that a pod doesn't exist. Peers only accept addresses of the node's pods:
// the source is the host's address among them where routes have one, else the address to
// which the pod has sent.
func TestICMPErrorsReachRemotePods(t *testing.T) {
	nstest.Long(t)
	eachBackend(t, func(t *testing.T, backend string) {
		s := newSite(t, "aws", "gcp")
		a := s.addNode(t, s.clusters["aws"], backend)
		a.start(t)
		for _, c := range []struct {
			name             string
			source           string
			exact            bool // only the pod's own addresses are published
			routed4, routed6 bool // routes have a source
		}{
			{name: "auto", source: config.RouteSrcAuto, routed4: true, routed6: true},
			{name: "none", source: config.RouteSrcNone},
			{name: "an address of IPv4", source: "cni0", routed4: true},
			{name: "auto, without an address of the host among those of pods", source: config.RouteSrcAuto, exact: true},
		} {
			b := s.addNode(t, s.clusters["gcp"], backend)
			n := b.cluster.nodes
			cni4, cni6 := b.podCIDR.Addr().Next(), netip.MustParseAddr(fmt.Sprintf("fd00:4:0:%d::1", n))
			pod4, pod6 := b.podIP, cni6.Next()
			none4, none6 := netip.AddrFrom4([4]byte{10, 4, byte(n), 77}), netip.MustParseAddr(fmt.Sprintf("fd00:4:0:%d::77", n))
			b.env["SEMAPHORE_WG_ROUTE_SRC"] = c.source
			if c.source == "cni0" {
				b.env["SEMAPHORE_WG_ROUTE_SRC"] = cni4.String()
			}
			if c.exact {
				b.env["SEMAPHORE_WG_POD_CIDRS"] = pod4.String() + "/32," + pod6.String() + "/128"
			}
			check(t, b.ns.Do(func() error {
				link, err := netlink.LinkByName("cni0")
				return errors.Join(err,
					netlink.LinkSetMTU(link, 1300),
					// Closer to the remote's pods than the address of cni0 is.
					addAddress("eth0", fmt.Sprintf("fd00:2:9::%d/64", n)),
				)
			}))
			b.start(t)
			a.waitReady(t)
			b.waitReady(t)
			a.awaitPath(t, b, "to be up", answers)
			t.Run(c.name, func(t *testing.T) {
				from := func(to netip.Addr) netip.Addr {
					switch {
					case to.Is4() && c.routed4:
						return cni4
					case to.Is6() && c.routed6:
						return cni6
					}
					return to
				}
				for _, e := range []struct {
					name      string
					to        netip.Addr
					size, ttl int
					want      icmpError
				}{
					{"fragmentation needed", pod4, 1400, 64, icmpError{3, 4, 1300, from(pod4)}},
					{"time exceeded", pod4, 100, 2, icmpError{11, 0, 0, from(pod4)}},
					{"host unreachable", none4, 100, 64, icmpError{3, 1, 0, from(none4)}},
					{"packet too big", pod6, 1400, 64, icmpError{2, 0, 1300, from(pod6)}},
					{"time exceeded, IPv6", pod6, 100, 2, icmpError{3, 0, 0, from(pod6)}},
					{"address unreachable", none6, 100, 64, icmpError{1, 3, 0, from(none6)}},
				} {
					if c.exact && (e.to == none4 || e.to == none6) {
						continue // No packet to them enters the tunnel.
					}
					t.Run(e.name, func(t *testing.T) {
						if got := a.icmpErrorFor(t, e.to, e.size, e.ttl); got != e.want {
							t.Errorf("%s: got %s, want %s", backend, got, e.want)
						}
					})
				}
			})
		}
	})
}
