package routes

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Constants of linux/netconf.h, linux/if_link.h and linux/ip.h that our libraries lack.
const (
	netconfHeader     = 4 // struct netconfmsg, aligned
	netconfIndex      = 1
	netconfForwarding = 2
	netconfProxy      = 5
	netconfAll        = -1
	inetConf          = 1 // IFLA_INET_CONF
	devconfForwarding = 1 // IPV4_DEVCONF_FORWARDING
)

// netconf are the settings of a link, of all links or of new ones, for one address family.
type netconf struct {
	index   int
	forward bool
	all     bool // it has all settings, as in a dump or of a new link
}

// parseNetconf parses a message RTM_NEWNETCONF.
func parseNetconf(data []byte) (conf netconf, ok bool) {
	if len(data) < netconfHeader {
		return conf, false
	}
	attrs, err := nl.ParseRouteAttr(data[netconfHeader:])
	if err != nil {
		return conf, false
	}
	for _, a := range attrs {
		if len(a.Value) < 4 {
			continue
		}
		value := int32(binary.NativeEndian.Uint32(a.Value))
		switch a.Attr.Type {
		case netconfIndex:
			conf.index = int(value)
		case netconfForwarding:
			conf.forward, ok = value != 0, true
		case netconfProxy:
			conf.all = true
		}
	}
	return conf, ok
}

// readNetconf reads the settings of an address family, by index; none where the kernel
// lacks the family.
func readNetconf(family int) (map[int]netconf, error) {
	messages, err := retryInterrupted(func() ([][]byte, error) {
		request := nl.NewNetlinkRequest(unix.RTM_GETNETCONF, unix.NLM_F_DUMP)
		request.AddRawData([]byte{byte(family), netconfHeader - 1: 0})
		return request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNETCONF)
	})
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the settings of links: %w", err)
	}
	all := map[int]netconf{}
	for _, m := range messages {
		if conf, ok := parseNetconf(m); ok {
			all[conf.index] = conf
		}
	}
	return all, nil
}

// EnableForwarding switches IPv4 forwarding on for packets that arrive through our devices,
// those with our alias, and returns the names of those that had it off. It needs no access
// to /proc/sys, which containers have read-only. IPv6 has no such setting.
func EnableForwarding() (enabled []string, err error) {
	confs, err := readNetconf(unix.AF_INET)
	if err != nil || len(confs) == 0 {
		return nil, err
	}
	devices, err := devicesOfOurs()
	if err != nil {
		return nil, err
	}
	var errs []error
	for index := range devices {
		conf, known := confs[index]
		if !known || conf.forward {
			continue
		}
		link, err := netlink.LinkByIndex(index)
		if err == nil {
			err = enableForwarding(index)
		}
		switch _, gone := errors.AsType[netlink.LinkNotFoundError](err); {
		case gone, errors.Is(err, unix.ENODEV):
		case err != nil:
			errs = append(errs, fmt.Errorf("switch on forwarding: %w", err))
		default:
			enabled = append(enabled, link.Attrs().Name)
		}
	}
	return enabled, errors.Join(errs...)
}

func enableForwarding(index int) error {
	request := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	header := nl.NewIfInfomsg(unix.AF_UNSPEC)
	header.Index = int32(index)
	request.AddData(header)
	families := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	families.AddRtAttr(unix.AF_INET, nil).AddRtAttr(inetConf, nil).AddRtAttr(devconfForwarding, nl.Uint32Attr(1))
	request.AddData(families)
	_, err := request.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// ForwardingOff returns the settings, like in sysctl(8), by which the host doesn't forward
// packets between pods, with addresses in the given prefixes, and those of remotes. Other
// programs or administrators have set them, and they are left alone.
func ForwardingOff(pods, remotes []netip.Prefix) (off []string, err error) {
	four, six := families(pods, remotes)
	if four {
		if off, err = readOff4(pods); err != nil {
			return nil, err
		}
	}
	if six {
		off6, err := readOff6(pods)
		if err != nil {
			return nil, err
		}
		off = append(off, off6...)
	}
	return off, nil
}

func readOff4(pods []netip.Prefix) ([]string, error) {
	confs, err := readNetconf(unix.AF_INET)
	if err != nil || len(confs) == 0 {
		return nil, err
	}
	links, err := hostLinks(netlink.FAMILY_V4, pods, confs, func(l *netlink.LinkAttrs) bool { return confs[l.Index].forward })
	return off4(confs[netconfAll].forward, links), err
}

func readOff6(pods []netip.Prefix) ([]string, error) {
	confs, err := readNetconf(unix.AF_INET6)
	if err != nil || len(confs) == 0 || confs[netconfAll].forward {
		return nil, err
	}
	links, err := hostLinks(netlink.FAMILY_V6, pods, confs, func(l *netlink.LinkAttrs) bool {
		forced, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + l.Name + "/force_forwarding") // netconf lacks it
		return err == nil && strings.TrimSpace(string(forced)) == "1"
	})
	return off6(links), err
}

// hostLinks returns the links that have settings. It looks for the routes of those that
// don't forward: the main table of a router may be large.
func hostLinks(family int, pods []netip.Prefix, confs map[int]netconf, forwards func(*netlink.LinkAttrs) bool) ([]hostLink, error) {
	devices, err := devicesOfOurs()
	if err != nil {
		return nil, err
	}
	found, err := retryInterrupted(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var links []hostLink
	off := map[int]bool{}
	for _, l := range found {
		attrs := l.Attrs()
		_, known := confs[attrs.Index]
		// Packets that arrive through a port of a bridge arrive through the bridge.
		if vrf := attrs.Slave != nil && attrs.Slave.SlaveType() == "vrf"; !known || attrs.MasterIndex != 0 && !vrf {
			continue
		}
		forward := forwards(attrs)
		links = append(links, hostLink{index: attrs.Index, name: attrs.Name, ours: devices[attrs.Index], forward: forward})
		if !forward && !devices[attrs.Index] && attrs.Name != "lo" {
			off[attrs.Index] = true
		}
	}
	if len(off) == 0 {
		return links, nil
	}
	behind := map[int]bool{}
	_, err = retryInterrupted(func() ([]struct{}, error) {
		return nil, netlink.RouteListFilteredIter(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE, func(r netlink.Route) bool {
			if off[r.LinkIndex] && overlaps(prefixOf(&r), pods) {
				behind[r.LinkIndex] = true
			}
			return true
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read the routes to pods: %w", err)
	}
	for i := range links {
		links[i].pods = behind[links[i].index]
	}
	return links, nil
}

// ofForwarding recognizes that forwarding was switched on or off, or a link without it was added.
func ofForwarding(data []byte) Concern {
	conf, ok := parseNetconf(data)
	switch {
	case !ok:
		return 0
	// New links of hosts without IPv6 forwarding don't matter.
	case data[0] == unix.AF_INET6 && conf.index != netconfAll:
		return 0
	// A change has only this setting, a new link has all.
	case conf.all && conf.forward:
		return 0
	}
	return ConcernForwarding
}
