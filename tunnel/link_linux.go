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

// link is what we read of a network link.
type link struct {
	index   int
	name    string
	alias   string
	kind    string // IFLA_INFO_KIND: wireguard, tun, bridge, ...
	backend string // Kernel, Userspace, or empty when we make no such links
	mtu     int
	up      bool // administratively
}

// findLink returns the link of that name. None is os.ErrNotExist.
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

// Index returns the index of the link of that name, whoever made it, and 0 when
// there is none. With an error it isn't known whether there is one.
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
			// The list changed while the kernel wrote it: incomplete.
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

// ref is the form in which the netlink library wants a link to be named.
func (l link) ref() netlink.Link {
	return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: l.index, Name: l.name}}
}

// settle gives the link its MTU, unless that is 0, and brings it up.
func (l link) settle(mtu int, log *slog.Logger) (changed bool, err error) {
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

// minQueue is how many packets wait in a TUN link, at least, while nobody reads them: the
// engine hands the link over, or starts another serving process. It is 100 ms at 20,000
// packets a second; the kernel's default of 500 is a quarter of that.
const minQueue = 2000

// lengthenQueue makes the link's queue that long, unless somebody made it longer.
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

// mark sets the alias that says the link is ours.
func (l link) mark(alias string) error {
	if err := netlink.LinkSetAlias(l.ref(), alias); err != nil {
		return fmt.Errorf("set alias: %w", explain(err))
	}
	return nil
}

// remove deletes the link; one that is gone already is no error.
func (l link) remove() error {
	if err := netlink.LinkDel(l.ref()); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete link %s: %w", l.name, explain(err))
	}
	return nil
}

// createKernelLink creates a WireGuard link of the kernel's, still down.
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

// explain adds to an error of the kernel's what an operator can do about it.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w (the process needs the capability NET_ADMIN)", err)
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("%w (another process or device has the listen port)", err)
	}
	return err
}

// genlHeader is what a message of generic netlink begins with: a command, a version
// and two bytes that are reserved.
type genlHeader [nl.SizeofGenlmsg]byte

// Len implements nl.NetlinkRequestData.
func (h genlHeader) Len() int { return len(h) }

// Serialize implements nl.NetlinkRequestData.
func (h genlHeader) Serialize() []byte { return h[:] }

// findFamily asks for a family of generic netlink. The function that the library has
// for that sends two bytes from behind its header, which may be somebody else's.
func findFamily(name string) error {
	req := nl.NewNetlinkRequest(nl.GENL_ID_CTRL, 0)
	req.AddData(genlHeader{nl.GENL_CTRL_CMD_GETFAMILY, nl.GENL_CTRL_VERSION})
	req.AddData(nl.NewRtAttr(nl.GENL_CTRL_ATTR_FAMILY_NAME, nl.ZeroTerminated(name)))
	_, err := req.Execute(unix.NETLINK_GENERIC, 0)
	return err
}

// probeName is the link that Supported creates for a moment.
const probeName = "wg-probe"

// Supported reports whether the kernel knows WireGuard. Where the module isn't
// loaded yet, it finds out by creating a link of that type, which makes the
// kernel load the module, and deletes it again.
func Supported() (kernel bool, err error) {
	if err := findFamily(unix.WG_GENL_NAME); err == nil {
		return true, nil
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = probeName
	err = netlink.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs})
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return false, nil
	case err != nil && !errors.Is(err, unix.EEXIST):
		return false, fmt.Errorf("probe the kernel for WireGuard: %w", explain(err))
	}
	// On EEXIST another device of this process is probing, or an earlier
	// process ended in between.
	probe, err := findLink(probeName)
	if errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	if probe.backend != Kernel {
		return false, fmt.Errorf("probe the kernel for WireGuard: a foreign link of kind %s is named %s", probe.kind, probeName)
	}
	return true, probe.remove()
}

// Link is a link that carries one of our aliases.
type Link struct {
	Name    string
	Alias   string
	Remote  string // the cluster that the alias names
	Backend string // Kernel or Userspace
	Index   int
}

// List returns the links that are ours by their alias, sorted by name: also
// those towards remotes that are no longer configured. Links that the original
// tool made have no alias and are not in the list.
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

// Remove deletes the link of that name, with its peers and routes, and its UAPI
// socket. It is for -cleanup, when nobody calls [Device.Ensure] any more. A userspace
// device that another process than the engine serves is an error, because it would
// create the link again. A link with another alias isn't ours and is an error too. No
// such link is no error. The private key file stays: a node that comes back is known
// by its key.
func Remove(ctx context.Context, name, alias string) error {
	if err := checkLinkName(name); err != nil {
		return fmt.Errorf("remove device: %w", err)
	}
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

// removeServed has the engine end the device, and removes a socket that nobody serves.
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
	return fmt.Errorf("a foreign link has that name (kind %s, alias %q): remove it, or change the remote's name", l.kind, l.alias)
}
