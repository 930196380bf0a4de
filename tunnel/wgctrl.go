package tunnel

import (
	"crypto/rand"
	"errors"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// controller reads and configures WireGuard devices by name. A missing device is
// os.ErrNotExist.
type controller interface {
	Device(name string) (*wgtypes.Device, error)
	ConfigureDevice(name string, cfg wgtypes.Config) error
}

// protocol is a controller over generic netlink and UAPI sockets. Each call opens its own
// connection: a kept one would not find a kernel module that is loaded later, and a long
// read would delay a write.
type protocol struct{}

// Device implements controller.
func (protocol) Device(name string) (*wgtypes.Device, error) {
	client, err := wgctrl.New()
	if err != nil {
		return nil, err
	}
	device, err := client.Device(name)
	return device, errors.Join(err, client.Close())
}

// ConfigureDevice implements controller.
func (protocol) ConfigureDevice(name string, cfg wgtypes.Config) error {
	client, err := wgctrl.New()
	if err != nil {
		return err
	}
	return errors.Join(client.ConfigureDevice(name, cfg), client.Close())
}

// publicKeyOf returns the device's public key; zero without a private key, for which wgctrl
// computes a public key, too.
func publicKeyOf(device *wgtypes.Device) Key {
	if device.PrivateKey == (wgtypes.Key{}) {
		return Key{}
	}
	return Key(device.PublicKey)
}

// peersOf returns the device's peers, sorted by key.
func peersOf(device *wgtypes.Device) []PeerStatus {
	peers := make([]PeerStatus, 0, len(device.Peers))
	for i := range device.Peers {
		p := &device.Peers[i]
		status := PeerStatus{
			Peer: Peer{
				PublicKey:  Key(p.PublicKey),
				AllowedIPs: prefixesOf(p.AllowedIPs),
				Keepalive:  p.PersistentKeepaliveInterval,
			},
			PresharedKey:  p.PresharedKey != wgtypes.Key{},
			LastHandshake: p.LastHandshakeTime,
			RxBytes:       p.ReceiveBytes,
			TxBytes:       p.TransmitBytes,
		}
		if p.Endpoint != nil {
			status.Endpoint = unmap(p.Endpoint.AddrPort())
		}
		peers = append(peers, status)
	}
	slices.SortFunc(peers, func(a, b PeerStatus) int { return a.PublicKey.Compare(b.PublicKey) })
	return peers
}

func prefixesOf(nets []net.IPNet) []netip.Prefix {
	prefixes := make([]netip.Prefix, 0, len(nets))
	for _, n := range nets {
		ip := n.IP
		ones, bits := n.Mask.Size()
		if bits == 8*net.IPv4len {
			ip = ip.To4()
		}
		// A non-canonical mask has 0 bits, which equals no length.
		if addr, ok := netip.AddrFromSlice(ip); ok && addr.BitLen() == bits {
			prefixes = append(prefixes, netip.PrefixFrom(addr, ones).Masked())
		}
	}
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	return slices.Compact(prefixes)
}

func netsOf(prefixes []netip.Prefix) []net.IPNet {
	var nets []net.IPNet
	for _, p := range prefixes {
		nets = append(nets, net.IPNet{
			IP:   p.Addr().AsSlice(),
			Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen()),
		})
	}
	return nets
}

// configs returns the change as peers of one request.
func (c PeerChange) configs() []wgtypes.PeerConfig {
	if c.Op != OpFree {
		return []wgtypes.PeerConfig{c.config()}
	}
	// Not all kernels can remove a single allowed IP from a peer, and rewriting the others
	// would drop packets to them. Instead a temporary peer takes it, and is removed. Its key
	// is random, so that it can't be that of a peer.
	var temporary wgtypes.Key
	_, _ = rand.Read(temporary[:]) // It never returns an error.
	return []wgtypes.PeerConfig{
		{PublicKey: temporary, AllowedIPs: netsOf(c.Peer.AllowedIPs)},
		{PublicKey: temporary, Remove: true},
	}
}

// config returns the change of one peer for a request.
func (c PeerChange) config() wgtypes.PeerConfig {
	cfg := wgtypes.PeerConfig{PublicKey: wgtypes.Key(c.Peer.PublicKey)}
	switch c.Op {
	case OpRemove:
		cfg.Remove = true
		return cfg
	case OpUpdate:
		// A peer that was removed by another program must not be added incompletely; the
		// next full comparison adds it.
		cfg.UpdateOnly = true
	case OpAdd:
		c.SetEndpoint, c.SetKeepalive = c.Peer.Endpoint.IsValid(), true
		cfg.ReplaceAllowedIPs = true
		c.AddAllowedIPs = c.Peer.AllowedIPs
	}
	if c.SetEndpoint {
		cfg.Endpoint = net.UDPAddrFromAddrPort(c.Peer.Endpoint)
	}
	if c.SetKeepalive {
		cfg.PersistentKeepaliveInterval = new(time.Duration)
		*cfg.PersistentKeepaliveInterval = c.Peer.Keepalive
	}
	if c.ClearPresharedKey {
		cfg.PresharedKey = new(wgtypes.Key)
	}
	cfg.AllowedIPs = netsOf(c.AddAllowedIPs)
	return cfg
}
