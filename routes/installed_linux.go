package routes

import (
	"net/netip"
	"slices"
)

// Sources returns the preferred source addresses of the routes of ours that are
// installed, at most one per family: what an earlier process found out. Those
// that are no longer addresses of this host are left out, because the kernel
// would refuse them.
func (t *Table) Sources() ([]netip.Addr, error) {
	routed, err := t.routedSources()
	if err != nil {
		return nil, err
	}
	local, err := localAddresses()
	if err != nil {
		return nil, err
	}
	var sources []netip.Addr
	for _, src := range routed {
		known := func(a netip.Addr) bool { return a.Is4() == src.Is4() }
		usable := func(l localAddress) bool { return l.usable && l.addr == src }
		if !slices.ContainsFunc(sources, known) && slices.ContainsFunc(local, usable) {
			sources = append(sources, src)
		}
	}
	return sources, nil
}

// routedSources returns the preferred sources of the routes of ours.
func (t *Table) routedSources() ([]netip.Addr, error) {
	t.mu.Lock()
	installed, err := t.read(nil)
	t.mu.Unlock()
	if err != nil {
		return nil, err
	}
	var sources []netip.Addr
	for _, r := range installed.ours {
		if r.Src.IsValid() {
			sources = append(sources, r.Src)
		}
	}
	return sources, nil
}
