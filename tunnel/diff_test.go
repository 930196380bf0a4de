package tunnel

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// testKey returns a key that sorts by n.
func testKey(n int) Key {
	var key Key
	binary.BigEndian.PutUint32(key[:], uint32(n)+1)
	return key
}

func testPeer(n int, endpoint string, texts ...string) Peer {
	p := Peer{PublicKey: testKey(n), Keepalive: 25 * time.Second}
	if endpoint != "" {
		p.Endpoint = netip.MustParseAddrPort(endpoint)
	}
	p.AllowedIPs = prefixes(texts...)
	return p
}

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// equate compares netip values by ==, and nil slices like empty ones.
func equate() cmp.Option {
	return cmp.Options{
		cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
		cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
		cmpopts.EquateEmpty(),
	}
}

func TestDiff(t *testing.T) {
	base := testPeer(1, "192.0.2.1:51820", "10.1.0.0/24", "10.1.1.0/24")
	with := func(change func(*Peer)) Peer {
		p := base
		p.AllowedIPs = slices.Clone(base.AllowedIPs)
		change(&p)
		return p
	}
	updateOf := func(p Peer, change PeerChange) []PeerChange {
		change.Op, change.Peer = OpUpdate, p
		return []PeerChange{change}
	}
	elsewhere := netip.MustParseAddrPort("198.51.100.9:4711")
	moved := with(func(p *Peer) { p.Endpoint = elsewhere })
	silent := with(func(p *Peer) { p.Endpoint = netip.AddrPort{} })
	slower := with(func(p *Peer) { p.Keepalive = time.Minute })
	wider := with(func(p *Peer) { p.AllowedIPs = append(p.AllowedIPs, netip.MustParsePrefix("10.1.2.0/24")) })
	narrower := with(func(p *Peer) { p.AllowedIPs = p.AllowedIPs[:1] })

	free := func(texts ...string) PeerChange {
		return PeerChange{Op: OpFree, Peer: Peer{AllowedIPs: prefixes(texts...)}}
	}

	tests := map[string]struct {
		have      []PeerStatus
		want      []Peer
		published netip.AddrPort
		changes   []PeerChange
	}{
		"nothing to do":                  {have: []PeerStatus{{Peer: base}}, want: []Peer{base}},
		"counters and handshakes differ": {have: []PeerStatus{{Peer: base, RxBytes: 5, LastHandshake: time.Unix(9, 9)}}, want: []Peer{base}},
		"a peer to add":                  {want: []Peer{base}, changes: []PeerChange{{Op: OpAdd, Peer: base}}},
		"a peer that isn't wanted":       {have: []PeerStatus{{Peer: base}}, changes: []PeerChange{{Op: OpRemove, Peer: base}}},
		"the published endpoint changed": {
			have: []PeerStatus{{Peer: base}}, want: []Peer{moved}, published: base.Endpoint,
			changes: updateOf(moved, PeerChange{SetEndpoint: true}),
		},
		"the peer roamed":                     {have: []PeerStatus{{Peer: moved}}, want: []Peer{base}, published: base.Endpoint},
		"the peer roamed where it says it is": {have: []PeerStatus{{Peer: moved}}, want: []Peer{moved}, published: base.Endpoint},
		"the peer roamed, then published another endpoint": {
			have: []PeerStatus{{Peer: moved}}, want: []Peer{base}, published: netip.MustParseAddrPort("203.0.113.1:1"),
			changes: updateOf(base, PeerChange{SetEndpoint: true}),
		},
		"published endpoints unknown": {
			have: []PeerStatus{{Peer: moved}}, want: []Peer{base},
			changes: updateOf(base, PeerChange{SetEndpoint: true}),
		},
		"the device lost the endpoint": {
			have: []PeerStatus{{Peer: silent}}, want: []Peer{base}, published: base.Endpoint,
			changes: updateOf(base, PeerChange{SetEndpoint: true}),
		},
		"no endpoint is published": {have: []PeerStatus{{Peer: base}}, want: []Peer{silent}, published: base.Endpoint},
		"another keepalive":        {have: []PeerStatus{{Peer: base}}, want: []Peer{slower}, changes: updateOf(slower, PeerChange{SetKeepalive: true})},
		"a foreign preshared key":  {have: []PeerStatus{{Peer: base, PresharedKey: true}}, want: []Peer{base}, changes: updateOf(base, PeerChange{ClearPresharedKey: true})},
		"an allowed IP more": {
			have: []PeerStatus{{Peer: base}}, want: []Peer{wider},
			changes: updateOf(wider, PeerChange{AddAllowedIPs: wider.AllowedIPs[2:]}),
		},
		"an allowed IP less": {have: []PeerStatus{{Peer: base}}, want: []Peer{narrower}, changes: []PeerChange{free("10.1.1.0/24")}},
		"allowed IPs that change places": {
			have: []PeerStatus{{Peer: testPeer(5, "", "10.5.0.0/16")}, {Peer: testPeer(7, "", "10.7.0.0/16")}},
			want: []Peer{testPeer(5, "", "10.7.0.0/16"), testPeer(7, "", "10.5.0.0/16")},
			changes: []PeerChange{
				{Op: OpUpdate, Peer: testPeer(5, "", "10.7.0.0/16"), AddAllowedIPs: prefixes("10.7.0.0/16")},
				{Op: OpUpdate, Peer: testPeer(7, "", "10.5.0.0/16"), AddAllowedIPs: prefixes("10.5.0.0/16")},
			},
		},
		"a peer that has a new key": {
			have:    []PeerStatus{{Peer: testPeer(5, "", "10.5.0.0/16")}},
			want:    []Peer{testPeer(6, "", "10.5.0.0/16")},
			changes: []PeerChange{{Op: OpAdd, Peer: testPeer(6, "", "10.5.0.0/16")}, {Op: OpRemove, Peer: testPeer(5, "", "10.5.0.0/16")}},
		},
		"what is given comes before what is taken": {
			have: []PeerStatus{{Peer: testPeer(5, "", "10.5.0.0/16", "10.6.0.0/16")}, {Peer: testPeer(7, "")}},
			want: []Peer{testPeer(3, "", "10.6.0.0/16"), testPeer(5, "", "10.0.0.0/8")},
			changes: []PeerChange{
				{Op: OpUpdate, Peer: testPeer(5, "", "10.0.0.0/8"), AddAllowedIPs: prefixes("10.0.0.0/8")},
				{Op: OpAdd, Peer: testPeer(3, "", "10.6.0.0/16")},
				free("10.5.0.0/16"),
				{Op: OpRemove, Peer: testPeer(7, "")},
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			published := map[Key]netip.AddrPort{}
			if tt.published.IsValid() {
				published[base.PublicKey] = tt.published
			}
			got := Diff(tt.have, tt.want, published)
			if diff := cmp.Diff(tt.changes, got, equate()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// randomPeers returns up to n peers with keys out of n. A prefix, out of 2n, belongs to at
// most one peer.
func randomPeers(r *rand.Rand, n int) []Peer {
	free := r.Perm(2 * n)
	var peers []Peer
	for i := range n {
		if r.IntN(3) == 0 {
			continue
		}
		p := testPeer(i, "")
		if r.IntN(4) > 0 {
			p.Endpoint = netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(r.IntN(3))}), 51820)
		}
		p.Keepalive = time.Duration(r.IntN(2)) * 25 * time.Second
		for range r.IntN(3) {
			p.AllowedIPs = append(p.AllowedIPs, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(free[0]), 0, 0}), 16))
			free = free[1:]
		}
		slices.SortFunc(p.AllowedIPs, netip.Prefix.Compare)
		peers = append(peers, p)
	}
	return peers
}

func apply(f *fakeControl, changes []PeerChange) {
	for _, change := range changes {
		for _, cfg := range change.configs() {
			f.configure(cfg)
		}
	}
}

// Applying Diff(have, want) to have yields want, after which the difference is empty, for
// random devices, also with allowed IPs that move between peers in both directions.
func TestDiffOfRandomPeers(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 0))
		n := 1 + r.IntN(12)
		f := newFakeControl()
		apply(f, Diff(nil, randomPeers(r, n), nil))
		for key, p := range f.peers {
			if r.IntN(5) == 0 {
				p.PresharedKey = wgtypes.Key{1}
				f.peers[key] = p
			}
		}
		want := randomPeers(r, n)
		apply(f, Diff(f.have(), want, nil))

		var got []Peer
		for i, p := range f.have() {
			if p.PresharedKey {
				t.Errorf("seed %d: peer %s keeps a preshared key", seed, p.PublicKey)
			}
			// A peer that publishes no endpoint keeps the one it has.
			if i < len(want) && !want[i].Endpoint.IsValid() {
				p.Endpoint = netip.AddrPort{}
			}
			got = append(got, p.Peer)
		}
		if diff := cmp.Diff(want, got, equate()); diff != "" {
			t.Fatalf("seed %d: -want +got:\n%s", seed, diff)
		}
		if again := Diff(f.have(), want, nil); len(again) > 0 {
			t.Fatalf("seed %d: a second diff has %d changes: %+v", seed, len(again), again)
		}
	}
}

// An allowed IP that was there and is wanted is, after each step, at the peer that had it or
// at the one that gets it; never at no peer, nor at another one.
func TestDiffNeverDropsAnAllowedIP(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 3))
		n := 1 + r.IntN(12)
		f := newFakeControl()
		apply(f, Diff(nil, randomPeers(r, n), nil))
		want := randomPeers(r, n)
		old, next := maps.Clone(f.owner), map[string]wgtypes.Key{}
		for _, p := range want {
			for _, ip := range netsOf(p.AllowedIPs) {
				next[ip.String()] = wgtypes.Key(p.PublicKey)
			}
		}
		for _, change := range Diff(f.have(), want, nil) {
			for _, cfg := range change.configs() {
				f.configure(cfg)
				for ip, before := range old {
					after, wanted := next[ip]
					if now := f.owner[ip]; wanted && now != before && now != after {
						t.Fatalf("seed %d: %s is at %s, was at %s, is to be at %s", seed, ip, now, before, after)
					}
				}
				if cfg.ReplaceAllowedIPs && change.Op != OpAdd {
					t.Fatalf("seed %d: all allowed IPs of a peer are rewritten: %+v", seed, cfg)
				}
			}
		}
	}
}

func TestDiffTouchesOnlyWhatChanged(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1))
		want := randomPeers(r, 12)
		f := newFakeControl()
		apply(f, Diff(nil, want, nil))
		if len(want) == 0 {
			continue
		}
		changed := slices.Clone(want)
		i := r.IntN(len(changed))
		changed[i].Keepalive += time.Second
		got := Diff(f.have(), changed, nil)
		if len(got) != 1 || got[0].Peer.PublicKey != changed[i].PublicKey {
			t.Fatalf("seed %d: peer %d changed, got %+v", seed, i, got)
		}
	}
}

func TestNormalize(t *testing.T) {
	self := testKey(99)
	got, err := normalize([]Peer{
		testPeer(2, "[::ffff:192.0.2.7]:1", "10.2.3.4/16", "10.1.0.0/16", "10.2.0.0/16"),
		testPeer(1, "", "fd00::1/64"),
	}, self, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []Peer{
		testPeer(1, "", "fd00::/64"),
		testPeer(2, "192.0.2.7:1", "10.1.0.0/16", "10.2.0.0/16"),
	}
	if diff := cmp.Diff(want, got, equate()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}

	halfSecond, negative, huge := testPeer(1, ""), testPeer(1, ""), testPeer(1, "")
	halfSecond.Keepalive, negative.Keepalive, huge.Keepalive = time.Second/2, -time.Second, 65536*time.Second
	invalid := testPeer(1, "")
	invalid.AllowedIPs = []netip.Prefix{{}}
	for name, peers := range map[string][]Peer{
		"no key":                       {{}},
		"our own key":                  {{PublicKey: self}},
		"a key twice":                  {testPeer(1, ""), testPeer(2, ""), testPeer(1, "192.0.2.1:1")},
		"a prefix claimed twice":       {testPeer(1, "", "10.0.0.0/8"), testPeer(2, "", "10.1.0.0/8")},
		"half a second":                {halfSecond},
		"a negative keepalive":         {negative},
		"a keepalive of 18 hours":      {huge},
		"an invalid prefix":            {invalid},
		"an IPv4-mapped IPv6 prefix":   {testPeer(1, "", "::ffff:10.0.0.0/104")},
		"a mapped one in second place": {testPeer(1, "", "fd00::1/64", "::ffff:10.0.0.0/104")},
	} {
		if _, err := normalize(peers, self, nil); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

// A prefix of two peers is found whichever of them has changed, and also when both have.
func TestNormalizeComparesWithBefore(t *testing.T) {
	before, err := normalize([]Peer{testPeer(1, "", "10.1.0.0/16"), testPeer(3, "", "10.3.0.0/16"), testPeer(5, "", "10.5.0.0/16")}, Key{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		peers []Peer
		twice bool
	}{
		"nothing changes":            {before, false},
		"one goes":                   {before[1:], false},
		"a prefix moves":             {[]Peer{testPeer(1, ""), before[1], testPeer(5, "", "10.1.0.0/16", "10.5.0.0/16")}, false},
		"two change places":          {[]Peer{testPeer(1, "", "10.5.0.0/16"), before[1], testPeer(5, "", "10.1.0.0/16")}, false},
		"the last takes the first's": {[]Peer{before[0], before[1], testPeer(5, "", "10.1.0.0/16")}, true},
		"the first takes the last's": {[]Peer{testPeer(1, "", "10.5.0.0/16"), before[1], before[2]}, true},
		"a new one takes another's":  {append([]Peer{testPeer(2, "", "10.3.0.0/16")}, before...), true},
		"two new ones take the same": {append([]Peer{testPeer(2, "", "10.9.0.0/16"), testPeer(4, "", "10.9.0.0/16")}, before...), true},
	} {
		if _, err := normalize(c.peers, Key{}, before); (err != nil) != c.twice {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNormalizeLeavesItsArgumentAlone(t *testing.T) {
	peers := []Peer{testPeer(2, "", "10.2.0.0/16", "10.1.0.0/16"), testPeer(1, "")}
	before := fmt.Sprint(peers)
	if _, err := normalize(peers, Key{}, nil); err != nil {
		t.Fatal(err)
	}
	if after := fmt.Sprint(peers); after != before {
		t.Errorf("changed from\n%s to\n%s", before, after)
	}
}
