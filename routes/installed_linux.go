package routes

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// Installed returns our installed routes. Before [Table.RemoveCopies] has succeeded these
// include the ones of earlier releases in the main table, and foreign routes there through a
// device to a prefix of want, as the original tool leaves them. Those of our own table come first.
func (t *Table) Installed(want []Route) ([]Route, error) {
	own, err := t.read(nil)
	if err != nil || t.settled {
		return own.ours, err
	}
	prefixes := make(map[netip.Prefix]int, len(want))
	for _, r := range want {
		prefixes[r.Prefix] = 0
	}
	main, err := t.snapshot(unix.RT_TABLE_MAIN, prefixes)
	all := slices.Concat(own.ours, main.ours)
	for _, others := range main.foreign {
		for i := range others {
			if r := fromMessage(&others[i]); others[i].Type == unix.RTN_UNICAST && others[i].Gw == nil && r.Device != 0 {
				all = append(all, r)
			}
		}
	}
	return all, err
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
