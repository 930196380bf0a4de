package routes

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
)

// The pods of two clusters, aws and gcp, have the same addresses. Their subnets don't end at a
// byte.
var (
	awsMap = []Mapping{
		{netip.MustParsePrefix("10.0.0.0/14"), netip.MustParsePrefix("100.64.0.0/14")},
		{netip.MustParsePrefix("fd00:4::/47"), netip.MustParsePrefix("fd00:c8::/47")},
	}
	gcpMap = []Mapping{
		{netip.MustParsePrefix("10.0.0.0/14"), netip.MustParsePrefix("100.68.0.0/14")},
		{netip.MustParsePrefix("fd00:4::/47"), netip.MustParsePrefix("fd00:ca::/47")},
	}
)

// mappedPod are the addresses of a pod: as its cluster knows them, and others.
type mappedPod struct{ real, virtual []string }

const tunnelMTU, narrowMTU = 1420, 1300

// mappedBed has a node and two pods in each of two clusters, and a veth in place of the tunnel.
type mappedBed struct {
	aws, gcp           *nstest.Namespace // nodes
	awsPod, gcpPod     *nstest.Namespace
	awsOther           *nstest.Namespace // on the node of awsPod
	atAWS, atGCP, with mappedPod
}

func newMappedBed(t *testing.T, conntrack bool) *mappedBed {
	t.Helper()
	b := &mappedBed{
		aws: nstest.New(t), gcp: nstest.New(t), awsPod: nstest.New(t), gcpPod: nstest.New(t), awsOther: nstest.New(t),
		atAWS: mappedPod{[]string{"10.3.200.5", "fd00:4:1::5"}, []string{"100.67.200.5", "fd00:c8:1::5"}},
		atGCP: mappedPod{[]string{"10.3.200.5", "fd00:4:1::5"}, []string{"100.71.200.5", "fd00:ca:1::5"}},
		with:  mappedPod{[]string{"10.3.200.6", "fd00:4:1::6"}, []string{"100.67.200.6", "fd00:c8:1::6"}},
	}
	nstest.Pair(t, b.aws, b.gcp, "wireguard.gcp", "wireguard.aws")
	nstest.Pair(t, b.aws, b.awsPod, "pod5", "eth0")
	nstest.Pair(t, b.aws, b.awsOther, "pod6", "eth0")
	nstest.Pair(t, b.gcp, b.gcpPod, "pod5", "eth0")
	for _, of := range []struct {
		node      *nstest.Namespace
		tunnel    string
		own, peer []Mapping
	}{{b.aws, "wireguard.gcp", awsMap, gcpMap}, {b.gcp, "wireguard.aws", gcpMap, awsMap}} {
		must(t, of.node.Do(func() error {
			pointToPoint(t, of.tunnel)
			addAddress(t, "lo", "10.3.200.1/32", "fd00:4:1::1/128")
			for _, link := range []string{"pod5", "pod6"} {
				if l, err := netlink.LinkByName(link); err == nil {
					id := link[3:]
					addRoute(t, netlink.Route{LinkIndex: l.Attrs().Index, Scope: netlink.SCOPE_LINK}, "10.3.200."+id+"/32")
					addRoute(t, netlink.Route{LinkIndex: l.Attrs().Index}, "fd00:4:1::"+id+"/128")
					addAddress(t, link, "169.254.1.1/32", "fe80::1/64")
				}
			}
			for _, s := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
				must(t, sysctl(s, "1"))
			}
			var remote []netip.Prefix
			for _, m := range of.peer {
				remote = append(remote, m.Virtual)
			}
			src := []netip.Addr{netip.MustParseAddr("10.3.200.1"), netip.MustParseAddr("fd00:4:1::1")}
			want := Desired(remote, link(t, of.tunnel).Attrs().Index, src)
			for _, m := range of.own {
				want = append(want, Desired([]netip.Prefix{m.Virtual}, 0, nil)...)
			}
			mustRoute(t, newTable(t), want)
			f := newFilter(t)
			f.lacks = !conntrack
			_, err := f.Sync(t.Context(), mappedRuleset(of.tunnel, of.own, of.peer))
			return errors.Join(err, looseReversePath())
		}))
	}
	for _, pod := range []struct {
		at *nstest.Namespace
		of mappedPod
	}{{b.awsPod, b.atAWS}, {b.awsOther, b.with}, {b.gcpPod, b.atGCP}} {
		must(t, pod.at.Do(func() error {
			addAddress(t, "eth0", pod.of.real[0]+"/32", pod.of.real[1]+"/128")
			index := link(t, "eth0").Attrs().Index
			addRoute(t, netlink.Route{LinkIndex: index, Scope: netlink.SCOPE_LINK}, "169.254.1.1/32")
			addRoute(t, netlink.Route{LinkIndex: index, Gw: net.ParseIP("169.254.1.1")}, "0.0.0.0/0")
			addRoute(t, netlink.Route{LinkIndex: index, Gw: net.ParseIP("fe80::1")}, "::/0")
			return nil
		}))
	}
	return b
}

func mappedRuleset(tunnel string, own, remote []Mapping) Ruleset {
	r := rulesetOf([]Origin{{Device: tunnel, Subnets: []netip.Prefix{remote[0].Virtual, remote[1].Virtual}}})
	r.Map = own
	return r
}

// pointToPoint makes one end of a veth pair like a tunnel: it has no neighbours.
func pointToPoint(t *testing.T, name string) {
	t.Helper()
	l := link(t, name)
	must(t, netlink.LinkSetHardwareAddr(l, net.HardwareAddr{2, 0, 0, 0, 0, 1}))
	must(t, netlink.LinkSetARPOff(l))
	must(t, netlink.LinkSetMTU(l, tunnelMTU))
}

func (b *mappedBed) status(t *testing.T) (s State) {
	t.Helper()
	must(t, b.aws.Do(func() (err error) {
		s, err = newFilter(t).Status(t.Context(), mappedRuleset("wireguard.gcp", awsMap, gcpMap))
		return err
	}))
	return s
}

// eachMapped runs a test with connection tracking on the nodes, which reassembles fragments, and
// without, for IPv4 and IPv6: i is the index of addresses.
func eachMapped(t *testing.T, f func(t *testing.T, b *mappedBed, i int)) {
	t.Helper()
	for _, conntrack := range []bool{true, false} {
		b := newMappedBed(t, conntrack)
		for i, family := range []string{"IPv4", "IPv6"} {
			t.Run(fmt.Sprintf("%s, connections tracked %v", family, conntrack), func(t *testing.T) { f(t, b, i) })
		}
		if s := b.status(t); !s.Translation || !s.Arrival || !s.Exit || s.Hairpin != conntrack || s.Untranslated != 0 || s.Forged["wireguard.gcp"] != 0 {
			t.Errorf("state %+v", s)
		}
	}
}

// listen starts an echo server of TCP or UDP inside a namespace. It prefixes what it sends by the
// address of the client.
func listen(t *testing.T, at *nstest.Namespace, network string, options ...func(fd int) error) (port int) {
	t.Helper()
	config := net.ListenConfig{Control: controlling(options)}
	must(t, at.Do(func() error {
		if strings.HasPrefix(network, "tcp") {
			l, err := config.Listen(t.Context(), network, ":0")
			if err != nil {
				return err
			}
			port = l.Addr().(*net.TCPAddr).Port
			t.Cleanup(func() { _ = l.Close() })
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					go func() {
						defer conn.Close()
						fmt.Fprintln(conn, netip.MustParseAddrPort(conn.RemoteAddr().String()).Addr().Unmap())
						_, _ = io.Copy(conn, conn)
					}()
				}
			}()
			return nil
		}
		c, err := config.ListenPacket(t.Context(), network, ":0")
		if err != nil {
			return err
		}
		port = c.LocalAddr().(*net.UDPAddr).Port
		t.Cleanup(func() { _ = c.Close() })
		go func() {
			for buffer := make([]byte, 65536); ; {
				n, from, err := c.ReadFrom(buffer)
				if err != nil {
					return
				}
				_, _ = c.WriteTo(append([]byte(from.(*net.UDPAddr).AddrPort().Addr().Unmap().String()+"\n"), buffer[:n]...), from)
			}
		}()
		return nil
	}))
	return port
}

func controlling(options []func(fd int) error) func(string, string, syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) (err error) {
		controlErr := c.Control(func(fd uintptr) {
			for _, o := range options {
				err = errors.Join(err, o(int(fd)))
			}
		})
		return errors.Join(err, controlErr)
	}
}

// connect opens a connection from inside a namespace.
func connect(t *testing.T, from *nstest.Namespace, network, address string, port int, options ...func(fd int) error) net.Conn {
	t.Helper()
	var conn net.Conn
	must(t, from.Do(func() (err error) {
		dialer := net.Dialer{Timeout: 20 * time.Second, Control: controlling(options)}
		conn, err = dialer.DialContext(t.Context(), network, netip.AddrPortFrom(netip.MustParseAddr(address), uint16(port)).String())
		return err
	}))
	t.Cleanup(func() { _ = conn.Close() })
	must(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	return conn
}

// asks sends a message by UDP until an answer arrives, and returns the address that the server saw.
func asks(t *testing.T, conn net.Conn, size int) string {
	t.Helper()
	message := bytes.Repeat([]byte("x"), size)
	answer := make([]byte, 65536)
	var seen string
	polltest.Until(t, 10*time.Second, "an answer", func() bool {
		if _, err := conn.Write(message); err != nil {
			t.Logf("send: %v", err)
			return false
		}
		must(t, conn.SetReadDeadline(time.Now().Add(300*time.Millisecond)))
		n, err := conn.Read(answer)
		if err != nil {
			return false
		}
		from, rest, _ := bytes.Cut(answer[:n], []byte("\n"))
		if !bytes.Equal(rest, message) {
			t.Errorf("%d bytes came back of %d", len(rest), size)
		}
		seen = string(from)
		return true
	})
	return seen
}

// Both sides use the same address, and see each other by virtual ones.
func TestTranslatedTCP(t *testing.T) {
	const size = 20 << 20 // many segments of the sizes that offloading makes
	eachMapped(t, func(t *testing.T, b *mappedBed, i int) {
		for _, way := range []struct {
			from, to       *nstest.Namespace
			source, target mappedPod
		}{{b.awsPod, b.gcpPod, b.atAWS, b.atGCP}, {b.gcpPod, b.awsPod, b.atGCP, b.atAWS}} {
			conn := connect(t, way.from, "tcp", way.target.virtual[i], listen(t, way.to, "tcp"))
			sent := bytes.Repeat([]byte("0123456789abcdef"), size/16)
			go func() {
				_, _ = conn.Write(sent)
				_ = conn.(*net.TCPConn).CloseWrite()
			}()
			got, err := io.ReadAll(conn)
			must(t, err)
			from, echo, _ := bytes.Cut(got, []byte("\n"))
			if string(from) != way.source.virtual[i] {
				t.Errorf("the server saw %s, want %s", from, way.source.virtual[i])
			}
			if !bytes.Equal(echo, sent) {
				t.Errorf("%d bytes came back of %d", len(echo), len(sent))
			}
		}
	})
}

func TestTranslatedUDP(t *testing.T) {
	eachMapped(t, func(t *testing.T, b *mappedBed, i int) {
		noChecksum := []func(int) error{
			func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_NO_CHECK, 1) },
			func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_UDP, 101, 1) }, // UDP_NO_CHECK6_TX
			func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_UDP, 102, 1) }, // UDP_NO_CHECK6_RX
		}
		for _, c := range []struct {
			name    string
			size    int
			options []func(int) error
		}{
			{"small", 10, nil}, {"fragments", 4000, nil}, {"many fragments", 30_000, nil},
			{"without a checksum", 10, noChecksum}, {"fragments without a checksum", 4000, noChecksum},
		} {
			t.Run(c.name, func(t *testing.T) {
				network := []string{"udp4", "udp6"}[i]
				conn := connect(t, b.awsPod, network, b.atGCP.virtual[i], listen(t, b.gcpPod, network, c.options...), c.options...)
				if seen := asks(t, conn, c.size); seen != b.atAWS.virtual[i] {
					t.Errorf("the server saw %s, want %s", seen, b.atAWS.virtual[i])
				}
			})
		}
	})
}

// Each of many packets of all sizes has the right checksum.
func TestTranslatedChecksums(t *testing.T) {
	b := newMappedBed(t, true)
	for i, network := range []string{"udp4", "udp6"} {
		conn := connect(t, b.awsPod, network, b.atGCP.virtual[i], listen(t, b.gcpPod, network))
		message, answer := make([]byte, 1000), make([]byte, 2000)
		lost := 0
		for n := range 3000 {
			binary.BigEndian.PutUint32(message, uint32(n)*2654435761)
			_, err := conn.Write(message[:4+n%900])
			must(t, err)
			must(t, conn.SetReadDeadline(time.Now().Add(5*time.Second)))
			if _, err := conn.Read(answer); err != nil {
				lost++
			}
		}
		if lost > 0 {
			t.Errorf("%s: %d of 3000 packets were lost", network, lost)
		}
	}
}

func TestTranslatedEchoes(t *testing.T) {
	eachMapped(t, func(t *testing.T, b *mappedBed, i int) {
		for _, size := range []int{56, 4000} {
			network, kind, reply := []string{"ip4:icmp", "ip6:ipv6-icmp"}[i], []byte{8, 128}[i], []byte{0, 129}[i]
			var conn net.PacketConn
			must(t, b.awsPod.Do(func() (err error) {
				conn, err = net.ListenPacket(network, b.atAWS.real[i])
				return err
			}))
			request := append([]byte{kind, 0, 0, 0, 7, 7, 0, byte(size % 250)}, make([]byte, size)...)
			if i == 0 {
				binary.BigEndian.PutUint16(request[2:], checksum(request))
			}
			target := &net.IPAddr{IP: net.ParseIP(b.atGCP.virtual[i])}
			polltest.Until(t, time.Minute, "an echo reply", func() bool {
				_, err := conn.WriteTo(request, target)
				must(t, err)
				must(t, conn.SetReadDeadline(time.Now().Add(300*time.Millisecond)))
				for answer := make([]byte, 65536); ; {
					n, from, err := conn.ReadFrom(answer)
					if err != nil {
						return false
					}
					if answer[0] == reply && answer[7] == request[7] && n == len(request) {
						if from.String() != b.atGCP.virtual[i] {
							t.Errorf("a reply from %s, want %s", from, b.atGCP.virtual[i])
						}
						return true
					}
				}
			})
			must(t, conn.Close())
		}
	})
}

// checksum is that of IP and ICMP (RFC 1071).
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(b[i]) << 8
		if i+1 < len(b) {
			sum += uint32(b[i+1])
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// SCTP has no checksum over addresses: packets arrive as they are.
func TestTranslatedSCTP(t *testing.T) {
	eachMapped(t, func(t *testing.T, b *mappedBed, i int) {
		network := []string{"ip4:132", "ip6:132"}[i]
		var server, client net.PacketConn
		must(t, b.gcpPod.Do(func() (err error) { server, err = net.ListenPacket(network, b.atGCP.real[i]); return err }))
		must(t, b.awsPod.Do(func() (err error) { client, err = net.ListenPacket(network, b.atAWS.real[i]); return err }))
		defer server.Close()
		defer client.Close()
		init := []byte{0x12, 0x34, 0x56, 0x78, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 20, 1, 2, 3, 4, 0, 1, 0, 0, 0, 10, 0, 10, 1, 2, 3, 4}
		binary.LittleEndian.PutUint32(init[8:], castagnoli(init))
		polltest.Until(t, time.Minute, "an INIT", func() bool {
			_, err := client.WriteTo(init, &net.IPAddr{IP: net.ParseIP(b.atGCP.virtual[i])})
			must(t, err)
			must(t, server.SetReadDeadline(time.Now().Add(300*time.Millisecond)))
			got := make([]byte, 100)
			n, from, err := server.ReadFrom(got)
			if err != nil {
				return false
			}
			if from.String() != b.atAWS.virtual[i] || !bytes.Equal(got[:n], init) {
				t.Errorf("%x from %s", got[:n], from)
			}
			return true
		})
	})
}

// ICMP errors of all kinds reach the pod whose packet they are about, and name the destination
// that it has used.
func TestTranslatedICMPErrors(t *testing.T) {
	eachMapped(t, func(t *testing.T, b *mappedBed, i int) {
		must(t, b.gcp.Do(func() error { return netlink.LinkSetMTU(link(t, "pod5"), narrowMTU) }))
		node := []string{"100.71.200.1", "fd00:ca:1::1"}[i]
		for _, c := range []struct {
			name      string
			to        string
			size, ttl int
			want      [2]icmpError
		}{
			{"port unreachable", b.atGCP.virtual[i], 100, 64, [2]icmpError{{3, 3, 0, b.atGCP.virtual[0]}, {1, 4, 0, b.atGCP.virtual[1]}}},
			{"too big", b.atGCP.virtual[i], narrowMTU + 50, 64, [2]icmpError{{3, 4, narrowMTU, node}, {2, 0, narrowMTU, node}}},
			{"time exceeded", b.atGCP.virtual[i], 100, 2, [2]icmpError{{11, 0, 0, node}, {3, 0, 0, node}}},
			{"no such pod", []string{"100.71.200.99", "fd00:ca:1::99"}[i], 100, 64, [2]icmpError{{3, 0, 0, node}, {1, 0, 0, node}}},
		} {
			t.Run(c.name, func(t *testing.T) {
				if got := errorFor(t, b.awsPod, c.to, c.size, c.ttl); got != c.want[i] {
					t.Errorf("got %+v, want %+v", got, c.want[i])
				}
			})
		}
		t.Run("a connection learns the MTU", func(t *testing.T) {
			conn := connect(t, b.awsPod, "tcp", b.atGCP.virtual[i], listen(t, b.gcpPod, "tcp"))
			go func() {
				_, _ = conn.Write(make([]byte, 1<<20))
				_ = conn.(*net.TCPConn).CloseWrite()
			}()
			got, err := io.ReadAll(conn)
			if err != nil || len(got) < 1<<20 {
				t.Errorf("%d bytes came back: %v", len(got), err)
			}
		})
		must(t, b.gcp.Do(func() error { return netlink.LinkSetMTU(link(t, "pod5"), 1500) }))
	})
}

// Pods of a cluster reach each other by their virtual addresses.
func TestHairpin(t *testing.T) {
	b := newMappedBed(t, true)
	for i := range 2 {
		conn := connect(t, b.awsPod, "tcp", b.with.virtual[i], listen(t, b.awsOther, "tcp"))
		_, err := conn.Write([]byte("x"))
		must(t, err)
		line, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil || strings.TrimSpace(line) != b.atAWS.real[i] {
			t.Errorf("the server saw %q (%v), want %s", line, err, b.atAWS.real[i])
		}
	}
}

// Without the hairpin they are refused at once, as from the host itself.
func TestVirtualAddressesOfTheOwnClusterAreRefused(t *testing.T) {
	b := newMappedBed(t, false)
	for i, network := range []string{"udp4", "udp6"} {
		if got, want := errorFor(t, b.awsPod, b.with.virtual[i], 100, 64), [2][2]uint8{{3, 1}, {1, 0}}[i]; [2]uint8{got.kind, got.code} != want {
			t.Errorf("%s: got %+v, want type and code %v", network, got, want)
		}
		err := b.aws.Do(func() error {
			conn, err := net.Dial(network, net.JoinHostPort(b.with.virtual[i], "7"))
			if err == nil {
				err = errors.Join(nil, conn.Close())
			}
			return err
		})
		if !errors.Is(err, unix.EHOSTUNREACH) {
			t.Errorf("%s from the host: %v, want no route", network, err)
		}
	}
}

// kube-proxy's rules do with real addresses what they do without a map: a Service has a pod of the
// other cluster as its endpoint, and packets that it marks are masqueraded.
func TestTranslationBesideKubeProxy(t *testing.T) {
	needsNFT(t)
	b := newMappedBed(t, true)
	must(t, b.aws.Do(func() error {
		nft(t, `table ip nat {
			chain prerouting {
				type nat hook prerouting priority dstnat
				ip daddr 10.96.0.10 tcp dport 80 meta mark set 0x4000 dnat to 100.71.200.5:8080
				ip daddr 10.96.0.11 tcp dport 80 dnat to 100.71.200.5:8080
				ip daddr 10.96.0.12 tcp dport 80 dnat to 10.3.200.6:8080
			}
			chain postrouting {
				type nat hook postrouting priority srcnat
				meta mark and 0x4000 == 0x4000 masquerade
			}
		}`)
		return nil
	}))
	fixed := func(at *nstest.Namespace) {
		must(t, at.Do(func() error {
			l, err := net.Listen("tcp4", ":8080")
			if err != nil {
				return err
			}
			t.Cleanup(func() { _ = l.Close() })
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					fmt.Fprintln(conn, conn.RemoteAddr().(*net.TCPAddr).IP)
					_ = conn.Close()
				}
			}()
			return nil
		}))
	}
	fixed(b.gcpPod)
	fixed(b.awsOther)
	// The host has an address of the device, as the agent assigns it.
	must(t, b.aws.Do(func() error { addAddress(t, "wireguard.gcp", "10.3.200.1/32"); return nil }))
	for service, want := range map[string]string{"10.96.0.10": "100.67.200.1", "10.96.0.11": "100.67.200.5", "10.96.0.12": "10.3.200.5"} {
		seen, err := io.ReadAll(connect(t, b.awsPod, "tcp4", service, 80))
		if err != nil || strings.TrimSpace(string(seen)) != want {
			t.Errorf("%s: the pod saw %q (%v), want %s", service, seen, err, want)
		}
	}
	// From the other cluster to a pod of this one, whose node does the same.
	seen, err := io.ReadAll(connect(t, b.gcpPod, "tcp4", b.with.virtual[0], 8080))
	if err != nil || strings.TrimSpace(string(seen)) != b.atGCP.virtual[0] {
		t.Errorf("the pod saw %q (%v), want %s", seen, err, b.atGCP.virtual[0])
	}
	// Connection tracking has real addresses of this cluster's pods only.
	must(t, b.aws.Do(func() error {
		flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
		if err != nil {
			return err
		}
		if len(flows) == 0 {
			t.Error("no connection is tracked")
		}
		for _, f := range flows {
			for _, ip := range []net.IP{f.Forward.SrcIP, f.Forward.DstIP, f.Reverse.SrcIP, f.Reverse.DstIP} {
				a, _ := netip.AddrFromSlice(ip)
				if awsMap[0].Virtual.Contains(a.Unmap()) {
					t.Errorf("connection tracking knows %s: %s", a, f)
				}
			}
		}
		return nil
	}))
}

// While the rules are flushed no packet with a real address of the cluster gets through, and the
// connection goes on afterwards.
func TestFlushedTranslation(t *testing.T) {
	needsNFT(t)
	b := newMappedBed(t, true)
	conn := connect(t, b.awsPod, "udp4", b.atGCP.virtual[0], listen(t, b.gcpPod, "udp4"))
	if seen := asks(t, conn, 10); seen != b.atAWS.virtual[0] {
		t.Errorf("the server saw %s", seen)
	}
	must(t, b.aws.Do(func() error { nft(t, "flush ruleset"); return nil }))
	if s := b.status(t); s.Translation || s.Hairpin {
		t.Errorf("flushed: state %+v", s)
	}
	_, err := conn.Write([]byte("x"))
	must(t, err)
	must(t, conn.SetReadDeadline(time.Now().Add(300*time.Millisecond)))
	if n, err := conn.Read(make([]byte, 100)); err == nil {
		t.Errorf("an answer of %d bytes without translation", n)
	}
	must(t, b.aws.Do(func() error {
		_, err := newFilter(t).Sync(t.Context(), mappedRuleset("wireguard.gcp", awsMap, gcpMap))
		return err
	}))
	if seen := asks(t, conn, 10); seen != b.atAWS.virtual[0] {
		t.Errorf("afterwards the server saw %s", seen)
	}
}

// A kernel without a part has the others, and what needs it is an error or refused.
func TestTranslationOnKernelsThatLackParts(t *testing.T) {
	rules := mappedRuleset("wireguard.gcp", awsMap, gcpMap)
	rules.Mark, rules.Ports, rules.Shared = testMark, map[string]int{"wireguard.gcp": testPort}, rules.Origins
	merit := Origin{Device: "wireguard.merit", Subnets: prefixes("10.9.0.0/16")}
	rules.Origins = append(rules.Origins[:1:1], merit)
	for _, c := range []struct {
		name                               string
		lacks                              []string
		err                                string
		arrival, exit, translates, hairpin bool
	}{
		{"nothing", nil, "", true, true, true, true},
		{"prefixes of NAT", []string{"nat"}, "", true, true, true, false},
		{"fib", []string{"fib"}, "source filter: ", false, true, true, true},
		{"both", []string{"fib", "nat"}, "source filter: ", false, true, true, false},
		{"payload", []string{"write"}, "translation of pod subnets: ", true, true, false, false},
		{"all", []string{"write", "fib", "nat"}, "translation of pod subnets: ", false, true, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				f := newFilter(t)
				f.commit = func(ctx context.Context, objects ...object) error {
					for _, o := range objects {
						for _, part := range c.lacks {
							if o.message == unix.NFT_MSG_NEWRULE && o.uses(part) {
								return unix.ENOENT
							}
						}
					}
					return commit(ctx, objects...)
				}
				for pass := range 2 {
					changed, err := f.Sync(t.Context(), rules)
					if (err == nil) != (c.err == "") || err != nil && (!strings.HasPrefix(err.Error(), c.err) || !errors.Is(err, ErrNoFilter)) {
						t.Errorf("pass %d: error %v, want %q", pass, err, c.err)
					}
					if changed != (pass == 0) {
						t.Errorf("pass %d: changed %v", pass, changed)
					}
				}
				s, err := f.Status(t.Context(), rules)
				must(t, err)
				if s.Arrival != c.arrival || s.Exit != c.exit || s.Translation != c.translates || s.Hairpin != c.hairpin {
					t.Errorf("state %+v", s)
				}
				have, err := readTable(t.Context())
				must(t, err)
				// No node of merit is inside its pod subnets.
				filtered := false
				for _, r := range have.rulesOf(arrivalChain) {
					filtered = filtered || matches(r, rules.rulesFor(arrivalChain, claim{merit.Subnets[0], merit.Device})[0].attrs)
				}
				if !filtered {
					t.Error("forged sources of merit aren't dropped")
				}
			})
		})
	}
}

// uses reports whether a rule has an expression.
func (o object) uses(part string) bool {
	for _, e := range o.attrs[2].children {
		name := strings.TrimRight(string(e.children[0].value), "\x00")
		writes := name == "payload" && e.children[1].children[0].kind == unix.NFTA_PAYLOAD_SREG
		if name == part || part == "write" && writes {
			return true
		}
	}
	return false
}

// Where addresses can't be changed, packets of pods don't leave with their real ones.
func TestUntranslatedPacketsAreDropped(t *testing.T) {
	needsNFT(t)
	b := newMappedBed(t, true)
	rules := mappedRuleset("wireguard.gcp", awsMap, gcpMap)
	must(t, b.aws.Do(func() error {
		f := newFilter(t)
		if _, err := f.Sync(t.Context(), Ruleset{}); err != nil {
			return err
		}
		f.commit = func(ctx context.Context, objects ...object) error {
			for _, o := range objects {
				if o.message == unix.NFT_MSG_NEWRULE && o.uses("write") {
					return withErrNoFilter(unix.EOPNOTSUPP)
				}
			}
			return commit(ctx, objects...)
		}
		_, err := f.Sync(t.Context(), rules)
		if !errors.Is(err, ErrNoFilter) {
			t.Errorf("error %v", err)
		}
		return nil
	}))
	for i, network := range []string{"udp4", "udp6"} {
		conn := connect(t, b.awsPod, network, b.atGCP.virtual[i], listen(t, b.gcpPod, network))
		_, err := conn.Write([]byte("x"))
		must(t, err)
	}
	dropped := func() (n int) {
		must(t, b.aws.Do(func() error {
			for _, line := range strings.Split(nft(t, "list chain inet "+FilterTable+" "+toVirtualChain), "\n") {
				var packets int
				if _, after, found := strings.Cut(line, "counter packets "); found {
					_, err := fmt.Sscanf(after, "%d", &packets)
					must(t, err)
					n += packets
				}
			}
			return nil
		}))
		return n
	}
	polltest.Until(t, time.Minute, "both packets to be dropped", func() bool { return dropped() >= 2 })
}

// The rules as nft(8) prints them.
func TestTranslationAsAnOperatorSeesIt(t *testing.T) {
	needsNFT(t)
	nstest.Run(t, func(t *testing.T) {
		_, err := newFilter(t).Sync(t.Context(), mappedRuleset("wireguard.gcp", awsMap, gcpMap))
		must(t, err)
		got := nft(t, "list table inet "+FilterTable)
		for _, want := range []string{
			`iifname "wireguard.gcp" jump to-real`,
			`oifname "wireguard.gcp" jump to-virtual`,
			`ip daddr 100.64.0.0/14 ip daddr set ip daddr & 10.3.255.255 | 10.0.0.0`,
			`ip saddr 10.0.0.0/14 ip saddr set ip saddr & 100.67.255.255 | 100.64.0.0`,
			`ip saddr 10.0.0.0/14 counter packets 0 bytes 0 drop`,
			`ip daddr 100.64.0.0/14 oifname != "lo" counter packets 0 bytes 0 drop`,
			"type nat hook prerouting priority dstnat - 10; policy accept;",
			`ip saddr 10.0.0.0/14 ip daddr 100.64.0.0/14 dnat ip prefix to 10.0.0.0/14`,
		} {
			if !strings.Contains(got, want) {
				t.Errorf("%q is missing in\n%s", want, got)
			}
		}
	})
}

func sysctl(name, value string) error { return os.WriteFile("/proc/sys/"+name, []byte(value), 0o644) }

// castagnoli is the checksum of SCTP (RFC 9260, appendix A).
func castagnoli(packet []byte) uint32 {
	return crc32.Checksum(packet, crc32.MakeTable(crc32.Castagnoli))
}

// icmpError is an ICMP error that arrived for a packet.
type icmpError struct {
	kind, code uint8
	info       uint32 // the MTU
	from       string
}

// errorFor sends UDP packets of a size in bytes, that mustn't be fragmented, until an ICMP error
// arrives. The kernel delivers it to the socket that has sent to the destination which the error
// names.
func errorFor(t *testing.T, pod *nstest.Namespace, address string, size, ttl int) (got icmpError) {
	t.Helper()
	to := netip.MustParseAddr(address)
	var fd int
	must(t, pod.Do(func() (err error) {
		family, level, errs, discover, hops := unix.AF_INET, unix.IPPROTO_IP, unix.IP_RECVERR, unix.IP_MTU_DISCOVER, unix.IP_TTL
		addr := unix.Sockaddr(&unix.SockaddrInet6{Port: 9, Addr: to.As16()})
		if to.Is4() {
			addr = &unix.SockaddrInet4{Port: 9, Addr: to.As4()}
		} else {
			family, level, errs, discover, hops = unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_RECVERR, unix.IPV6_MTU_DISCOVER, unix.IPV6_UNICAST_HOPS
		}
		if fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
			return err
		}
		return errors.Join(unix.SetsockoptInt(fd, level, errs, 1), unix.SetsockoptInt(fd, level, discover, unix.IP_PMTUDISC_DO),
			unix.SetsockoptInt(fd, level, hops, ttl), unix.Connect(fd, addr))
	}))
	defer unix.Close(fd)
	headers := 28
	if to.Is6() {
		headers = 48
	}
	packet := make([]byte, size-headers)
	polltest.Until(t, time.Minute, fmt.Sprintf("an ICMP error for %d bytes to %s", size, to), func() bool {
		_, _ = unix.Write(fd, packet) // A pending error is in the queue, too.
		time.Sleep(50 * time.Millisecond)
		oob := make([]byte, 512)
		_, oobn, _, _, err := unix.Recvmsg(fd, make([]byte, 2048), oob, unix.MSG_ERRQUEUE)
		if err != nil {
			return false
		}
		messages, err := unix.ParseSocketControlMessage(oob[:oobn])
		must(t, err)
		for _, m := range messages {
			const extended = 16 // bytes of struct sock_extended_err, before a struct sockaddr
			if len(m.Data) < extended+8 || to.Is6() && len(m.Data) < extended+24 || m.Data[4] == unix.SO_EE_ORIGIN_LOCAL {
				continue
			}
			from := netip.AddrFrom4([4]byte(m.Data[extended+4 : extended+8]))
			if to.Is6() {
				from = netip.AddrFrom16([16]byte(m.Data[extended+8 : extended+24]))
			}
			got = icmpError{m.Data[5], m.Data[6], binary.NativeEndian.Uint32(m.Data[8:]), from.String()}
			return true
		}
		return false
	})
	return got
}
