package peers

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/texttest"
)

// TestAssign runs the cases of testdata/assign, whose README.md describes their format.
func TestAssign(t *testing.T) {
	texttest.Run(t, "testdata/assign/*.txt", func(t *testing.T) func([]string) string {
		m := &decisions{t: t, rules: rules, nodes: map[string]*Node{}}
		return func(step []string) string {
			for _, line := range step {
				m.do(line)
			}
			return m.decide()
		}
	})
}

// decisions is the state of a case.
type decisions struct {
	t        *testing.T
	rules    Rules
	local    []LocalNode
	services []netip.Prefix
	nodes    map[string]*Node
	accepted Accepted
	peers    []Peer
}

// do takes in one line.
func (m *decisions) do(line string) {
	word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
	set := texttest.Fields(rest)
	list := func(name string) []string {
		return strings.FieldsFunc(set[name], func(r rune) bool { return r == ',' })
	}
	switch word {
	case "remove":
		delete(m.nodes, rest)
	case "restart":
		_, m.accepted = recall(m.accepted.remember(m.sorted(), m.peers))
	case "local":
		m.local = append(m.local, LocalNode{Name: set["name"], Addrs: addrs(list("addresses")...), PodCIDRs: prefixes(list("pods")...)})
		m.services = append(m.services, prefixes(list("services")...)...)
		m.rules.Local = NewLocal(m.local, m.services, nil)
	case "rules":
		for name, value := range set {
			switch n, _ := strconv.Atoi(value); name {
			case "borrowed":
				m.rules.Borrowed = value == "true"
			case "hidden":
				m.rules.Hidden = value == "true"
			case "max-peers":
				m.rules.MaxPeers = n
			case "max-allowed-ips":
				m.rules.MaxAllowedIPs = n
			case "node-subnets":
				m.rules.NodeSubnets = prefixes(list(name)...)
			default:
				m.t.Fatalf("%q: no rule", name)
			}
		}
	default:
		n, err := strconv.Atoi(strings.TrimPrefix(word, "node-"))
		if err != nil {
			m.t.Fatalf("%q: no node", line)
		}
		m.nodes[word] = node(n, func(node *Node) {
			for name, value := range set {
				switch name {
				case "created":
					node.Created = epoch.Add(m.duration(value))
				case "endpoint":
					node.Endpoint = value
				case "key":
					if n, err := strconv.Atoi(value); err == nil {
						value = key(byte(n)).String()
					}
					node.PublicKey = value
				case "spec":
					node.PodCIDRs = list(name)
				case "bare":
					node.Bare = value == "true"
				case "pods":
				default:
					m.t.Fatalf("%q: no field %s", line, name)
				}
			}
			if _, published := set["pods"]; published {
				node.Published, node.PodCIDRs, node.Allocated = true, list("pods"), list("spec")
			}
		})
	}
}

func (m *decisions) duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		m.t.Fatal(err)
	}
	return d
}

func (m *decisions) sorted() (nodes []*Node) {
	for _, n := range m.nodes {
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, func(a, b *Node) int { return strings.Compare(a.Name, b.Name) })
	return nodes
}

// decide returns the peers and rejections as a table. Neither does the order of nodes
// matter, nor is a decision changed by repeating it.
func (m *decisions) decide() string {
	nodes := m.sorted()
	before := m.accepted
	var rejected []Rejection
	m.peers, rejected, m.accepted = DesiredAfter(before, nodes, m.rules)
	table := decided(m.peers, rejected)
	slices.Reverse(nodes)
	peers, rejected, _ := DesiredAfter(before, nodes, m.rules)
	if diff := cmp.Diff(table, decided(peers, rejected)); diff != "" {
		m.t.Errorf("in another order:\n%s", diff)
	}
	if peers, _, _ := DesiredAfter(m.accepted, nodes, m.rules); differ(m.peers, peers) != "" {
		m.t.Errorf("once more:\n%s", differ(m.peers, peers))
	}
	return table
}

func decided(peers []Peer, rejected []Rejection) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for i := range peers {
		p := &peers[i]
		endpoint, extra := p.Endpoint.String(), ""
		if p.Endpoint == (netip.AddrPort{}) {
			endpoint = "no endpoint"
		}
		if (p.Keepalive == Keepalive) != p.Endpoint.IsValid() {
			extra = fmt.Sprint("\tkeepalive ", p.Keepalive)
		}
		if n, _ := strconv.Atoi(strings.TrimPrefix(p.Node, "node-")); p.PublicKey != key(byte(n)) {
			extra += fmt.Sprint("\tkey=", p.PublicKey[0])
		}
		allowed := joinPrefixes(p.AllowedIPs)
		if allowed == "" {
			allowed = "nothing"
		}
		fmt.Fprintf(w, "%s\t%s\t%s%s\n", p.Node, endpoint, allowed, extra)
	}
	for _, r := range rejected {
		how := "rejected"
		if r.Partial {
			how = "rejected in part"
		}
		fmt.Fprintf(w, "%s\t%s\t%s: %s\n", r.Node, how, r.Reason, r.Detail)
	}
	if err := w.Flush(); err != nil {
		panic(err)
	}
	if b.Len() == 0 {
		return "no peers"
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func addrs(texts ...string) (all []netip.Addr) {
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}
