package routes

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	nl "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ForeignRules returns the policy rules of other programs that come before ours and lead
// packets to the subnets past the devices (link indices), in their order, or drop them.
// Rules for packets from one of the devices are left out. The rules are those of the
// network namespace of the calling thread.
func (t *Table) ForeignRules(subnets []netip.Prefix, devices ...int) ([]ForeignRule, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var found []ForeignRule
	for _, family := range t.families() {
		rules, err := listRules(family)
		if err != nil {
			return nil, fmt.Errorf("read policy rules: %w", err)
		}
		lookup := lookups{table: t, family: family, devices: devices, known: map[uint32][]tableRoute{}}
		for i := range rules {
			rule := &rules[i]
			if rule.priority > lookupPriority || rule.protocol == Protocol && rule.priority == lookupPriority {
				break
			}
			if rule.protocol == Protocol || rule.table == unix.RT_TABLE_LOCAL || lookup.arrives(rule) {
				continue
			}
			foreign, err := lookup.inspect(rule, subnets)
			if err != nil {
				return nil, err
			}
			if len(foreign.Subnets) > 0 {
				found = append(found, foreign)
			}
		}
	}
	return found, nil
}

// lookups reads the tables that rules refer to, each once.
type lookups struct {
	table   *Table
	family  int
	devices []int
	known   map[uint32][]tableRoute
}

// arrives reports whether the rule selects packets that come out of one of our devices.
func (l *lookups) arrives(rule *policyRule) bool {
	if rule.iif == "" || rule.invert {
		return false
	}
	link, err := l.table.handle.LinkByName(rule.iif)
	return err == nil && slices.Contains(l.devices, link.Attrs().Index)
}

// inspect returns the rule with the subnets whose packets it takes.
func (l *lookups) inspect(rule *policyRule, subnets []netip.Prefix) (ForeignRule, error) {
	foreign := ForeignRule{Marked: rule.marked(), Text: rule.String()}
	tables := []uint32{rule.table}
	if rule.l3mdev {
		var err error
		if tables, err = l.vrfs(); err != nil {
			return foreign, err
		}
	}
	for _, subnet := range subnets {
		if (l.family == unix.AF_INET) != subnet.Addr().Is4() || !rule.takes(subnet) {
			continue
		}
		switch rule.action {
		case actionNop:
		case actionGoto:
			if rule.target > denyPriority {
				foreign.Subnets = append(foreign.Subnets, subnet)
			}
		case actionTable:
			for _, number := range tables {
				routes, err := l.routes(number, subnets)
				if err != nil {
					return foreign, err
				}
				if route, is := past(routes, subnet, rule.suppress); is {
					if len(foreign.Subnets) == 0 {
						foreign.Text += " (" + route.text + ")"
					}
					foreign.Subnets = append(foreign.Subnets, subnet)
					break
				}
			}
		default:
			foreign.Subnets = append(foreign.Subnets, subnet)
		}
	}
	return foreign, nil
}

// routes returns the routes of a table that packets to the subnets may follow.
func (l *lookups) routes(number uint32, subnets []netip.Prefix) ([]tableRoute, error) {
	if known, ok := l.known[number]; ok {
		return known, nil
	}
	var found []tableRoute
	filter := &netlink.Route{Table: int(number)}
	err := l.table.dumps.RouteListFilteredIter(l.family, filter, netlink.RT_FILTER_TABLE, func(msg netlink.Route) bool {
		to := prefixOf(&msg)
		if slices.ContainsFunc(subnets, to.Overlaps) {
			local := msg.Type == unix.RTN_LOCAL || msg.Type == unix.RTN_BROADCAST || msg.Type == unix.RTN_ANYCAST || msg.Type == unix.RTN_MULTICAST
			found = append(found, tableRoute{
				prefix: to, text: l.table.describe(&msg),
				past: !local && msg.Type != unix.RTN_THROW && (msg.LinkIndex == 0 || !slices.Contains(l.devices, msg.LinkIndex)),
			})
		}
		return true
	})
	// A table that never had a route doesn't exist. An interrupted dump is good enough: the
	// result is informational.
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("read routing table %d: %w", number, err)
	}
	l.known[number] = found
	return found, nil
}

// vrfs returns the tables of this host's VRF devices, which the rule l3mdev refers to.
func (l *lookups) vrfs() (tables []uint32, err error) {
	links, err := retryInterrupted(l.table.handle.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	for _, link := range links {
		if vrf, is := link.(*netlink.Vrf); is {
			tables = append(tables, vrf.Table)
		}
	}
	return tables, nil
}

// listRules lists the policy rules of a family. The routing library reads neither their
// actions nor whether they refer to the tables of VRFs.
func listRules(family int) ([]policyRule, error) {
	conn, err := nl.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(netlinkTimeout)); err != nil {
		return nil, err
	}
	request := nl.Message{
		Header: nl.Header{Type: unix.RTM_GETRULE, Flags: nl.Request | nl.Dump},
		Data:   append([]byte{byte(family)}, make([]byte, unix.SizeofRtMsg-1)...),
	}
	messages, err := conn.Execute(request)
	if err != nil {
		return nil, err
	}
	rules := make([]policyRule, 0, len(messages))
	for _, m := range messages {
		rule, err := parseRule(m.Data)
		if err != nil {
			return nil, err
		}
		rules = append(rules, rule)
	}
	return rules, nil
}

// fraDSCP is the attribute for the DSCP of packets, since Linux 6.13.
const fraDSCP = 25

// parseRule reads a message of the kernel (struct fib_rule_hdr, which has the layout of
// struct rtmsg, and attributes).
func parseRule(message []byte) (policyRule, error) {
	if len(message) < unix.SizeofRtMsg {
		return policyRule{}, fmt.Errorf("message of %d bytes is too short", len(message))
	}
	header := vnl.DeserializeRtMsg(message)
	attrs, err := nl.NewAttributeDecoder(message[unix.SizeofRtMsg:])
	if err != nil {
		return policyRule{}, err
	}
	const invert = 2 // FIB_RULE_INVERT
	rule := policyRule{table: uint32(header.Table), action: header.Type, invert: header.Flags&invert != 0, suppress: -1}
	other := func(format string, args ...any) { rule.others = append(rule.others, fmt.Sprintf(format, args...)) }
	prefix := func(length uint8) netip.Prefix {
		addr, _ := netip.AddrFromSlice(attrs.Bytes())
		return netip.PrefixFrom(addr, int(length))
	}
	span := func(name string) {
		if b := attrs.Bytes(); len(b) == 4 {
			first, last := vnl.NativeEndian().Uint16(b), vnl.NativeEndian().Uint16(b[2:])
			other("%s %d-%d", name, first, last)
		}
	}
	if header.Tos != 0 {
		other("tos %#x", header.Tos)
	}
	for attrs.Next() {
		switch attrs.Type() {
		case vnl.FRA_PRIORITY:
			rule.priority = attrs.Uint32()
		case vnl.FRA_TABLE:
			rule.table = attrs.Uint32()
		case vnl.FRA_GOTO:
			rule.target = attrs.Uint32()
		case vnl.FRA_SRC:
			rule.from = prefix(header.Src_len)
		case vnl.FRA_DST:
			rule.to = prefix(header.Dst_len)
		case vnl.FRA_IIFNAME:
			rule.iif = string(bytes.TrimRight(attrs.Bytes(), "\x00"))
		case vnl.FRA_OIFNAME:
			rule.oif = string(bytes.TrimRight(attrs.Bytes(), "\x00"))
		case vnl.FRA_FWMARK:
			rule.mark = attrs.Uint32()
		case vnl.FRA_FWMASK:
			rule.mask = attrs.Uint32()
		case vnl.FRA_PROTOCOL:
			rule.protocol = attrs.Uint8()
		case vnl.FRA_L3MDEV:
			rule.l3mdev = attrs.Uint8() != 0
		case vnl.FRA_SUPPRESS_PREFIXLEN:
			rule.suppress = int(int32(attrs.Uint32()))
		case vnl.FRA_TUN_ID:
			if b := attrs.Bytes(); len(b) == 8 {
				other("tun_id %d", binary.BigEndian.Uint64(b))
			}
		case vnl.FRA_IP_PROTO:
			other("ipproto %d", attrs.Uint8())
		case vnl.FRA_SPORT_RANGE:
			span("sport")
		case vnl.FRA_DPORT_RANGE:
			span("dport")
		case vnl.FRA_UID_RANGE:
			if b := attrs.Bytes(); len(b) == 8 {
				other("uidrange %d-%d", vnl.NativeEndian().Uint32(b), vnl.NativeEndian().Uint32(b[4:]))
			}
		case fraDSCP:
			other("dscp %d", attrs.Uint8())
		}
	}
	return rule, attrs.Err()
}
