package routes

import (
	"fmt"
	"net/netip"
)

// Occupied is a part of the network that this node depends on.
type Occupied struct {
	Prefix netip.Prefix
	What   string // as in "the pods of this node"
}

// CollisionError means that a pod subnet of a remote overlaps something that this node
// depends on: routes for the subnet would cut this node off from it, and the source filter
// would drop packets from there.
type CollisionError struct {
	Subnet netip.Prefix
	With   Occupied
}

func (e *CollisionError) Error() string {
	if e.With.Prefix.IsSingleIP() {
		return fmt.Sprintf("%s contains %s, %s", e.Subnet, e.With.Prefix.Addr(), e.With.What)
	}
	return fmt.Sprintf("%s overlaps %s, %s", e.Subnet, e.With.Prefix, e.With.What)
}

// Collision returns a [CollisionError] for the first overlap; nil: none.
func Collision(subnets []netip.Prefix, occupied []Occupied) error {
	for _, s := range subnets {
		for _, o := range occupied {
			if s.Overlaps(o.Prefix) {
				return &CollisionError{Subnet: s, With: o}
			}
		}
	}
	return nil
}

// DocumentationAddrs returns an address of each family reserved for documentation
// (RFC 5737, RFC 3849), which is routed to the default gateway.
func DocumentationAddrs() []netip.Addr {
	return []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
}
