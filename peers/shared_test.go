package peers

import (
	"net/netip"
	"slices"
	"testing"
)

func TestSharedSubnets(t *testing.T) {
	four, six := netip.MustParsePrefix("10.4.0.0/16"), netip.MustParsePrefix("fd04::/48")
	for name, test := range map[string]struct {
		endpoints []string
		want      []netip.Prefix
	}{
		"no nodes":         {nil, nil},
		"elsewhere":        {[]string{"192.0.2.1:51820", "[2001:db8::1]:51820"}, nil},
		"behind NAT":       {[]string{""}, nil},
		"malformed":        {[]string{"10.4.0.9", "10.4.0.9:0", "10.4.0.9:x"}, nil},
		"one family":       {[]string{"192.0.2.1:51820", "10.4.0.9:51820"}, []netip.Prefix{four}},
		"both":             {[]string{"[fd04::9]:51820", "10.4.0.9:51820"}, []netip.Prefix{four, six}},
		"mapped into IPv6": {[]string{"[::ffff:10.4.0.9]:51820"}, []netip.Prefix{four}},
	} {
		t.Run(name, func(t *testing.T) {
			var nodes []*Node
			for _, e := range test.endpoints {
				nodes = append(nodes, &Node{Endpoint: e})
			}
			if got := Shared([]netip.Prefix{four, six}, nodes); !slices.Equal(got, test.want) {
				t.Errorf("%v, want %v", got, test.want)
			}
		})
	}
}
