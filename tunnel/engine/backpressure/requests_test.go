package backpressure

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/conn/bindtest"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun/tuntest"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
)

func TestRequestsDiscardKeepalives(t *testing.T) {
	const endpoint, interval = "endpoint=192.0.2.1:51820\n", "persistent_keepalive_interval=25\n"
	key := func(n int) string { return fmt.Sprintf("public_key=%064x\n", n) }
	for name, c := range map[string]struct {
		request string
		want    []int
	}{
		"peers that are added":              {"private_key=11\n" + key(1) + endpoint + interval + "allowed_ip=10.0.0.0/8\n" + key(2) + endpoint + interval + "allowed_ip=11.0.0.0/8\n", []int{1, 2}},
		"a peer that is added again":        {key(1) + "remove=true\n" + key(1) + endpoint + interval, []int{1}},
		"endpoints alone":                   {key(1) + endpoint + key(2) + endpoint, nil},
		"an interval alone":                 {key(1) + interval, nil},
		"an interval alone, after a whole":  {key(1) + endpoint + interval + key(2) + interval, []int{1}},
		"an endpoint and no more intervals": {key(1) + endpoint + "persistent_keepalive_interval=0\n", nil},
		"an invalid key":                    {"public_key=1\n" + endpoint + interval, []int{0}},
		"a key that is too long":            {"public_key=" + strings.Repeat("0", 70) + "\n" + endpoint, nil},
		"empty":                             {"", nil},
	} {
		t.Run(name, func(t *testing.T) {
			for how, pieces := range map[string]func(io.Reader) io.Reader{
				"whole": func(r io.Reader) io.Reader { return r }, "byte by byte": iotest.OneByteReader,
			} {
				ours, theirs := net.Pipe()
				var got []int
				r := &requests{Conn: ours, discard: func(peer device.NoisePublicKey) { got = append(got, int(peer[31])) }}
				go func() {
					_, _ = io.Copy(theirs, strings.NewReader("set=1\n"+c.request+"\n"))
					_, _ = theirs.Read(make([]byte, 1))
				}()
				text, err := io.ReadAll(io.LimitReader(pieces(r), int64(len("set=1\n"+c.request+"\n"))))
				if err != nil || string(text) != "set=1\n"+c.request+"\n" {
					t.Fatalf("%q, %v", text, err)
				}
				if n := len(c.want); n > 0 && slices.Contains(got, c.want[n-1]) {
					t.Error("the last peer's keepalive was discarded before the end of the request")
				}
				if _, err := r.Write([]byte("e")); err != nil || !slices.Equal(got, c.want) {
					t.Errorf("%s: %d, %v; want %d", how, got, err, c.want)
				}
				_, _ = ours.Close(), theirs.Close()
			}
		})
	}
}

// mute is a conn.Bind that sends nothing.
type mute struct{ conn.Bind }

func (mute) Send([][]byte, conn.Endpoint) error { return nil }

// request sends a UAPI request to a device, as a client does.
func request(t *testing.T, dev *device.Device, text string) {
	t.Helper()
	ours, theirs := net.Pipe()
	defer func() { _ = ours.Close() }()
	go Answer(dev, theirs)
	if _, err := io.WriteString(ours, text); err != nil {
		t.Fatal(err)
	}
	if answer, err := bufio.NewReader(ours).ReadString('\n'); err != nil || answer != "errno=0\n" {
		t.Fatalf("%q, %v", answer, err)
	}
}

func generate(t *testing.T) wgtypes.Key {
	t.Helper()
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// A peer that doesn't answer takes the memory of its queues, and no buffer of 64 KiB.
func TestSilentPeersHoldNoBuffers(t *testing.T) {
	verifyNoLeaks(t)
	dev := device.NewDevice(tuntest.NewChannelTUN().TUN(), mute{bindtest.NewChannelBinds()[0]}, device.NewLogger(device.LogLevelError, ""))
	t.Cleanup(dev.Close)
	if err := dev.IpcSet("private_key=" + hexKey(generate(t))); err != nil {
		t.Fatal(err)
	}
	if err := dev.Up(); err != nil {
		t.Fatal(err)
	}
	alive := func() uint64 {
		runtime.GC()
		runtime.GC() // The second one empties the pools.
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	const peers = 300
	text := []byte("set=1\n")
	for i := range peers {
		text = fmt.Appendf(text, "public_key=%s\nendpoint=127.0.0.1:1\npersistent_keepalive_interval=25\nallowed_ip=10.%d.%d.0/24\n",
			hexKey(generate(t).PublicKey()), i>>8, i&0xff)
	}
	before := alive()
	request(t, dev, string(text)+"\n")
	if each := int(alive()-before) / peers; each > device.MaxMessageSize*3/4 {
		t.Errorf("each of %d peers takes %d bytes", peers, each)
	}
	runtime.KeepAlive(text)
}

// wireguard-go sends a keepalive after a handshake although the staged one was discarded:
// without it the responder can't use the session.
func TestSessionsOfAddedPeers(t *testing.T) {
	verifyNoLeaks(t)
	keys := [2]wgtypes.Key{generate(t), generate(t)}
	binds := bindtest.NewChannelBinds()
	var devices [2]*device.Device
	for i := range devices {
		devices[i] = device.NewDevice(tuntest.NewChannelTUN().TUN(), binds[i], device.NewLogger(device.LogLevelError, ""))
		t.Cleanup(devices[i].Close)
		if err := devices[i].IpcSet("private_key=" + hexKey(keys[i])); err != nil {
			t.Fatal(err)
		}
		if err := devices[i].Up(); err != nil {
			t.Fatal(err)
		}
	}
	request(t, devices[1], fmt.Sprintf("set=1\npublic_key=%s\nallowed_ip=10.0.0.1/32\n\n", hexKey(keys[0].PublicKey())))
	request(t, devices[0], fmt.Sprintf("set=1\npublic_key=%s\nendpoint=127.0.0.1:1\npersistent_keepalive_interval=25\nallowed_ip=10.0.0.2/32\n\n", hexKey(keys[1].PublicKey())))
	polltest.Until(t, time.Minute, "both sides have a session", func() bool {
		for _, d := range devices {
			if text, err := d.IpcGet(); err != nil || strings.Contains(text, "last_handshake_time_sec=0\n") {
				return false
			}
		}
		return true
	})
}
