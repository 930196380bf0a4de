package backpressure

import (
	"bytes"
	"sync/atomic"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"
)

// NewDevice returns a device with a window of its own.
func NewDevice(native tun.Device, bind conn.Bind, log *device.Logger) *device.Device {
	var s staged
	w := New(s.discard)
	dev := device.NewDevice(w.Tun(native), w.Bind(bind), log) // starts reading the TUN
	s.dev.Store(dev)
	return dev
}

// staged discards packets that wait for sessions. For each peer wireguard-go stages up to
// 128 reads of up to 128 packets, and discards them only after 90 s.
type staged struct {
	dev     atomic.Pointer[device.Device]
	peers   atomic.Pointer[[]device.NoisePublicKey]
	read    time.Time   // when peers were read
	reading atomic.Bool // peers are being read
}

// peersMaxAge is how long the list of peers is used.
const peersMaxAge = time.Second

// discard is called by the goroutine that reads the TUN, between two reads: only packets
// that wait for a session are staged then. It reads the peers on another goroutine, because
// the device holds the lock for that while it waits for the TUN's reader to end.
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
	if now := time.Now(); now.Sub(s.read) >= peersMaxAge && s.reading.CompareAndSwap(false, true) {
		s.read = now
		go func() {
			defer s.reading.Store(false)
			if peers, err := peersOf(dev); err == nil {
				s.peers.Store(&peers)
			}
		}()
	}
}

// flush discards the packets that wait for a session with one peer.
func flush(dev *device.Device, peer device.NoisePublicKey) {
	if p := dev.LookupPeer(peer); p != nil {
		p.FlushStagedPackets()
	}
}

// peersOf returns a device's peers. It retains nothing else of the response, which contains
// the private key.
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
