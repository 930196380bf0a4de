package routes

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"unsafe"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// forwardChains returns the chains of nf_tables and of legacy iptables that all forwarded
// packets pass; none where the kernel has neither. It loads no module.
func forwardChains(ctx context.Context) ([]forwardChain, error) {
	chains, err := nftForwardChains(ctx)
	if errors.Is(err, ErrNoFilter) {
		err = nil
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		legacy, present, legacyErr := legacyForwardChain(family)
		if present && legacyErr == nil {
			chains = append(chains, legacy)
		}
		err = errors.Join(err, legacyErr)
	}
	return chains, err
}

// nftFamilies are the families of tables whose chains packets pass that are routed.
var nftFamilies = map[byte]string{unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_INET: "inet"}

func nftForwardChains(ctx context.Context) ([]forwardChain, error) {
	conn, err := dialFilter(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	answers, err := dumpNFT(conn, unix.NFPROTO_UNSPEC, unix.NFT_MSG_GETCHAIN)
	if err != nil {
		return nil, err
	}
	var chains []forwardChain
	for _, answer := range answers {
		family, counts := nftFamilies[answer.family]
		if !counts || !atForwardHook(answer.attrs) {
			continue
		}
		table, name := textOf(answer.attrs, unix.NFTA_CHAIN_TABLE), textOf(answer.attrs, unix.NFTA_CHAIN_NAME)
		chain := forwardChain{
			text: fmt.Sprintf("nft chain %s %s %s", family, table, name),
			four: answer.family != unix.NFPROTO_IPV6, six: answer.family != unix.NFPROTO_IPV4,
		}
		if policy := find(answer.attrs, unix.NFTA_CHAIN_POLICY); len(policy) == 4 {
			chain.denies = binary.BigEndian.Uint32(policy) == verdictDrop
		}
		rules, err := dumpNFT(conn, answer.family, unix.NFT_MSG_GETRULE, label(unix.NFTA_RULE_TABLE, table), label(unix.NFTA_RULE_CHAIN, name))
		if err != nil {
			return nil, err
		}
		for _, r := range rules {
			// Older kernels ignore the chain in the request.
			if textOf(r.attrs, unix.NFTA_RULE_CHAIN) == name && textOf(r.attrs, unix.NFTA_RULE_TABLE) == table {
				chain.rules = append(chain.rules, nftRule(find(r.attrs, unix.NFTA_RULE_EXPRESSIONS)))
			}
		}
		chains = append(chains, chain)
	}
	return chains, nil
}

// nftAnswer is an object of a table of that family.
type nftAnswer struct {
	family byte
	attrs  []netlink.Attribute
}

// dumpNFT lists the objects of a kind in the tables of a family; NFPROTO_UNSPEC: of all.
func dumpNFT(conn *netlink.Conn, family byte, question uint16, attrs ...attr) ([]nftAnswer, error) {
	message, err := request(question, netlink.Dump, attrs)
	if err != nil {
		return nil, err
	}
	message.Data[0] = family
	answers, err := conn.Execute(message)
	if err != nil {
		return nil, fmt.Errorf("read nf_tables: %w", withErrNoFilter(err))
	}
	var all []nftAnswer
	for _, answer := range answers {
		if len(answer.Data) < genHeader {
			return nil, fmt.Errorf("read nf_tables: response of %d bytes is too short", len(answer.Data))
		}
		attrs, err := netlink.UnmarshalAttributes(answer.Data[genHeader:])
		if err != nil {
			return nil, fmt.Errorf("read nf_tables: %w", err)
		}
		all = append(all, nftAnswer{answer.Data[0], attrs})
	}
	return all, nil
}

// matching are expressions that only match packets, or count or log them.
var matching = []string{
	"meta", "cmp", "payload", "bitwise", "byteorder", "counter", "ct", "log", "limit", "quota", "connlimit",
	"fib", "range", "rt", "socket", "exthdr", "hash", "numgen", "last", "match", "osf", "tunnel", "xfrm",
}

// nftRule returns what a rule may do. One with an expression that isn't known may accept.
func nftRule(expressions []byte) forwardRule {
	list, err := netlink.UnmarshalAttributes(expressions)
	if err != nil {
		return ruleMayAccept
	}
	denies, all := false, true
	for _, e := range list {
		parts, err := netlink.UnmarshalAttributes(e.Data)
		if err != nil {
			return ruleMayAccept
		}
		data, err := netlink.UnmarshalAttributes(find(parts, unix.NFTA_EXPR_DATA))
		if err != nil {
			return ruleMayAccept
		}
		switch name := textOf(parts, unix.NFTA_EXPR_NAME); {
		case name == "reject", name == "target" && textOf(data, unix.NFTA_TARGET_NAME) == "REJECT":
			denies = true
		case name == "immediate" && binary.BigEndian.Uint32(append(find(data, unix.NFTA_IMMEDIATE_DREG), 0, 0, 0, 0)) != unix.NFT_REG_VERDICT:
			// A value.
		case name == "immediate" && isDrop(find(data, unix.NFTA_IMMEDIATE_DATA)):
			denies = true
		case name == "lookup" && find(data, unix.NFTA_LOOKUP_DREG) == nil:
			all = false
		case name == "counter", name == "log":
		case slices.Contains(matching, name):
			all = false
		default:
			return ruleMayAccept
		}
	}
	if denies && all {
		return ruleDenies
	}
	return ruleMayDeny
}

// isDrop reports whether the data of an expression is the verdict to drop.
func isDrop(data []byte) bool {
	attrs, err := netlink.UnmarshalAttributes(data)
	if err != nil {
		return false
	}
	verdict, err := netlink.UnmarshalAttributes(find(attrs, unix.NFTA_DATA_VERDICT))
	code := find(verdict, unix.NFTA_VERDICT_CODE)
	return err == nil && len(code) == 4 && binary.BigEndian.Uint32(code) == verdictDrop
}

// concernsForwardChain classifies events of nf_tables: chains of forwarded packets that are
// added or changed, and tables that are removed. Changes of rules only show in the next
// pass.
func concernsForwardChain(msg syscall.NetlinkMessage) Concern {
	switch msg.Header.Type & 0xff {
	case unix.NFT_MSG_DELTABLE:
		return ConcernForwarding
	case unix.NFT_MSG_NEWCHAIN:
	default:
		return 0
	}
	if len(msg.Data) < genHeader {
		return 0
	}
	attrs, err := netlink.UnmarshalAttributes(msg.Data[genHeader:])
	if err != nil || !atForwardHook(attrs) {
		return 0
	}
	return ConcernForwarding
}

// atForwardHook reports whether a chain, but ours, is one of forwarded packets.
func atForwardHook(chain []netlink.Attribute) bool {
	hook, err := netlink.UnmarshalAttributes(find(chain, unix.NFTA_CHAIN_HOOK))
	number := find(hook, unix.NFTA_HOOK_HOOKNUM)
	return err == nil && len(number) == 4 && binary.BigEndian.Uint32(number) == unix.NF_INET_FORWARD &&
		textOf(chain, unix.NFTA_CHAIN_TABLE) != FilterTable
}

// Layouts of linux/netfilter_ipv4/ip_tables.h and linux/netfilter_ipv6/ip6_tables.h.
const (
	soGetInfo, soGetEntries = 64, 65 // IPT_SO_GET_INFO, IPT_SO_GET_ENTRIES
	tableName               = 32
	infoSize                = tableName + 4 + 5*4 + 5*4 + 4 + 4 // struct ipt_getinfo
	targetHeader            = 32                                // struct xt_entry_target
)

// legacyFormat is the layout of a rule: the size of its part that matches addresses and
// links, the offsets of those of target and next rule, and the size without matches.
type legacyFormat struct {
	text, names               string
	level                     int
	match, target, next, size int
}

var legacyFormats = map[int]legacyFormat{
	unix.AF_INET:  {"iptables (legacy)", "/proc/thread-self/net/ip_tables_names", unix.SOL_IP, 84, 88, 90, 112},
	unix.AF_INET6: {"ip6tables (legacy)", "/proc/thread-self/net/ip6_tables_names", unix.SOL_IPV6, 136, 140, 142, 168},
}

// legacyForwardChain reads the chain FORWARD of the table filter of legacy iptables. present
// is false where the table wasn't created: reading it would create it.
func legacyForwardChain(family int) (chain forwardChain, present bool, err error) {
	format := legacyFormats[family]
	names, err := os.ReadFile(format.names)
	if err != nil || !slices.Contains(strings.Fields(string(names)), "filter") {
		return chain, false, nil //nolint:nilerr // Without legacy iptables the file doesn't exist.
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return chain, true, fmt.Errorf("read %s: %w", format.text, err)
	}
	defer unix.Close(fd)
	info := make([]byte, infoSize)
	copy(info, "filter")
	if err := getsockopt(fd, format.level, soGetInfo, info); err != nil {
		return chain, true, fmt.Errorf("read %s: %w", format.text, err)
	}
	word := func(at int) int { return int(binary.NativeEndian.Uint32(info[at:])) }
	begin, end, size := word(tableName+4+4*unix.NF_INET_FORWARD), word(tableName+4+20+4*unix.NF_INET_FORWARD), word(tableName+4+20+20+4)
	const header = tableName + 8 // struct ipt_get_entries, aligned
	entries := make([]byte, header+size)
	copy(entries, "filter")
	binary.NativeEndian.PutUint32(entries[tableName:], uint32(size))
	// EAGAIN: the table was replaced since its size was read.
	if err := getsockopt(fd, format.level, soGetEntries, entries); err != nil {
		return chain, true, fmt.Errorf("read %s: %w", format.text, err)
	}
	chain, err = format.parse(entries[header:], begin, end)
	chain.four, chain.six = family == unix.AF_INET, family == unix.AF_INET6
	return chain, true, err
}

// parse reads the rules of a chain, the last of which is its policy.
func (f legacyFormat) parse(table []byte, begin, end int) (forwardChain, error) {
	chain := forwardChain{text: f.text + " chain FORWARD"}
	for at := begin; ; {
		if at < 0 || at+f.size+targetHeader+4 > len(table) {
			return chain, fmt.Errorf("read %s: a rule at %d of %d bytes", f.text, at, len(table))
		}
		entry := table[at:]
		target, next := int(binary.NativeEndian.Uint16(entry[f.target:])), int(binary.NativeEndian.Uint16(entry[f.next:]))
		if target < f.size || target+targetHeader+4 > len(entry) || next < f.size {
			return chain, fmt.Errorf("read %s: a rule of %d bytes with its target at %d", f.text, next, target)
		}
		name := strings.TrimRight(string(entry[target+2:target+31]), "\x00")
		verdict := int32(binary.NativeEndian.Uint32(entry[target+targetHeader:]))
		drops := name == "REJECT" || name == "" && verdict == -1-verdictDrop
		if at == end {
			chain.denies = drops
			return chain, nil
		}
		all := target == f.size && !slices.ContainsFunc(entry[:f.match], func(b byte) bool { return b != 0 })
		switch {
		case drops && all:
			chain.rules = append(chain.rules, ruleDenies)
		case drops:
			chain.rules = append(chain.rules, ruleMayDeny)
		default:
			chain.rules = append(chain.rules, ruleMayAccept)
		}
		at += next
	}
}

// getsockopt fills value, whose beginning is the request.
func getsockopt(fd, level, option int, value []byte) error {
	size := uint32(len(value))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&value[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
