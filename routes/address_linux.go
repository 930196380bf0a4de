package routes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// SyncAddresses makes the addresses of ours on devices of ours exactly want. Ours
// are those with all bits as prefix, link-local ones aside; others that somebody
// put there stay. When nothing is to be done nothing is written or logged, and a
// fault with one address doesn't stop the others.
//
// An address that a route of ours still names as its source stays, because the
// kernel may remove the route together with it: once the routes have been changed,
// SyncAddresses is to be called again.
//
// IPv6 addresses aren't checked for duplicates, so they can be used at once: the
// devices have no neighbours, and the address is on another link of this host.
func (t *Table) SyncAddresses(ctx context.Context, want []Address) (Changes, error) {
	have, err := addressesOfOurs()
	if err != nil {
		return Changes{}, err
	}
	add, remove := diffAddresses(have, want)
	if len(add) == 0 && len(remove) == 0 {
		return Changes{}, nil
	}
	var (
		changes Changes
		errs    []error
	)
	for _, a := range add {
		if err := ctx.Err(); err != nil {
			return changes, errors.Join(append(errs, err)...)
		}
		switch err := t.handle.AddrAdd(a.link(), a.message()); {
		case errors.Is(err, unix.EEXIST), errors.Is(err, unix.ENODEV):
			// Somebody else was faster, or the device has just gone.
		case err != nil:
			errs = append(errs, fmt.Errorf("address %s: install: %w", a, err))
		default:
			changes.Added++
			t.log.Info("address installed", "address", a.String())
		}
	}
	var used []netip.Addr
	if len(remove) > 0 {
		if used, err = t.routedSources(); err != nil {
			return changes, errors.Join(append(errs, err)...)
		}
	}
	for _, a := range remove {
		if err := ctx.Err(); err != nil {
			return changes, errors.Join(append(errs, err)...)
		}
		if slices.Contains(used, a.Addr) {
			continue
		}
		switch err := t.handle.AddrDel(a.link(), a.message()); {
		case errors.Is(err, unix.EADDRNOTAVAIL), errors.Is(err, unix.ENODEV):
			// Gone since it was read.
		case err != nil:
			errs = append(errs, fmt.Errorf("address %s: remove: %w", a, err))
		default:
			changes.Removed++
			t.log.Info("address removed", "address", a.String())
		}
	}
	return changes, errors.Join(errs...)
}

// link is the device in the form that the library asks for.
func (a Address) link() netlink.Link {
	return &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: a.Device}}
}

// message is the rtnetlink form of a. Its scope must be global: the kernel doesn't
// masquerade with a narrower one.
func (a Address) message() *netlink.Addr {
	msg := &netlink.Addr{
		IPNet: &net.IPNet{IP: a.Addr.AsSlice(), Mask: net.CIDRMask(a.Addr.BitLen(), a.Addr.BitLen())},
		Scope: unix.RT_SCOPE_UNIVERSE,
	}
	if a.Addr.Is6() {
		msg.Flags = unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE
	}
	return msg
}

// addressesOfOurs reads the addresses of ours on devices of ours.
func addressesOfOurs() ([]Address, error) {
	devices, err := devicesOfOurs()
	if err != nil || len(devices) == 0 {
		return nil, err
	}
	addrs, err := dumpAddresses()
	if err != nil {
		return nil, err
	}
	var ours []Address
	for _, a := range addrs {
		if a.IPNet == nil || !devices[a.LinkIndex] {
			continue
		}
		addr, ok := netip.AddrFromSlice(a.IP)
		if bits, _ := a.Mask.Size(); ok && bits == addr.BitLen() && !addr.IsLinkLocalUnicast() {
			ours = append(ours, Address{Device: a.LinkIndex, Addr: addr})
		}
	}
	return ours, nil
}

// devicesOfOurs returns the indexes of the links that are ours by their alias.
func devicesOfOurs() (map[int]bool, error) {
	links, err := whole(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	ours := map[int]bool{}
	for _, l := range links {
		if strings.HasPrefix(l.Attrs().Alias, tunnel.Alias("")) {
			ours[l.Attrs().Index] = true
		}
	}
	return ours, nil
}

func dumpAddresses() ([]netlink.Addr, error) {
	addrs, err := whole(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	return addrs, nil
}
