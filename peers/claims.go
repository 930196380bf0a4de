package peers

import (
	"net/netip"
	"slices"
)

// claims maps contested prefixes to the nodes that hold them. The cost of a claim grows
// with the number of distinct prefix lengths, not of prefixes. Single addresses have
// claims of their own where the longest prefix decides: enclosing prefixes don't matter
// there.
type claims struct {
	lengths  []int                   // distinct, ascending
	held     map[netip.Prefix]string // by prefix, the node
	inside   map[netip.Prefix]holder // by enclosing prefix, one held inside it
	reserved map[netip.Prefix]struct{}
}

type holder struct {
	prefix netip.Prefix
	node   string
}

// newClaims prepares for claims of the given prefixes.
func newClaims(contested map[netip.Prefix]struct{}) *claims {
	c := &claims{held: map[netip.Prefix]string{}, inside: map[netip.Prefix]holder{}, reserved: map[netip.Prefix]struct{}{}}
	var seen [129]bool
	for p := range contested {
		seen[p.Bits()] = true
	}
	for bits, ok := range seen {
		if ok {
			c.lengths = append(c.lengths, bits)
		}
	}
	return c
}

// reserve claims a prefix for a node ahead of the regular order. A prefix that is taken
// already stays as it is.
func (c *claims) reserve(p netip.Prefix, node string) {
	if _, _, taken := c.claim(p, node); !taken {
		c.reserved[p] = struct{}{}
	}
}

// claim claims a prefix for a node. When the prefix, a part of it or an enclosing one is
// taken, it changes nothing and returns that prefix and its owner.
func (c *claims) claim(p netip.Prefix, node string) (owner string, other netip.Prefix, taken bool) {
	shorter := c.lengths[:min(len(c.lengths), c.index(p.Bits()))]
	if owner, taken = c.held[p]; taken {
		if _, renewed := c.reserved[p]; renewed && owner == node {
			delete(c.reserved, p)
			return "", netip.Prefix{}, false
		}
		return owner, p, true
	}
	if h, taken := c.inside[p]; taken {
		return h.node, h.prefix, true
	}
	for _, bits := range shorter {
		if around := c.enclosing(p, bits); around.IsValid() {
			if owner, taken = c.held[around]; taken {
				return owner, around, true
			}
		}
	}
	c.held[p] = node
	for _, bits := range shorter {
		if around := c.enclosing(p, bits); around.IsValid() {
			c.inside[around] = holder{prefix: p, node: node}
		}
	}
	return "", netip.Prefix{}, false
}

// index returns the number of lengths shorter than bits.
func (c *claims) index(bits int) int {
	i, _ := slices.BinarySearch(c.lengths, bits)
	return i
}

// enclosing returns the prefix of the given length that contains p; invalid when p's
// family has no such length.
func (c *claims) enclosing(p netip.Prefix, bits int) netip.Prefix {
	around, err := p.Addr().Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return around
}
