package peers

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// backdated makes a node claim another one's key or prefixes and an earlier creation time.
func backdated(n int, of *Node) *Node {
	return node(n, func(n *Node) {
		n.Created, n.PodCIDRs = epoch.Add(-time.Hour), slices.Concat(of.PodCIDRs, n.PodCIDRs)
	})
}

// TestAcceptedClaimsAreRetained generates random histories of nodes of random ages that claim
// keys and prefixes of other nodes. It checks that a node loses a key or prefix only when it
// no longer claims it, and that repeating a decision doesn't change the result.
func TestAcceptedClaimsAreRetained(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 100 {
		var accepted Accepted
		all := map[int]*Node{}
		for range 30 {
			n := 1 + random.IntN(6)
			if random.IntN(5) == 0 {
				delete(all, n)
			} else {
				all[n] = node(n, func(n *Node) {
					n.Created = epoch.Add(time.Duration(random.IntN(100)) * time.Second)
					n.PublicKey = key(byte(1 + random.IntN(5))).String()
					n.PodCIDRs = nil
					for range random.IntN(4) {
						n.PodCIDRs = append(n.PodCIDRs, fmt.Sprintf("10.4.%d.%d/%d", random.IntN(3), 16*random.IntN(3), 22+random.IntN(8)))
					}
					if random.IntN(6) == 0 {
						n.Endpoint = "broken"
					}
				})
			}
			var nodes []*Node
			for _, n := range all {
				nodes = append(nodes, n)
			}
			peers, rejected, now := DesiredAfter(accepted, nodes, rules)
			checkPeers(t, peers, rules)
			claims := func(name string, claims func(*Node) bool) bool {
				return slices.ContainsFunc(nodes, func(n *Node) bool { return n.Name == name && claims(n.parse(0)) })
			}
			for k, owner := range accepted.keys {
				if next := now.keys[k]; next != owner && claims(owner, func(r *Node) bool { return r.keyErr == nil && r.key == k }) {
					t.Fatalf("key %s went from %s to %q", k, owner, next)
				}
			}
			for owner, prefixes := range accepted.prefixes {
				for _, p := range prefixes {
					if !now.hasPrefix(owner, p) && claims(owner, func(r *Node) bool { return slices.Contains(r.prefixes, p) }) {
						t.Fatalf("prefix %s has left %s, which claims it", p, owner)
					}
				}
			}
			random.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
			for title, before := range map[string]Accepted{"in another order": accepted, "once more": now} {
				peersAgain, rejectedAgain, again := DesiredAfter(before, nodes, rules)
				if diff := differ(peers, peersAgain); diff != "" {
					t.Fatalf("%s, other peers:\n%s", title, diff)
				}
				// The reported overlap may differ for a node whose own prefixes overlap.
				if diff := cmp.Diff(brief(rejected), brief(rejectedAgain)); diff != "" && title == "in another order" {
					t.Fatalf("%s, other rejections:\n%s", title, diff)
				}
				if diff := differ(now, again, cmp.AllowUnexported(Accepted{})); diff != "" {
					t.Fatalf("%s, something else is accepted:\n%s", title, diff)
				}
			}
			accepted = now
		}
	}
}

func TestControllerStoresAccepted(t *testing.T) {
	dir := t.TempDir()
	store := func() *Store { return NewStore(dir, "wireguard.gcp", "gcp") }
	thief := backdated(9, node(1))
	want := []Peer{peer(1), peer(9)}
	expect := func(c *Controller, source Origin) {
		t.Helper()
		reconcileOnce(t, c)
		if diff := cmp.Diff(want, c.State().Peers, comparers); diff != "" || c.State().Origin != source {
			t.Errorf("from %s (-want +got):\n%s", c.State().Origin, diff)
		}
		if err := c.Save(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	r := &remote{nodes: []*Node{node(1)}, synced: true}
	c := start(t, &device{}, r, store(), io.Discard)
	reconcileOnce(t, c)
	r.nodes = []*Node{node(1), thief}
	expect(c, OriginAPI)
	// A process that starts while the remote's API server is unreachable, and one that syncs
	// first.
	r.synced = false
	c = start(t, &device{}, r, store(), io.Discard)
	expect(c, OriginDisk)
	r.synced = true
	expect(c, OriginAPI)
	expect(start(t, &device{}, r, store(), io.Discard), OriginAPI)
	// A process whose first attempt fails.
	d := &device{err: os.ErrPermission}
	c = start(t, d, r, store(), io.Discard)
	if err := c.Reconcile(t.Context()); err == nil {
		t.Error("no error")
	}
	d.err = nil
	expect(c, OriginAPI)
	// The node was deleted.
	r.nodes = []*Node{thief}
	want = []Peer{peer(9, "10.4.1.0/24", "10.4.9.0/24")}
	expect(c, OriginAPI)
}

// TestStoreOfOtherVersions checks that an earlier version can read files of this version,
// and the reverse.
func TestStoreOfOtherVersions(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "wireguard.gcp.peers.json")
	r := &remote{nodes: []*Node{node(1), node(2)}, synced: true}
	c := start(t, &device{}, r, NewStore(dir, "wireguard.gcp", "gcp"), io.Discard)
	reconcileOnce(t, c)
	if err := c.Save(t.Context()); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	type file struct {
		Version int     `json:"version"`
		Cluster string  `json:"cluster"`
		Nodes   []*Node `json:"nodes"`
	}
	var before file
	if err := json.Unmarshal(data, &before); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(file{1, "gcp", []*Node{node(1), node(2)}}, before, comparers); diff != "" {
		t.Errorf("what the version before reads (-want +got):\n%s", diff)
	}

	if data, err = json.Marshal(before); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	// It stored the nodes only: they are accepted by age.
	r.nodes = append(r.nodes, backdated(9, node(1)))
	c = start(t, &device{}, r, NewStore(dir, "wireguard.gcp", "gcp"), io.Discard)
	reconcileOnce(t, c)
	if diff := cmp.Diff([]Peer{peer(1), peer(2), peer(9)}, c.State().Peers, comparers); diff != "" {
		t.Errorf("after an upgrade (-want +got):\n%s", diff)
	}
}
