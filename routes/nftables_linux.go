package routes

import (
	"bytes"
	"encoding/binary"
	"maps"
	"net/netip"
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

// chain is a chain of the table, with its rules.
type chain struct {
	name     string
	kind     string // of a base chain; empty: others jump to it
	hook     uint32
	priority int32
	rules    []object
}

// The chains of the table: for packets that arrive, see [Origin], and for packets that
// leave, see [Exit].
const (
	arrivalChain   = "prerouting"
	inputChain     = "input"
	forwardedChain = "forward"
	exitChain      = "postrouting"
	// Where the arrival, the input and the forward chain lead what comes through tunnels.
	controlChain     = "control"
	fromTunnelsChain = "from-tunnels"
	transitChain     = "transit"
)

// Priorities of the chains. Packets are dropped on arrival before connection tracking
// (-200), so that forged ones don't create entries there, and before the raw tables (-300),
// where other programs decide which packets are tracked. Forwarded packets are dropped
// before other programs' chains, which may hand a connection to a flow table that bypasses
// the chains from then on. Packets leave after all chains that change or reroute them (the
// last, for source addresses, is at 100) and before connection tracking confirms them.
const (
	earlyPriority = -310
	latePriority  = 310
)

// emptyChains returns our chains. Those that others jump to come last.
func emptyChains() []chain {
	return []chain{
		{name: arrivalChain, kind: "filter", hook: unix.NF_INET_PRE_ROUTING, priority: earlyPriority},
		{name: hairpinChain, kind: "nat", hook: unix.NF_INET_PRE_ROUTING, priority: hairpinPriority},
		{name: inputChain, kind: "filter", hook: unix.NF_INET_LOCAL_IN, priority: earlyPriority},
		{name: forwardedChain, kind: "filter", hook: unix.NF_INET_FORWARD, priority: earlyPriority},
		{name: exitChain, kind: "filter", hook: unix.NF_INET_POST_ROUTING, priority: latePriority},
		{name: toRealChain},
		{name: toVirtualChain},
		{name: controlChain},
		{name: fromTunnelsChain},
		{name: transitChain},
	}
}

// chainsOf returns the chains that enforce parts of a ruleset. Those without rules are left out.
func chainsOf(want Ruleset, with parts) []chain {
	var chains []chain
	for _, c := range emptyChains() {
		switch c.name {
		case arrivalChain:
			switch origins := claims(want.Origins); {
			case with.shared:
				c.rules = append(want.sharedRules(), want.claimed(c.name, origins)...)
			case with.sources:
				c.rules = want.claimed(c.name, slices.DeleteFunc(origins, want.shares))
			}
			c.rules = append(want.leading(c.name), c.rules...)
			if with.rewrite && len(want.Map) > 0 {
				c.rules = append(c.rules, jumps(c.name, want.Exits, toRealChain, unix.NFT_META_IIFNAME)...)
			}
		case inputChain:
			c.rules = want.leading(c.name)
		case controlChain:
			c.rules = want.control()
		case fromTunnelsChain:
			c.rules = want.closed()
		case transitChain:
			c.rules = want.transit()
		case hairpinChain:
			if with.hairpin {
				c.rules = want.hairpin()
			}
		case forwardedChain, exitChain:
			c.rules = slices.Concat(want.leading(c.name), want.claimed(c.name, claims(want.Exits)), want.untranslated(c.name))
			if c.name == exitChain && len(want.Map) > 0 {
				c.rules = append(c.rules, jumps(c.name, want.Exits, toVirtualChain, unix.NFT_META_OIFNAME)...)
			}
		case toRealChain:
			if with.rewrite {
				c.rules = want.toReal()
			}
		case toVirtualChain:
			c.rules = want.toVirtual(with.rewrite)
		}
		if len(c.rules) > 0 {
			chains = append(chains, c)
		}
	}
	return chains
}

// claimed returns the rules of a chain for claims.
func (r *Ruleset) claimed(chain string, claims []claim) (rules []object) {
	for _, c := range claims {
		rules = append(rules, r.rulesFor(chain, c)...)
	}
	return rules
}

func tableObject() object {
	return object{unix.NFT_MSG_NEWTABLE, []attr{label(unix.NFTA_TABLE_NAME, FilterTable), number(unix.NFTA_TABLE_FLAGS, 0)}}
}

// object is the message that creates the chain, without its rules.
func (c chain) object() object {
	attrs := []attr{label(unix.NFTA_CHAIN_TABLE, FilterTable), label(unix.NFTA_CHAIN_NAME, c.name)}
	if c.kind != "" {
		attrs = append(attrs, label(unix.NFTA_CHAIN_TYPE, c.kind),
			nest(unix.NFTA_CHAIN_HOOK, number(unix.NFTA_HOOK_HOOKNUM, c.hook), number(unix.NFTA_HOOK_PRIORITY, uint32(c.priority))),
			number(unix.NFTA_CHAIN_POLICY, verdictAccept))
	}
	return object{unix.NFT_MSG_NEWCHAIN, attrs}
}

// is reports whether a chain that was read is this one.
func (c chain) is(have []netlink.Attribute) bool {
	return matches(have, c.object().attrs) && (c.kind == "") == (find(have, unix.NFTA_CHAIN_HOOK) == nil)
}

// flush is the message that removes the rules of the chain.
func (c chain) flush() object {
	return object{unix.NFT_MSG_DELRULE, []attr{label(unix.NFTA_RULE_TABLE, FilterTable), label(unix.NFTA_RULE_CHAIN, c.name)}}
}

// remove is the message that removes the chain, which has no rules.
func (c chain) remove() object {
	return object{unix.NFT_MSG_DELCHAIN, []attr{label(unix.NFTA_CHAIN_TABLE, FilterTable), label(unix.NFTA_CHAIN_NAME, c.name)}}
}

// Verdicts (include/uapi/linux/netfilter.h).
const (
	verdictDrop   = 0
	verdictAccept = 1
	verdictJump   = 1<<32 + unix.NFT_JUMP // in nf_tables.h, as a number of 32 bits
)

// rulesFor returns the rules of a chain for a claim. The last one drops packets.
func (r *Ruleset) rulesFor(chain string, c claim) []object {
	switch chain {
	case arrivalChain:
		return []object{ruleObject(arrivalChain, sourceIn(c.subnet), notThrough(unix.NFT_META_IIFNAME, c.device), counted(verdictDrop))}
	case exitChain:
		rules := exitRules(chain, c, r.Mark)
		if r.shares(c) && c.subnet.Addr().Is6() {
			rules = slices.Insert(rules, 0, ruleObject(chain, destinationIn(c.subnet), neighbourDiscovery(), verdict(verdictAccept)))
		}
		return rules
	}
	return exitRules(chain, c, 0)
}

// leading returns the rules at the beginning of a chain, which none of the others needs: they lead what
// comes through tunnels to a chain of its own, and drop what comes through devices that go.
func (r *Ruleset) leading(chain string) []object {
	to, leads := map[string]string{arrivalChain: controlChain, inputChain: fromTunnelsChain, forwardedChain: transitChain}[chain]
	if !leads {
		return nil
	}
	rules := jumps(chain, r.tunnels(), to, unix.NFT_META_IIFNAME)
	if chain == arrivalChain {
		for _, device := range r.Gone {
			rules = append(rules, ruleObject(chain, through(unix.NFT_META_IIFNAME, device), counted(verdictDrop)))
		}
	}
	return rules
}

// tunnels returns the exits through devices that are used.
func (r *Ruleset) tunnels() []Exit {
	return slices.DeleteFunc(slices.Clone(r.Exits), func(e Exit) bool { return r.Ports[e.Device] == 0 })
}

// control returns the rules for what a peer could change this host's view of the network with. Packets of
// peers' link-local addresses are for probes only. A router advertisement, solicitation or redirect
// would change this host's routes and addresses, also those of other remotes (RFC 4861, sections 4.1,
// 4.2 and 4.5), and all else would reach the host past rules for the remote's subnets. In nft(8) syntax:
//
//	icmpv6 type 133-134 counter drop
//	icmpv6 type 137 counter drop
//	ip6 saddr fe80::/10 meta l4proto != { ipv6-icmp, udp } counter drop
//	ip6 saddr fe80::/10 udp dport != 9 counter drop
func (r *Ruleset) control() (rules []object) {
	tunnels := r.tunnels()
	if len(tunnels) == 0 {
		return nil
	}
	for _, types := range [][2]byte{{133, 134}, {137, 137}} {
		rules = append(rules, ruleObject(controlChain, typeOf(unix.IPPROTO_ICMPV6, types), counted(verdictDrop)))
	}
	rules = append(rules,
		ruleObject(controlChain, sourceIn(linkLocal), []attr{
			loadProtocol(), compareTo(unix.NFT_CMP_NEQ, []byte{unix.IPPROTO_ICMPV6}), compareTo(unix.NFT_CMP_NEQ, []byte{unix.IPPROTO_UDP}),
		}, counted(verdictDrop)),
		ruleObject(controlChain, sourceIn(linkLocal), protocolUDP(), comparePort(unix.NFT_CMP_NEQ, probePort), counted(verdictDrop)))
	for _, e := range tunnels {
		rules = append(rules, errorRules(e)...)
	}
	return rules
}

// errorRules drop ICMP errors about packets that were not sent into the tunnel: a peer would shorten
// the path MTU of this host to another remote, or to an API server. In nft(8) syntax, if that had
// names for the packet that an error is about:
//
//	iifname "wireguard.gcp" icmp type 3-5 @th,192,32 & 255.255.0.0 != 10.4.0.0 counter drop
//	iifname "wireguard.gcp" icmpv6 type 1-4 @th,256,128 != { fd04::/48, fe80::/10 } counter drop
func errorRules(e Exit) (rules []object) {
	for _, family := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		var about []attr
		for _, s := range append(slices.Clone(e.Subnets), linkLocal) {
			if s.Addr().Is4() == family.Is4() {
				about = append(about, inner(family, destination4, destination6).compare(unix.NFT_CMP_NEQ, s.Masked())...)
			}
		}
		protocol, types := icmpOf(family)
		for _, t := range types {
			rules = append(rules, ruleObject(controlChain, through(unix.NFT_META_IIFNAME, e.Device), protocolOf(family), typeOf(protocol, t), about, counted(verdictDrop)))
		}
	}
	return rules
}

// icmpOf returns a family's protocol of ICMP, and the first and last types of errors about packets
// that were sent (RFC 792; RFC 4443).
func icmpOf(family netip.Addr) (protocol byte, types [][2]byte) {
	if family.Is4() {
		return unix.IPPROTO_ICMP, [][2]byte{{3, 5}, {11, 12}}
	}
	return unix.IPPROTO_ICMPV6, [][2]byte{{1, 4}}
}

// transit returns the rules that drop what one remote sends to another: with an address of this node, by
// masquerading of a Service's clients, the other one's nodes would accept it. In nft(8) syntax:
//
//	oifname "wireguard.merit" iifname != "wireguard.merit" counter drop
func (r *Ruleset) transit() (rules []object) {
	for _, e := range r.tunnels() {
		rules = append(rules, ruleObject(transitChain, through(unix.NFT_META_OIFNAME, e.Device), []attr{
			expression("meta", number(unix.NFTA_META_KEY, unix.NFT_META_IIFNAME), number(unix.NFTA_META_DREG, unix.NFT_REG_1)),
			compareTo(unix.NFT_CMP_NEQ, linkName(e.Device)),
		}, counted(verdictDrop)))
	}
	return rules
}

// closed returns the rules for what remotes send to this host itself. Packets inside of tunnels of
// network plugins would arrive once more, from any address that the sender likes; WireGuard's own
// ports and the closed ones are for the underlay and for this cluster. In nft(8) syntax:
//
//	udp dport 4789 counter drop
//	meta l4proto 4 counter drop
//	tcp dport 7773 counter drop
func (r *Ruleset) closed() (rules []object) {
	if len(r.tunnels()) == 0 {
		return nil
	}
	udp := append([]int{4789, 8472, 6081}, slices.Sorted(maps.Values(r.Ports))...) // VXLAN, Linux' older port of it, Geneve
	for _, port := range udp {
		rules = append(rules, ruleObject(fromTunnelsChain, protocolUDP(), comparePort(unix.NFT_CMP_EQ, port), counted(verdictDrop)))
	}
	for _, protocol := range []byte{unix.IPPROTO_IPIP, unix.IPPROTO_IPV6, unix.IPPROTO_GRE} {
		rules = append(rules, ruleObject(fromTunnelsChain, isProtocol(protocol), counted(verdictDrop)))
	}
	if r.Status != 0 {
		rules = append(rules, ruleObject(fromTunnelsChain, isProtocol(unix.IPPROTO_TCP), comparePort(unix.NFT_CMP_EQ, r.Status), counted(verdictDrop)))
	}
	return rules
}

// through matches packets whose link, by the given key, is the device.
func through(key uint32, device string) []attr {
	return []attr{
		expression("meta", number(unix.NFTA_META_KEY, key), number(unix.NFTA_META_DREG, unix.NFT_REG_1)),
		compareTo(unix.NFT_CMP_EQ, linkName(device)),
	}
}

// probePort is that of probes by UDP, see package tunnel.
const probePort = 9

var linkLocal = netip.MustParsePrefix("fe80::/10") // RFC 4291, section 2.5.6

// sharedRules returns the rules for packets of nodes inside pod subnets: encrypted ones to
// this host, and IPv6 neighbour discovery on their links (RFC 4861, section 7.1: a router
// that forwards changes the hop limit of 255). The rules of the chain that follow drop other
// packets with a source in a subnet that arrived through another device. In nft(8) syntax:
//
//	ip saddr 10.4.0.0/16 udp dport 51820 fib daddr type local meta mark set 0x1073 accept
//	ip6 saddr fd04::/48 icmpv6 type 135-136 ip6 hoplimit 255 fib daddr type local accept
//	ip6 saddr fd04::/48 icmpv6 type 135-136 ip6 hoplimit 255 fib daddr type multicast accept
//	ip saddr 10.4.0.0/16 iifname != "wireguard.gcp" iifname != "lo" counter drop
//
// There are rules for each subnet instead of a map of all, because the rules of a chain are
// replaced atomically, and the elements of a map are not. Where packets to the source would be
// routed doesn't count: other programs flush routes and rules.
func (r *Ruleset) sharedRules() (rules []object) {
	if r.Mark == 0 {
		return nil
	}
	for _, c := range claims(r.Shared) {
		if port := r.Ports[c.device]; port != 0 {
			rules = append(rules, ruleObject(arrivalChain, sourceIn(c.subnet), protocolUDP(), comparePort(unix.NFT_CMP_EQ, port), toAddressType(unix.RTN_LOCAL), []attr{
				expression("immediate", number(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_1), data(unix.NFTA_IMMEDIATE_DATA, host(r.Mark))),
				expression("meta", number(unix.NFTA_META_KEY, unix.NFT_META_MARK), number(unix.NFTA_META_SREG, unix.NFT_REG_1)),
			}, verdict(verdictAccept)))
		}
		if c.subnet.Addr().Is6() {
			for _, addressType := range []uint32{unix.RTN_LOCAL, unix.RTN_MULTICAST} {
				rules = append(rules, ruleObject(arrivalChain, sourceIn(c.subnet), neighbourDiscovery(), toAddressType(addressType), verdict(verdictAccept)))
			}
		}
	}
	return rules
}

// neighbourDiscovery matches neighbour solicitations and advertisements that no router has
// forwarded (RFC 4861, sections 4.3, 4.4 and 7.1).
func neighbourDiscovery() []attr {
	return append(typeOf(unix.IPPROTO_ICMPV6, [2]byte{135, 136}), byteAt(unix.NFT_PAYLOAD_NETWORK_HEADER, 7), compareTo(unix.NFT_CMP_EQ, []byte{255}))
}

// typeOf matches messages of ICMP or ICMPv6 by their types, first and last (RFC 792; RFC 4443, section
// 2.1).
func typeOf(protocol byte, types [2]byte) []attr {
	return append(isProtocol(protocol), byteAt(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0),
		compareTo(unix.NFT_CMP_GTE, types[:1]), compareTo(unix.NFT_CMP_LTE, types[1:]))
}

func byteAt(base, offset uint32) attr {
	return expression("payload", number(unix.NFTA_PAYLOAD_DREG, unix.NFT_REG_1), number(unix.NFTA_PAYLOAD_BASE, base),
		number(unix.NFTA_PAYLOAD_OFFSET, offset), number(unix.NFTA_PAYLOAD_LEN, 1))
}

// exitRules returns the rules of a chain that drop packets to a subnet that leave through
// another device than the remote's, or through any for a remote without one. Packets to
// the host itself leave through lo. Where packets of this host leave, encrypted ones are
// accepted, also to nodes of another remote in a subnet of a removed one, unless they would enter
// the device that they come from. Their source port isn't
// compared: it may have been translated. In nft(8) syntax:
//
//	ip daddr 10.4.0.0/16 meta l4proto udp meta mark & 0x1073 == 0x1073 oifname "wireguard.gcp" drop
//	ip daddr 10.4.0.0/16 meta l4proto udp meta mark & 0x1073 == 0x1073 accept
//	ip daddr 10.4.0.0/16 oifname != "wireguard.gcp" oifname != "lo" counter drop
func exitRules(chain string, c claim, mark uint32) []object {
	drop := ruleObject(chain, destinationIn(c.subnet), notThrough(unix.NFT_META_OIFNAME, c.device), counted(verdictDrop))
	if mark == 0 {
		return []object{drop}
	}
	encrypted := slices.Concat(destinationIn(c.subnet), protocolUDP(),
		[]attr{expression("meta", number(unix.NFTA_META_KEY, unix.NFT_META_MARK), number(unix.NFTA_META_DREG, unix.NFT_REG_1))},
		masked(host(mark), unix.NFT_CMP_EQ, host(mark)))
	pass := ruleObject(chain, encrypted, verdict(verdictAccept))
	if c.device == "" {
		return []object{pass, drop}
	}
	return []object{ruleObject(chain, encrypted, through(unix.NFT_META_OIFNAME, c.device), verdict(verdictDrop)), pass, drop}
}

// host returns a number as nf_tables holds marks and types: in the order of the host.
func host(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// toAddressType matches packets whose destination is an address of a type, of a route: one of this
// host, or multicast.
func toAddressType(addressType uint32) []attr {
	return []attr{
		expression("fib", number(unix.NFTA_FIB_DREG, unix.NFT_REG_1), number(unix.NFTA_FIB_RESULT, unix.NFT_FIB_RESULT_ADDRTYPE), number(unix.NFTA_FIB_FLAGS, unix.NFTA_FIB_F_DADDR)),
		compareTo(unix.NFT_CMP_EQ, host(addressType)),
	}
}

func protocolUDP() []attr { return isProtocol(unix.IPPROTO_UDP) }

func isProtocol(protocol byte) []attr {
	return []attr{loadProtocol(), compareTo(unix.NFT_CMP_EQ, []byte{protocol})}
}

func loadProtocol() attr {
	return expression("meta", number(unix.NFTA_META_KEY, unix.NFT_META_L4PROTO), number(unix.NFTA_META_DREG, unix.NFT_REG_1))
}

// comparePort compares the destination port of UDP or TCP packets (RFC 768; RFC 9293, section 3.1).
func comparePort(operator uint32, port int) []attr {
	return []attr{
		expression("payload", number(unix.NFTA_PAYLOAD_DREG, unix.NFT_REG_1),
			number(unix.NFTA_PAYLOAD_BASE, unix.NFT_PAYLOAD_TRANSPORT_HEADER),
			number(unix.NFTA_PAYLOAD_OFFSET, 2), number(unix.NFTA_PAYLOAD_LEN, 2)),
		compareTo(operator, binary.BigEndian.AppendUint16(nil, uint16(port))),
	}
}

// verdict ends the chain for a packet.
func verdict(code uint32) []attr {
	return []attr{expression("immediate", number(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT),
		nest(unix.NFTA_IMMEDIATE_DATA, nest(unix.NFTA_DATA_VERDICT, number(unix.NFTA_VERDICT_CODE, code))))}
}

// counted counts a packet before the verdict.
func counted(code uint32) []attr { return append([]attr{expression("counter")}, verdict(code)...) }

// ruleObject is the rule of a chain with these expressions.
func ruleObject(chain string, expressions ...[]attr) object {
	return object{unix.NFT_MSG_NEWRULE, []attr{
		label(unix.NFTA_RULE_TABLE, FilterTable), label(unix.NFTA_RULE_CHAIN, chain),
		nest(unix.NFTA_RULE_EXPRESSIONS, slices.Concat(expressions...)...),
	}}
}

func sourceIn(subnet netip.Prefix) []attr      { return addressIn(subnet, source4, source6) }
func destinationIn(subnet netip.Prefix) []attr { return addressIn(subnet, destination4, destination6) }

// addressIn matches packets whose address at an offset is in the subnet.
func addressIn(subnet netip.Prefix, offset4, offset6 uint32) []attr {
	return append(protocolOf(subnet.Addr()), outer(subnet.Addr(), offset4, offset6).in(subnet)...)
}

// protocolOf matches packets of an address's family.
func protocolOf(a netip.Addr) []attr {
	family := byte(unix.NFPROTO_IPV6)
	if a.Is4() {
		family = unix.NFPROTO_IPV4
	}
	return []attr{
		expression("meta", number(unix.NFTA_META_KEY, unix.NFT_META_NFPROTO), number(unix.NFTA_META_DREG, unix.NFT_REG_1)),
		compareTo(unix.NFT_CMP_EQ, []byte{family}),
	}
}

// masked compares the bits of the mask in the register with a value.
func masked(mask []byte, operator uint32, value []byte) []attr {
	const register = unix.NFT_REG_1
	return []attr{
		expression("bitwise", number(unix.NFTA_BITWISE_SREG, register), number(unix.NFTA_BITWISE_DREG, register),
			number(unix.NFTA_BITWISE_LEN, uint32(len(mask))), data(unix.NFTA_BITWISE_MASK, mask),
			data(unix.NFTA_BITWISE_XOR, make([]byte, len(mask)))),
		compareTo(operator, value),
	}
}

// notThrough matches packets whose link, by the given key, is neither the device nor the
// loopback; with an empty name, just not the loopback.
func notThrough(key uint32, device string) []attr {
	conditions := []attr{
		expression("meta", number(unix.NFTA_META_KEY, key), number(unix.NFTA_META_DREG, unix.NFT_REG_1)),
		compareTo(unix.NFT_CMP_NEQ, linkName("lo")),
	}
	if device != "" {
		conditions = slices.Insert(conditions, 1, compareTo(unix.NFT_CMP_NEQ, linkName(device)))
	}
	return conditions
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
