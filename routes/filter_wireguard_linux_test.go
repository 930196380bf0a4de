package routes

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
)

// Packets decrypted by the kernel's WireGuard pass; the same in plaintext don't. Scenarios
// cover the userspace backend.
func TestFilterBesideTheKernelsWireGuard(t *testing.T) {
	host, remote := nstest.New(t), nstest.New(t)
	if err := host.Do(func() error { return addWireGuard("probe") }); errors.Is(err, unix.EOPNOTSUPP) && os.Getenv("SEMAPHORE_TEST_KERNEL") == "" {
		t.Skip("this kernel has no WireGuard: tested in the emulated machine (make test-kernel)")
	} else if err != nil {
		t.Fatal(err)
	}
	nstest.Pair(t, host, remote, "eth0", "eth0")
	keys := newKeys(t)
	side := func(at *nstest.Namespace, device string, own, other wgtypes.Key, endpoint string, addrs, behind []string) {
		t.Helper()
		must(t, at.Do(func() error {
			addAddress(t, "eth0", addrs[0])
			addAddress(t, "lo", addrs[1:]...)
			return addPeer(device, own, other, endpoint, behind...)
		}))
	}
	side(host, "wireguard.gcp", keys[0], keys[1], "192.0.2.2:51820",
		[]string{"192.0.2.1/24", "10.1.3.1/32", "fd01:0:0:3::1/128", "10.1.9.1/32", "fd01:0:0:9::1/128"},
		[]string{subnet4, subnet6})
	side(remote, "wireguard.aws", keys[1], keys[0], "192.0.2.1:51820",
		[]string{"192.0.2.2/24", "10.4.1.1/32", "fd04::1/128"},
		[]string{"10.1.3.0/24", "fd01:0:0:3::/64"})

	var received atomic.Int64
	must(t, host.Do(func() error {
		mustRoute(t, newTable(t), Desired(prefixes(subnet4, subnet6), link(t, "wireguard.gcp").Attrs().Index, nil))
		mustFilter(t, gcpOrigin())
		addAddress(t, "eth0", "2001:db8::1/64")
		socket, err := net.ListenPacket("udp", ":7")
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = socket.Close() })
		go func() {
			for buffer := make([]byte, 64); ; received.Add(1) {
				if _, _, err := socket.ReadFrom(buffer); err != nil {
					return
				}
			}
		}()
		return looseReversePath()
	}))
	must(t, remote.Do(func() error {
		addAddress(t, "eth0", "2001:db8::2/64")
		tunnel := link(t, "wireguard.aws").Attrs().Index
		addRoute(t, netlink.Route{LinkIndex: tunnel, Scope: netlink.SCOPE_LINK}, "10.1.3.0/24")
		addRoute(t, netlink.Route{LinkIndex: tunnel}, "fd01:0:0:3::/64")
		addRoute(t, netlink.Route{Gw: net.ParseIP("192.0.2.1")}, "10.1.9.0/24")
		addRoute(t, netlink.Route{Gw: net.ParseIP("2001:db8::1")}, "fd01:0:0:9::/64")
		return nil
	}))
	send := func(from, to string) {
		t.Helper()
		must(t, remote.Do(func() error {
			conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(from)))
			if err != nil {
				return err
			}
			_, err = conn.WriteToUDPAddrPort([]byte("packet"), netip.MustParseAddrPort(to))
			return errors.Join(err, conn.Close())
		}))
	}
	dropped := func() (n uint64) {
		t.Helper()
		must(t, host.Do(func() error {
			state, err := newFilter(t).Status(t.Context(), rulesetOf(gcpOrigin()))
			if err == nil && !state.Arrival {
				err = errors.New("not enforced")
			}
			n = state.Forged["wireguard.gcp"]
			return err
		}))
		return n
	}
	send("10.4.1.1:0", "10.1.3.1:7")
	send("[fd04::1]:0", "[fd01:0:0:3::1]:7")
	polltest.Until(t, time.Minute, "what came through the tunnel", func() bool { return received.Load() == 2 })
	send("10.4.1.1:0", "10.1.9.1:7")
	send("[fd04::1]:0", "[fd01:0:0:9::1]:7")
	polltest.Until(t, time.Minute, "plaintext to be dropped", func() bool { return dropped() == 2 })
	if got := received.Load(); got != 2 {
		t.Errorf("%d packets arrived, want the 2 of the tunnel", got)
	}
}

func addWireGuard(name string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	if err := netlink.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs}); err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	return nil
}

// newKeys generates the private keys of two devices that are each other's peer.
func newKeys(t *testing.T) (keys [2]wgtypes.Key) {
	t.Helper()
	for i := range keys {
		var err error
		keys[i], err = wgtypes.GeneratePrivateKey()
		must(t, err)
	}
	return keys
}

// addPeer creates a WireGuard device with one peer, with its endpoint and allowed IPs, in
// the current namespace.
func addPeer(device string, own, other wgtypes.Key, endpoint string, allowed ...string) error {
	if err := addWireGuard(device); err != nil {
		return err
	}
	l, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return err
	}
	client, err := wgctrl.New()
	if err != nil {
		return err
	}
	defer client.Close()
	port := 51820
	peer := wgtypes.PeerConfig{PublicKey: other.PublicKey(), Endpoint: net.UDPAddrFromAddrPort(netip.MustParseAddrPort(endpoint))}
	for _, p := range allowed {
		_, ipNet, err := net.ParseCIDR(p)
		if err != nil {
			return err
		}
		peer.AllowedIPs = append(peer.AllowedIPs, *ipNet)
	}
	return client.ConfigureDevice(device, wgtypes.Config{PrivateKey: &own, ListenPort: &port, Peers: []wgtypes.PeerConfig{peer}})
}
