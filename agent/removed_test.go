package agent

import (
	"fmt"
	"net/netip"
	"testing"
)

func TestPrefixesWithoutOthers(t *testing.T) {
	for _, c := range []struct{ of, other, want string }{
		{"10.4.0.0/16", "10.5.0.0/16", "[10.4.0.0/16]"},
		{"10.4.0.0/16", "10.4.0.0/16", "[]"},
		{"10.4.0.0/16", "10.0.0.0/8", "[]"},
		{"10.4.0.0/16", "10.4.0.0/17", "[10.4.128.0/17]"},
		{"10.4.0.0/16", "10.4.192.0/18", "[10.4.0.0/17 10.4.128.0/18]"},
		{"10.4.0.0/30", "10.4.0.2/32", "[10.4.0.0/31 10.4.0.3/32]"},
		{"fd06::/62", "fd06:0:0:1::/64", "[fd06::/64 fd06:0:0:2::/63]"},
	} {
		if got := fmt.Sprint(without([]netip.Prefix{netip.MustParsePrefix(c.of)}, netip.MustParsePrefix(c.other))); got != c.want {
			t.Errorf("%s without %s: %s, want %s", c.of, c.other, got, c.want)
		}
	}
}
