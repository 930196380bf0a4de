package testbed

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
)

const translationTable = "testbed_translation"

// Translate puts the node behind address translation, like a router before it: packets from a
// UDP port leave it from one of these ports, such as 40000-40099, to which only responses are
// admitted. Called again it drops all mappings, like a restarted router.
func (n *Node) Translate(ctx context.Context, port int, others string) error {
	rules := fmt.Sprintf(`add table ip %[1]s; delete table ip %[1]s; table ip %[1]s {
		chain out { type nat hook postrouting priority srcnat; udp sport %[2]d masquerade to :%[3]s random; }
		chain in { type filter hook input priority -10; udp dport %[2]d ct state new drop; }
	}`, translationTable, port, others)
	if _, err := n.Run(ctx, "nft", rules); err != nil {
		return err
	}
	return n.forgetConnections()
}

// Forward puts the node behind a router that sends on to one of its UDP ports what
// arrives at an address and port outside, and admits no other initiation, neither the
// node nor those outside. An address that isn't the node's is reached by way of the node
// from all nodes of the other clusters.
func (n *Node) Forward(ctx context.Context, outside netip.AddrPort, port int) error {
	own := n.addresses[0]
	if outside.Addr() != own {
		for _, other := range n.tb.Clusters() {
			if other == n.Cluster {
				continue
			}
			for _, node := range other.Nodes() {
				if _, err := node.Run(ctx, "ip", "route", "replace", outside.Addr().String()+"/32", "via", own.String()); err != nil {
					return err
				}
			}
		}
	}
	rules := fmt.Sprintf(`add table ip %[1]s; delete table ip %[1]s; table ip %[1]s {
		chain arriving { type nat hook prerouting priority dstnat; ip daddr %[2]s udp dport %[3]d dnat to %[4]s:%[5]d; }
		chain in { type filter hook input priority -10; ct status dnat accept; udp dport %[5]d ct state new drop; }
		chain out { type filter hook output priority 10; udp sport %[5]d ct state new drop; }
	}`, translationTable, outside.Addr(), outside.Port(), own, port)
	if _, err := n.Run(ctx, "nft", rules); err != nil {
		return err
	}
	return n.forgetConnections()
}

// StopTranslating ends what Translate and Forward began.
func (n *Node) StopTranslating(ctx context.Context) error {
	if _, err := n.Run(ctx, "nft", "delete table ip "+translationTable); err != nil {
		return err
	}
	return n.forgetConnections()
}

func (n *Node) forgetConnections() error {
	return n.Space().Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) })
}

// Masquerade masquerades pods' packets to the underlay with the node's address, like most
// network plugins: machines there have no route to pods.
func (n *Node) Masquerade(ctx context.Context) error {
	var rules strings.Builder
	rules.WriteString("table inet testbed {\n chain pods {\n  type nat hook postrouting priority srcnat + 10;\n")
	for _, pods := range n.PodCIDRs {
		family := "ip6"
		if pods.Addr().Is4() {
			family = "ip"
		}
		for _, underlay := range n.tb.underlay.prefixes {
			if underlay.Addr().Is4() == pods.Addr().Is4() {
				fmt.Fprintf(&rules, "  %s saddr %s %s daddr %s masquerade\n", family, pods, family, underlay)
			}
		}
	}
	rules.WriteString(" }\n}\n")
	file := filepath.Join(n.dir, "masquerade.nft")
	if err := os.WriteFile(file, []byte(rules.String()), 0o644); err != nil {
		return err
	}
	_, err := n.Run(ctx, "nft", "-f", file)
	return err
}
