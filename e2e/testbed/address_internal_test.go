package testbed

import (
	"net/netip"
	"testing"
)

func TestNth(t *testing.T) {
	for _, c := range []struct {
		prefix string
		n      int
		want   string
	}{
		{"10.66.0.0/16", 0, "10.66.0.0"},
		{"10.66.0.0/16", 1, "10.66.0.1"},
		{"10.66.0.9/16", 256, "10.66.1.0"},
		{"198.18.0.0/15", 0x1_00ff, "198.19.0.255"},
		{"fd00:66::/64", 1, "fd00:66::1"},
		{"fd00:66::1:0/112", 0xffff, "fd00:66::1:ffff"},
		{"fd00:66::ffff:ffff/96", 0x1_0000_0001, "fd00:66::1:0:1"},
	} {
		if got := nth(netip.MustParsePrefix(c.prefix), c.n); got != netip.MustParseAddr(c.want) {
			t.Errorf("nth(%s, %d) = %s, want %s", c.prefix, c.n, got, c.want)
		}
	}
}

func TestNthSubnet(t *testing.T) {
	for _, c := range []struct {
		name, prefix string
		bits, n      int
		want         string // empty: an error
	}{
		{"the first", "10.2.0.0/16", 24, 0, "10.2.0.0/24"},
		{"the last", "10.2.0.0/16", 24, 255, "10.2.255.0/24"},
		{"one too many", "10.2.0.0/16", 24, 256, ""},
		{"larger than the prefix", "10.2.0.0/16", 15, 0, ""},
		{"the prefix itself", "10.2.0.0/16", 16, 0, "10.2.0.0/16"},
		{"carry over a byte", "100.64.0.0/10", 24, 300, "100.65.44.0/24"},
		{"not at a byte's end", "10.2.0.0/16", 20, 3, "10.2.48.0/20"},
		{"IPv6", "fd00:10:2::/48", 64, 258, "fd00:10:2:102::/64"},
		{"far apart", "fd00::/16", 112, 70000, "fd00::1:1170:0/112"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := nthSubnet(netip.MustParsePrefix(c.prefix), c.bits, c.n)
			if c.want == "" {
				if err == nil {
					t.Errorf("got %s, want an error", got)
				}
				return
			}
			if err != nil || got != netip.MustParsePrefix(c.want) {
				t.Errorf("got %s, %v, want %s", got, err, c.want)
			}
		})
	}
}

func TestVirtual(t *testing.T) {
	prefixes := func(texts ...string) (all []netip.Prefix) {
		for _, text := range texts {
			all = append(all, netip.MustParsePrefix(text))
		}
		return all
	}
	c := &Cluster{PodSubnets: prefixes("10.2.0.0/16", "10.9.64.0/18", "fd00:10:2::/48"), VirtualSubnets: prefixes("100.64.0.0/16", "100.65.128.0/18", "fd00:64::/48")}
	for address, want := range map[string]string{
		"10.2.1.7": "100.64.1.7", "10.9.127.255": "100.65.191.255", "fd00:10:2:1::f": "fd00:64:0:1::f", "10.66.1.1": "10.66.1.1", "fd00:66::1": "fd00:66::1",
	} {
		if got := c.Virtual(netip.MustParseAddr(address)); got != netip.MustParseAddr(want) {
			t.Errorf("%s is known as %s, want %s", address, got, want)
		}
	}
}
