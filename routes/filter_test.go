package routes

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestClaims(t *testing.T) {
	for name, test := range map[string]struct {
		origins []Origin
		want    []string
	}{
		"none": {},
		"in one order, masked": {
			[]Origin{
				{Device: "b", Subnets: prefixes("fd05::1/48", "10.5.0.1/16")},
				{Device: "a", Subnets: prefixes("10.4.0.0/16", "fd04::/48")},
			},
			[]string{"10.4.0.0/16 a", "10.5.0.0/16 b", "fd04::/48 a", "fd05::/48 b"},
		},
		"twice": {
			[]Origin{{Device: "a", Subnets: prefixes("10.4.0.0/16", "10.4.0.0/16")}},
			[]string{"10.4.0.0/16 a"},
		},
		"one inside another": {
			[]Origin{{Device: "b", Subnets: prefixes("10.4.3.0/24", "10.5.0.0/16")}, {Device: "a", Subnets: prefixes("10.4.0.0/16")}},
			[]string{"10.4.0.0/16 a", "10.5.0.0/16 b"},
		},
		"side by side": {
			[]Origin{{Device: "a", Subnets: prefixes("10.4.0.0/17")}, {Device: "b", Subnets: prefixes("10.4.128.0/17")}},
			[]string{"10.4.0.0/17 a", "10.4.128.0/17 b"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, c := range claims(test.origins) {
				got = append(got, fmt.Sprint(c.subnet, " ", c.device))
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
