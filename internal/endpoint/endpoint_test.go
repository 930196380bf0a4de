package endpoint_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/internal/endpoint"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]endpoint.Source{
		"InternalIP":              {Type: endpoint.InternalIP},
		"externalip":              {Type: endpoint.ExternalIP},
		"none":                    {Type: endpoint.None},
		"192.0.2.1":               {Addr: netip.MustParseAddr("192.0.2.1")},
		"::ffff:192.0.2.1":        {Addr: netip.MustParseAddr("192.0.2.1")},
		"192.0.2.1:51821":         {Addr: netip.MustParseAddr("192.0.2.1"), Port: 51821},
		"2001:db8::1":             {Addr: netip.MustParseAddr("2001:db8::1")},
		"[2001:db8::1]:51820":     {Addr: netip.MustParseAddr("2001:db8::1"), Port: 51820},
		"[::ffff:192.0.2.1]:4000": {Addr: netip.MustParseAddr("192.0.2.1"), Port: 4000},
	} {
		got, err := endpoint.Parse(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
		}
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	}
}

func TestParseRejects(t *testing.T) {
	for _, text := range []string{
		"", "Hostname", "node-1.example.com", "node-1.example.com:51820", "192.0.2.1:0", "192.0.2.1:65536", "192.0.2.0/24",
		"0.0.0.0", "0.1.2.3", "127.0.0.1", "240.0.0.1", "255.255.255.255", "224.0.0.1", "169.254.1.1", "::", "::1", "fe80::1", "fe80::1%eth0", "ff02::1",
		"fe80::1%eth0", "2001:db8::1%eth0", "[2001:db8::1%eth0]:51820",
	} {
		if got, err := endpoint.Parse(text); err == nil {
			t.Errorf("%q is taken for %+v", text, got)
		}
		if got, err := endpoint.ParseAddr(text); err == nil {
			t.Errorf("%q is taken for the address %v", text, got)
		}
	}
	if got, err := endpoint.ParseAddr("::ffff:192.0.2.1"); err != nil || got != netip.MustParseAddr("192.0.2.1") {
		t.Errorf("a mapped address: %v, %v", got, err)
	}
}
