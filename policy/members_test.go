package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func never(Identity) bool { return false }

func gcp(name string) Identity { return Identity{Cluster: "gcp", Namespace: "ns", Name: name} }

func rules(subnets ...string) Rules {
	r := Rules{Cluster: "gcp"}
	for _, s := range subnets {
		r.Subnets = append(r.Subnets, netip.MustParsePrefix(s))
	}
	return r
}

func podWith(name, set string, addrs ...string) Pod {
	p := Pod{Namespace: "ns", Name: name, Set: set}
	for _, a := range addrs {
		if addr := netip.MustParseAddr(a); addr.Is4() {
			p.V4 = addr
		} else {
			p.V6 = addr
		}
	}
	return p
}

func addrs(list ...string) []netip.Addr {
	var all []netip.Addr
	for _, a := range list {
		all = append(all, netip.MustParseAddr(a))
	}
	return all
}

func TestCollect(t *testing.T) {
	finished := podWith("done", "app")
	finished.Finished = true
	host := podWith("host", "app", "192.168.0.1")
	host.HostNetwork = true
	bad := Pod{Namespace: "ns", Name: "bad", Set: "ü", Fault: ReasonBadName}
	for name, test := range map[string]struct {
		pods    []Pod
		rules   Rules
		want    map[Identity][]netip.Addr
		skipped map[Reason]int
	}{
		"sorted, without duplicates, both families": {
			pods: []Pod{podWith("c", "app", "10.4.0.10", "fd00::2"), podWith("a", "app", "10.4.0.9", "fd00::1"), podWith("b", "app", "10.4.0.9")},
			want: map[Identity][]netip.Addr{gcp("app"): addrs("10.4.0.9", "10.4.0.10", "fd00::1", "fd00::2")},
		},
		"a finished pod's address doesn't count, that of the pod that has it now does": {
			pods:    []Pod{finished, podWith("new", "app", "10.4.0.1")},
			want:    map[Identity][]netip.Addr{gcp("app"): addrs("10.4.0.1")},
			skipped: map[Reason]int{ReasonFinished: 1},
		},
		"an address of two sets is in both": {
			pods: []Pod{podWith("old", "app", "10.4.0.1"), podWith("new", "other", "10.4.0.1")},
			want: map[Identity][]netip.Addr{gcp("app"): addrs("10.4.0.1"), gcp("other"): addrs("10.4.0.1")},
		},
		"host network stays out": {
			pods: []Pod{host}, want: map[Identity][]netip.Addr{}, skipped: map[Reason]int{ReasonHostNetwork: 1},
		},
		"host network that is let in": {
			pods: []Pod{host}, rules: Rules{IncludeHostNetwork: true},
			want: map[Identity][]netip.Addr{gcp("app"): addrs("192.168.0.1")},
		},
		"addresses outside of the subnets": {
			pods:  []Pod{podWith("a", "app", "10.5.0.1", "fd00::1"), podWith("b", "app", "10.4.0.1", "fd01::1"), podWith("c", "app", "10.5.0.1")},
			rules: rules("10.4.0.0/16", "fd00::/48"),
			want:  map[Identity][]netip.Addr{gcp("app"): addrs("10.4.0.1", "fd00::1")}, skipped: map[Reason]int{ReasonOutside: 3},
		},
		"bad names and no address": {
			pods: []Pod{bad, podWith("pending", "app")}, want: map[Identity][]netip.Addr{},
			skipped: map[Reason]int{ReasonBadName: 1, ReasonNoAddress: 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			test.rules.Cluster = "gcp"
			got := Collect(test.pods, test.rules, never)
			if diff := cmp.Diff(test.want, got.Sets, compareAddrs); diff != "" {
				t.Errorf("sets (-want +got):\n%s", diff)
			}
			counts := map[Reason]int{}
			for reason, pods := range got.Skipped {
				counts[reason] = pods.Pods
			}
			if test.skipped == nil {
				test.skipped = map[Reason]int{}
			}
			if diff := cmp.Diff(test.skipped, counts); diff != "" {
				t.Errorf("skipped (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSetsBeyondTheLimitAreRefused(t *testing.T) {
	var pods []Pod
	for i := range 100 {
		p := podWith(fmt.Sprintf("flood-%02d", i), fmt.Sprintf("flood-%02d", i), "10.4.0.1")
		p.Created = 1000 + int64(i)
		pods = append(pods, p)
	}
	there, old := podWith("there", "there", "10.4.0.2"), podWith("old", "old", "10.4.0.3")
	there.Created, old.Created = 5000, 10
	pods = append(pods, there, old)
	slices.Reverse(pods)

	r := rules()
	r.MaxSets = 4
	got := Collect(pods, r, func(id Identity) bool { return id == gcp("there") })
	want := map[Identity][]netip.Addr{
		gcp("there"): addrs("10.4.0.2"), gcp("old"): addrs("10.4.0.3"),
		gcp("flood-00"): addrs("10.4.0.1"), gcp("flood-01"): addrs("10.4.0.1"),
	}
	if diff := cmp.Diff(want, got.Sets, compareAddrs); diff != "" {
		t.Errorf("the set that is there and the oldest ones must stay (-want +got):\n%s", diff)
	}
	wantSkipped := Skipped{ReasonTooManySets: {Pods: 98}}
	for i := range maxExamples {
		wantSkipped[ReasonTooManySets].Examples = append(wantSkipped[ReasonTooManySets].Examples, fmt.Sprintf("ns/flood-%02d", i+2))
	}
	if diff := cmp.Diff(wantSkipped, got.Skipped); diff != "" {
		t.Errorf("skipped (-want +got):\n%s", diff)
	}
}
