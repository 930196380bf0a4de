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

// Priorities of our policy rules: right before the rule that looks into the
// main table (32766, see ip-rule(8)), so that rules which others put before
// that one go on deciding first.
const (
	lookupPriority = 32764
	denyPriority   = 32765
)

// fence is one of the two policy rules that keep packets to a remote pod subnet
// off routes that aren't meant for it.
type fence struct {
	prefix netip.Prefix
	// deny is set for the rule that refuses. The other one, before it, looks
	// into the main table and passes over routes that are wider than the prefix,
	// the default route among them.
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

// Fence makes the policy rules of ours exactly those that the remote pod subnets
// need. Guard routes keep packets from leaving in plaintext while they are
// there; whoever flushes the routing table takes them too. The rules stay then:
// a packet to the subnet follows a route for the subnet or for a part of it, and
// otherwise fails at once.
//
// Without subnets it removes all rules of ours. When nothing is to be done
// nothing is written or logged. Rules of ours are those with [Protocol].
func (t *Table) Fence(ctx context.Context, subnets []netip.Prefix) (Changes, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	have, stray, err := t.fences()
	if err != nil {
		return Changes{}, err
	}
	var want []fence
	for _, s := range subnets {
		want = append(want, fence{prefix: s.Masked()}, fence{prefix: s.Masked(), deny: true})
	}
	slices.SortFunc(want, compareFences)
	want = slices.Compact(want)

	var (
		changes Changes
		errs    []error
	)
	broken := map[netip.Prefix]bool{} // prefixes whose lookup rule can't be had
	for _, f := range want {
		if slices.Contains(have, f) || f.deny && broken[f.prefix] {
			continue
		}
		if err := ctx.Err(); err != nil {
			return changes, errors.Join(append(errs, err)...)
		}
		if err := t.handle.RuleAdd(f.message()); err != nil && !errors.Is(err, unix.EEXIST) {
			broken[f.prefix] = true
			errs = append(errs, fmt.Errorf("rule for %s: install: %w", f.prefix, err))
			continue
		}
		changes.Added++
		t.log.Info("rule installed", "prefix", f.prefix, "deny", f.deny)
	}
	// In the reverse order, for the same reason.
	for _, f := range slices.Backward(have) {
		if !slices.Contains(want, f) {
			stray = append(stray, *f.message())
		}
	}
	for i := range stray {
		if err := ctx.Err(); err != nil {
			return changes, errors.Join(append(errs, err)...)
		}
		switch err := t.handle.RuleDel(&stray[i]); {
		case errors.Is(err, unix.ENOENT):
			// Somebody else was faster.
		case err != nil:
			errs = append(errs, fmt.Errorf("rule %v: remove: %w", stray[i], err))
		default:
			changes.Removed++
			t.log.Info("rule removed", "prefix", stray[i].Dst)
		}
	}
	return changes, errors.Join(errs...)
}

// fences reads the rules of ours, sorted, and those that carry our mark in
// another form, or twice.
func (t *Table) fences() (have []fence, stray []netlink.Rule, err error) {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
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
	for attempt := 1; ; attempt++ {
		rules, err := t.handle.RuleList(family)
		if err == nil {
			return rules, nil
		}
		if !errors.Is(err, netlink.ErrDumpInterrupted) || attempt == dumpAttempts {
			return nil, fmt.Errorf("read policy rules: %w", err)
		}
	}
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
	rule.Priority, rule.Table = lookupPriority, unix.RT_TABLE_MAIN
	rule.SuppressPrefixlen = f.prefix.Bits() - 1
	return rule
}

// fenceOf is the inverse of message. The library doesn't read a rule's type,
// which the table tells: a rule that refuses has none.
func fenceOf(rule *netlink.Rule) (fence, bool) {
	if rule.Dst == nil {
		return fence{}, false
	}
	addr, ok := netip.AddrFromSlice(rule.Dst.IP)
	if !ok {
		return fence{}, false
	}
	bits, _ := rule.Dst.Mask.Size()
	f := fence{prefix: netip.PrefixFrom(addr, bits), deny: rule.Table == 0}
	want := f.message()
	same := rule.Priority == want.Priority && rule.Table == want.Table && rule.SuppressPrefixlen == want.SuppressPrefixlen &&
		rule.Src == nil && rule.Mark == 0 && rule.IifName == "" && rule.OifName == "" && !rule.Invert
	return f, same
}
