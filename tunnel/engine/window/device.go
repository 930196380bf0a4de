package window

import (
	"bytes"
	"sync/atomic"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"
)

// NewDevice returns a device that has a window of its own, on a link with that MTU in
// bytes.
func NewDevice(native tun.Device, bind conn.Bind, mtu int, log *device.Logger) *device.Device {
	var s staged
	w := New(Config{MTU: mtu, Discard: s.discard})
	dev := device.NewDevice(w.Tun(native), w.Bind(bind), log) // which begins to read
	s.dev.Store(dev)
	return dev
}

// staged throws away packets that wait for sessions. wireguard-go keeps up to 128 reads of
// up to 128 packets for each peer, and ends that only by itself, after 90 s.
type staged struct {
	dev     atomic.Pointer[device.Device]
	peers   atomic.Pointer[[]device.NoisePublicKey]
	read    time.Time   // when peers were read
	reading atomic.Bool // somebody does
}

// peersFor is how long the list of peers is used.
const peersFor = time.Second

// discard is called by who reads the TUN, between two reads: nothing is staged then but
// packets that wait. It can't ask for the peers itself, since the device holds the lock for
// that while it waits for this goroutine to end.
func (s *staged) discard() {
	dev := s.dev.Load()
	if dev == nil {
		return
	}
	if peers := s.peers.Load(); peers != nil {
		for _, key := range *peers {
			flush(dev, key)
		}
	}
	if now := time.Now(); now.Sub(s.read) >= peersFor && s.reading.CompareAndSwap(false, true) {
		s.read = now
		go func() {
			defer s.reading.Store(false)
			if peers, err := peersOf(dev); err == nil {
				s.peers.Store(&peers)
			}
		}()
	}
}

// flush throws away what waits for a session with one peer.
func flush(dev *device.Device, peer device.NoisePublicKey) {
	if p := dev.LookupPeer(peer); p != nil {
		p.FlushStagedPackets()
	}
}

// peersOf returns a device's peers. Nothing else of the text, which has its private key, is
// kept.
func peersOf(dev *device.Device) (peers []device.NoisePublicKey, err error) {
	var text bytes.Buffer
	if err := dev.IpcGetOperation(&text); err != nil {
		return nil, err
	}
	for line := range bytes.Lines(text.Bytes()) {
		var key device.NoisePublicKey
		text, found := bytes.CutPrefix(bytes.TrimSpace(line), []byte("public_key="))
		if found && key.FromHex(string(text)) == nil {
			peers = append(peers, key)
		}
	}
	return peers, nil
}
