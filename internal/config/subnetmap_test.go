package config

import (
	"net/netip"
	"strings"
	"testing"
)

func TestSubnetMap(t *testing.T) {
	var m SubnetMap
	if err := m.Decode(" fd00:4::/48=fd00:c9::/48, 10.0.0.0/14=100.64.3.4/14"); err != nil {
		t.Fatal(err)
	}
	if want := "10.0.0.0/14=100.64.0.0/14,fd00:4::/48=fd00:c9::/48"; m.String() != want {
		t.Errorf("map is %s, want %s", m, want)
	}
	for real, virtual := range map[string]string{
		"10.0.0.5": "100.64.0.5", "10.3.255.255": "100.67.255.255", "10.4.0.1": "10.4.0.1",
		"fd00:4::7:8": "fd00:c9::7:8", "fd00:5::1": "fd00:5::1",
	} {
		r, v := netip.MustParseAddr(real), netip.MustParseAddr(virtual)
		if got := m.Virtual(r); got != v {
			t.Errorf("%s is known as %s, want %s", r, got, v)
		}
		if got := m.Real(v); got != r {
			t.Errorf("%s is the pod %s, want %s", v, got, r)
		}
	}
	if got := m.RealPrefix(netip.MustParsePrefix("100.64.0.0/10")); got != netip.MustParsePrefix("100.64.0.0/10") {
		t.Errorf("100.64.0.0/10 is that of pods in %s", got)
	}
	for real, virtual := range map[string]string{
		"10.1.2.0/24": "100.65.2.0/24", "10.0.0.0/14": "100.64.0.0/14", "10.8.0.0/24": "10.8.0.0/24",
		"10.0.0.0/8": "", "fd00:4:0:1::/64": "fd00:c9:0:1::/64",
	} {
		got, err := m.VirtualPrefix(netip.MustParsePrefix(real))
		if (err != nil) != (virtual == "") || err == nil && got != netip.MustParsePrefix(virtual) {
			t.Errorf("%s is known as %s (%v), want %q", real, got, err, virtual)
		}
		if back := m.RealPrefix(got); err == nil && back.String() != real {
			t.Errorf("%s is that of pods in %s, want %s", got, back, real)
		}
	}
}

func TestSubnetMapRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.0/16":                                         "not a pair of subnets",
		"10.0.0.0/16=x":                                       "not a pair of subnets",
		"10.0.0.0/16=10.201.0.0/17":                           "different lengths",
		"10.0.0.0/16=fd00::/16":                               "one family",
		"10.0.0.0/8=10.0.0.0/8":                               "to itself",
		"10.0.0.0/16=224.1.0.0/16":                            "multicast",
		"0.0.0.0/0=0.0.0.0/0":                                 "to itself",
		"10.0.0.0/16=10.1.0.0/16,10.1.0.0/24=10.9.0.0/24":     "overlaps",
		"10.0.0.0/16=10.201.0.0/16,10.2.0.0/16=10.201.0.0/16": "overlaps",
	} {
		var m SubnetMap
		if err := m.Decode(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", text, err, want)
		}
	}
	var m SubnetMap
	if err := m.Decode(strings.Repeat("10.0.0.0/16=10.201.0.0/16,", 20)); err == nil {
		t.Error("twenty times the same mapping was accepted")
	}
}
