package shards

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sort"
	"strings"
)

// Bounds of a shard. Half as many nodes an object take half as many bytes for each change, and
// a tenth more for a first read: see TestSizes. With one node an object it is three times as
// many, and of 100 nodes an object takes more bytes than a whole Node.
const (
	// A shard of more nodes or bytes is split, unless it has one node.
	splitNodes, splitBytes = 12, 4 << 10
	// Two halves that have at most these together are merged. What lies between remains as
	// it is, so that a node that comes and goes doesn't move others.
	mergeNodes, mergeBytes = splitNodes / 2, splitBytes / 2
	// maxDepth is the maximum number of bits in a shard's name. It takes a search for the
	// names of more than splitNodes nodes that have as many leading bits in common.
	maxDepth = 60
	// namePrefix begins the name of a shard, followed by bits.
	namePrefix = "p"
)

// hashOf returns a hash of a node's name: the first bits of its SHA-256.
func hashOf(name string) uint64 {
	sum := sha256.Sum256([]byte(name))
	return binary.BigEndian.Uint64(sum[:])
}

// place assigns nodes, which are sorted by hash, to shards. A shard has the nodes whose
// hashes begin with the bits in its name, so that nodes that come and go never move another
// one, except when a shard is split or merged. Have are the names of the shards that exist,
// sorted.
func place(nodes []*Node, have []string) map[string][]*Node {
	shards := map[string][]*Node{}
	split(nodes, namePrefix, have, shards)
	return shards
}

func split(nodes []*Node, name string, have []string, shards map[string][]*Node) {
	if len(nodes) == 0 {
		return
	}
	depth := len(name) - len(namePrefix)
	if depth == maxDepth || !tooLarge(nodes, name, have) {
		shards[name] = nodes
		return
	}
	bit := uint64(1) << (63 - depth)
	// The first of the second half: all have the same bits before.
	half := sort.Search(len(nodes), func(i int) bool { return nodes[i].hash&bit != 0 })
	split(nodes[:half], name+"0", have, shards)
	split(nodes[half:], name+"1", have, shards)
}

// in reports whether the hash of a node begins with the bits in the name of a shard.
func (n *Node) in(shard string) bool {
	for i, bit := range []byte(shard[len(namePrefix):]) {
		if byte(n.hash>>(63-i))&1 != bit-'0' {
			return false
		}
	}
	return true
}

// tooLarge reports whether nodes don't share a shard.
func tooLarge(nodes []*Node, name string, have []string) bool {
	switch {
	case len(nodes) == 1:
		return false
	case len(nodes) > splitNodes:
		return true
	}
	bytes := 0
	for i := range nodes {
		bytes += nodes[i].size
	}
	switch {
	case bytes > splitBytes:
		return true
	case len(nodes) <= mergeNodes && bytes <= mergeBytes:
		return false
	}
	// The next name after it in the order of strings is that of a part, if there is any.
	next, exact := slices.BinarySearch(have, name)
	if exact {
		next++
	}
	return next < len(have) && strings.HasPrefix(have[next], name)
}
