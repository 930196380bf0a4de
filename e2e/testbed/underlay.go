package testbed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
)

// uplink is the name of a machine's link to the underlay.
const uplink = "eth0"

// underlay is the network between the machines of a testbed: a bridge in a
// namespace of its own. The bridge has the first address of each prefix, and is
// the default gateway of the machines, but forwards nothing: what a node sends
// to a stranger gets as far as the wire, where a capture sees it.
type underlay struct {
	space    *sandbox.Space
	prefixes []netip.Prefix
	bridge   int // ifindex

	mu    sync.Mutex
	ports map[string]port // by name of the machine
	next  int
}

// port is a machine's place on the bridge.
type port struct {
	id    int
	link  string
	index int // ifindex of link
}

// ruleset cuts connections on the bridge. Only what crosses the bridge from
// port to port is subject to it: the testbed's own connections, which start at
// the bridge, are not.
const ruleset = `
table bridge testbed {
	set isolated { type ifname; }
	set cut { type ifname . ifname; }
	set oneway { type ifname . ifname; }
	set narrow { type ifname . ifname; }
	chain forward {
		type filter hook forward priority 0;
		iifname @isolated drop
		oifname @isolated drop
		iifname . oifname @cut drop
		iifname . oifname @oneway meta l4proto udp drop
		iifname . oifname @narrow meta length > 1000 drop
	}
}
`

func newUnderlay(prefixes []netip.Prefix) (*underlay, error) {
	space, err := sandbox.New("underlay")
	if err != nil {
		return nil, err
	}
	u := &underlay{space: space, prefixes: prefixes, ports: make(map[string]port)}
	if err := u.create(); err != nil {
		return nil, errors.Join(fmt.Errorf("create the underlay: %w", err), space.Close())
	}
	return u, nil
}

func (u *underlay) create() error {
	var gateways []netip.Prefix
	for _, prefix := range u.prefixes {
		gateways = append(gateways, netip.PrefixFrom(nth(prefix, 1), prefix.Bits()))
	}
	index, err := addBridge(u.space.Netlink, "underlay", hardwareAddr(0, 0), gateways)
	if err != nil {
		return err
	}
	u.bridge = index
	// A new namespace takes this over from the machine.
	if err := setForwarding(u.space, false); err != nil {
		return err
	}
	return u.nft(ruleset)
}

// attach gives the machine in space an uplink with addresses of the underlay
// and a default route. Its hardware address stays the same when it is attached
// again, so that neighbour entries stay valid.
func (u *underlay) attach(machine string, space *sandbox.Space, addresses []netip.Addr) error {
	p := u.portOf(machine)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = p.link
	veth := &netlink.Veth{
		LinkAttrs:        attrs,
		PeerName:         uplink,
		PeerHardwareAddr: hardwareAddr(p.id, 0),
		PeerNamespace:    space.NsFd(),
	}
	if err := u.space.Netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("create the uplink of %s: %w", machine, err)
	}
	if err := plug(u.space.Netlink, u.bridge, p.link); err != nil {
		return err
	}
	link, err := u.space.Netlink.LinkByName(p.link)
	if err != nil {
		return err
	}
	u.mu.Lock()
	p.index = link.Attrs().Index
	u.ports[machine] = p
	u.mu.Unlock()
	return u.address(space, addresses)
}

// address gives the uplink of a machine its addresses and routes; those that it
// has and that aren't listed go.
func (u *underlay) address(space *sandbox.Space, addresses []netip.Addr) error {
	link, err := space.Netlink.LinkByName(uplink)
	if err != nil {
		return err
	}
	if err := space.Netlink.LinkSetUp(link); err != nil {
		return err
	}
	have, err := space.Netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	for _, address := range have {
		if address.IP.IsLinkLocalUnicast() {
			continue
		}
		if err := space.Netlink.AddrDel(link, &address); err != nil {
			return err
		}
	}
	families := make(map[bool]bool)
	for _, address := range addresses {
		families[address.Is4()] = true
		prefix, err := u.prefixOf(address)
		if err != nil {
			return err
		}
		if err := addAddress(space.Netlink, link, netip.PrefixFrom(address, prefix.Bits())); err != nil {
			return err
		}
	}
	defaults := make(map[bool]bool)
	for _, prefix := range u.prefixes {
		is4 := prefix.Addr().Is4()
		if !families[is4] {
			continue
		}
		onLink := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(prefix), Scope: netlink.SCOPE_LINK}
		if err := space.Netlink.RouteReplace(onLink); err != nil {
			return fmt.Errorf("add a route to %s: %w", prefix, err)
		}
		if defaults[is4] {
			continue
		}
		defaults[is4] = true
		gateway := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: nth(prefix, 1).AsSlice()}
		if err := space.Netlink.RouteReplace(gateway); err != nil {
			return fmt.Errorf("add the default route: %w", err)
		}
	}
	return nil
}

func (u *underlay) prefixOf(address netip.Addr) (netip.Prefix, error) {
	for _, prefix := range u.prefixes {
		if prefix.Contains(address) {
			return prefix, nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("address %s is outside the underlay %v", address, u.prefixes)
}

// portOf returns the machine's port, a new one if it had none.
func (u *underlay) portOf(machine string) port {
	u.mu.Lock()
	defer u.mu.Unlock()
	p, ok := u.ports[machine]
	if !ok {
		u.next++
		p = port{id: u.next, link: fmt.Sprintf("port%d", u.next)}
		u.ports[machine] = p
	}
	return p
}

// machineAt names the machine behind a link of the bridge, or returns the
// empty string.
func (u *underlay) machineAt(ifindex int) string {
	u.mu.Lock()
	defer u.mu.Unlock()
	for machine, p := range u.ports {
		if p.index == ifindex {
			return machine
		}
	}
	return ""
}

// isolate drops, or no longer drops, all that the machine sends to others and
// they to it.
func (u *underlay) isolate(machine string, on bool) error {
	return u.nft(fmt.Sprintf("%s element bridge testbed isolated { %q }", verb(on), u.portOf(machine).link))
}

// cut drops, or no longer drops, what two machines send each other.
func (u *underlay) cut(a, b string, on bool) error {
	linkA, linkB := u.portOf(a).link, u.portOf(b).link
	return u.nft(fmt.Sprintf("%s element bridge testbed cut { %q . %q, %q . %q }", verb(on), linkA, linkB, linkB, linkA))
}

// loses drops, or no longer drops, packets from one machine to another one, by a set of the
// ruleset.
func (u *underlay) loses(set, from, to string, on bool) error {
	return u.nft(fmt.Sprintf("%s element bridge testbed %s { %q . %q }", verb(on), set, u.portOf(from).link, u.portOf(to).link))
}

func verb(on bool) string {
	if on {
		return "add"
	}
	return "delete"
}

func (u *underlay) nft(script string) error {
	return u.space.Do(func() error {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(script)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w: %s", err, strings.TrimSpace(string(out)))
		}
		return nil
	})
}

// dial connects from the bridge.
func (u *underlay) dial(ctx context.Context, network, address string) (net.Conn, error) {
	return u.space.Dial(ctx, network, address)
}

func (u *underlay) close() error { return u.space.Close() }

// addBridge creates a bridge with addresses, up, and returns its ifindex.
func addBridge(h *netlink.Handle, name string, mac net.HardwareAddr, addresses []netip.Prefix) (int, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	attrs.HardwareAddr = mac
	off := false
	// Snooping would hold back neighbour solicitations, which are multicast.
	bridge := &netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &off}
	if err := h.LinkAdd(bridge); err != nil {
		return 0, fmt.Errorf("create bridge %s: %w", name, err)
	}
	link, err := h.LinkByName(name)
	if err != nil {
		return 0, err
	}
	if err := h.LinkSetUp(link); err != nil {
		return 0, fmt.Errorf("set bridge %s up: %w", name, err)
	}
	for _, address := range addresses {
		if err := addAddress(h, link, address); err != nil {
			return 0, err
		}
	}
	return link.Attrs().Index, nil
}

// plug makes a link a port of a bridge and sets it up.
func plug(h *netlink.Handle, bridge int, name string) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return err
	}
	if err := h.LinkSetMasterByIndex(link, bridge); err != nil {
		return fmt.Errorf("plug %s into the bridge: %w", name, err)
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}

func addAddress(h *netlink.Handle, link netlink.Link, address netip.Prefix) error {
	n := ipNet(address)
	n.IP = address.Addr().AsSlice()
	// Otherwise duplicate address detection delays the use of an IPv6 address.
	if err := h.AddrAdd(link, &netlink.Addr{IPNet: n, Flags: unix.IFA_F_NODAD}); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("add %s to %s: %w", address, link.Attrs().Name, err)
	}
	return nil
}

func ipNet(prefix netip.Prefix) *net.IPNet {
	return &net.IPNet{
		IP:   prefix.Masked().Addr().AsSlice(),
		Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen()),
	}
}

// hardwareAddr is a locally administered address: that of machine number
// machine on the underlay when link is 0, else of link number link behind it.
func hardwareAddr(machine, link int) net.HardwareAddr {
	return net.HardwareAddr{0x02, 0x66, byte(machine >> 8), byte(machine), byte(link >> 8), byte(link)}
}

// nth is the address that lies n above the first of the prefix.
func nth(prefix netip.Prefix, n int) netip.Addr {
	b := prefix.Masked().Addr().As16()
	for i := len(b) - 1; i >= 0 && n > 0; i-- {
		n += int(b[i])
		b[i] = byte(n)
		n >>= 8
	}
	addr := netip.AddrFrom16(b)
	if prefix.Addr().Is4() {
		addr = addr.Unmap()
	}
	return addr
}

// nthSubnet is subnet number n, with the given number of bits, of the prefix.
func nthSubnet(prefix netip.Prefix, bits, n int) (netip.Prefix, error) {
	if bits < prefix.Bits() || bits-prefix.Bits() < 31 && n >= 1<<(bits-prefix.Bits()) {
		return netip.Prefix{}, fmt.Errorf("%s has no subnet /%d number %d", prefix, bits, n)
	}
	b := prefix.Masked().Addr().AsSlice()
	// Adds n at the bit position bits, byte by byte from there upwards.
	n <<= (8 - bits%8) % 8
	for i := (bits+7)/8 - 1; i >= 0 && n > 0; i-- {
		n += int(b[i])
		b[i] = byte(n)
		n >>= 8
	}
	addr, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(addr, bits), nil
}
