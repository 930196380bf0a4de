package backpressure

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.zx2c4.com/wireguard/conn/bindtest"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"
	"golang.zx2c4.com/wireguard/tun/tuntest"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
)

// flooded is a TUN that returns a number of packets for one peer as fast as they are read,
// and then those of a channel.
type flooded struct {
	tun.Device
	packet []byte
	left   atomic.Int64 // reads of packets for that peer
}

func (*flooded) BatchSize() int { return 8 }

func (f *flooded) Read(bufs [][]byte, sizes []int, offset int) (int, error) {
	if f.left.Load() == 0 || f.left.Add(-1) < 0 {
		f.left.Store(0)
		return f.Device.Read(bufs, sizes, offset)
	}
	for i := range bufs {
		sizes[i] = copy(bufs[i][offset:], f.packet)
	}
	return len(bufs), nil
}

// wireguard-go uses the buffers as the window expects: sent and received packets are no
// longer in flight. Packets to a peer without a session are bounded, and don't block packets
// to other peers.
func TestDevices(t *testing.T) {
	verifyNoLeaks(t)
	addresses := [2]netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}
	dead := netip.MustParseAddr("10.0.0.3")
	var (
		tuns    [2]*tuntest.ChannelTUN
		floods  [2]*flooded
		devices [2]*device.Device
		windows [2]*Window
		keys    [3]wgtypes.Key
		held    [2]*staged
	)
	for i := range keys {
		keys[i] = generate(t)
	}
	binds := bindtest.NewChannelBinds()
	for i := range devices {
		tuns[i] = tuntest.NewChannelTUN()
		floods[i] = &flooded{Device: tuns[i].TUN(), packet: tuntest.Ping(dead, addresses[i])}
		held[i] = new(staged)
		windows[i] = New(held[i].discard)
		devices[i] = device.NewDevice(windows[i].Tun(floods[i]), windows[i].Bind(binds[i]), device.NewLogger(device.LogLevelError, ""))
		held[i].dev.Store(devices[i])
		t.Cleanup(devices[i].Close)
		other := 1 - i
		config := fmt.Sprintf("private_key=%s\npublic_key=%s\nendpoint=127.0.0.1:%d\nallowed_ip=%s/32\npublic_key=%s\nendpoint=127.0.0.1:%d\nallowed_ip=%s/32\n",
			hexKey(keys[i]), hexKey(keys[other].PublicKey()), i+1, addresses[other], hexKey(keys[2].PublicKey()), i+1, dead)
		if err := devices[i].IpcSet(config); err != nil {
			t.Fatal(err)
		}
		if err := devices[i].Up(); err != nil {
			t.Fatal(err)
		}
	}
	carry := func() {
		t.Helper()
		for i := range devices {
			packet := tuntest.Ping(addresses[1-i], addresses[i])
			tuns[i].Outbound <- packet
			select {
			case got := <-tuns[1-i].Inbound:
				if !bytes.Equal(got, packet) {
					t.Fatalf("%x arrives, want %x", got, packet)
				}
			case <-time.After(time.Minute):
				t.Fatal("a packet doesn't arrive")
			}
		}
	}
	for range 100 {
		carry()
	}
	// A few keepalives and handshake messages are still counted.
	polltest.Until(t, time.Minute, "at most 10 of 100 packets are in flight", func() bool {
		for _, w := range windows {
			for i := range w.readers {
				if w.readers[i].inflight.Load() > 10 {
					return false
				}
			}
		}
		return true
	})

	for range 20 {
		floods[0].left.Store(1000)
		carry()
		if got := windows[0].readers[tunReader].inflight.Load(); got > 2*maxInflight+8 {
			t.Fatalf("%d packets in flight, want at most %d", got, 2*maxInflight)
		}
	}
	if held[0].peers.Load() == nil {
		t.Error("packets that wait for a session were never discarded")
	}
}

// verifyNoLeaks fails the test if goroutines of it are still running at its end.
func verifyNoLeaks(t *testing.T) {
	t.Helper()
	ignore := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, ignore) })
}

func hexKey(k wgtypes.Key) string { return hex.EncodeToString(k[:]) }
