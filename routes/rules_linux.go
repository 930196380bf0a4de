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

// Priorities of our policy rules. They come after the rules by which network plugins
// and service meshes deliver marked packets to this host (Calico's and Istio's are
// about 100, Cilium's end at 111), and before those that choose a way out by source or
// for a VPN (512 to 1536 of Amazon's plugin, 5210 and more of Tailscale, 32765 and less
// of what was added without a priority). See docs/decisions/0010.
const (
	lookupPriority = 400
	denyPriority   = 401
)

// fence is one of the two policy rules that keep packets to a remote pod subnet
// off routes that aren't meant for it.
type fence struct {
	prefix netip.Prefix
	// deny is set for the rule that refuses. The other one, before it, looks
	// into our own table.
	deny bool
}

func compareFences(a, b fence) int {
	// Lookups come first: a refusal without its lookup would stop good packets.
	if a.deny != b.deny {
		if b.deny {
			return -1
		}
		return 1
	}
	return cmp.Or(a.prefix.Addr().Compare(b.prefix.Addr()), cmp.Compare(a.prefix.Bits(), b.prefix.Bits()))
}

// Fenced is what Fence has done, and for which subnets the rules are there now.
type Fenced struct {
	Changes
	Subnets []netip.Prefix
}

// Fence makes the policy rules of ours exactly those that the remote pod subnets
// need. A packet to the subnet follows a route of our own table, and otherwise fails
// at once, whatever other tables say: also when somebody flushes all routes.
//
// Without subnets it removes all rules of ours. When nothing is to be done
// nothing is written or logged. Rules of ours are those with [Protocol]. Others with
// it, such as those of the version before, go after the new ones have come. A subnet of
// a family that the kernel doesn't have counts as fenced.
func (t *Table) Fence(ctx context.Context, subnets []netip.Prefix) (Fenced, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	families := t.families()
	have, stray, err := t.fences(families)
	if err != nil {
		return Fenced{}, err
	}
	var want []fence
	for _, s := range subnets {
		if has(families, s.Addr()) {
			want = append(want, fence{prefix: s.Masked()}, fence{prefix: s.Masked(), deny: true})
		}
	}
	slices.SortFunc(want, compareFences)
	want = slices.Compact(want)

	var (
		fenced Fenced
		errs   []error
	)
	broken := map[netip.Prefix]bool{} // prefixes of which a rule can't be had
	for _, f := range want {
		if slices.Contains(have, f) || f.deny && broken[f.prefix] {
			continue
		}
		if err := ctx.Err(); err != nil {
			return fenced, errors.Join(append(errs, err)...)
		}
		if err := t.handle.RuleAdd(f.message()); err != nil && !errors.Is(err, unix.EEXIST) {
			broken[f.prefix] = true
			errs = append(errs, fmt.Errorf("rule for %s: install: %w", f.prefix, err))
			continue
		}
		fenced.Added++
		t.log.Info("rule installed", "prefix", f.prefix, "deny", f.deny)
	}
	for _, s := range subnets {
		if !broken[s.Masked()] {
			fenced.Subnets = append(fenced.Subnets, s)
		}
	}
	// In the reverse order, for the same reason.
	for _, f := range slices.Backward(have) {
		if !slices.Contains(want, f) {
			stray = append(stray, *f.message())
		}
	}
	for i := range stray {
		if broken[prefixOfRule(&stray[i])] {
			continue // it is better than nothing
		}
		if err := ctx.Err(); err != nil {
			return fenced, errors.Join(append(errs, err)...)
		}
		switch err := t.handle.RuleDel(&stray[i]); {
		case errors.Is(err, unix.ENOENT):
			// Somebody else was faster.
		case err != nil:
			errs = append(errs, fmt.Errorf("rule %v: remove: %w", stray[i], err))
		default:
			fenced.Removed++
			t.log.Info("rule removed", "prefix", stray[i].Dst)
		}
	}
	return fenced, errors.Join(errs...)
}

// fences reads the rules of ours, sorted, and those that carry our mark in
// another form, or twice.
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
	rules, err := whole(func() ([]netlink.Rule, error) { return t.handle.RuleList(family) })
	if err != nil {
		return nil, fmt.Errorf("read policy rules: %w", err)
	}
	return rules, nil
}

// message is the rtnetlink form of f.
func (f fence) message() *netlink.Rule {
	rule := netlink.NewRule()
	rule.Family = unix.AF_INET
	if f.prefix.Addr().Is6() {
		rule.Family = unix.AF_INET6
	}
	rule.Dst = &net.IPNet{
		IP:   f.prefix.Addr().AsSlice(),
		Mask: net.CIDRMask(f.prefix.Bits(), f.prefix.Addr().BitLen()),
	}
	rule.Protocol = Protocol
	if f.deny {
		rule.Priority, rule.Type = denyPriority, unix.RTN_UNREACHABLE
		return rule
	}
	rule.Priority, rule.Table = lookupPriority, OwnTable
	return rule
}

// fenceOf is the inverse of message. The library doesn't read a rule's type,
// which the table tells: a rule that refuses has none.
func fenceOf(rule *netlink.Rule) (fence, bool) {
	prefix := prefixOfRule(rule)
	if !prefix.IsValid() {
		return fence{}, false
	}
	f := fence{prefix: prefix, deny: rule.Table == 0}
	want := f.message()
	same := rule.Priority == want.Priority && rule.Table == want.Table && rule.SuppressPrefixlen == want.SuppressPrefixlen &&
		rule.Src == nil && rule.Mark == 0 && rule.IifName == "" && rule.OifName == "" && !rule.Invert
	return f, same
}

// prefixOfRule returns the destination, the zero Prefix without one.
func prefixOfRule(rule *netlink.Rule) netip.Prefix {
	if rule.Dst == nil {
		return netip.Prefix{}
	}
	addr, _ := netip.AddrFromSlice(rule.Dst.IP)
	bits, _ := rule.Dst.Mask.Size()
	return netip.PrefixFrom(addr, bits)
}
