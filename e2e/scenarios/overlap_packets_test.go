package scenarios_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// endToEnd calls do for three pairs of pods in both directions: of the clusters with equal subnets,
// and of each of them with merit, over both families.
func (m *overlap) endToEnd(t *testing.T, do func(t *testing.T, from, to *testbed.Pod, i int)) {
	t.Helper()
	a, g, other := m.servers[m.aws][0], m.servers[m.gcp][0], m.servers[m.merit][0]
	for _, pair := range [][2]*testbed.Pod{{a, g}, {g, a}, {a, other}, {other, a}, {g, other}, {other, g}} {
		for i, address := range pair[1].VirtualAddresses() {
			t.Run(fmt.Sprintf("%s to %s", pair[0].Name, address), func(t *testing.T) { do(t, pair[0], pair[1], i) })
		}
	}
}

// testEqualPorts requests from the pods of aws and gcp that have equal addresses, from one port, at
// the same time: each other, both ways, and one server of merit.
func (m *overlap) testEqualPorts(t *testing.T) {
	const port = 7777
	a, g, other := m.servers[m.aws][0], m.servers[m.gcp][0], m.servers[m.merit][0]
	for _, pod := range []*testbed.Pod{a, g, other} {
		must(t, pod.Serve(t.Context(), port+1, nil))
	}
	pairs := [][2]*testbed.Pod{{a, g}, {g, a}, {a, other}, {g, other}}
	must(t, testbed.InParallel(within(t, patient), 2*len(pairs), func(ctx context.Context, n int) error {
		from, to, i := pairs[n/2][0], pairs[n/2][1], n%2
		return testbed.Wait(ctx, from.Name+" to "+to.Name, func(ctx context.Context) error {
			seen, err := seenBy(ctx, to, fromPort{from, i, port}, to.VirtualURLs(port + 1)[i])
			if err == nil && seen != from.VirtualAddresses()[i] {
				err = fmt.Errorf("%s saw %s, want %s", to.Name, seen, from.VirtualAddresses()[i])
			}
			return err
		})
	}))
}

// fromPort is a client of one address and port of a pod.
type fromPort struct {
	*testbed.Pod
	address, port int
}

func (f fromPort) Get(ctx context.Context, url string) (string, error) {
	dialer := &net.Dialer{
		LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(f.Addresses[f.address], uint16(f.port))),
		// Connections to several servers, and again to one before the last has ended.
		Control: func(_, _ string, c syscall.RawConn) (err error) {
			return errors.Join(c.Control(func(fd uintptr) {
				err = errors.Join(syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1),
					syscall.SetsockoptLinger(int(fd), syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1}))
			}), err)
		},
	}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		return f.Space().DialFrom(ctx, dialer, network, address)
	}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	var body bytes.Buffer
	_, err = body.ReadFrom(response.Body)
	return body.String(), err
}

// testDatagrams exchanges datagrams of one packet and of several fragments.
func (m *overlap) testDatagrams(t *testing.T) {
	const port = 7001
	for _, c := range m.clusters {
		pod := m.servers[c][0]
		var socket net.PacketConn
		must(t, pod.Space().Do(func() (err error) {
			socket, err = net.ListenPacket("udp", ":"+strconv.Itoa(port))
			return err
		}))
		t.Cleanup(func() { _ = socket.Close() })
		go func() {
			for buffer := make([]byte, 1<<16); ; {
				n, from, err := socket.ReadFrom(buffer)
				if err != nil {
					return
				}
				_, _ = socket.WriteTo(append([]byte(from.String()+" "), buffer[:n]...), from)
			}
		}()
	}
	m.endToEnd(t, func(t *testing.T, from, to *testbed.Pod, i int) {
		for _, size := range []int{1, 1000, 1472, 4000, 20000} {
			payload := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
			eventually(t, repair, fmt.Sprintf("an answer to %d bytes", size), func(ctx context.Context) error {
				conn, err := from.Dial(ctx, "udp", netip.AddrPortFrom(to.VirtualAddresses()[i], port).String())
				if err != nil {
					return err
				}
				defer conn.Close()
				if err := conn.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
					return err
				}
				if _, err := conn.Write(payload); err != nil {
					return err
				}
				answer := make([]byte, 1<<16)
				n, err := conn.Read(answer)
				if err != nil {
					return err
				}
				seen, rest, _ := bytes.Cut(answer[:n], []byte(" "))
				if at, err := netip.ParseAddrPort(string(seen)); err != nil || at.Addr().Unmap() != from.VirtualAddresses()[i] || !bytes.Equal(rest, payload) {
					return fmt.Errorf("%d bytes, sent by %s", len(rest), seen)
				}
				return nil
			})
		}
	})
}

// testRefusals sends datagrams to a port that no socket has. Only an ICMP error about the addresses
// that the client uses reaches its socket.
func (m *overlap) testRefusals(t *testing.T) {
	m.endToEnd(t, func(t *testing.T, from, to *testbed.Pod, i int) {
		eventually(t, repair, "a refusal", func(ctx context.Context) error {
			conn, err := from.Dial(ctx, "udp", netip.AddrPortFrom(to.VirtualAddresses()[i], 7002).String())
			if err != nil {
				return err
			}
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
				return err
			}
			if _, err := conn.Write([]byte("refuse this")); err != nil {
				return err
			}
			if _, err = conn.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNREFUSED) {
				return fmt.Errorf("want a refusal: %w", err)
			}
			return nil
		})
	})
}

// testNarrow sends more than fits into a packet to pods behind a link with a small MTU, which their
// node reports to the sender.
func (m *overlap) testNarrow(t *testing.T) {
	const mtu = 1300
	large := strings.Repeat("0123456789abcdef", largeSize/16)
	for _, c := range m.clusters {
		pod := m.servers[c][0]
		must(t, pod.Serve(t.Context(), largePort, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(large)) // the client notices
		})))
	}
	// MTU of the route from a pod to an address, which is the path's once an error has come.
	path := func(from *testbed.Pod, to netip.Addr) string {
		t.Helper()
		out, err := from.Run(t.Context(), "ip", "route", "get", to.String())
		must(t, err)
		_, after, _ := strings.Cut(out, " mtu ")
		return strings.Join(strings.Fields(after)[:min(1, len(strings.Fields(after)))], "")
	}
	m.endToEnd(t, func(t *testing.T, from, to *testbed.Pod, i int) {
		link := func(mtu int) {
			_, err := from.Node.Run(context.WithoutCancel(t.Context()), "ip", "link", "set", "cni0", "mtu", strconv.Itoa(mtu))
			must(t, err)
		}
		link(mtu)
		defer link(1500)
		body, err := from.Get(within(t, time.Minute), to.VirtualURLs(largePort)[i])
		must(t, err)
		if body != large {
			t.Errorf("%d bytes arrived, which aren't those that were sent", len(body))
		}
		if got := path(to, from.VirtualAddresses()[i]); got != strconv.Itoa(mtu) {
			t.Errorf("the MTU of the path from %s to %s is %q, want %d", to.Name, from.VirtualAddresses()[i], got, mtu)
		}
		for _, family := range []string{"-4", "-6"} {
			_, err := to.Run(t.Context(), "ip", family, "route", "flush", "cache")
			must(t, err)
		}
	})
}

// testProtocols sends SCTP, whose checksum doesn't contain addresses, and a protocol that the kernel
// doesn't know.
func (m *overlap) testProtocols(t *testing.T) {
	// An INIT chunk (RFC 9260) from port 7003 to 7004.
	init := []byte{0x1b, 0x5b, 0x1b, 0x5c, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 20, 1, 2, 3, 4, 0, 0, 0x10, 0, 0, 1, 0, 1, 0, 0, 0, 1}
	binary.LittleEndian.PutUint32(init[8:], crc32.Checksum(init, crc32.MakeTable(crc32.Castagnoli)))
	for protocol, packet := range map[int][]byte{132: init, 253: []byte("a packet for experiments")} {
		t.Run(strconv.Itoa(protocol), func(t *testing.T) {
			m.endToEnd(t, func(t *testing.T, from, to *testbed.Pod, i int) {
				address := to.VirtualAddresses()[i]
				network := map[bool]string{true: "ip4:", false: "ip6:"}[address.Is4()] + strconv.Itoa(protocol)
				var socket net.PacketConn
				must(t, to.Space().Do(func() (err error) {
					socket, err = net.ListenPacket(network, to.Addresses[i].String())
					return err
				}))
				defer socket.Close()
				eventually(t, repair, "the packet", func(context.Context) error {
					err := from.Space().Do(func() error {
						conn, err := net.Dial(network, address.String())
						if err != nil {
							return err
						}
						_, err = conn.Write(packet)
						return errors.Join(err, conn.Close())
					})
					if err != nil {
						return err
					}
					if err := socket.SetReadDeadline(time.Now().Add(2 * time.Second)); err != nil {
						return err
					}
					got := make([]byte, 1500)
					n, seen, err := socket.ReadFrom(got)
					if err != nil {
						return err
					}
					if !slices.Equal(got[:n], packet) || seen.String() != from.VirtualAddresses()[i].String() {
						return fmt.Errorf("%s has sent %x, want %x of %s", seen, got[:n], packet, from.VirtualAddresses()[i])
					}
					return nil
				})
			})
		})
	}
}

var _ programs.Host = fromPort{}

// testMasquerading adds the rules by which Calico's Felix masquerades (natOutgoing): packets of its
// pools to others. With the virtual subnets of remotes among the pools, as for their pod subnets
// elsewhere, servers see the clients; without them requests fail, and nothing leaves in plaintext.
func (m *overlap) testMasquerading(t *testing.T) {
	node := m.gcp.Nodes()[0]
	run := func(t *testing.T, script string) string {
		t.Helper()
		out, err := node.Run(context.WithoutCancel(t.Context()), "sh", "-ec", script)
		if err != nil {
			t.Fatalf("%s: %v\n%s", script, err, out)
		}
		return out
	}
	var add, pools, remove strings.Builder
	for i, family := range []string{"inet", "inet6"} {
		tool := []string{"iptables", "ip6tables"}[i]
		rule := fmt.Sprintf("POSTROUTING -m set --match-set own%d src -m set ! --match-set pools%d dst -j MASQUERADE", i, i)
		fmt.Fprintf(&add, "ipset create own%[1]d hash:net family %[2]s; ipset create pools%[1]d hash:net family %[2]s; ", i, family)
		fmt.Fprintf(&add, "ipset add own%[1]d %[2]s; ipset add pools%[1]d %[2]s; %[3]s -t nat -A %[4]s; ", i, m.gcp.PodSubnets[i], tool, rule)
		for _, remote := range m.others(m.gcp) {
			fmt.Fprintf(&pools, "ipset add pools%d %s; ", i, remote.VirtualSubnets[i])
		}
		fmt.Fprintf(&remove, "%s -t nat -D %s; ipset destroy own%[3]d; ipset destroy pools%[3]d; ", tool, rule, i)
	}
	run(t, add.String())
	defer func() { run(t, remove.String()) }()
	t.Run("without the virtual subnets", func(t *testing.T) {
		for _, to := range []*testbed.Pod{m.servers[m.aws][0], m.servers[m.merit][0]} {
			for _, url := range to.VirtualURLs(programs.PodPort) {
				seen, err := seenBy(t.Context(), to, m.servers[m.gcp][0], url)
				t.Logf("%s: seen is %s, %v", url, seen, err)
			}
		}
		m.hidden(t)
	})
	run(t, pools.String())
	m.testSources(t)
	for i, tool := range []string{"iptables", "ip6tables"} {
		before := run(t, tool+" -t nat -nvxL POSTROUTING")
		outside := []string{"192.0.2.1", "2001:db8::1"}[i]
		conn, err := m.servers[m.gcp][0].Dial(t.Context(), "udp", net.JoinHostPort(outside, "9"))
		must(t, err)
		_, err = conn.Write([]byte("to a stranger"))
		must(t, errors.Join(err, conn.Close()))
		if after := run(t, tool+" -t nat -nvxL POSTROUTING"); after == before {
			t.Errorf("no packet to %s was masqueraded:\n%s", outside, after)
		}
	}
}
