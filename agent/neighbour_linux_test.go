package agent

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

// TestListenPortInUse starts an agent on a node where the listen port of its
// first remote is taken: with the kernel backend by another device, such as Calico's, in
// userspace by a socket. Foreign traffic goes on without loss, the agent reports the
// fault and serves the second remote, and the first one as soon as the port is free.
func TestListenPortInUse(t *testing.T) {
	nstest.Long(t)
	eachBackend(t, func(t *testing.T, backend string) {
		s := newSite(t, "aws", "gcp", "merit")
		var nodes []*testNode
		for _, c := range s.order {
			nodes = append(nodes, s.addNode(t, c, backend))
		}
		here, gcp, merit := nodes[0], nodes[1], nodes[2]
		port := netip.AddrPortFrom(here.address, 51820)
		var others *flow
		var leave func()
		if backend == config.BackendKernel {
			inside := joinWireGuard(t, here, merit, port)
			stop := servePackets(t, here.ns, netip.AddrPortFrom(inside[0], flowPort))
			others = startFlow(t, merit.ns, netip.AddrPortFrom(inside[1], 0), netip.AddrPortFrom(inside[0], flowPort), 1)
			leave = func() {
				stop()
				check(t, here.ns.Do(func() error { return deleteLink("wg0") }))
			}
		} else {
			leave = servePackets(t, here.ns, port)
			others = startFlow(t, merit.ns, netip.AddrPortFrom(merit.address, 0), port, 1)
		}
		others.waitPassing(t, "the other one's traffic")

		for _, n := range nodes {
			n.serveEcho(t)
			n.start(t)
		}
		await(t, "the agent to say that the port is taken", func() bool {
			rep := here.status()
			return rep != nil && strings.Contains(rep.Failure("device gcp"), "51820")
		})
		connected(t, here, merit)
		if _, lost := others.end(t, "the other one's traffic"); lost > 0 {
			t.Errorf("%d foreign packets are lost", lost)
		}
		leave()
		connected(t, here, gcp)
		await(t, "the agent to be content", func() bool {
			rep := here.status()
			return rep != nil && rep.Failure("device gcp") == ""
		})
	})
}

// joinWireGuard joins two nodes by foreign devices, of which the first listens on the
// given port, and returns their addresses in the tunnel.
func joinWireGuard(t *testing.T, a, b *testNode, port netip.AddrPort) (inside [2]netip.Addr) {
	t.Helper()
	var keys [2]wgtypes.Key
	for i := range keys {
		var err error
		keys[i], err = wgtypes.GeneratePrivateKey()
		check(t, err)
		inside[i] = netip.AddrFrom4([4]byte{198, 51, 100, byte(1 + i)})
	}
	number := int(port.Port())
	for i, n := range []*testNode{a, b} {
		_, all, err := net.ParseCIDR("198.51.100.0/24")
		check(t, err)
		peer := wgtypes.PeerConfig{PublicKey: keys[1-i].PublicKey(), AllowedIPs: []net.IPNet{*all}}
		cfg := wgtypes.Config{PrivateKey: &keys[i]}
		if n == a {
			cfg.ListenPort = &number
		} else {
			peer.Endpoint = net.UDPAddrFromAddrPort(port)
		}
		cfg.Peers = []wgtypes.PeerConfig{peer}
		check(t, n.ns.Do(func() error {
			attrs := netlink.NewLinkAttrs()
			attrs.Name = "wg0"
			if err := netlink.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs}); err != nil {
				return err
			}
			client, err := wgctrl.New()
			if err != nil {
				return err
			}
			return errors.Join(client.ConfigureDevice("wg0", cfg), client.Close(), setUp("wg0"), addAddress("wg0", inside[i].String()+"/24"))
		}))
	}
	return inside
}

func deleteLink(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkDel(link)
}
