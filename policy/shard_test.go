package policy

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// randomAddrs are n different addresses of 10.0.0.0/8, sorted.
func randomAddrs(rng *rand.Rand, n int) []netip.Addr {
	seen := map[netip.Addr]bool{}
	for len(seen) < n {
		seen[netip.AddrFrom4([4]byte{10, byte(rng.IntN(256)), byte(rng.IntN(256)), byte(rng.IntN(256))})] = true
	}
	var all []netip.Addr
	for a := range seen {
		all = append(all, a)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}

func checkShards(t *testing.T, want []netip.Addr, parts [][]netip.Addr, size int) {
	t.Helper()
	for i, part := range parts {
		if len(part) > size {
			t.Fatalf("part %d holds %d of at most %d", i, len(part), size)
		}
		if !slices.IsSortedFunc(part, netip.Addr.Compare) {
			t.Fatalf("part %d is not sorted", i)
		}
	}
	union := slices.Concat(parts...)
	slices.SortFunc(union, netip.Addr.Compare)
	if !slices.Equal(union, want) {
		t.Fatalf("parts hold %d addresses together, want exactly the %d", len(union), len(want))
	}
}

func TestShardsHoldEverythingOnceWhateverHappens(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	pool := randomAddrs(rng, 3000)
	var current [][]netip.Addr
	for range rounds(500, 50) {
		want := slices.Clone(pool)
		rng.Shuffle(len(want), func(i, j int) { want[i], want[j] = want[j], want[i] })
		want = want[:rng.IntN(len(want))]
		slices.SortFunc(want, netip.Addr.Compare)
		current = shard(want, current, 400)
		checkShards(t, want, current, 400)
	}
}

func TestOneChangeChangesOneShard(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	pool := randomAddrs(rng, 2000)
	want := slices.Clone(pool[:1500])
	current := shard(want, nil, 400)
	for range rounds(300, 50) {
		if rng.IntN(2) == 0 && len(want) > 1250 {
			want = slices.Delete(slices.Clone(want), 0, 1)
		} else {
			fresh := pool[rng.IntN(len(pool))]
			if at, there := slices.BinarySearchFunc(want, fresh, netip.Addr.Compare); !there {
				want = slices.Insert(slices.Clone(want), at, fresh)
			}
		}
		next := shard(want, current, 400)
		checkShards(t, want, next, 400)
		changed := 0
		for i := range max(len(next), len(current)) {
			var a, b []netip.Addr
			if i < len(current) {
				a = current[i]
			}
			if i < len(next) {
				b = next[i]
			}
			if !slices.Equal(a, b) {
				changed++
			}
		}
		if changed > 1 {
			t.Fatalf("one address changed %d shards", changed)
		}
		current = next
	}
}

func TestShardsMergeWhenThereAreFewAddressesLeft(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	all := randomAddrs(rng, 1000)
	current := shard(all, nil, 400)
	if len(current) != 3 {
		t.Fatalf("%d shards, want 3", len(current))
	}
	if got := shard(all[:790], current, 400); len(got) != 3 {
		t.Errorf("790 addresses: %d shards, want 3 still, as two would be nearly full", len(got))
	}
	if got := shard(all[:300], current, 400); len(got) != 1 {
		t.Errorf("300 addresses: %d shards, want 1", len(got))
	}
}

func TestOverfullObjectsAreRelieved(t *testing.T) {
	all := randomAddrs(rand.New(rand.NewPCG(7, 8)), 900)
	got := shard(all, [][]netip.Addr{all}, 400)
	checkShards(t, all, got, 400)
}
