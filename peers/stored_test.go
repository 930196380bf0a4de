package peers

import (
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/wireguardpeers/v1alpha1"
)

// TestStoredNodes: a node and what is stored of it become the same peer, with the same reasons for
// what is rejected, and stored again it has the same content.
func TestStoredNodes(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 37))
	one := func(texts ...string) string { return texts[random.IntN(len(texts))] }
	for range 5000 {
		n := &Node{
			Name: one("a", "b.example"), Created: one2(random, time.Time{}, epoch.In(time.FixedZone("", 3600))),
			PublicKey: one("", "x", "\x1b[31m", key(7).String(), key(0xff).String(), key(0).String()),
			Endpoint:  one("", "x", "10.22.0.1:51820", "[::ffff:10.22.0.1]:51820", "[FD22::1]:7", "[fe80::1%eth0]:7", "0.0.0.0:1", "10.22.0.1:0", "10.4.0.1:9"),
			Published: random.IntN(2) == 0,
		}
		for range random.IntN(6) {
			n.PodCIDRs = append(n.PodCIDRs, one("10.4.1.0/24", "10.4.1.7/24", "10.4.2.0/24", "FD04::/64", "::ffff:10.4.3.0/120", "10.9.0.0/24", "", "10.4.0.0/33", "\u202e"))
		}
		for range random.IntN(3) {
			n.Allocated = append(n.Allocated, one("10.4.1.0/24", "x", "0.0.0.0/0", "fd04::1/64"))
		}
		stored, valid := n.Stored("gcp")
		if !valid {
			t.Fatalf("%q is the name of a node", n.Name)
		}
		c := FromStored(stored, 0)
		if again, _ := c.Stored("gcp"); !stored.Equal(again) {
			t.Fatalf("%+v\nthen %+v", stored, again)
		}
		want, rejected := Desired([]*Node{n}, rules)
		got, refused := Desired([]*Node{c}, rules)
		if !reflect.DeepEqual(got, want) || !slices.Equal(reasons(refused), reasons(rejected)) {
			t.Fatalf("%+v:\n%+v %+v\nstored %+v:\n%+v %+v", n, want, rejected, c, got, refused)
		}
	}
}

// TestStoredLocalNodes is TestStoredNodes of a node of the relay's own cluster.
func TestStoredLocalNodes(t *testing.T) {
	want := LocalNode{
		Name: "n1", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")},
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.2.1.0/24")},
	}
	if got, err := LocalFromStored(want.Stored("aws")); err != nil || !got.Equal(want) {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, s := range []*v1alpha1.Spec{{Name: "n", Addresses: []string{"x"}}, {Name: "n", PodCIDRs: []string{"10.0.0.0"}}} {
		if got, err := LocalFromStored(s); err == nil {
			t.Errorf("%+v is read as %+v", s, got)
		}
	}
}

// TestUnstorableNames: the name of an object is that of a node, or nothing is stored.
func TestUnstorableNames(t *testing.T) {
	for _, name := range []string{"", "Evil/../../x", "a b", "a\n", "-a", ".", strings.Repeat("a", 254)} {
		if s, valid := (&Node{Name: name}).Stored("gcp"); valid {
			t.Errorf("%q is stored as %s", name, s.ObjectName())
		}
	}
}

func one2(random *rand.Rand, a, b time.Time) time.Time {
	if random.IntN(2) == 0 {
		return a
	}
	return b
}

// reasons returns the different reasons of rejections.
func reasons(rejected []Rejection) (all []Reason) {
	for _, r := range rejected {
		all = append(all, r.Reason)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
