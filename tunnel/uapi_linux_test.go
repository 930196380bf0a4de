package tunnel

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun/tuntest"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
)

// unconnected is a bind without sockets and without their buffers for 128 packets each, whose
// allocation would take most of the time.
type unconnected struct {
	conn.Bind // for its endpoints
	closed    chan struct{}
}

func (b *unconnected) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) {
	closed := make(chan struct{})
	b.closed = closed
	receive := func([][]byte, []int, []conn.Endpoint) (int, error) {
		<-closed
		return 0, net.ErrClosed
	}
	return []conn.ReceiveFunc{receive}, cmp.Or(port, 1), nil
}

func (b *unconnected) Close() error {
	if b.closed != nil {
		close(b.closed)
		b.closed = nil
	}
	return nil
}

func (*unconnected) BatchSize() int                     { return 1 }
func (*unconnected) SetMark(uint32) error               { return nil }
func (*unconnected) Send([][]byte, conn.Endpoint) error { return nil }

// FuzzUAPI writes any configuration to a userspace device's socket, as root could, and reads
// it back like Status and Configure.
func FuzzUAPI(f *testing.F) {
	nstest.Namespaces(f)
	peer := "public_key=" + strings.Repeat("ab", 32) + "\n"
	for _, seed := range []string{
		"",
		"private_key=" + strings.Repeat("cd", 32) + "\nlisten_port=51820\n",
		peer + "endpoint=192.0.2.1:51820\nallowed_ip=10.0.0.0/8\nallowed_ip=fd00::/48\npersistent_keepalive_interval=25\n",
		peer + "endpoint=[::ffff:192.0.2.1]:1\nallowed_ip=::ffff:10.0.0.0/104\n",
		peer + "endpoint=[fe80::1%lo]:1\nallowed_ip=10.1.2.3/8\n",
		peer + "preshared_key=" + strings.Repeat("01", 32) + "\nremove=true\n",
		peer + "allowed_ip=0.0.0.0/0\n" + strings.Replace(peer, "ab", "ba", 1) + "allowed_ip=0.0.0.0/0\n",
		"replace_peers=true\n" + peer + "update_only=true\n",
		"listen_port=99999\n", "fwmark=1\n", "public_key=\n", "=\n", "errno=0\n",
	} {
		f.Add(seed)
	}
	name := fmt.Sprintf("fuzz%d", os.Getpid()) // several processes fuzz at once
	f.Fuzz(func(t *testing.T, config string) {
		listener, err := control.Listen(control.DevicePath(name))
		if err != nil {
			t.Fatal(err)
		}
		silent := &device.Logger{Verbosef: device.DiscardLogf, Errorf: device.DiscardLogf}
		dev := device.NewDevice(tuntest.NewChannelTUN().TUN(), &unconnected{Bind: conn.NewDefaultBind()}, silent)
		var serving sync.WaitGroup
		defer serving.Wait()
		defer func() { _ = listener.Close() }()
		serving.Go(func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				serving.Go(func() { dev.IpcHandle(conn) })
			}
		})
		defer dev.Close()

		_ = dev.IpcSet(config)
		found, err := protocol{}.Device(name)
		if err != nil {
			return // wgctrl may return an error, but must not panic
		}
		have := peersOf(found)
		checkPeers(t, have)

		want := thousands(3)
		state := newState()
		state.name, state.control = name, protocol{}
		if _, err := state.configure(t.Context(), want); err != nil {
			t.Fatalf("configure after %q: %v", config, err)
		}
		found, err = protocol{}.Device(name)
		if err != nil {
			t.Fatal(err)
		}
		if left := Diff(peersOf(found), want, nil); len(left) > 0 {
			t.Errorf("after %q, configured peers still differ: %+v", config, left)
		}
	})
}

// checkPeers checks what Status promises.
func checkPeers(t *testing.T, peers []PeerStatus) {
	t.Helper()
	sorted := slices.IsSortedFunc(peers, func(a, b PeerStatus) int { return a.PublicKey.Compare(b.PublicKey) })
	if !sorted {
		t.Error("peers aren't sorted")
	}
	for _, p := range peers {
		if p.Endpoint.Addr().Is4In6() {
			t.Errorf("endpoint %s", p.Endpoint)
		}
		if !slices.IsSortedFunc(p.AllowedIPs, netip.Prefix.Compare) {
			t.Errorf("allowed IPs aren't sorted: %v", p.AllowedIPs)
		}
		for _, prefix := range p.AllowedIPs {
			if !prefix.IsValid() || prefix != prefix.Masked() {
				t.Errorf("allowed IP %v", prefix)
			}
		}
	}
}
