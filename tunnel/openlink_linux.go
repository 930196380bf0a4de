package tunnel

import (
	"errors"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// addrGenModeNone is IN6_ADDR_GEN_MODE_NONE of linux/if_link.h: no automatic link-local
// address.
const addrGenModeNone = 1

// openLink attaches to the TUN link l, which is created if it is the zero link, brings it
// up, and updates l.
func (d *Device) openLink(l *link) (file *os.File, created bool, err error) {
	created = l.index == 0
	file, err = openTUN(d.cfg.Name, created)
	if !created && errors.Is(err, unix.EINVAL) {
		// Created with incompatible flags, such as multi-queue.
		d.log.Warn("replacing a TUN link that can't be attached to", "err", err)
		if err := l.remove(); err != nil {
			return nil, false, err
		}
		created = true
		file, err = openTUN(d.cfg.Name, true)
	}
	if err != nil {
		return nil, false, err
	}
	if *l, err = d.prepare(file, created); err != nil {
		return nil, false, errors.Join(err, file.Close())
	}
	return file, created, nil
}

// prepare marks a new TUN link as ours before making it persistent, so that a crash never
// leaves one without our alias.
func (d *Device) prepare(file *os.File, created bool) (link, error) {
	l, err := findLink(d.cfg.Name)
	if err != nil {
		return l, err
	}
	if created {
		if err := l.setAlias(d.cfg.Alias); err != nil {
			return l, err
		}
		// Like on a WireGuard link of the kernel: router solicitations would only cause
		// traffic. It fails on kernels without IPv6.
		_ = netlink.LinkSetIP6AddrGenMode(l.ref(), addrGenModeNone)
	}
	if err := persist(file); err != nil {
		return l, err
	}
	if err := l.lengthenQueue(); err != nil {
		return l, err
	}
	mtu := int(d.mtu.Load())
	if mtu == 0 && created {
		mtu = DefaultMTU
	}
	if _, err := l.configure(mtu, d.log); err != nil {
		return l, err
	}
	return findLink(d.cfg.Name)
}
