package routes

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	mdlayher "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/polltest"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// A host asks for a remote pod by a ClusterIP, which kube-proxy's IPVS mode has on
// kube-ipvs0. Without our addresses the masqueraded packets have a source that the
// remote's WireGuard doesn't take from this node; with them the pod sees, as it
// does without a service, the address that only this node has in the mesh.
func TestHostReachesRemotePodsThroughIPVS(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		services := newIPVS(t)
		node, remote := nstest.Current(t), nstest.New(t)
		nstest.Pair(t, node, remote, "eth0", "eth0")
		// To the IPv6 pod the kernel prefers the address of the uplink to the one
		// inside the podCIDR: it has more of the pod's leading bits (RFC 6724).
		addAddress(t, "eth0", "192.0.2.1/24", "fd05::1/64")
		addDevice(t, "cni0")
		addAddress(t, "cni0", "10.1.3.1/24", "fd01:0:0:3::1/64")
		keys := newKeys(t)
		must(t, addPeer("wireguard.gcp", keys[0], keys[1], "192.0.2.2:51820", subnet4, subnet6))
		must(t, remote.Do(func() error {
			addAddress(t, "eth0", "192.0.2.2/24")
			addAddress(t, "lo", "10.4.1.1/32", "fd04::1/128")
			if err := addPeer("wireguard.aws", keys[1], keys[0], "192.0.2.1:51820", "10.1.3.0/24", "fd01:0:0:3::/64"); err != nil {
				return err
			}
			device := link(t, "wireguard.aws").Attrs().Index
			addRoute(t, netlink.Route{LinkIndex: device, Scope: netlink.SCOPE_LINK}, "10.1.3.0/24")
			addRoute(t, netlink.Route{LinkIndex: device}, "fd01:0:0:3::/64")
			return serveSources(t, netip.MustParseAddrPort("10.4.1.1:8888"), netip.MustParseAddrPort("[fd04::1]:8888"))
		}))
		// What WireGuard decrypts and doesn't take from its sender counts as frame errors.
		refused := func() (n uint64) {
			must(t, remote.Do(func() error {
				n = link(t, "wireguard.aws").Attrs().Statistics.RxFrameErrors
				return nil
			}))
			return n
		}

		src, err := Source(prefixes("10.1.3.0/24", "fd01:0:0:3::/64"))
		must(t, err)
		table := newTable(t)
		targets := []Target{{Device: link(t, "wireguard.gcp").Attrs().Index, Subnets: prefixes(subnet4, subnet6)}}
		must(t, netlink.LinkSetAlias(link(t, "wireguard.gcp"), tunnel.Alias("gcp")))
		mustSync(t, table, Desired(targets[0].Subnets, targets[0].Device, src))

		cases := []struct{ clusterIP, pod, want netip.Addr }{
			{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("10.4.1.1"), netip.MustParseAddr("10.1.3.1")},
			{netip.MustParseAddr("fd96::10"), netip.MustParseAddr("fd04::1"), netip.MustParseAddr("fd01:0:0:3::1")},
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "kube-ipvs0" // stays down, as kube-proxy leaves it
		must(t, netlink.LinkAdd(&netlink.Dummy{LinkAttrs: attrs}))
		must(t, os.WriteFile("/proc/sys/net/ipv4/vs/conntrack", []byte("1"), 0))
		for _, c := range cases {
			addAddress(t, "kube-ipvs0", netip.PrefixFrom(c.clusterIP, c.clusterIP.BitLen()).String())
			services.add(t, netip.AddrPortFrom(c.clusterIP, 80), netip.AddrPortFrom(c.pod, 8888))
			masquerade(t, c.clusterIP)
		}

		for _, c := range cases {
			pod, service := netip.AddrPortFrom(c.pod, 8888), netip.AddrPortFrom(c.clusterIP, 80)
			if seen, err := sourceAt(pod, 10*time.Second); err != nil || seen != c.want {
				t.Fatalf("without a service the pod sees %s, want %s: %v", seen, c.want, err)
			}
			before := refused()
			if seen, err := sourceAt(service, time.Second/2); err == nil {
				t.Errorf("%s answers without our addresses: the pod sees %s", service, seen)
			}
			polltest.Until(t, 10*time.Second, "the remote to refuse the source", func() bool { return refused() > before })
			t.Logf("%s without our addresses: no answer, the remote refused %d packets", service, refused()-before)
		}
		mustSyncAddresses(t, table, DesiredAddresses(targets, src))
		for _, c := range cases {
			service := netip.AddrPortFrom(c.clusterIP, 80)
			seen, err := sourceAt(service, 10*time.Second)
			if err != nil || seen != c.want {
				t.Errorf("the pod behind %s sees %s, want %s: %v", service, seen, c.want, err)
			}
			t.Logf("%s with our addresses: the pod sees %s", service, seen)
		}
	})
}

// serveSources answers each connection with the address that it comes from.
func serveSources(t *testing.T, at ...netip.AddrPort) error {
	for _, a := range at {
		listener, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(a))
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = listener.Close() })
		go func() {
			for {
				conn, err := listener.AcceptTCP()
				if err != nil {
					return
				}
				_, _ = io.WriteString(conn, conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap().String())
				_ = conn.Close()
			}
		}()
	}
	return nil
}

// sourceAt asks a server of serveSources which address it sees.
func sourceAt(server netip.AddrPort, limit time.Duration) (netip.Addr, error) {
	conn, err := net.DialTimeout("tcp", server.String(), limit)
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		return netip.Addr{}, err
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		return netip.Addr{}, err
	}
	return netip.ParseAddr(string(answer))
}

// kubeProxyMark marks what kube-proxy wants to have masqueraded.
const kubeProxyMark = 0x4000

// masquerade does for one ClusterIP what kube-proxy's IPVS mode does, in nftables
// instead of iptables: what this host sends to it is marked before IPVS gives it
// another destination, and masqueraded where it leaves. In the words of nft(8):
//
//	chain output { type nat hook output priority -100; ip daddr 10.96.0.10 meta mark set 0x4000 }
//	chain postrouting { type nat hook postrouting priority 100; meta mark 0x4000 masquerade }
func masquerade(t *testing.T, clusterIP netip.Addr) {
	t.Helper()
	table := "kube-proxy-" + clusterIP.String()
	chain := func(name string, hook uint32, priority int32) object {
		return object{unix.NFT_MSG_NEWCHAIN, []attr{
			label(unix.NFTA_CHAIN_TABLE, table), label(unix.NFTA_CHAIN_NAME, name), label(unix.NFTA_CHAIN_TYPE, "nat"),
			nest(unix.NFTA_CHAIN_HOOK, number(unix.NFTA_HOOK_HOOKNUM, hook), number(unix.NFTA_HOOK_PRIORITY, uint32(priority))),
		}}
	}
	rule := func(chain string, expressions ...attr) object {
		return object{unix.NFT_MSG_NEWRULE, []attr{
			label(unix.NFTA_RULE_TABLE, table), label(unix.NFTA_RULE_CHAIN, chain), nest(unix.NFTA_RULE_EXPRESSIONS, expressions...),
		}}
	}
	family, offset := byte(unix.NFPROTO_IPV6), uint32(24) // RFC 8200, section 3
	if clusterIP.Is4() {
		family, offset = unix.NFPROTO_IPV4, 16 // RFC 791, section 3.1
	}
	mark := binary.NativeEndian.AppendUint32(nil, kubeProxyMark)
	const register = unix.NFT_REG_1
	must(t, commit(t.Context(),
		object{unix.NFT_MSG_NEWTABLE, []attr{label(unix.NFTA_TABLE_NAME, table)}},
		chain("output", unix.NF_INET_LOCAL_OUT, -100),
		chain("postrouting", unix.NF_INET_POST_ROUTING, 100),
		rule("output",
			expression("meta", number(unix.NFTA_META_KEY, unix.NFT_META_NFPROTO), number(unix.NFTA_META_DREG, register)),
			compareTo(unix.NFT_CMP_EQ, []byte{family}),
			expression("payload", number(unix.NFTA_PAYLOAD_DREG, register), number(unix.NFTA_PAYLOAD_BASE, unix.NFT_PAYLOAD_NETWORK_HEADER),
				number(unix.NFTA_PAYLOAD_OFFSET, offset), number(unix.NFTA_PAYLOAD_LEN, uint32(clusterIP.BitLen()/8))),
			compareTo(unix.NFT_CMP_EQ, clusterIP.AsSlice()),
			expression("immediate", number(unix.NFTA_IMMEDIATE_DREG, register), data(unix.NFTA_IMMEDIATE_DATA, mark)),
			expression("meta", number(unix.NFTA_META_KEY, unix.NFT_META_MARK), number(unix.NFTA_META_SREG, register))),
		rule("postrouting",
			expression("meta", number(unix.NFTA_META_KEY, unix.NFT_META_MARK), number(unix.NFTA_META_DREG, register)),
			compareTo(unix.NFT_CMP_EQ, mark),
			expression("masq")),
	))
}

// ipvs is a connection to the kernel's IPVS in the current namespace, by generic
// netlink (see include/uapi/linux/ip_vs.h of the kernel, which also has the numbers
// below).
type ipvs struct {
	conn   *mdlayher.Conn
	family uint16
}

// newIPVS connects to IPVS. Where the kernel has none, the test is skipped.
func newIPVS(t *testing.T) ipvs {
	t.Helper()
	conn, err := mdlayher.Dial(unix.NETLINK_GENERIC, nil)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	control := ipvs{conn, nl.GENL_ID_CTRL}
	answers, err := control.execute(nl.GENL_CTRL_CMD_GETFAMILY, 0, label(nl.GENL_CTRL_ATTR_FAMILY_NAME, "IPVS"))
	if errors.Is(err, unix.ENOENT) && os.Getenv("SEMAPHORE_TEST_KERNEL") == "" {
		t.Skip("NOT TESTED HERE: this kernel has no IPVS; go run ./e2e/kernel -run " + t.Name() + " ./routes")
	}
	must(t, err)
	attrs, err := mdlayher.UnmarshalAttributes(answers[0].Data[nl.SizeofGenlmsg:])
	must(t, err)
	return ipvs{conn, binary.NativeEndian.Uint16(find(attrs, nl.GENL_CTRL_ATTR_FAMILY_ID))}
}

func (v ipvs) execute(command byte, flags mdlayher.HeaderFlags, attrs ...attr) ([]mdlayher.Message, error) {
	body, err := encode(attrs)
	if err != nil {
		return nil, err
	}
	return v.conn.Execute(mdlayher.Message{
		Header: mdlayher.Header{Type: mdlayher.HeaderType(v.family), Flags: mdlayher.Request | flags},
		Data:   append([]byte{command, 1, 0, 0}, body...), // struct genlmsghdr, version 1
	})
}

// add makes a TCP service with one destination, as kube-proxy does: round robin
// among destinations (scheduler rr), reached by masquerading.
func (v ipvs) add(t *testing.T, service, destination netip.AddrPort) {
	t.Helper()
	const (
		newService, newDestination = 1, 5 // IPVS_CMD_NEW_SERVICE, IPVS_CMD_NEW_DEST
		forwardByMasquerading      = 0    // IP_VS_CONN_F_MASQ
	)
	u16 := func(kind, n uint16) attr { return attr{kind: kind, value: binary.NativeEndian.AppendUint16(nil, n)} }
	u32 := func(kind uint16, n uint32) attr {
		return attr{kind: kind, value: binary.NativeEndian.AppendUint32(nil, n)}
	}
	port := func(kind, n uint16) attr { return attr{kind: kind, value: binary.BigEndian.AppendUint16(nil, n)} }
	family, mask := uint16(unix.AF_INET6), uint32(128)
	if service.Addr().Is4() {
		family, mask = unix.AF_INET, 0xffffffff
	}
	// IPVS_CMD_ATTR_SERVICE with IPVS_SVC_ATTR_AF, _PROTOCOL, _ADDR, _PORT.
	key := []attr{u16(1, family), u16(2, unix.IPPROTO_TCP), {kind: 3, value: service.Addr().AsSlice()}, port(4, service.Port())}
	// IPVS_SVC_ATTR_SCHED_NAME, _FLAGS (with a mask of those that are set), _TIMEOUT, _NETMASK.
	settings := []attr{label(6, "rr"), {kind: 7, value: make([]byte, 8)}, u32(8, 0), u32(9, mask)}
	_, err := v.execute(newService, mdlayher.Acknowledge, nest(1, append(key, settings...)...))
	if err != nil {
		t.Fatalf("IPVS service %s: %v", service, err)
	}
	// IPVS_CMD_ATTR_DEST with IPVS_DEST_ATTR_ADDR, _PORT, _FWD_METHOD, _WEIGHT, _U_THRESH, _L_THRESH.
	_, err = v.execute(newDestination, mdlayher.Acknowledge, nest(1, key...), nest(2,
		attr{kind: 1, value: destination.Addr().AsSlice()}, port(2, destination.Port()),
		u32(3, forwardByMasquerading), u32(4, 1), u32(5, 0), u32(6, 0)))
	if err != nil {
		t.Fatalf("IPVS destination %s: %v", destination, err)
	}
}
