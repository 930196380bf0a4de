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

// protocol is a controller over generic netlink and UAPI sockets. Each call opens
// its own connection: one that is kept would not know the kernel module when
// that is loaded later, and a long read would hold up a write.
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

// publicKeyOf returns the zero key for a device without a private key. wgctrl
// computes a public key even then.
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
		// A mask that isn't a prefix has no bits, and then no length fits.
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

// configs returns what the change sends to the device, in one request.
func (c PeerChange) configs() []wgtypes.PeerConfig {
	if c.Op != OpFree {
		return []wgtypes.PeerConfig{c.config()}
	}
	// There is no request to take a single allowed IP from a peer which all kernels know,
	// and writing all that the peer keeps anew has packets to them dropped. Somebody else
	// may take it, and go. The key is one that nobody can have chosen as theirs.
	var nobody wgtypes.Key
	_, _ = rand.Read(nobody[:]) // It never returns an error.
	return []wgtypes.PeerConfig{
		{PublicKey: nobody, AllowedIPs: netsOf(c.Peer.AllowedIPs)},
		{PublicKey: nobody, Remove: true},
	}
}

// config returns what a change of one peer sends to the device.
func (c PeerChange) config() wgtypes.PeerConfig {
	cfg := wgtypes.PeerConfig{PublicKey: wgtypes.Key(c.Peer.PublicKey)}
	switch c.Op {
	case OpRemove:
		cfg.Remove = true
		return cfg
	case OpUpdate:
		// A peer that somebody has removed must not come back by halves; the
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
