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

// SyncAddresses makes our addresses on our devices exactly want. Ours are single-address
// prefixes except link-local ones; foreign ones stay. Without a difference it neither
// writes nor logs anything, and a fault with one address doesn't stop the others.
//
// An address that is still the source of one of our routes stays, because the kernel may
// remove the route with it: call SyncAddresses again after the routes have changed.
//
// Duplicate address detection is off, so that IPv6 addresses can be used at once: the
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
			// Added concurrently, or the device was just removed.
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

// link returns the device as a netlink.Link.
func (a Address) link() netlink.Link {
	return &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: a.Device}}
}

// message returns the rtnetlink form of a. Its scope is global, since the kernel doesn't
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

// addressesOfOurs reads our addresses on our devices.
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

// devicesOfOurs returns the indexes of the links with our alias.
func devicesOfOurs() (map[int]bool, error) {
	links, err := retryInterrupted(netlink.LinkList)
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
	addrs, err := retryInterrupted(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	return addrs, nil
}
