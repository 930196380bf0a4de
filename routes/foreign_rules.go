package routes

import (
	"fmt"
	"net/netip"
	"strings"
)

// ForeignRule is a policy rule of another program that decides about packets to remote pods
// before ours do.
type ForeignRule struct {
	// Subnets are the remote pod subnets whose packets it leads elsewhere.
	Subnets []netip.Prefix
	// Marked is set if it selects packets by a firewall mark, which those of pods have
	// only where another program sets it.
	Marked bool
	// Text is the rule like in ip-rule(8), and the route in its table that is not ours.
	Text string
}

// Actions of policy rules (FR_ACT_* in include/uapi/linux/fib_rules.h).
const (
	actionTable       = 1
	actionGoto        = 2
	actionNop         = 3
	actionBlackhole   = 6
	actionUnreachable = 7
	actionProhibit    = 8
)

// policyRule is a policy rule as the kernel lists it.
type policyRule struct {
	priority, table, target uint32 // target is the priority of a goto
	action                  uint8
	invert, l3mdev          bool
	from, to                netip.Prefix // the zero Prefix: all
	iif, oif                string
	mark, mask              uint32
	suppress                int      // routes with prefixes of this length or shorter are not used; -1: all are
	protocol                uint8    // of the rule's origin
	others                  []string // other selectors, as in ip-rule(8)
}

// takes reports whether the rule may select packets to the subnet.
func (r *policyRule) takes(subnet netip.Prefix) bool {
	if !r.invert {
		return !r.to.IsValid() || r.to.Overlaps(subnet)
	}
	if r.from.IsValid() || r.iif != "" || r.oif != "" || r.mask != 0 || len(r.others) > 0 {
		return true
	}
	return r.to.IsValid() && (r.to.Bits() > subnet.Bits() || !r.to.Contains(subnet.Addr()))
}

// marked reports whether only packets with a firewall mark are selected.
func (r *policyRule) marked() bool { return (r.mark&r.mask != 0) != r.invert && r.mask != 0 }

// String formats the rule like ip-rule(8).
func (r *policyRule) String() string {
	words := []string{fmt.Sprintf("%d:", r.priority)}
	if r.invert {
		words = append(words, "not")
	}
	words = append(words, "from", "all")
	if r.from.IsValid() {
		words[len(words)-1] = prefixText(r.from)
	}
	if r.to.IsValid() {
		words = append(words, "to", prefixText(r.to))
	}
	switch {
	case r.mask == 0:
	case r.mask == ^uint32(0):
		words = append(words, "fwmark", fmt.Sprintf("%#x", r.mark))
	default:
		words = append(words, "fwmark", fmt.Sprintf("%#x/%#x", r.mark, r.mask))
	}
	for _, link := range [][2]string{{"iif", r.iif}, {"oif", r.oif}} {
		if link[1] != "" {
			words = append(words, link[0], link[1])
		}
	}
	words = append(words, r.others...)
	switch {
	case r.action == actionGoto:
		words = append(words, "goto", fmt.Sprint(r.target))
	case r.l3mdev:
		words = append(words, "lookup", "[l3mdev-table]")
	case r.action == actionTable:
		words = append(words, "lookup", routingTable(r.table))
	case r.action == actionBlackhole:
		words = append(words, "blackhole")
	case r.action == actionUnreachable:
		words = append(words, "unreachable")
	case r.action == actionProhibit:
		words = append(words, "prohibit")
	}
	if r.suppress >= 0 {
		words = append(words, "suppress_prefixlength", fmt.Sprint(r.suppress))
	}
	return strings.Join(words, " ")
}

func prefixText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

func routingTable(number uint32) string {
	switch number {
	case 253:
		return "default"
	case 254:
		return "main"
	case 255:
		return "local"
	default:
		return fmt.Sprint(number)
	}
}

// tableRoute is a route in another program's table.
type tableRoute struct {
	prefix netip.Prefix
	// past is set if packets don't get into the tunnel, nor to this host, by the route.
	past bool
	text string
}

// past returns a route by which a lookup in a table leads packets to the subnet past the
// tunnel: the most specific one for the whole subnet, or one to a part of it. Routes with
// prefixes of a length up to suppress are not used.
func past(table []tableRoute, subnet netip.Prefix, suppress int) (route tableRoute, found bool) {
	var whole tableRoute
	for _, r := range table {
		switch {
		case !r.prefix.Overlaps(subnet):
		case r.prefix.Bits() > subnet.Bits():
			if r.past && r.prefix.Bits() > suppress {
				return r, true
			}
		case !whole.prefix.IsValid() || r.prefix.Bits() > whole.prefix.Bits():
			whole = r
		}
	}
	return whole, whole.past && whole.prefix.Bits() > suppress
}
