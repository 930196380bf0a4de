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

// Foreign is a route of somebody else in the main table.
type Foreign struct {
	Prefix netip.Prefix
	Text   string // in the words of ip-route(8)
}

// Foreign returns the routes of others in the main table that lead to the subnets, or
// to parts of them, sorted. Routes through devices, the indices of links, are left
// out: packets end where they should. Packets don't follow what is left as long as
// our policy rules are there.
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
	// A dump that was interrupted is as good as the next one.
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("read routing table: %w", err)
	}
	slices.SortFunc(found, func(a, b Foreign) int { return strings.Compare(a.Text, b.Text) })
	return slices.Compact(found), nil
}
