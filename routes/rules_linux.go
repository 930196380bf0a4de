package routes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Priorities of our policy rules: after the rules by which network plugins and service
// meshes deliver marked packets to this host (Calico's and Istio's are about 100, Cilium's
// end at 111), and before those that choose a route by source or for a VPN (512 to 1536 of
// Amazon's plugin, from 5210 on of Tailscale, 32765 and below of rules added without a
// priority). See docs/decisions/0010 and 0027.
const (
	passPriority   = 399
	lookupPriority = 400
	passedPriority = 402
)

// nothing is the type of a rule without effect (FR_ACT_NOP in linux/fib_rules.h).
const nothing = 3

// fence is one of the policy rules that lead packets to a remote pod subnet to our own table,
// before other routes. The tunnel's own packets, with a mark, pass these. The kinds are in the
// order of their installation: a pass without its end has no effect.
type fence struct {
	kind   fenceKind
	prefix netip.Prefix // of the family's addresses, for fencePassed and fencePass
	mark   uint32       // of fencePass
}

type fenceKind int

const (
	fencePassed fenceKind = iota // where fencePass leads
	fencePass
	fenceLookup
)

func (k fenceKind) String() string { return [...]string{"passed", "pass", "lookup"}[k] }

func compareFences(a, b fence) int {
	return cmp.Or(cmp.Compare(a.kind, b.kind), a.prefix.Addr().Compare(b.prefix.Addr()),
		cmp.Compare(a.prefix.Bits(), b.prefix.Bits()), cmp.Compare(a.mark, b.mark))
}

// everything is the prefix of all addresses of the family of one.
func everything(a netip.Addr) netip.Prefix {
	if a.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// fencesFor returns the rules for the subnets, sorted.
func fencesFor(subnets []netip.Prefix, mark uint32) []fence {
	var want []fence
	for _, s := range subnets {
		want = append(want, fence{kind: fenceLookup, prefix: s.Masked()})
		if all := everything(s.Addr()); mark != 0 {
			want = append(want, fence{kind: fencePassed, prefix: all}, fence{kind: fencePass, prefix: all, mark: mark})
		}
	}
	slices.SortFunc(want, compareFences)
	return slices.Compact(want)
}

// Fenced is the result of Fence: the changes, and the subnets whose rules are installed.
type Fenced struct {
	Changes
	Subnets []netip.Prefix
	// Passable are those of Subnets that packets with the mark pass.
	Passable []netip.Prefix
}

// Fence makes our policy rules exactly those for the remote pod subnets. A packet to such
// a subnet follows the routes of our own table, its guard at least, whatever other tables
// contain. A packet of this host that has all bits of the mark (see [NewTable]) follows
// the other rules and routes, as if there were none of ours. A forwarded packet never does,
// whatever marks it.
//
// Without subnets it removes all our rules. Without a difference it neither writes nor logs
// anything. Our rules are those with [Protocol]; those of another form, such as the previous
// version's that refuse what finds no route, are removed after the new ones were installed. A subnet of a family
// that the kernel doesn't support counts as fenced.
func (t *Table) Fence(ctx context.Context, subnets []netip.Prefix) (Fenced, error) {
	families := t.families()
	have, stray, err := t.fences(families)
	if err != nil {
		return Fenced{}, err
	}
	want := fencesFor(slices.DeleteFunc(slices.Clone(subnets), func(s netip.Prefix) bool { return !has(families, s.Addr()) }), t.mark)

	var (
		fenced Fenced
		errs   []error
	)
	failed := map[netip.Prefix]bool{} // prefixes with a rule that could not be installed
	for _, f := range want {
		if slices.Contains(have, f) || f.kind == fencePass && failed[f.prefix] {
			continue
		}
		if err := ctx.Err(); err != nil {
			return fenced, errors.Join(append(errs, err)...)
		}
		if err := t.handle.RuleAdd(f.message()); err != nil && !errors.Is(err, unix.EEXIST) {
			failed[f.prefix] = true
			errs = append(errs, fmt.Errorf("rule for %s: install: %w", f.prefix, err))
			continue
		}
		fenced.Added++
		t.log.Info("rule installed", "prefix", f.prefix, "kind", f.kind.String())
	}
	for _, s := range subnets {
		if failed[s.Masked()] {
			continue
		}
		fenced.Subnets = append(fenced.Subnets, s)
		if t.mark != 0 && !failed[everything(s.Addr())] {
			fenced.Passable = append(fenced.Passable, s)
		}
	}
	// In reverse order, for the same reason.
	for _, f := range slices.Backward(have) {
		if !slices.Contains(want, f) {
			stray = append(stray, *f.message())
		}
	}
	for i := range stray {
		if failed[prefixOfRule(&stray[i])] {
			continue // Better than no rule.
		}
		if err := ctx.Err(); err != nil {
			return fenced, errors.Join(append(errs, err)...)
		}
		switch err := t.handle.RuleDel(&stray[i]); {
		case errors.Is(err, unix.ENOENT):
			// Removed concurrently.
		case err != nil:
			errs = append(errs, fmt.Errorf("rule %v: remove: %w", stray[i], err))
		default:
			fenced.Removed++
			t.log.Info("rule removed", "prefix", stray[i].Dst, "priority", stray[i].Priority)
		}
	}
	return fenced, errors.Join(errs...)
}

// Fenced returns the subnets that have rules of ours in the kernel, of whatever process.
func (t *Table) Fenced() ([]netip.Prefix, error) {
	have, _, err := t.fences(t.families())
	var subnets []netip.Prefix
	for _, f := range have {
		if f.kind == fenceLookup {
			subnets = append(subnets, f.prefix)
		}
	}
	return subnets, err
}

// fences reads our rules, sorted, and stray ones: with our protocol in another form, or
// duplicates.
func (t *Table) fences(families []int) (have []fence, stray []netlink.Rule, err error) {
	for _, family := range families {
		rules, err := t.rules(family)
		if err != nil {
			return nil, nil, err
		}
		for i := range rules {
			if rules[i].Protocol != Protocol {
				continue
			}
			if f, ok := fenceOf(&rules[i]); ok && !slices.Contains(have, f) {
				have = append(have, f)
			} else {
				stray = append(stray, rules[i])
			}
		}
	}
	slices.SortFunc(have, compareFences)
	return have, stray, nil
}

func (t *Table) rules(family int) ([]netlink.Rule, error) {
	rules, err := retryInterrupted(func() ([]netlink.Rule, error) { return t.handle.RuleList(family) })
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil // A kernel without policy rules of the family has none. Adding one fails.
	}
	if err != nil {
		return nil, fmt.Errorf("read policy rules: %w", err)
	}
	return rules, nil
}

// message returns the rtnetlink form of f.
func (f fence) message() *netlink.Rule {
	rule := netlink.NewRule()
	rule.Family = unix.AF_INET
	if f.prefix.Addr().Is6() {
		rule.Family = unix.AF_INET6
	}
	if f.prefix.Bits() > 0 {
		rule.Dst = &net.IPNet{
			IP:   f.prefix.Addr().AsSlice(),
			Mask: net.CIDRMask(f.prefix.Bits(), f.prefix.Addr().BitLen()),
		}
	}
	rule.Protocol = Protocol
	switch f.kind {
	case fencePassed:
		rule.Priority, rule.Type = passedPriority, nothing
	case fencePass:
		// The interface lo means packets that this host sends itself.
		rule.Priority, rule.Goto, rule.IifName, rule.Mark, rule.Mask = passPriority, passedPriority, "lo", f.mark, &f.mark
	case fenceLookup:
		rule.Priority, rule.Table = lookupPriority, OwnTable
	}
	return rule
}

// fenceOf is the inverse of message. The library doesn't read a rule's type, which the
// priority stands for.
func fenceOf(rule *netlink.Rule) (fence, bool) {
	kind, ours := map[int]fenceKind{
		passedPriority: fencePassed, passPriority: fencePass, lookupPriority: fenceLookup,
	}[rule.Priority]
	f := fence{kind: kind, prefix: prefixOfRule(rule), mark: rule.Mark}
	if !ours || f.prefix.IsValid() != (kind == fenceLookup) {
		return fence{}, false
	}
	if !f.prefix.IsValid() {
		f.prefix = everything(netip.IPv4Unspecified())
		if rule.Family == unix.AF_INET6 {
			f.prefix = everything(netip.IPv6Unspecified())
		}
	}
	want := f.message()
	mask := func(r *netlink.Rule) uint32 {
		if r.Mask == nil {
			return r.Mark // The kernel's default is all bits.
		}
		return *r.Mask
	}
	same := max(rule.Table, 0) == max(want.Table, 0) && rule.SuppressPrefixlen == want.SuppressPrefixlen && rule.Goto == want.Goto &&
		mask(rule) == mask(want) && rule.Src == nil && rule.IifName == want.IifName && rule.OifName == "" && !rule.Invert
	return f, same
}

// prefixOfRule returns the destination; the zero Prefix: none.
func prefixOfRule(rule *netlink.Rule) netip.Prefix {
	if rule.Dst == nil {
		return netip.Prefix{}
	}
	addr, _ := netip.AddrFromSlice(rule.Dst.IP)
	bits, _ := rule.Dst.Mask.Size()
	return netip.PrefixFrom(addr, bits)
}
