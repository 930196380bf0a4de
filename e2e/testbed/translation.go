package testbed

import (
	"context"
	"fmt"

	"github.com/vishvananda/netlink"
)

const translationTable = "testbed_translation"

// Translate puts the node behind address translation, as a router before it would: what
// it sends from a UDP port leaves it from one of the others, such as 40000-40099, and
// nothing reaches that port but answers. Called again it forgets all mappings, as a
// router does that is restarted.
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

// StopTranslating ends what Translate began.
func (n *Node) StopTranslating(ctx context.Context) error {
	if _, err := n.Run(ctx, "nft", "delete table ip "+translationTable); err != nil {
		return err
	}
	return n.forgetConnections()
}

func (n *Node) forgetConnections() error {
	return n.Space().Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) })
}
