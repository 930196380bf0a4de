package routes

import (
	"bytes"
	"encoding/binary"
	"net"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// attr is an attribute of a message to or from nf_tables (see
// include/uapi/linux/netfilter/nf_tables.h), with numbers in network order. It has a value
// or children.
type attr struct {
	kind     uint16
	value    []byte
	children []attr
}

func label(kind uint16, s string) attr { return attr{kind: kind, value: append([]byte(s), 0)} }

func number(kind uint16, n uint32) attr {
	return attr{kind: kind, value: binary.BigEndian.AppendUint32(nil, n)}
}

func nest(kind uint16, children ...attr) attr { return attr{kind: kind, children: children} }

// encode returns the attributes in wire format.
func encode(attrs []attr) ([]byte, error) {
	list := make([]netlink.Attribute, len(attrs))
	for i, a := range attrs {
		list[i] = netlink.Attribute{Type: a.kind, Data: a.value}
		if a.children != nil {
			inner, err := encode(a.children)
			if err != nil {
				return nil, err
			}
			list[i] = netlink.Attribute{Type: a.kind | unix.NLA_F_NESTED, Data: inner}
		}
	}
	return netlink.MarshalAttributes(list)
}

// matches reports whether have, read from the kernel, matches the requested attributes. The
// kernel adds attributes, such as handles and counts; requested ones have the same value,
// and lists the same order.
func matches(have []netlink.Attribute, want []attr) bool {
	for _, w := range want {
		wanted := ofKind(want, func(a attr) bool { return a.kind == w.kind })
		shown := ofKind(have, func(a netlink.Attribute) bool { return kindOf(a) == w.kind })
		if len(wanted) != len(shown) {
			return false
		}
		for i := range wanted {
			if !matchesOne(shown[i], wanted[i]) {
				return false
			}
		}
	}
	return true
}

func matchesOne(have netlink.Attribute, want attr) bool {
	if want.children == nil {
		return bytes.Equal(have.Data, want.value)
	}
	inner, err := netlink.UnmarshalAttributes(have.Data)
	return err == nil && matches(inner, want.children)
}

func ofKind[T any](attrs []T, is func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(attrs), func(a T) bool { return !is(a) })
}

// kindOf strips the flags in an attribute's type (netlink(7)).
func kindOf(a netlink.Attribute) uint16 {
	return a.Type &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
}

// find returns the value of the first attribute of a kind; nil: none.
func find(attrs []netlink.Attribute, kind uint16) []byte {
	for _, a := range attrs {
		if kindOf(a) == kind {
			return a.Data
		}
	}
	return nil
}

// object is a table, chain or rule: the message that creates it, whose attributes the
// kernel also returns.
type object struct {
	message uint16
	attrs   []attr
}

// filterChain is the only chain of the table.
const filterChain = "prerouting"

// filterPriority is before connection tracking (-200), so that forged packets don't create
// entries there, and before the raw tables (-300), where other programs decide which
// packets are tracked.
const filterPriority = -310

func tableObject() object {
	return object{unix.NFT_MSG_NEWTABLE, []attr{label(unix.NFTA_TABLE_NAME, FilterTable), number(unix.NFTA_TABLE_FLAGS, 0)}}
}

func chainObject() object {
	priority := int32(filterPriority)
	return object{unix.NFT_MSG_NEWCHAIN, []attr{
		label(unix.NFTA_CHAIN_TABLE, FilterTable), label(unix.NFTA_CHAIN_NAME, filterChain), label(unix.NFTA_CHAIN_TYPE, "filter"),
		nest(unix.NFTA_CHAIN_HOOK,
			number(unix.NFTA_HOOK_HOOKNUM, unix.NF_INET_PRE_ROUTING), number(unix.NFTA_HOOK_PRIORITY, uint32(priority))),
		number(unix.NFTA_CHAIN_POLICY, verdictAccept),
	}}
}

// Verdicts (include/uapi/linux/netfilter.h).
const (
	verdictDrop   = 0
	verdictAccept = 1
)

// ruleObject is the rule that drops packets with a source in the subnet that arrived
// through another device. In nft(8) syntax:
//
//	ip saddr 10.4.0.0/16 iifname != "wireguard.gcp" iifname != "lo" fib saddr . iif oif 0 counter drop
//
// There is one rule per subnet instead of a map of all, because the rules of a chain are
// replaced atomically, and the elements of a map are not.
//
// The condition fib matches when packets to the source would not leave through the link by
// which this one arrived. That always holds for a forged one, since the source is routed
// to the device, the guard or the policy rule.
func ruleObject(c claim) object {
	family, offset := byte(unix.NFPROTO_IPV6), uint32(8) // RFC 8200, section 3
	if c.subnet.Addr().Is4() {
		family, offset = unix.NFPROTO_IPV4, 12 // RFC 791, section 3.1
	}
	length := uint32(c.subnet.Addr().BitLen() / 8)
	const register = unix.NFT_REG_1
	return object{unix.NFT_MSG_NEWRULE, []attr{
		label(unix.NFTA_RULE_TABLE, FilterTable), label(unix.NFTA_RULE_CHAIN, filterChain),
		nest(unix.NFTA_RULE_EXPRESSIONS,
			expression("meta", number(unix.NFTA_META_KEY, unix.NFT_META_NFPROTO), number(unix.NFTA_META_DREG, register)),
			compareTo(unix.NFT_CMP_EQ, []byte{family}),
			expression("payload", number(unix.NFTA_PAYLOAD_DREG, register),
				number(unix.NFTA_PAYLOAD_BASE, unix.NFT_PAYLOAD_NETWORK_HEADER),
				number(unix.NFTA_PAYLOAD_OFFSET, offset), number(unix.NFTA_PAYLOAD_LEN, length)),
			expression("bitwise", number(unix.NFTA_BITWISE_SREG, register), number(unix.NFTA_BITWISE_DREG, register),
				number(unix.NFTA_BITWISE_LEN, length), data(unix.NFTA_BITWISE_MASK, net.CIDRMask(c.subnet.Bits(), c.subnet.Addr().BitLen())),
				data(unix.NFTA_BITWISE_XOR, make([]byte, length))),
			compareTo(unix.NFT_CMP_EQ, c.subnet.Addr().AsSlice()),
			expression("meta", number(unix.NFTA_META_KEY, unix.NFT_META_IIFNAME), number(unix.NFTA_META_DREG, register)),
			compareTo(unix.NFT_CMP_NEQ, linkName(c.device)),
			compareTo(unix.NFT_CMP_NEQ, linkName("lo")),
			expression("fib", number(unix.NFTA_FIB_DREG, register), number(unix.NFTA_FIB_RESULT, unix.NFT_FIB_RESULT_OIF),
				number(unix.NFTA_FIB_FLAGS, unix.NFTA_FIB_F_SADDR|unix.NFTA_FIB_F_IIF)),
			compareTo(unix.NFT_CMP_EQ, make([]byte, 4)),
			expression("counter"),
			expression("immediate", number(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT),
				nest(unix.NFTA_IMMEDIATE_DATA, nest(unix.NFTA_DATA_VERDICT, number(unix.NFTA_VERDICT_CODE, verdictDrop)))),
		),
	}}
}

func expression(name string, parameters ...attr) attr {
	e := nest(unix.NFTA_LIST_ELEM, label(unix.NFTA_EXPR_NAME, name))
	if len(parameters) > 0 {
		e.children = append(e.children, nest(unix.NFTA_EXPR_DATA, parameters...))
	}
	return e
}

func compareTo(operator uint32, value []byte) attr {
	return expression("cmp", number(unix.NFTA_CMP_SREG, unix.NFT_REG_1), number(unix.NFTA_CMP_OP, operator), data(unix.NFTA_CMP_DATA, value))
}

func data(kind uint16, value []byte) attr {
	return nest(kind, attr{kind: unix.NFTA_DATA_VALUE, value: value})
}

// linkName pads a name like the kernel.
func linkName(name string) []byte {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return padded
}
