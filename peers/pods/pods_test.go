package pods

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/internal/ipam"
)

func text(prefixes []netip.Prefix) string {
	var all []string
	for _, p := range prefixes {
		all = append(all, p.String())
	}
	return strings.Join(all, ",")
}

func prefixes(text string) (all []netip.Prefix) {
	for part := range strings.SplitSeq(text, ",") {
		if part != "" {
			all = append(all, netip.MustParsePrefix(part))
		}
	}
	return all
}

func addrs(text string) (all []netip.Addr) {
	for part := range strings.SplitSeq(text, ",") {
		if part != "" {
			all = append(all, netip.MustParseAddr(part))
		}
	}
	return all
}

func TestAggregate(t *testing.T) {
	for in, want := range map[string]string{
		"":                                    "",
		"10.1.0.7":                            "10.1.0.7/32",
		"10.1.0.7,10.1.0.7":                   "10.1.0.7/32",
		"10.1.0.6,10.1.0.7":                   "10.1.0.6/31",
		"10.1.0.7,10.1.0.8":                   "10.1.0.7/32,10.1.0.8/32",
		"10.1.0.5,10.1.0.4,10.1.0.7,10.1.0.6": "10.1.0.4/30",
		"10.1.0.4,10.1.0.5,10.1.0.6":          "10.1.0.4/31,10.1.0.6/32",
		"fd00::2,10.1.0.0,fd00::3,10.1.0.1":   "10.1.0.0/31,fd00::2/127",
		"255.255.255.254,255.255.255.255":     "255.255.255.254/31",
	} {
		if got := text(Aggregate(addrs(in))); got != want {
			t.Errorf("of %q: %q, want %q", in, got, want)
		}
	}
}

// TestAggregateIsExact checks that the prefixes cover exactly the addresses, and that no
// two of them can be merged.
func TestAggregateIsExact(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		want := map[netip.Addr]bool{}
		var all []netip.Addr
		for range random.IntN(60) {
			a := netip.AddrFrom4([4]byte{10, 1, byte(random.IntN(2)), byte(random.IntN(32))})
			want[a] = true
			all = append(all, a)
		}
		got := map[netip.Addr]bool{}
		found := Aggregate(all)
		for _, p := range found {
			for a := p.Addr(); p.Contains(a); a = a.Next() {
				got[a] = true
			}
			for _, q := range found {
				whole := netip.PrefixFrom(p.Addr(), p.Bits()-1).Masked()
				if p != q && p.Bits() == q.Bits() && whole.Contains(q.Addr()) {
					t.Fatalf("%s and %s are %s", p, q, whole)
				}
			}
		}
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Fatalf("addresses (-want +got):\n%s", diff)
		}
	}
}

func TestBeside(t *testing.T) {
	got := Beside(prefixes("10.1.0.64/26,10.1.0.0/26"), addrs("10.1.0.3,10.1.9.9,fd00::1,10.1.9.9"))
	if want := "10.1.0.0/26,10.1.0.64/26,10.1.9.9/32,fd00::1/128"; text(got) != want {
		t.Errorf("got %s", text(got))
	}
}

func TestTrim(t *testing.T) {
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.1.0.7"}, {IP: "fd00::7"}}}}
		if change != nil {
			change(p)
		}
		return p
	}
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		want   string
	}{
		"running":             {nil, "[10.1.0.7 fd00::7]"},
		"pending, with one":   {func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }, "[10.1.0.7 fd00::7]"},
		"on its way out":      {func(p *corev1.Pod) { now := metav1.Now(); p.DeletionTimestamp = &now }, "[10.1.0.7 fd00::7]"},
		"on the host network": {func(p *corev1.Pod) { p.Spec.HostNetwork = true }, "[]"},
		"succeeded":           {func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, "[]"},
		"failed":              {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, "[]"},
		"without an address":  {func(p *corev1.Pod) { p.Status.PodIPs = nil }, "[]"},
		"with something else": {func(p *corev1.Pod) { p.Status.PodIPs[0].IP = "x" }, "[fd00::7]"},
	} {
		if got, kept := Trim(pod(c.change)); fmt.Sprint(got.Addrs) != c.want || kept != (c.want != "[]") {
			t.Errorf("%s: got %v, %v", name, got.Addrs, kept)
		}
	}
}

func TestPrefer(t *testing.T) {
	unavailable := apierrors.NewServiceUnavailable("the server is currently unable to handle the request")
	broken := errors.New("broken")
	empty, others, own := candidate{served: true}, candidate{served: true, any: true}, candidate{served: true, any: true, own: true}
	for name, c := range map[string]struct {
		v3, v1 candidate
		want   string // empty: an error
	}{
		"v3 alone":                             {v3: own, want: "v3"},
		"v1 alone":                             {v1: own, want: "v1"},
		"v3 is made of v1":                     {v3: own, v1: own, want: "v3"},
		"v3 isn't in use":                      {v3: empty, v1: own, want: "v1"},
		"v1 isn't in use":                      {v3: own, v1: empty, want: "v3"},
		"v1 is left over, of other nodes":      {v3: own, v1: others, want: "v3"},
		"v3 is left over, of other nodes":      {v3: others, v1: own, want: "v1"},
		"a new node":                           {v3: others, v1: others, want: "v3"},
		"a new node, v3 isn't in use":          {v3: empty, v1: others, want: "v1"},
		"a new cluster":                        {v3: empty, v1: empty},
		"a new cluster with one of them":       {v1: empty, want: "v1"},
		"v3 unavailable":                       {v3: candidate{err: unavailable}, v1: own, want: "v1"},
		"v3 unavailable, v1 empty":             {v3: candidate{err: unavailable}, v1: empty, want: "v1"},
		"v3 unavailable, v1 not served":        {v3: candidate{err: unavailable}},
		"v3 can't be read":                     {v3: candidate{served: true, err: broken}, v1: own},
		"v1 can't be read, and doesn't matter": {v3: own, v1: candidate{served: true, err: broken}, want: "v3"},
		"v1 can't be read":                     {v3: others, v1: candidate{served: true, err: broken}},
		"no Calico":                            {},
	} {
		c.v3.resource.Version, c.v1.resource.Version = "v3", "v1"
		got, err := prefer([]candidate{c.v3, c.v1})
		if (err == nil) != (c.want != "") || err == nil && got.resource.Version != c.want {
			t.Errorf("%s: %+v, %v, want %q", name, got, err, c.want)
		}
		if none := name == "no Calico"; errors.Is(err, errNoCalico) != none {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Failed attempts to choose back off exponentially, since all nodes of a cluster make them.
func TestChooseBacksOff(t *testing.T) {
	s := New(Config{Setting: ipam.Auto, Node: "aws-1", Self: func() (Self, bool) { return Self{}, false }, Logger: slog.New(slog.DiscardHandler)})
	least := chooseAgain
	for attempt := range 20 {
		wait := s.choose(t.Context())
		if wait < least || wait > rechooseInterval {
			t.Fatalf("after %d attempts another one follows after %v, want %v to %v", attempt+1, wait, least, rechooseInterval)
		}
		least = min(2*least, rechooseInterval/2)
	}
}

// TestNodesPrefixes: a node's podCIDRs are published, unless the admission policy would reject
// them.
func TestNodesPrefixes(t *testing.T) {
	var self Self
	known := false
	s := New(Config{Setting: ipam.Node, Node: "aws-1", Self: func() (Self, bool) { return self, known }, Logger: slog.New(slog.DiscardHandler)})
	if got, err := s.Current(); got != nil || !errors.Is(err, errUnread) {
		t.Errorf("before the node is known: %+v, %v", got, err)
	}
	known = true
	if got, err := s.Current(); err != nil || got.Publish {
		t.Errorf("without podCIDRs: %+v, %v", got, err)
	}
	self = Self{PodCIDRs: prefixes("fd02::/64,10.2.3.0/24")}
	if got, err := s.Current(); err != nil || got.Publish {
		t.Errorf("with podCIDRs that can't be published: %+v, %v", got, err)
	}
	self.Plain = true
	if got, err := s.Current(); err != nil || !got.Publish || text(got.Prefixes) != "10.2.3.0/24,fd02::/64" {
		t.Errorf("%+v, %v", got, err)
	}
}
