package peers

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

var (
	gcp   = netip.MustParsePrefix("10.4.0.0/16")
	gcp6  = netip.MustParsePrefix("fd04::/48")
	rules = Rules{
		Subnets:  []netip.Prefix{gcp, gcp6},
		Tunneled: []netip.Prefix{gcp, gcp6, netip.MustParsePrefix("10.6.0.0/16")},
		OwnKeys:  []tunnel.Key{key(0xff)},
		OwnAddrs: []netip.Addr{netip.MustParseAddr("10.66.23.31"), netip.MustParseAddr("fd66::31")},
	}
	epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
)

// key returns a valid public key made of one repeated byte.
func key(b byte) tunnel.Key {
	var k tunnel.Key
	for i := range k {
		k[i] = b
	}
	return k
}

// node returns a valid node that was created after n-1 others.
func node(n int, change ...func(*Node)) *Node {
	node := &Node{
		Name:      fmt.Sprintf("node-%d", n),
		Created:   epoch.Add(time.Duration(n) * time.Minute),
		PublicKey: key(byte(n)).String(),
		Endpoint:  fmt.Sprintf("10.22.0.%d:51820", n),
		PodCIDRs:  []string{fmt.Sprintf("10.4.%d.0/24", n)},
	}
	for _, c := range change {
		c(node)
	}
	return node
}

func peer(n int, allowed ...string) Peer {
	p := Peer{Node: fmt.Sprintf("node-%d", n), Peer: tunnel.Peer{
		PublicKey: key(byte(n)),
		Endpoint:  netip.MustParseAddrPort(fmt.Sprintf("10.22.0.%d:51820", n)),
		Keepalive: 25 * time.Second,
	}}
	if len(allowed) == 0 {
		allowed = []string{fmt.Sprintf("10.4.%d.0/24", n)}
	}
	for _, a := range allowed {
		p.AllowedIPs = append(p.AllowedIPs, netip.MustParsePrefix(a))
	}
	return p
}

var comparers = cmp.Options{
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
	cmpopts.EquateEmpty(),
	cmpopts.IgnoreUnexported(Node{}),
}

// differ returns the difference of two values; empty: none. It is cheap for values that
// are deeply equal, as most are in random histories.
func differ(a, b any, options ...cmp.Option) string {
	if reflect.DeepEqual(a, b) {
		return ""
	}
	return cmp.Diff(a, b, append(options, comparers)...)
}

// rejection is a Rejection without its detail.
type rejection struct {
	Node    string
	Reason  Reason
	Partial bool
}

func brief(rs []Rejection) []rejection {
	var out []rejection
	for _, r := range rs {
		out = append(out, rejection{r.Node, r.Reason, r.Partial})
	}
	return out
}

// checkPeers fails unless the peers are within the rules and disjoint.
func checkPeers(t *testing.T, peers []Peer, rules Rules) {
	t.Helper()
	for i := range peers {
		p := &peers[i]
		if i > 0 && peers[i-1].PublicKey.Compare(p.PublicKey) >= 0 {
			t.Fatalf("peers of %s and %s: keys not sorted or not unique", peers[i-1].Node, p.Node)
		}
		if slices.Contains(rules.OwnKeys, p.PublicKey) || p.PublicKey == (tunnel.Key{}) {
			t.Fatalf("peer %s has the key %s", p.Node, p.PublicKey)
		}
		if p.Endpoint == (netip.AddrPort{}) {
			if p.Keepalive != 0 {
				t.Fatalf("peer %s has keepalives and no endpoint", p.Node)
			}
		} else if a := p.Endpoint.Addr(); !a.IsGlobalUnicast() || slices.Contains(rules.OwnAddrs, a) || within(netip.PrefixFrom(a, a.BitLen()), rules.Tunneled) {
			t.Fatalf("peer %s has the endpoint %s", p.Node, p.Endpoint)
		}
		if len(p.AllowedIPs) == 0 {
			t.Fatalf("peer %s has no allowed IPs", p.Node)
		}
		for _, a := range p.AllowedIPs {
			if !within(a, rules.Subnets) || a != a.Masked() {
				t.Fatalf("peer %s is allowed %s", p.Node, a)
			}
			for j := range peers {
				overlaps := func(b netip.Prefix) bool {
					return a.Overlaps(b) && (a == b || !rules.Borrowed || !a.IsSingleIP() && !b.IsSingleIP())
				}
				if j != i && slices.ContainsFunc(peers[j].AllowedIPs, overlaps) {
					t.Fatalf("peers %s and %s overlap at %s", p.Node, peers[j].Node, a)
				}
			}
		}
	}
}

func TestDesiredOfRandomNodes(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	keys := []string{key(1).String(), key(2).String(), key(3).String(), key(4).String(), key(0xff).String(), "", "x"}
	for range 2000 {
		var nodes []*Node
		for i := range random.IntN(12) {
			n := node(i+1, func(n *Node) {
				n.Created = epoch.Add(time.Duration(random.IntN(4)) * time.Second)
				n.PublicKey = keys[random.IntN(len(keys))]
				n.PodCIDRs = nil
			})
			for range random.IntN(3) {
				n.PodCIDRs = append(n.PodCIDRs, fmt.Sprintf("10.4.%d.%d/%d", random.IntN(4), random.IntN(256), 14+random.IntN(14)))
			}
			nodes = append(nodes, n)
		}
		peers, rejected := Desired(nodes, rules)
		checkPeers(t, peers, rules)

		random.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
		peersAgain, rejectedAgain := Desired(nodes, rules)
		if diff := differ(peers, peersAgain); diff != "" {
			t.Fatalf("the order of nodes changes the peers:\n%s", diff)
		}
		if diff := cmp.Diff(rejected, rejectedAgain); diff != "" {
			t.Fatalf("the order of nodes changes what is rejected:\n%s", diff)
		}
		isPeer, isRejected := map[string]bool{}, map[string]bool{}
		for _, p := range peers {
			isPeer[p.Node] = true
		}
		for _, r := range rejected {
			if r.Partial != isPeer[r.Node] {
				t.Fatalf("%s is a peer: %v; rejected: %+v", r.Node, isPeer[r.Node], r)
			}
			isRejected[r.Node] = true
		}
		for _, n := range nodes {
			if !isPeer[n.Name] && !isRejected[n.Name] {
				t.Fatalf("node %+v is neither a peer nor rejected", n)
			}
		}
	}
}

func FuzzDesired(f *testing.F) {
	f.Add(key(1).String(), "10.22.0.1:51820", "10.4.1.0/24", "fd04::/64")
	f.Add("", "[::1]:0", "0.0.0.0/0", "10.4.0.0/33")
	f.Add(key(0xff).String(), "[fe80::1%25eth0]:51820", "::ffff:10.4.0.0/112", "")
	f.Fuzz(func(t *testing.T, publicKey, endpoint, cidr1, cidr2 string) {
		hostile := &Node{Name: "hostile", Created: epoch.Add(time.Hour), PublicKey: publicKey, Endpoint: endpoint, PodCIDRs: []string{cidr1, cidr2}}
		peers, rejected := Desired([]*Node{node(1), hostile}, rules)
		checkPeers(t, peers, rules)
		if !slices.ContainsFunc(peers, func(p Peer) bool { return p.Node == "node-1" }) {
			t.Fatalf("the hostile node took the place of an older one: %+v %+v", peers, rejected)
		}
	})
}

func TestAnnotationsTooLongAreCut(t *testing.T) {
	megabyte := strings.Repeat("a", 1<<20)
	if got := shorten(megabyte); len(got) > maxAnnotation {
		t.Errorf("%d bytes are kept", len(got))
	}
	good := key(1).String()
	if got := shorten(good); got != good {
		t.Errorf("%q became %q", good, got)
	}
	peers, rejected := Desired([]*Node{node(1, func(n *Node) { n.PublicKey = shorten(good + megabyte) })}, rules)
	if len(peers) != 0 || len(rejected) != 1 || rejected[0].Reason != ReasonPublicKey {
		t.Errorf("a cut key gives %v, %v", peers, rejected)
	}
}

// BenchmarkDesired measures nodes with one prefix each; with four, like Calico's blocks,
// for which time and memory may grow by half; and with one node that claims all prefixes.
func BenchmarkDesired(b *testing.B) {
	for _, n := range []int{100, 1000, 5000} {
		for _, blocks := range []int{1, 4, -1} {
			hostile := blocks < 0
			blocks = max(blocks, 1)
			b.Run(fmt.Sprintf("%d nodes with %d, hostile %v", n, blocks, hostile), func(b *testing.B) {
				nodes := make([]*Node, n)
				for i := range nodes {
					var k tunnel.Key
					k[0], k[1], k[2] = byte(i), byte(i>>8), 1
					nodes[i] = &Node{
						Name: fmt.Sprintf("node-%d", i), Created: epoch.Add(time.Duration(i%7) * time.Second), PublicKey: k.String(),
						Endpoint: fmt.Sprintf("10.22.%d.%d:51820", i>>8, i&0xff),
					}
					for j := range blocks {
						nodes[i].PodCIDRs = append(nodes[i].PodCIDRs, fmt.Sprintf("10.%d.%d.%d/26", 64+i>>8, i&0xff, 64*j))
					}
				}
				if hostile {
					nodes = append(nodes, node(9, with("10.64.0.0/11"), aged(1)))
				}
				wide := borrowing()
				wide.Subnets = []netip.Prefix{netip.MustParsePrefix("10.64.0.0/10"), gcp6}
				wide.Tunneled = wide.Subnets
				for i := range nodes {
					nodes[i] = nodes[i].parse(0) // as NodeFor does
				}
				_, _, accepted := DesiredAfter(Accepted{}, nodes, wide)
				b.ReportAllocs()
				for b.Loop() {
					if peers, _, _ := DesiredAfter(accepted, nodes, wide); len(peers) != n {
						b.Fatalf("%d peers", len(peers))
					}
				}
			})
		}
	}
}
