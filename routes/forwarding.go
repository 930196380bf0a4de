package routes

import (
	"fmt"
	"net/netip"
	"slices"
)

// hostLink is a link with its setting of forwarding, which counts for the packets that
// arrive through it.
type hostLink struct {
	index   int
	name    string
	ours    bool // one of our devices
	forward bool
	pods    bool // pods of this node are behind it; known only while forward is false
}

// off4 returns the settings of IPv4 by which packets of pods aren't forwarded. all is that
// of all links, which sets each of them when it is written, and has no effect otherwise.
func off4(all bool, links []hostLink) (off []string) {
	some := false
	for _, l := range links {
		switch {
		case l.forward:
			some = some || !l.ours && l.name != "lo"
		case l.pods:
			off = append(off, fmt.Sprintf("net.ipv4.conf.%s.forwarding=0", sysctlName(l.name)))
		}
	}
	if !all && !some {
		return []string{"net.ipv4.ip_forward=0"}
	}
	slices.Sort(off)
	return off
}

// off6 returns the setting of IPv6 by which packets of pods aren't forwarded, while that of
// all links is off: then only links with force_forwarding forward, since Linux 6.17.
func off6(links []hostLink) []string {
	if slices.ContainsFunc(links, func(l hostLink) bool { return !l.forward && (l.ours || l.pods) }) {
		return []string{"net.ipv6.conf.all.forwarding=0"}
	}
	return nil
}

// sysctlName is a link's name in the name of a setting, where sysctl(8) swaps dots and
// slashes.
func sysctlName(link string) string {
	name := []byte(link)
	for i, c := range name {
		switch c {
		case '.':
			name[i] = '/'
		case '/':
			name[i] = '.'
		}
	}
	return string(name)
}

// overlaps reports whether a route's destination overlaps with one of the prefixes. A
// default route overlaps with none: not only pods are behind it.
func overlaps(dst netip.Prefix, prefixes []netip.Prefix) bool {
	return dst.IsValid() && dst.Bits() > 0 && slices.ContainsFunc(prefixes, dst.Overlaps)
}

// families returns the address families that both pods of this node and of remotes have.
func families(pods, remotes []netip.Prefix) (four, six bool) {
	has := func(all []netip.Prefix, is4 bool) bool {
		return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Addr().Is4() == is4 })
	}
	return has(pods, true) && has(remotes, true), has(pods, false) && has(remotes, false)
}
