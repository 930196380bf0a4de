package peers

import (
	"net/netip"
	"slices"
)

// claims tells who holds which of the contested prefixes, in time that depends on
// how many different prefix lengths there are, not on how many prefixes. Single
// addresses have claims of their own where the longest prefix decides: what lies
// around them doesn't matter there.
type claims struct {
	lengths []int                   // that occur, ascending
	held    map[netip.Prefix]string // prefix -> node
	inside  map[netip.Prefix]held   // prefix that isn't held -> what is held inside it
	renewed map[netip.Prefix]struct{}
}

type held struct {
	prefix netip.Prefix
	node   string
}

// newClaims prepares for claims of the given prefixes.
func newClaims(contested map[netip.Prefix]struct{}) *claims {
	c := &claims{held: map[netip.Prefix]string{}, inside: map[netip.Prefix]held{}, renewed: map[netip.Prefix]struct{}{}}
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

// renew claims a prefix ahead of others, for the node to take it when it is its
// turn. Where it is taken nothing changes.
func (c *claims) renew(p netip.Prefix, node string) {
	if _, _, taken := c.take(p, node); !taken {
		c.renewed[p] = struct{}{}
	}
}

// take claims a prefix for a node. When the prefix, a part of it or a larger
// one around it is taken, it changes nothing and returns by whom and as what.
func (c *claims) take(p netip.Prefix, node string) (owner string, other netip.Prefix, taken bool) {
	shorter := c.lengths[:min(len(c.lengths), c.index(p.Bits()))]
	if owner, taken = c.held[p]; taken {
		if _, renewed := c.renewed[p]; renewed && owner == node {
			delete(c.renewed, p)
			return "", netip.Prefix{}, false
		}
		return owner, p, true
	}
	if h, taken := c.inside[p]; taken {
		return h.node, h.prefix, true
	}
	for _, bits := range shorter {
		if around := c.at(p, bits); around.IsValid() {
			if owner, taken = c.held[around]; taken {
				return owner, around, true
			}
		}
	}
	c.held[p] = node
	for _, bits := range shorter {
		if around := c.at(p, bits); around.IsValid() {
			c.inside[around] = held{prefix: p, node: node}
		}
	}
	return "", netip.Prefix{}, false
}

// index returns how many of the lengths are shorter than bits.
func (c *claims) index(bits int) int {
	i, _ := slices.BinarySearch(c.lengths, bits)
	return i
}

// at returns the prefix of the given length around p; invalid when p's family
// has no such length.
func (c *claims) at(p netip.Prefix, bits int) netip.Prefix {
	around, err := p.Addr().Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return around
}
