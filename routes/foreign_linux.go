package routes

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Foreign is a route in the main table that isn't ours.
type Foreign struct {
	Prefix netip.Prefix
	Text   string // formatted like ip-route(8)
}

// Foreign returns the foreign routes in the main table to the subnets, or to parts of
// them, sorted, except those through devices (link indices), which lead into the tunnel.
// Packets don't follow them as long as our policy rules exist.
func (t *Table) Foreign(subnets []netip.Prefix, devices ...int) ([]Foreign, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var found []Foreign
	err := t.dump(unix.RT_TABLE_MAIN, false, func(msg *netlink.Route) {
		to := prefixOf(msg)
		if msg.Protocol == Protocol || !to.IsValid() || !inside(to, subnets) || slices.Contains(devices, msg.LinkIndex) {
			return
		}
		found = append(found, Foreign{Prefix: to, Text: t.describe(msg)})
	})
	// An interrupted dump is good enough: the result is informational.
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("read routing table: %w", err)
	}
	slices.SortFunc(found, func(a, b Foreign) int { return strings.Compare(a.Text, b.Text) })
	return slices.Compact(found), nil
}
