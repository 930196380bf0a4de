package policy

import "net/netip"

// DefaultShardSize is how many nets one object holds. Calico's aggregated API
// server takes about twice as many, the custom resources many more.
const DefaultShardSize = 4000

// shard splits the addresses of a set, which are sorted, among objects of at
// most size addresses each. Where the objects exist current says what they
// hold, and an address stays in the one that has it: a set that grows or
// shrinks by one address changes one object. Only when the last objects are no
// longer needed by a margin do their addresses move to the others.
//
// The result has no address twice, and each part is sorted. Parts may be empty.
func shard(want []netip.Addr, current [][]netip.Addr, size int) [][]netip.Addr {
	if len(want) <= size && len(current) <= 1 {
		return [][]netip.Addr{want}
	}
	needed := ceilDiv(len(want), size)
	margin := max(size*3/4, 1)
	count := max(needed, min(len(current), ceilDiv(len(want), margin)))

	where := make(map[netip.Addr]int, len(want))
	room := make([]int, count)
	for i := range room {
		room[i] = size
	}
	for i, addrs := range current[:min(len(current), count)] {
		for _, addr := range addrs {
			where[addr] = i
		}
	}
	parts := make([][]netip.Addr, count)
	for _, addr := range want {
		if i, there := where[addr]; there && room[i] > 0 {
			room[i]--
		} else {
			delete(where, addr)
		}
	}
	next := 0
	for _, addr := range want {
		i, there := where[addr]
		if !there {
			for room[next] == 0 {
				next++
			}
			i = next
			room[i]--
		}
		parts[i] = append(parts[i], addr)
	}
	return parts
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }
