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
// priority). See docs/decisions/0010.
const (
	lookupPriority = 400
	denyPriority   = 401
)

// fence is one of the two policy rules that keep packets to a remote pod subnet off other
// routes: a lookup in our own table, then a denial.
type fence struct {
	prefix netip.Prefix
	deny   bool
}

func compareFences(a, b fence) int {
	// Lookups come first: a denial without its lookup would block all packets.
	if a.deny != b.deny {
		if b.deny {
			return -1
		}
		return 1
	}
	return cmp.Or(a.prefix.Addr().Compare(b.prefix.Addr()), cmp.Compare(a.prefix.Bits(), b.prefix.Bits()))
}

// Fenced is the result of Fence: the changes, and the subnets whose rules are installed.
type Fenced struct {
	Changes
	Subnets []netip.Prefix
}

// Fence makes our policy rules exactly those for the remote pod subnets. A packet to such
// a subnet follows a route of our own table or fails at once, whatever other tables
// contain, even when all routes are flushed.
//
// Without subnets it removes all our rules. Without a difference it neither writes nor logs
// anything. Our rules are those with [Protocol]; those of another form, such as of the
// previous version, are removed after the new ones were installed. A subnet of a family
// that the kernel doesn't support counts as fenced.
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
	failed := map[netip.Prefix]bool{} // prefixes with a rule that could not be installed
	for _, f := range want {
		if slices.Contains(have, f) || f.deny && failed[f.prefix] {
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
		t.log.Info("rule installed", "prefix", f.prefix, "deny", f.deny)
	}
	for _, s := range subnets {
		if !failed[s.Masked()] {
			fenced.Subnets = append(fenced.Subnets, s)
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
			t.log.Info("rule removed", "prefix", stray[i].Dst)
		}
	}
	return fenced, errors.Join(errs...)
}

// Fenced returns the subnets that have rules of ours in the kernel, of whatever process.
func (t *Table) Fenced() ([]netip.Prefix, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	have, _, err := t.fences(t.families())
	var subnets []netip.Prefix
	for _, f := range have {
		if f.deny {
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

// fenceOf is the inverse of message. The library doesn't read a rule's type; a denial is
// recognized by having no table.
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

// prefixOfRule returns the destination; the zero Prefix: none.
func prefixOfRule(rule *netlink.Rule) netip.Prefix {
	if rule.Dst == nil {
		return netip.Prefix{}
	}
	addr, _ := netip.AddrFromSlice(rule.Dst.IP)
	bits, _ := rule.Dst.Mask.Size()
	return netip.PrefixFrom(addr, bits)
}
