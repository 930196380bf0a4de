package tunnel

import (
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// fakeControl is a WireGuard device in memory, with the kernel's semantics
// (drivers/net/wireguard/netlink.c): an allowed IP belongs to at most one peer, and adding
// it to another one moves it.
type fakeControl struct {
	peers map[wgtypes.Key]wgtypes.Peer
	owner map[string]wgtypes.Key // of each allowed IP

	reads  int                  // Device calls
	writes []wgtypes.PeerConfig // all writes to the device
	fail   func(wgtypes.PeerConfig) error
	gone   bool
}

func newFakeControl() *fakeControl {
	return &fakeControl{peers: make(map[wgtypes.Key]wgtypes.Peer), owner: make(map[string]wgtypes.Key)}
}

func (f *fakeControl) Device(string) (*wgtypes.Device, error) {
	if f.gone {
		return nil, os.ErrNotExist
	}
	f.reads++
	return &wgtypes.Device{Peers: slices.Collect(maps.Values(f.peers))}, nil
}

func (f *fakeControl) ConfigureDevice(_ string, cfg wgtypes.Config) error {
	if f.gone {
		return os.ErrNotExist
	}
	for _, p := range cfg.Peers {
		if f.fail != nil {
			if err := f.fail(p); err != nil {
				return err
			}
		}
		f.writes = append(f.writes, p)
		f.configure(p)
	}
	return nil
}

func (f *fakeControl) configure(cfg wgtypes.PeerConfig) {
	p, exists := f.peers[cfg.PublicKey]
	if cfg.UpdateOnly && !exists {
		return
	}
	if cfg.Remove || cfg.ReplaceAllowedIPs {
		for _, ip := range p.AllowedIPs {
			delete(f.owner, ip.String())
		}
		p.AllowedIPs = nil
	}
	if cfg.Remove {
		delete(f.peers, cfg.PublicKey)
		return
	}
	p.PublicKey = cfg.PublicKey
	if cfg.PresharedKey != nil {
		p.PresharedKey = *cfg.PresharedKey
	}
	if cfg.Endpoint != nil {
		p.Endpoint = cfg.Endpoint
	}
	if cfg.PersistentKeepaliveInterval != nil {
		p.PersistentKeepaliveInterval = *cfg.PersistentKeepaliveInterval
	}
	f.peers[cfg.PublicKey] = p
	for _, ip := range cfg.AllowedIPs {
		f.allow(cfg.PublicKey, ip)
	}
}

func (f *fakeControl) allow(key wgtypes.Key, ip net.IPNet) {
	if owner, owned := f.owner[ip.String()]; owned {
		loser := f.peers[owner]
		loser.AllowedIPs = slices.DeleteFunc(loser.AllowedIPs, func(other net.IPNet) bool { return other.String() == ip.String() })
		f.peers[owner] = loser
	}
	f.owner[ip.String()] = key
	winner := f.peers[key]
	winner.AllowedIPs = append(winner.AllowedIPs, ip)
	f.peers[key] = winner
}

// have returns the peers as Status would.
func (f *fakeControl) have() []PeerStatus {
	return peersOf(&wgtypes.Device{Peers: slices.Collect(maps.Values(f.peers))})
}

// roam changes a peer's endpoint, like a packet from another address.
func (f *fakeControl) roam(key Key, endpoint string) {
	p := f.peers[wgtypes.Key(key)]
	p.Endpoint = net.UDPAddrFromAddrPort(netip.MustParseAddrPort(endpoint))
	f.peers[wgtypes.Key(key)] = p
}
