package routes

import "testing"

func TestCollision(t *testing.T) {
	occupied := []Occupied{
		{prefixes("10.1.3.0/24")[0], "the pods of this node"},
		{prefixes("fd01:0:0:3::/64")[0], "the pods of this node"},
		{prefixes("10.96.0.0/12")[0], "the services of this cluster"},
		{prefixes("192.0.2.10/32")[0], "the InternalIP of this node"},
		{prefixes("2001:db8::1/128")[0], "the default gateway of this node"},
	}
	for name, tt := range map[string]struct {
		subnets []string
		want    string // empty: none
	}{
		"apart":                    {[]string{"10.4.0.0/16", "fd04::/48", "192.0.2.11/32", "10.1.4.0/24"}, ""},
		"equal":                    {[]string{"10.1.3.0/24"}, "10.1.3.0/24 overlaps 10.1.3.0/24, the pods of this node"},
		"wider":                    {[]string{"10.4.0.0/16", "10.1.0.0/16"}, "10.1.0.0/16 overlaps 10.1.3.0/24, the pods of this node"},
		"narrower":                 {[]string{"10.1.3.128/25"}, "10.1.3.128/25 overlaps 10.1.3.0/24, the pods of this node"},
		"IPv6":                     {[]string{"10.4.0.0/16", "fd01::/32"}, "fd01::/32 overlaps fd01:0:0:3::/64, the pods of this node"},
		"services":                 {[]string{"10.100.0.0/16"}, "10.100.0.0/16 overlaps 10.96.0.0/12, the services of this cluster"},
		"an address":               {[]string{"192.0.2.0/28"}, "192.0.2.0/28 contains 192.0.2.10, the InternalIP of this node"},
		"an address of IPv6":       {[]string{"2001:db8::/64"}, "2001:db8::/64 contains 2001:db8::1, the default gateway of this node"},
		"several, the first":       {[]string{"192.0.0.0/16", "10.0.0.0/8"}, "192.0.0.0/16 contains 192.0.2.10, the InternalIP of this node"},
		"nothing at all is needed": {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if err := Collision(prefixes(tt.subnets...), occupied); err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
	if err := Collision(prefixes("10.0.0.0/8"), nil); err != nil {
		t.Errorf("nothing occupied: %v", err)
	}
}
