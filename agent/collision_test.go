package agent

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/peers"
)

func TestAPIAddrs(t *testing.T) {
	for configured, want := range map[string]string{
		"https://192.0.2.1:6443":        "[192.0.2.1 10.96.0.1]",
		"https://[2001:db8::1]:6443/x":  "[2001:db8::1 10.96.0.1]",
		"https://[::ffff:192.0.2.1]":    "[192.0.2.1 10.96.0.1]",
		"https://api.example.com:6443":  "[10.96.0.1]",
		"192.0.2.1:6443":                "[192.0.2.1 10.96.0.1]",
		"192.0.2.1":                     "[192.0.2.1 10.96.0.1]",
		"":                              "[10.96.0.1]",
		"https://[fe80::1%25eth0]:6443": "[fe80::1 10.96.0.1]",
	} {
		t.Setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
		if got := fmt.Sprint(apiAddrs(configured)); got != want {
			t.Errorf("%q: %s, want %s", configured, got, want)
		}
	}
}

func TestOccupiedBy(t *testing.T) {
	p, a := netip.MustParsePrefix, netip.MustParseAddr
	self := peers.Self{InternalIPs: []netip.Addr{a("192.0.2.10"), a("2001:db8::10")}, PodCIDRs: []netip.Prefix{p("10.1.3.0/24")}}
	var got []string
	for _, o := range occupiedBy([]netip.Addr{a("192.0.2.1")}, self, []netip.Prefix{p("10.96.0.0/12")}) {
		got = append(got, o.Prefix.String()+" "+o.What)
	}
	want := []string{
		"192.0.2.1/32 the API server of this cluster",
		"192.0.2.10/32 the InternalIP of this node",
		"2001:db8::10/128 the InternalIP of this node",
		"10.1.3.0/24 the pods of this node",
		"10.96.0.0/12 the services of this cluster",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if none := occupiedBy(nil, peers.Self{}, nil); len(none) != 0 {
		t.Errorf("of nothing known: %v", none)
	}
}

func TestUnsourced(t *testing.T) {
	p, a := netip.MustParsePrefix, netip.MustParseAddr
	both := []netip.Prefix{p("10.1.3.0/24"), p("fd01:0:0:3::/64")}
	for name, tt := range map[string]struct {
		podCIDRs, subnets []netip.Prefix
		src               []netip.Addr
		want              string
	}{
		"both are there":               {both, both, []netip.Addr{a("10.1.3.1"), a("fd01:0:0:3::1")}, ""},
		"none":                         {both, both, nil, "10.1.3.0/24,fd01:0:0:3::/64"},
		"no IPv6":                      {both, both, []netip.Addr{a("10.1.3.1")}, "fd01:0:0:3::/64"},
		"no IPv6, which no remote has": {both, both[:1], []netip.Addr{a("10.1.3.1")}, ""},
	} {
		if got := unsourced(tt.podCIDRs, tt.subnets, tt.src); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
