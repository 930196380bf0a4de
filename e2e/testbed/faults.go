package testbed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
)

// routeProtocol marks the routes of the agent.
const routeProtocol = 115

// Reboot loses processes, links, routes and /run. The Node object, /var/lib and /etc are
// kept. The machine comes back with its addresses and pods, without processes.
func (n *Node) Reboot() error {
	n.Cluster.log.Info("node reboots", "node", n.Name)
	errs := []error{n.tb.underlay.detach(n.Name)}
	for _, p := range n.Pods() {
		errs = append(errs, p.unplug())
	}
	errs = append(errs, n.shutDown())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("reboot %s: %w", n.Name, err)
	}
	if err := n.boot(); err != nil {
		return fmt.Errorf("reboot %s: %w", n.Name, err)
	}
	for _, p := range n.Pods() {
		if err := p.boot(); err != nil {
			return fmt.Errorf("reboot %s: pod %s: %w", n.Name, p.Name, err)
		}
	}
	return n.Cluster.routeBetweenNodes()
}

// FlushRoutes deletes every route of the agent, as "ip route flush table all proto
// 115" does, and returns how many there were.
func (n *Node) FlushRoutes() (int, error) {
	h := n.Space().Netlink
	routes, err := h.RouteListFiltered(netlink.FAMILY_ALL,
		&netlink.Route{Protocol: routeProtocol}, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
	if err != nil {
		return 0, fmt.Errorf("flush routes of %s: %w", n.Name, err)
	}
	for i := range routes {
		if err := h.RouteDel(&routes[i]); err != nil {
			return i, fmt.Errorf("flush route %s of %s: %w", routes[i], n.Name, err)
		}
	}
	return len(routes), nil
}

// DeleteLink deletes a link of the node, such as wireguard.gcp.
func (n *Node) DeleteLink(name string) error {
	return n.onLink("delete", name, n.Space().Netlink.LinkDel)
}

// SetLinkDown sets a link of the node down.
func (n *Node) SetLinkDown(name string) error {
	return n.onLink("set down", name, n.Space().Netlink.LinkSetDown)
}

func (n *Node) onLink(what, name string, do func(netlink.Link) error) error {
	link, err := n.Space().Netlink.LinkByName(name)
	if err == nil {
		err = do(link)
	}
	if err != nil {
		return fmt.Errorf("%s link %s of %s: %w", what, name, n.Name, err)
	}
	return nil
}

// SetAddresses gives the node other InternalIPs: on its uplink, in the routes of
// its neighbours and in the status of the Node object.
func (n *Node) SetAddresses(ctx context.Context, addresses ...netip.Addr) error {
	if err := n.tb.underlay.address(n.Space(), addresses); err != nil {
		return fmt.Errorf("set the addresses of %s: %w", n.Name, err)
	}
	n.Cluster.mu.Lock()
	n.addresses = addresses
	n.Cluster.mu.Unlock()
	if err := n.Cluster.routeBetweenNodes(); err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{
		"status": map[string]any{"addresses": nodeAddresses(n.Name, addresses)},
	})
	if err != nil {
		return err
	}
	return n.Patch(ctx, string(patch), "status")
}

// Drop drops all packets between two nodes on the underlay.
func (tb *Testbed) Drop(a, b *Node) error {
	tb.log.Info("underlay dropped between two nodes", "node", a.Name, "peer", b.Name)
	return tb.underlay.cut(a.Name, b.Name, true)
}

// Restore undoes Drop.
func (tb *Testbed) Restore(a, b *Node) error {
	tb.log.Info("underlay restored between two nodes", "node", a.Name, "peer", b.Name)
	return tb.underlay.cut(a.Name, b.Name, false)
}

// DropOneWay drops the UDP datagrams from a node to another one, and not the reverse.
func (tb *Testbed) DropOneWay(from, to *Node) error {
	tb.log.Info("datagrams dropped one way", "node", from.Name, "peer", to.Name)
	return tb.underlay.loses("oneway", from.Name, to.Name, true)
}

// RestoreOneWay undoes DropOneWay.
func (tb *Testbed) RestoreOneWay(from, to *Node) error {
	tb.log.Info("datagrams restored one way", "node", from.Name, "peer", to.Name)
	return tb.underlay.loses("oneway", from.Name, to.Name, false)
}

// DropLarge drops packets of more than 1,000 bytes that a node sends another one.
func (tb *Testbed) DropLarge(from, to *Node) error {
	tb.log.Info("large packets dropped", "node", from.Name, "peer", to.Name)
	return tb.underlay.loses("narrow", from.Name, to.Name, true)
}

// RestoreLarge undoes DropLarge.
func (tb *Testbed) RestoreLarge(from, to *Node) error {
	tb.log.Info("large packets restored", "node", from.Name, "peer", to.Name)
	return tb.underlay.loses("narrow", from.Name, to.Name, false)
}

// detach deletes the machine's uplink at once; the kernel would take it with
// the namespace, but later.
func (u *underlay) detach(machine string) error {
	link, err := u.space.Netlink.LinkByName(u.portOf(machine).link)
	if err != nil {
		if _, missing := errors.AsType[netlink.LinkNotFoundError](err); missing {
			return nil
		}
		return err
	}
	if err := u.space.Netlink.LinkDel(link); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("unplug %s: %w", machine, err)
	}
	return nil
}
