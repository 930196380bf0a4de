package routes

import (
	"net/netip"
	"slices"
)

// Installed returns the routes of ours that are there.
func (t *Table) Installed() ([]Route, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	found, err := t.read(nil)
	if err != nil {
		return nil, err
	}
	return found.ours, nil
}

// Sources returns the preferred source addresses of installed routes, at most one
// per family: what an earlier process found out. Those that are no longer addresses
// of this host are left out, because the kernel would refuse them.
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

// routedSources returns the preferred sources of the routes of ours.
func (t *Table) routedSources() ([]netip.Addr, error) {
	installed, err := t.Installed()
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
