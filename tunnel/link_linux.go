package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
)

// link is a network link.
type link struct {
	index   int
	name    string
	alias   string
	kind    string // IFLA_INFO_KIND: wireguard, tun, bridge, ...
	backend string // Kernel, Userspace, or empty for other kinds
	mtu     int
	up      bool // administratively
}

// findLink returns the link of that name. A missing one is os.ErrNotExist.
func findLink(name string) (link, error) {
	found, err := netlink.LinkByName(name)
	if err != nil {
		var missing netlink.LinkNotFoundError
		if errors.As(err, &missing) {
			return link{}, fmt.Errorf("link %s: %w", name, os.ErrNotExist)
		}
		return link{}, fmt.Errorf("read link %s: %w", name, err)
	}
	return linkOf(found), nil
}

// Index returns the index of the link of that name, ours or foreign; 0: none.
func Index(name string) (int, error) {
	l, err := findLink(name)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	return l.index, err
}

// findLinks returns all links for which keep is true.
func findLinks(ctx context.Context, keep func(link) bool) ([]link, error) {
	for {
		all, err := netlink.LinkList()
		switch {
		case errors.Is(err, netlink.ErrDumpInterrupted) && ctx.Err() == nil:
			// Incomplete: the list changed during the dump.
			continue
		case err != nil:
			return nil, fmt.Errorf("list links: %w", err)
		}
		var links []link
		for _, found := range all {
			if l := linkOf(found); keep(l) {
				links = append(links, l)
			}
		}
		return links, nil
	}
}

func linkOf(found netlink.Link) link {
	attrs := found.Attrs()
	l := link{
		index: attrs.Index,
		name:  attrs.Name,
		alias: attrs.Alias,
		kind:  found.Type(),
		mtu:   attrs.MTU,
		up:    attrs.Flags&net.FlagUp != 0,
	}
	switch typed := found.(type) {
	case *netlink.Wireguard:
		l.backend = Kernel
	case *netlink.Tuntap:
		l.kind = typed.Mode.String()
		if typed.Mode == netlink.TUNTAP_MODE_TUN {
			l.backend = Userspace
		}
	}
	return l
}

// ref returns the link as an argument for the netlink library.
func (l link) ref() netlink.Link {
	return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: l.index, Name: l.name}}
}

// configure sets the link's MTU, unless 0, and brings it up.
func (l link) configure(mtu int, log *slog.Logger) (changed bool, err error) {
	if mtu != 0 && l.mtu != mtu {
		if err := netlink.LinkSetMTU(l.ref(), mtu); err != nil {
			return changed, fmt.Errorf("set MTU to %d: %w", mtu, explain(err))
		}
		log.Info("set MTU", "mtu", mtu, "before", l.mtu)
		changed = true
	}
	if !l.up {
		if err := netlink.LinkSetUp(l.ref()); err != nil {
			return changed, fmt.Errorf("bring link up: %w", explain(err))
		}
		log.Info("brought link up")
		changed = true
	}
	return changed, nil
}

// minQueue is the minimum queue length of a TUN link, in packets, for the time in which it
// has no reader: while the process that serves it is replaced. It is 100 ms at
// 20,000 packets a second; the kernel's default of 500 is a quarter of that.
const minQueue = 2000

// lengthenQueue makes the link's queue at least minQueue long.
func (l link) lengthenQueue() error {
	found, err := netlink.LinkByIndex(l.index)
	if err == nil && found.Attrs().TxQLen < minQueue {
		err = netlink.LinkSetTxQLen(found, minQueue)
	}
	if err != nil {
		return fmt.Errorf("set length of the queue: %w", explain(err))
	}
	return nil
}

// setAlias sets the alias that marks the link as ours.
func (l link) setAlias(alias string) error {
	if err := netlink.LinkSetAlias(l.ref(), alias); err != nil {
		return fmt.Errorf("set alias: %w", explain(err))
	}
	return nil
}

// remove deletes the link; a missing one is no error.
func (l link) remove() error {
	if err := netlink.LinkDel(l.ref()); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete link %s: %w", l.name, explain(err))
	}
	return nil
}

// createKernelLink creates a WireGuard link in the kernel, down.
func createKernelLink(name string, mtu int) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = name, mtu
	err := netlink.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs})
	if errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("create link of type wireguard: %w (load the kernel module, or choose backend %s or %s)", err, Auto, Userspace)
	}
	if err != nil {
		return fmt.Errorf("create link of type wireguard: %w", explain(err))
	}
	return nil
}

// explain adds a hint for operators to an error of the kernel.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w (the process needs the capability NET_ADMIN)", err)
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("%w (another process or device has the listen port)", err)
	}
	return err
}

// genlHeader is the header of a generic netlink message: a command, a version and two
// reserved bytes.
type genlHeader [nl.SizeofGenlmsg]byte

// Len implements nl.NetlinkRequestData.
func (h genlHeader) Len() int { return len(h) }

// Serialize implements nl.NetlinkRequestData.
func (h genlHeader) Serialize() []byte { return h[:] }

// findFamily looks up a generic netlink family, whose module the kernel loads if it has to. The
// library's function for that reads two bytes beyond its header.
func findFamily(name string) error {
	req := nl.NewNetlinkRequest(nl.GENL_ID_CTRL, 0)
	req.AddData(genlHeader{nl.GENL_CTRL_CMD_GETFAMILY, nl.GENL_CTRL_VERSION})
	req.AddData(nl.NewRtAttr(nl.GENL_CTRL_ATTR_FAMILY_NAME, nl.ZeroTerminated(name)))
	_, err := req.Execute(unix.NETLINK_GENERIC, 0)
	return err
}

// Supported reports whether the kernel supports WireGuard. It changes nothing but that the kernel
// loads the module.
func Supported() (kernel bool, err error) {
	err = findFamily(unix.WG_GENL_NAME)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("ask the kernel for WireGuard: %w", explain(err))
	}
	return true, nil
}

// Link is a link with one of our aliases.
type Link struct {
	Name    string
	Alias   string
	Remote  string // the cluster, from the alias
	Backend string // Kernel or Userspace
	Index   int
}

// List returns the links with our alias, sorted by name, also those to remotes that are no
// longer configured. Links of the original tool have no alias and are not in the list.
func List(ctx context.Context) ([]Link, error) {
	found, err := findLinks(ctx, func(l link) bool {
		_, ours := remoteOf(l.alias)
		return ours && l.backend != ""
	})
	if err != nil {
		return nil, err
	}
	links := make([]Link, 0, len(found))
	for _, l := range found {
		remote, _ := remoteOf(l.alias)
		links = append(links, Link{Name: l.name, Alias: l.alias, Remote: remote, Backend: l.backend, Index: l.index})
	}
	slices.SortFunc(links, func(a, b Link) int { return strings.Compare(a.Name, b.Name) })
	return links, nil
}

// Remove deletes the link of that name, with its peers and routes, and its UAPI socket. It
// must not run concurrently with [Device.Ensure] of that device. A userspace device that is
// served by another process than the engine is an error, because that would recreate the
// link. A link with another alias is foreign, and an error too; a missing link isn't. The
// private key file stays: a node that joins again keeps its identity.
func Remove(ctx context.Context, name, alias string) error {
	l, err := findLink(name)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return removeServed(ctx, name)
	case err != nil:
		return fmt.Errorf("remove device: %w", err)
	case l.alias != alias || l.backend == "":
		return fmt.Errorf("remove device %s: %w", name, foreign(l))
	}
	if l.backend == Userspace {
		if err := removeServed(ctx, name); err != nil {
			return fmt.Errorf("remove device %s: %w", name, err)
		}
	}
	return l.remove()
}

// removeServed makes the engine end the device, and removes a stale socket.
func removeServed(ctx context.Context, name string) error {
	if err := unserve(ctx, name); err != nil {
		return err
	}
	path := control.DevicePath(name)
	if err := control.Unserved(path); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove UAPI socket: %w", err)
	}
	return nil
}

func foreign(l link) error {
	return fmt.Errorf("a foreign link has that name (kind %s, alias %q): remove it, or rename the remote", l.kind, l.alias)
}
