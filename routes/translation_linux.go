package routes

import (
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// The chains that translate addresses of this cluster's pods: toReal those of packets that
// arrive from remotes, toVirtual those of packets that leave to remotes. Others jump there, as
// only packets of tunnels are compared with the mappings. The chain hairpinChain redirects
// packets of this cluster's pods to virtual addresses of its own.
const (
	toRealChain    = "to-real"
	toVirtualChain = "to-virtual"
	hairpinChain   = "hairpin"
)

// hairpinPriority is before kube-proxy's and network plugins' destination NAT (-100): they must see
// the address of a pod.
const hairpinPriority = -110

// rewritten is where an address stands in packets, and which checksums cover it.
type rewritten struct {
	base, offset uint32
	checksum     []attr
}

// Offsets of addresses in headers of IP (RFC 791, section 3.1; RFC 8200, section 3), and of what
// an ICMP error is about (RFC 792; RFC 4443).
const (
	source4, destination4 = 12, 16
	source6, destination6 = 8, 24
	checksum4             = 10
	checksumICMP          = 2
	icmpHeader            = 8
)

// outer is an address of the packet itself.
func outer(family netip.Addr, offset4, offset6 uint32) rewritten {
	pseudo := number(unix.NFTA_PAYLOAD_CSUM_FLAGS, unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR)
	if family.Is4() {
		return rewritten{unix.NFT_PAYLOAD_NETWORK_HEADER, offset4, []attr{
			number(unix.NFTA_PAYLOAD_CSUM_TYPE, unix.NFT_PAYLOAD_CSUM_INET), number(unix.NFTA_PAYLOAD_CSUM_OFFSET, checksum4), pseudo}}
	}
	return rewritten{unix.NFT_PAYLOAD_NETWORK_HEADER, offset6, []attr{number(unix.NFTA_PAYLOAD_CSUM_TYPE, unix.NFT_PAYLOAD_CSUM_NONE), pseudo}}
}

// inner is an address of the packet that an ICMP error is about. A change of an IPv4 address and
// of the checksum of its header cancel each other out in that of ICMP; IPv6 has none.
func inner(family netip.Addr, offset4, offset6 uint32) rewritten {
	checksum, offset := uint32(checksumICMP), icmpHeader+offset6
	if family.Is4() {
		checksum, offset = icmpHeader+checksum4, icmpHeader+offset4
	}
	return rewritten{unix.NFT_PAYLOAD_TRANSPORT_HEADER, offset, []attr{
		number(unix.NFTA_PAYLOAD_CSUM_TYPE, unix.NFT_PAYLOAD_CSUM_INET), number(unix.NFTA_PAYLOAD_CSUM_OFFSET, checksum)}}
}

// in matches packets whose address is in the subnet. It leaves the address in the register.
func (w rewritten) in(subnet netip.Prefix) []attr { return w.compare(unix.NFT_CMP_EQ, subnet) }

// compare compares the network of the address with a subnet.
func (w rewritten) compare(operator uint32, subnet netip.Prefix) []attr {
	length := subnet.Addr().BitLen() / 8
	return append(w.load(length), masked(net.CIDRMask(subnet.Bits(), 8*length), operator, subnet.Addr().AsSlice())...)
}

func (w rewritten) load(length int) []attr {
	return []attr{expression("payload", number(unix.NFTA_PAYLOAD_DREG, unix.NFT_REG_1), number(unix.NFTA_PAYLOAD_BASE, w.base),
		number(unix.NFTA_PAYLOAD_OFFSET, w.offset), number(unix.NFTA_PAYLOAD_LEN, uint32(length)))}
}

// move replaces the leading bits of the address by those of a subnet.
func (w rewritten) move(to netip.Prefix) []attr {
	length := to.Addr().BitLen() / 8
	host := net.CIDRMask(to.Bits(), 8*length)
	for i := range host {
		host[i] = ^host[i]
	}
	return append(w.load(length),
		expression("bitwise", number(unix.NFTA_BITWISE_SREG, unix.NFT_REG_1), number(unix.NFTA_BITWISE_DREG, unix.NFT_REG_1),
			number(unix.NFTA_BITWISE_LEN, uint32(length)), data(unix.NFTA_BITWISE_MASK, host), data(unix.NFTA_BITWISE_XOR, to.Addr().AsSlice())),
		expression("payload", append([]attr{
			number(unix.NFTA_PAYLOAD_SREG, unix.NFT_REG_1), number(unix.NFTA_PAYLOAD_BASE, w.base),
			number(unix.NFTA_PAYLOAD_OFFSET, w.offset), number(unix.NFTA_PAYLOAD_LEN, uint32(length)),
		}, w.checksum...)...))
}

// toReal returns the rules for packets that arrive. In nft(8) syntax, if that had names for the
// packet that an error is about:
//
//	ip daddr 10.201.0.0/16 ip daddr set ip daddr & 0.0.255.255 ^ 10.0.0.0
//	icmp type 3-4 @th,160,32 & 255.255.0.0 == 10.201.0.0 @th,160,32 set @th,160,32 & 0.0.255.255 ^ 10.0.0.0
func (r *Ruleset) toReal() (rules []object) {
	for _, m := range r.Map {
		rules = append(rules, translate(toRealChain, m.Virtual, m.Real, destination4, destination6, source4, source6)...)
	}
	return rules
}

// toVirtual returns the rules for packets that leave. The last ones drop what could not be
// translated.
func (r *Ruleset) toVirtual(rewrite bool) (rules []object) {
	for _, m := range r.Map {
		if rewrite {
			rules = append(rules, translate(toVirtualChain, m.Real, m.Virtual, source4, source6, destination4, destination6)...)
		}
	}
	for _, m := range r.Map {
		rules = append(rules, ruleObject(toVirtualChain, sourceIn(m.Real), counted(verdictDrop)))
	}
	return rules
}

// translate moves an address of packets from one subnet to another, and an address of the packets
// that ICMP errors are about.
func translate(chain string, from, to netip.Prefix, offset4, offset6, inner4, inner6 uint32) []object {
	family := from.Addr()
	protocol, types := icmpOf(family)
	whole, quoted := outer(family, offset4, offset6), inner(family, inner4, inner6)
	rules := []object{ruleObject(chain, protocolOf(family), whole.in(from), whole.move(to))}
	for _, t := range types {
		rules = append(rules, ruleObject(chain, protocolOf(family), typeOf(protocol, t), quoted.in(from), quoted.move(to)))
	}
	return rules
}

// hairpin returns the rules for packets of this cluster's pods to virtual addresses of its own.
// In nft(8) syntax:
//
//	ip saddr 10.0.0.0/16 ip daddr 10.201.0.0/16 dnat ip prefix to 10.0.0.0/16
func (r *Ruleset) hairpin() (rules []object) {
	const netmap = 1<<6 | 1 // NF_NAT_RANGE_NETMAP and NF_NAT_RANGE_MAP_IPS in linux/netfilter/nf_nat.h
	for _, to := range r.Map {
		family := byte(unix.NFPROTO_IPV6)
		if to.Real.Addr().Is4() {
			family = unix.NFPROTO_IPV4
		}
		for _, from := range r.Map {
			if from.Real.Addr().Is4() != to.Real.Addr().Is4() {
				continue
			}
			rules = append(rules, ruleObject(hairpinChain, sourceIn(from.Real), destinationIn(to.Virtual), []attr{
				expression("immediate", number(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_1), data(unix.NFTA_IMMEDIATE_DATA, to.Real.Addr().AsSlice())),
				expression("immediate", number(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_2), data(unix.NFTA_IMMEDIATE_DATA, lastOf(to.Real).AsSlice())),
				expression("nat", number(unix.NFTA_NAT_TYPE, unix.NFT_NAT_DNAT), number(unix.NFTA_NAT_FAMILY, uint32(family)),
					number(unix.NFTA_NAT_REG_ADDR_MIN, unix.NFT_REG_1), number(unix.NFTA_NAT_REG_ADDR_MAX, unix.NFT_REG_2),
					number(unix.NFTA_NAT_FLAGS, netmap)),
			}))
		}
	}
	return rules
}

// lastOf returns the last address of a prefix.
func lastOf(p netip.Prefix) netip.Addr {
	last := p.Addr().AsSlice()
	for bit := p.Bits(); bit < 8*len(last); bit++ {
		last[bit/8] |= 0x80 >> (bit % 8)
	}
	addr, _ := netip.AddrFromSlice(last)
	return addr
}

// jumps returns the rules of a chain that lead packets of tunnels, by the given key, to another one.
func jumps(chain string, tunnels []Exit, to string, key uint32) (rules []object) {
	for _, e := range tunnels {
		if e.Device == "" {
			continue
		}
		rules = append(rules, ruleObject(chain,
			through(key, e.Device),
			[]attr{expression("immediate", number(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT), nest(unix.NFTA_IMMEDIATE_DATA,
				nest(unix.NFTA_DATA_VERDICT, number(unix.NFTA_VERDICT_CODE, verdictJump), label(unix.NFTA_VERDICT_CHAIN, to))))}))
	}
	return rules
}

// untranslated returns the rules of a chain that drop packets to virtual addresses of this
// cluster.
func (r *Ruleset) untranslated(chain string) (rules []object) {
	for _, m := range r.Map {
		rules = append(rules, ruleObject(chain, destinationIn(m.Virtual), notThrough(unix.NFT_META_OIFNAME, ""), counted(verdictDrop)))
	}
	return rules
}
