package routes

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// Installed returns our installed routes, and foreign routes through a device to a prefix
// of want, as the original tool leaves them. Those of our own table come first.
func (t *Table) Installed(want []Route) ([]Route, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []Route
	for _, number := range []int{OwnTable, unix.RT_TABLE_MAIN} {
		found, err := t.read(number, want)
		if err != nil {
			return nil, err
		}
		all = append(all, found.ours...)
		for _, others := range found.foreign {
			for i := range others {
				if r := fromMessage(&others[i]); others[i].Type == unix.RTN_UNICAST && others[i].Gw == nil && r.Device != 0 {
					all = append(all, r)
				}
			}
		}
	}
	return all, nil
}

// Apart returns those of the subnets whose routes, of an earlier process, are in our own table
// only, see [Table.Sync].
func (t *Table) Apart(subnets []netip.Prefix) ([]netip.Prefix, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	own, err := t.read(OwnTable, nil)
	if err != nil {
		return nil, err
	}
	main, err := t.read(unix.RT_TABLE_MAIN, nil)
	guards := func(s snapshot, subnet netip.Prefix) bool {
		return slices.ContainsFunc(s.ours, func(r Route) bool { return r.Guard && r.Prefix == subnet.Masked() })
	}
	return slices.DeleteFunc(slices.Clone(subnets), func(s netip.Prefix) bool { return !guards(own, s) || guards(main, s) }), err
}

// Sources returns the preferred source addresses of installed routes, at most one per
// family. Those that are no longer addresses of this host are left out, because the kernel
// would refuse them.
func Sources(installed []Route) ([]netip.Addr, error) {
	local, err := localAddresses()
	if err != nil {
		return nil, err
	}
	var sources []netip.Addr
	for _, r := range installed {
		known := func(a netip.Addr) bool { return a.Is4() == r.Src.Is4() }
		usable := func(l localAddress) bool { return l.usable && l.addr == r.Src }
		if r.Src.IsValid() && !slices.ContainsFunc(sources, known) && slices.ContainsFunc(local, usable) {
			sources = append(sources, r.Src)
		}
	}
	return sources, nil
}

// routedSources returns the preferred sources of our routes.
func (t *Table) routedSources() ([]netip.Addr, error) {
	installed, err := t.Installed(nil)
	if err != nil {
		return nil, err
	}
	var sources []netip.Addr
	for _, r := range installed {
		if r.Src.IsValid() {
			sources = append(sources, r.Src)
		}
	}
	return sources, nil
}
