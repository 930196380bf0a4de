package routes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// ICMPTable is the name of our nf_tables table of the family inet that gives ICMP errors of
// this host to remote pods another source, see [SyncICMP].
const ICMPTable = "semaphore-wireguard-icmp"

// icmpChain is the only chain of that table. Its priority is after all chains of other
// programs.
const (
	icmpChain    = "output"
	icmpPriority = 310
)

// ICMPTarget is a device and destinations behind it.
type ICMPTarget struct {
	Device  string
	Subnets []netip.Prefix
}

// SyncICMP gives ICMP errors that this host sends to the targets the address as their source
// to which the packet was sent that they are about: that of a pod of this node. Peers accept
// no others, so that errors from the host's own address get lost, and with them path MTU
// discovery. It is for address families without a source of routes. Without targets it
// removes the table. Without a difference it neither writes nor logs anything. The error wraps
// [ErrNoFilter] where the kernel lacks support.
func SyncICMP(ctx context.Context, log *slog.Logger, targets []ICMPTarget) (changed bool, err error) {
	have, installed, err := readICMP(ctx)
	if len(targets) == 0 && errors.Is(err, ErrNoFilter) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	table := object{unix.NFT_MSG_NEWTABLE, []attr{label(unix.NFTA_TABLE_NAME, ICMPTable), number(unix.NFTA_TABLE_FLAGS, 0)}}
	remove := object{unix.NFT_MSG_DELTABLE, table.attrs[:1]}
	want := icmpObjects(targets)
	switch {
	case len(targets) == 0 && !installed:
		return false, nil
	case len(targets) == 0:
		if err := commit(ctx, remove); err != nil && !errors.Is(err, unix.ENOENT) {
			return false, fmt.Errorf("remove table inet %s: %w", ICMPTable, err)
		}
		log.InfoContext(ctx, "source of ICMP errors to remote pods removed", "table", ICMPTable)
		return true, nil
	case slices.EqualFunc(have, want, func(h []netlink.Attribute, w object) bool { return matches(h, w.attrs) }):
		return false, nil
	}
	// It is created before it is deleted: a deletion "if it exists" is not supported.
	if err := commit(ctx, append([]object{table, remove, table}, want...)...); err != nil {
		return false, fmt.Errorf("install table inet %s: %w", ICMPTable, err)
	}
	log.InfoContext(ctx, "source of ICMP errors to remote pods installed", "table", ICMPTable, "replaced", installed)
	return true, nil
}

// readICMP reads the chains and rules of the table, and whether it exists.
func readICMP(ctx context.Context) (objects [][]netlink.Attribute, installed bool, err error) {
	conn, err := dialFilter(ctx)
	if err != nil {
		return nil, false, err
	}
	defer conn.Close()
	for _, part := range []struct{ ask, table uint16 }{
		{unix.NFT_MSG_GETTABLE, unix.NFTA_TABLE_NAME}, {unix.NFT_MSG_GETCHAIN, unix.NFTA_CHAIN_TABLE}, {unix.NFT_MSG_GETRULE, unix.NFTA_RULE_TABLE},
	} {
		var filter []attr
		if part.ask == unix.NFT_MSG_GETRULE {
			filter = []attr{label(unix.NFTA_RULE_TABLE, ICMPTable)}
		}
		found, err := ask(conn, part.ask, filter...)
		if err != nil {
			return nil, false, err
		}
		for _, f := range found {
			switch ours := textOf(f, part.table) == ICMPTable; {
			case ours && part.ask == unix.NFT_MSG_GETTABLE:
				installed = true
			case ours:
				objects = append(objects, f)
			}
		}
	}
	return objects, installed, nil
}

// icmpObjects are the chain and its rules.
func icmpObjects(targets []ICMPTarget) []object {
	priority := int32(icmpPriority)
	objects := []object{{unix.NFT_MSG_NEWCHAIN, []attr{
		label(unix.NFTA_CHAIN_TABLE, ICMPTable), label(unix.NFTA_CHAIN_NAME, icmpChain), label(unix.NFTA_CHAIN_TYPE, "filter"),
		nest(unix.NFTA_CHAIN_HOOK,
			number(unix.NFTA_HOOK_HOOKNUM, unix.NF_INET_LOCAL_OUT), number(unix.NFTA_HOOK_PRIORITY, uint32(priority))),
		number(unix.NFTA_CHAIN_POLICY, verdictAccept),
	}}}
	for _, target := range targets {
		for _, subnet := range target.Subnets {
			for _, types := range icmpErrors(subnet) {
				objects = append(objects, icmpRule(target.Device, subnet.Masked(), types))
			}
		}
	}
	return objects
}

// icmpErrors are the first and last types of ICMP errors: destination unreachable, time
// exceeded and parameter problem (RFC 792), all below 128 (RFC 4443, section 2.1).
func icmpErrors(subnet netip.Prefix) [][2]byte {
	if subnet.Addr().Is4() {
		return [][2]byte{{3, 3}, {11, 12}}
	}
	return [][2]byte{{1, 127}}
}

// icmpRule is the rule for some types of errors. In nft(8) syntax, if that had names for the
// packet that an error is about:
//
//	oifname "wireguard.gcp" ip daddr 10.4.0.0/16 icmp type 11-12 ip saddr set @th,192,32
func icmpRule(device string, subnet netip.Prefix, types [2]byte) object {
	const (
		register   = unix.NFT_REG_1
		icmpHeader = 8
	)
	// RFC 791, section 3.1; RFC 8200, section 3.
	family, protocol, source, destination := byte(unix.NFPROTO_IPV6), byte(unix.IPPROTO_ICMPV6), uint32(8), uint32(24)
	checksum := []attr{number(unix.NFTA_PAYLOAD_CSUM_TYPE, unix.NFT_PAYLOAD_CSUM_NONE), number(unix.NFTA_PAYLOAD_CSUM_FLAGS, unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR)}
	if subnet.Addr().Is4() {
		family, protocol, source, destination = unix.NFPROTO_IPV4, unix.IPPROTO_ICMP, 12, 16
		checksum = []attr{number(unix.NFTA_PAYLOAD_CSUM_TYPE, unix.NFT_PAYLOAD_CSUM_INET), number(unix.NFTA_PAYLOAD_CSUM_OFFSET, 10)}
	}
	length := uint32(subnet.Addr().BitLen() / 8)
	meta := func(key uint32) attr {
		return expression("meta", number(unix.NFTA_META_KEY, key), number(unix.NFTA_META_DREG, register))
	}
	load := func(base, offset, length uint32) attr {
		return expression("payload", number(unix.NFTA_PAYLOAD_DREG, register), number(unix.NFTA_PAYLOAD_BASE, base),
			number(unix.NFTA_PAYLOAD_OFFSET, offset), number(unix.NFTA_PAYLOAD_LEN, length))
	}
	return object{unix.NFT_MSG_NEWRULE, []attr{
		label(unix.NFTA_RULE_TABLE, ICMPTable), label(unix.NFTA_RULE_CHAIN, icmpChain),
		nest(unix.NFTA_RULE_EXPRESSIONS,
			meta(unix.NFT_META_NFPROTO), compareTo(unix.NFT_CMP_EQ, []byte{family}),
			meta(unix.NFT_META_OIFNAME), compareTo(unix.NFT_CMP_EQ, linkName(device)),
			meta(unix.NFT_META_L4PROTO), compareTo(unix.NFT_CMP_EQ, []byte{protocol}),
			load(unix.NFT_PAYLOAD_NETWORK_HEADER, destination, length),
			expression("bitwise", number(unix.NFTA_BITWISE_SREG, register), number(unix.NFTA_BITWISE_DREG, register),
				number(unix.NFTA_BITWISE_LEN, length), data(unix.NFTA_BITWISE_MASK, net.CIDRMask(subnet.Bits(), subnet.Addr().BitLen())),
				data(unix.NFTA_BITWISE_XOR, make([]byte, length))),
			compareTo(unix.NFT_CMP_EQ, subnet.Addr().AsSlice()),
			load(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0, 1),
			compareTo(unix.NFT_CMP_GTE, types[:1]), compareTo(unix.NFT_CMP_LTE, types[1:]),
			load(unix.NFT_PAYLOAD_TRANSPORT_HEADER, icmpHeader+destination, length),
			expression("payload", append([]attr{
				number(unix.NFTA_PAYLOAD_SREG, register), number(unix.NFTA_PAYLOAD_BASE, unix.NFT_PAYLOAD_NETWORK_HEADER),
				number(unix.NFTA_PAYLOAD_OFFSET, source), number(unix.NFTA_PAYLOAD_LEN, length),
			}, checksum...)...),
		),
	}}
}
