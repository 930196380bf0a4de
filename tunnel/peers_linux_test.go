package tunnel

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

// plain returns a peer as passed to Configure, as far as the device reports it.
func plain(status Status) []Peer {
	peers := make([]Peer, 0, len(status.Peers))
	for _, p := range status.Peers {
		peers = append(peers, p.Peer)
	}
	return peers
}

// A real device, configured with random sets of peers.
func TestConfigureARealDevice(t *testing.T) {
	eachBackend(t, func(t *testing.T, backend string) {
		d := open(t, config(t, "gcp", backend))
		d.ensure(t)
		for seed := range uint64(40) {
			r := rand.New(rand.NewPCG(seed, 2))
			want := randomPeers(r, 12)
			for i := range want {
				// Devices keep an endpoint that is no longer published.
				want[i].Endpoint = netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(r.IntN(250))}), 51820)
			}
			d.configure(t, want...)
			if diff := cmp.Diff(want, plain(d.status(t)), equate()); diff != "" {
				t.Fatalf("seed %d: -want +got:\n%s", seed, diff)
			}
			if seed%2 == 0 {
				d.later() // Every other time the device is read.
			}
			if changes := d.configure(t, want...); changes.Any() {
				t.Fatalf("seed %d: a second call changes %+v", seed, changes)
			}
		}
	})
}

func TestConfigureRepairsARealDevice(t *testing.T) {
	peers := thousands(40)
	faults := map[string]wgtypes.Config{
		"all peers removed": {ReplacePeers: true},
		"one peer removed":  {Peers: []wgtypes.PeerConfig{{PublicKey: wgtypes.Key(peers[3].PublicKey), Remove: true}}},
		"a peer added":      {Peers: []wgtypes.PeerConfig{{PublicKey: wgtypes.Key{9}, AllowedIPs: netsOf(peers[5].AllowedIPs)}}},
		"a preshared key": {Peers: []wgtypes.PeerConfig{{
			PublicKey: wgtypes.Key(peers[3].PublicKey), PresharedKey: &wgtypes.Key{1},
		}}},
		"allowed IPs swapped": {Peers: []wgtypes.PeerConfig{
			{PublicKey: wgtypes.Key(peers[3].PublicKey), AllowedIPs: netsOf(peers[4].AllowedIPs), ReplaceAllowedIPs: true},
			{PublicKey: wgtypes.Key(peers[4].PublicKey), AllowedIPs: netsOf(peers[3].AllowedIPs), ReplaceAllowedIPs: true},
		}},
	}
	eachBackend(t, func(t *testing.T, backend string) {
		for name, fault := range faults {
			t.Run(name, func(t *testing.T) {
				if name != "allowed IPs swapped" && name != "all peers removed" {
					nstest.Long(t)
				}
				d := open(t, config(t, "gcp", backend))
				d.ensure(t)
				d.configure(t, peers...)
				if err := (protocol{}).ConfigureDevice(d.Name(), fault); err != nil {
					t.Fatal(err)
				}
				d.later()
				if !d.configure(t, peers...).Any() {
					t.Error("no change is reported")
				}
				got := d.status(t)
				if diff := cmp.Diff(peers, plain(got), equate()); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
				if slices.ContainsFunc(got.Peers, func(p PeerStatus) bool { return p.PresharedKey }) {
					t.Error("a preshared key is left")
				}
			})
		}
	})
}

// benchmarkDevice is a device of this machine with 5,000 peers.
func benchmarkDevice(b *testing.B) (*Device, []Peer) {
	b.Helper()
	nstest.Namespaces(b)
	d := Open(Config{
		Name: "wg-bench", Alias: Alias("bench"), KeyPath: b.TempDir(), Backend: Auto, ListenPort: 51999, MTU: 1420,
		Logger: quiet(),
	})
	b.Cleanup(func() {
		if err := Remove(context.WithoutCancel(b.Context()), "wg-bench", Alias("bench")); err != nil {
			b.Error(err)
		}
	})
	b.Cleanup(func() { _ = d.Close() })
	if _, err := d.Ensure(b.Context()); err != nil {
		b.Fatal(err)
	}
	return d, thousands(5000)
}

func BenchmarkDevice(b *testing.B) {
	d, peers := benchmarkDevice(b)
	configure := func(b *testing.B, want []Peer) {
		b.Helper()
		if _, err := d.Configure(b.Context(), want); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("add 5000", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			configure(b, nil)
			b.StartTimer()
			configure(b, peers)
		}
	})
	b.Run("change 1 of 5000", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			peers = slices.Clone(peers)
			peers[i%len(peers)].Endpoint = netip.MustParseAddrPort(fmt.Sprintf("192.0.2.%d:51820", 1+i/len(peers)%200))
			configure(b, peers)
		}
	})
	b.Run("nothing to do", func(b *testing.B) {
		for b.Loop() {
			configure(b, peers)
			if _, err := d.Ensure(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("read 5000", func(b *testing.B) {
		for b.Loop() {
			if _, err := d.Status(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
}
