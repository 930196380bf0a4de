package routes

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Filter drops packets that routes can't keep off.
//
// Packets with the source address of a remote pod that did not arrive through the tunnel,
// see [Origin]: routes and rules match destinations only. Without rp_filter, which IPv6
// doesn't have, such a packet would be delivered, and network policies would take it for
// one of the remote pod.
//
// Packets to a remote pod that don't leave through the tunnel, see [Exit]: another
// program's policy rule may come before ours and lead them elsewhere.
//
// The rules are in our own nf_tables table ([FilterTable]), in the network namespace of
// the calling thread. It outlives the process. Status may be called concurrently with Sync.
type Filter struct {
	log *slog.Logger
	// lacks is set once the kernel has refused what a hairpin needs, and nothing else.
	lacks  bool
	commit func(context.Context, ...object) error
}

// NewFilter returns a filter. It changes nothing in the kernel.
func NewFilter(log *slog.Logger) *Filter { return &Filter{log: log, commit: commit} }

// Sync installs the rules atomically. Without any it removes the table. Without a
// difference it neither writes nor logs anything; only a write resets the counts of
// dropped packets, those of the chains that it changes. The error wraps [ErrNoFilter]
// where the kernel lacks support. Where it lacks only what the origins or the map need, the
// other rules are installed nevertheless. That pods can't reach each other by virtual addresses
// is no error.
func (f *Filter) Sync(ctx context.Context, want Ruleset) (changed bool, err error) {
	var first error
	for _, with := range want.attempts() {
		if with.hairpin && f.lacks {
			continue
		}
		changed, err = f.install(ctx, chainsOf(want, with))
		switch {
		case err == nil && with.sources && with.shared && with.rewrite:
			if !with.hairpin && !f.lacks {
				f.lacks = true
				f.log.Info("this cluster's pods can't reach each other by virtual addresses: Linux before 5.8", "err", first)
			}
			return changed, nil
		case err == nil && with.rewrite:
			return changed, fmt.Errorf("source filter: %w", first)
		case err == nil:
			return changed, fmt.Errorf("translation of pod subnets: %w", first)
		case !errors.Is(err, ErrNoFilter):
			return changed, err
		case first == nil:
			first = err
		}
	}
	return changed, first
}

func (f *Filter) install(ctx context.Context, want []chain) (changed bool, err error) {
	have, err := readTable(ctx)
	if len(want) == 0 && errors.Is(err, ErrNoFilter) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	switch {
	case len(want) == 0 && !have.exists():
		return false, nil
	case len(want) == 0:
		err := f.commit(ctx, object{unix.NFT_MSG_DELTABLE, tableObject().attrs[:1]})
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return false, fmt.Errorf("remove table inet %s: %w", FilterTable, err)
		}
		f.log.Info("packet filter removed", "table", FilterTable)
		return true, nil
	}
	changes := have.transaction(want)
	if len(changes) == 0 {
		return false, nil
	}
	if err := f.commit(ctx, changes...); err != nil {
		// Chains that were read can be gone; else only an expression or a kind of chain can be
		// missing.
		if now, readErr := readTable(ctx); errors.Is(err, unix.ENOENT) && readErr == nil && have.sameChains(now) {
			err = fmt.Errorf("%w: %w", ErrNoFilter, err)
		}
		return false, fmt.Errorf("install table inet %s: %w", FilterTable, err)
	}
	f.log.Info("packet filter installed", "table", FilterTable, "replaced", have.exists())
	return true, nil
}

// Status reads whether the table enforces the ruleset, and its counts of dropped packets.
// A part is not enforced, without an error, when the table is missing or differs. A part
// without rules is enforced.
func (f *Filter) Status(ctx context.Context, ruleset Ruleset) (State, error) {
	full := parts{true, true, true, true}
	of := func(with parts, names ...string) []chain {
		return ofKind(chainsOf(ruleset, with), func(c chain) bool { return slices.Contains(names, c.name) })
	}
	translation := func(with parts) []chain {
		if len(ruleset.Map) == 0 {
			return nil
		}
		return of(with, arrivalChain, exitChain, toRealChain, toVirtualChain)
	}
	arrival, exit, hairpin := of(full, arrivalChain), of(full, forwardedChain, exitChain, inputChain, controlChain, fromTunnelsChain, transitChain), of(full, hairpinChain)
	if len(ruleset.Origins)+len(ruleset.sharedRules()) == 0 {
		arrival = nil
	}
	s := State{Arrival: len(arrival) == 0, Exit: len(exit) == 0, Translation: len(ruleset.Map) == 0, Hairpin: len(hairpin) == 0, Forged: Dropped{}, Stopped: Dropped{}}
	if s.Arrival && s.Exit && s.Translation {
		return s, nil
	}
	have, err := readTable(ctx)
	if err != nil {
		return s, err
	}
	enforced := func(part []chain) bool { return len(part) == 0 || have.valid() && have.enforces(part) }
	s.Arrival = enforced(arrival) || enforced(of(parts{sources: true, shared: true}, arrivalChain))
	s.Exit, s.Hairpin = enforced(exit), enforced(hairpin)
	s.Translation = slices.ContainsFunc(ruleset.attempts(), func(with parts) bool { return with.rewrite && enforced(translation(with)) })
	if s.Arrival && len(arrival) > 0 {
		s.Forged = have.dropped(ruleset, claims(ruleset.Origins), arrivalChain)
	}
	if s.Exit {
		s.Stopped = have.dropped(ruleset, claims(ruleset.Exits), forwardedChain, exitChain)
	}
	if s.Exit && s.Translation && len(ruleset.Map) > 0 {
		s.Untranslated = have.untranslated(ruleset)
	}
	return s, nil
}

// RequireFilter returns an error if the kernel has no nf_tables, without which nothing would keep
// packets that another program leads past the tunnel from leaving in plaintext. Other errors, as of
// a missing capability, are those of [Filter.Sync].
func RequireFilter(ctx context.Context) error {
	if _, err := readTable(ctx); errors.Is(err, ErrNoFilter) {
		return fmt.Errorf("nf_tables is required: %w: load its modules nf_tables and nft_fib_inet, or build them in", err)
	}
	return nil
}

// Exempted returns those subnets of an origin whose nodes' packets the installed filter exempts, as an
// earlier process has left it. Port is that of the device.
func Exempted(ctx context.Context, mark uint32, origin Origin, port int) ([]netip.Prefix, error) {
	have, err := readTable(ctx)
	if err != nil {
		return nil, err
	}
	installed := have.rulesOf(arrivalChain)
	var exempted []netip.Prefix
	for _, s := range origin.Subnets {
		of := Ruleset{Mark: mark, Ports: map[string]int{origin.Device: port}, Shared: []Origin{{Device: origin.Device, Subnets: []netip.Prefix{s}}}}
		is := func(rule object) bool {
			return slices.ContainsFunc(installed, func(have []netlink.Attribute) bool { return matches(have, rule.attrs) })
		}
		if rules := of.sharedRules(); len(rules) > 0 && is(rules[0]) {
			exempted = append(exempted, s)
		}
	}
	return exempted, nil
}

// dialFilter opens a connection to nf_tables in the network namespace of the calling
// thread. It is for one operation, so that unread responses of a failed one are dropped.
func dialFilter(ctx context.Context) (*netlink.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("connect to nf_tables: %w", withErrNoFilter(err))
	}
	if err := conn.SetDeadline(time.Now().Add(netlinkTimeout)); err != nil {
		return nil, errors.Join(fmt.Errorf("set netlink timeout: %w", err), conn.Close())
	}
	return conn, nil
}

// withErrNoFilter wraps errors that mean a missing nf_tables, table family or expression with
// ErrNoFilter.
func withErrNoFilter(err error) error {
	for _, sign := range []error{unix.EPROTONOSUPPORT, unix.EOPNOTSUPP, unix.EAFNOSUPPORT, unix.EINVAL} {
		if errors.Is(err, sign) {
			return fmt.Errorf("%w: %w", ErrNoFilter, err)
		}
	}
	return err
}

// installedTable is the table as read from the kernel: the attributes of each object. It is empty if
// the table doesn't exist.
type installedTable struct{ tables, chains, rules [][]netlink.Attribute }

func (s installedTable) exists() bool { return len(s.tables) > 0 }

// valid reports whether the table is as we create it, with no other chains than ours.
func (s installedTable) valid() bool {
	ours := func(have []netlink.Attribute) bool {
		return slices.ContainsFunc(emptyChains(), func(c chain) bool { return c.is(have) })
	}
	return s.exists() && matches(s.tables[0], tableObject().attrs) && len(ofKind(s.chains, ours)) == len(s.chains)
}

func (s installedTable) hasChain(name string) bool {
	return slices.ContainsFunc(s.chains, func(have []netlink.Attribute) bool { return textOf(have, unix.NFTA_CHAIN_NAME) == name })
}

// rulesOf returns the rules of a chain.
func (s installedTable) rulesOf(chain string) [][]netlink.Attribute {
	return ofKind(s.rules, func(r []netlink.Attribute) bool { return textOf(r, unix.NFTA_RULE_CHAIN) == chain })
}

// enforces reports whether the chains exist with exactly their rules.
func (s installedTable) enforces(want []chain) bool {
	return !slices.ContainsFunc(want, func(c chain) bool { return !s.hasRules(c) })
}

func (s installedTable) hasRules(want chain) bool {
	return s.hasChain(want.name) && slices.EqualFunc(s.rulesOf(want.name), want.rules,
		func(have []netlink.Attribute, r object) bool { return matches(have, r.attrs) })
}

// dropped returns the packets counted by the last rule for each claim in the chains.
func (s installedTable) dropped(want Ruleset, claims []claim, chains ...string) Dropped {
	counts := Dropped{}
	for _, name := range chains {
		rules := s.rulesOf(name)
		rules = rules[len(want.leading(name)):]
		if name == arrivalChain {
			rules = rules[len(want.sharedRules()):]
		}
		for _, c := range claims {
			n := len(want.rulesFor(name, c))
			counts[c.device] += countOf(rules[n-1])
			rules = rules[n:]
		}
	}
	return counts
}

// untranslated returns the packets dropped because they were not translated.
func (s installedTable) untranslated(want Ruleset) (n uint64) {
	for _, name := range []string{forwardedChain, exitChain, toVirtualChain} {
		rules := s.rulesOf(name)
		if name != toVirtualChain {
			rules = rules[len(want.leading(name))+len(want.claimed(name, claims(want.Exits))):]
		}
		for _, r := range rules {
			n += countOf(r)
		}
	}
	return n
}

// sameChains reports whether two tables have the same chains, by their handles.
func (s installedTable) sameChains(o installedTable) bool {
	return len(s.tables) == len(o.tables) && slices.EqualFunc(s.chains, o.chains, func(a, b []netlink.Attribute) bool {
		return bytes.Equal(find(a, unix.NFTA_CHAIN_HANDLE), find(b, unix.NFTA_CHAIN_HANDLE))
	})
}

// transaction returns the messages that make the chains those that are wanted; none
// without a difference. In a valid table only chains that differ are changed. Another one is
// recreated: it is created before it is deleted, since a deletion "if it exists" is not
// supported.
func (s installedTable) transaction(want []chain) (changes []object) {
	recreate := !s.valid()
	if recreate {
		table := tableObject()
		changes = []object{table, {unix.NFT_MSG_DELTABLE, table.attrs[:1]}, table}
	}
	added := func(c chain) bool { return recreate || !s.hasChain(c.name) }
	for _, c := range want {
		if added(c) {
			changes = append(changes, c.object())
		}
	}
	for _, c := range want {
		switch {
		case added(c):
		case s.hasRules(c):
			continue
		default:
			changes = append(changes, c.flush())
		}
		changes = append(changes, c.rules...)
	}
	for _, c := range emptyChains() {
		wanted := slices.ContainsFunc(want, func(w chain) bool { return w.name == c.name })
		if !recreate && !wanted && s.hasChain(c.name) {
			changes = append(changes, c.flush(), c.remove())
		}
	}
	return changes
}

// readTable reads the table.
func readTable(ctx context.Context) (s installedTable, err error) {
	conn, err := dialFilter(ctx)
	if err != nil {
		return installedTable{}, err
	}
	defer conn.Close()
	for _, part := range []struct {
		objects    *[][]netlink.Attribute
		ask, table uint16
		filter     []attr // applied by the kernel
	}{
		{&s.tables, unix.NFT_MSG_GETTABLE, unix.NFTA_TABLE_NAME, nil},
		{&s.chains, unix.NFT_MSG_GETCHAIN, unix.NFTA_CHAIN_TABLE, nil},
		{&s.rules, unix.NFT_MSG_GETRULE, unix.NFTA_RULE_TABLE, []attr{label(unix.NFTA_RULE_TABLE, FilterTable)}},
	} {
		objects, err := ask(conn, part.ask, part.filter...)
		if err != nil {
			return installedTable{}, err
		}
		*part.objects = ofKind(objects, func(o []netlink.Attribute) bool { return textOf(o, part.table) == FilterTable })
	}
	return s, nil
}

// textOf returns a string attribute without its terminating zero byte.
func textOf(attrs []netlink.Attribute, kind uint16) string {
	return string(bytes.TrimRight(find(attrs, kind), "\x00"))
}

// countOf returns the packets counted by a rule.
func countOf(rule []netlink.Attribute) uint64 {
	expressions, err := netlink.UnmarshalAttributes(find(rule, unix.NFTA_RULE_EXPRESSIONS))
	if err != nil {
		return 0
	}
	for _, e := range expressions {
		parts, err := netlink.UnmarshalAttributes(e.Data)
		if err != nil || textOf(parts, unix.NFTA_EXPR_NAME) != "counter" {
			continue
		}
		counter, err := netlink.UnmarshalAttributes(find(parts, unix.NFTA_EXPR_DATA))
		if value := find(counter, unix.NFTA_COUNTER_PACKETS); err == nil && len(value) == 8 {
			return binary.BigEndian.Uint64(value)
		}
	}
	return 0
}

// ask lists the objects of a kind in tables of the family inet, by their attributes.
func ask(conn *netlink.Conn, question uint16, attrs ...attr) ([][]netlink.Attribute, error) {
	message, err := request(question, netlink.Dump, attrs)
	if err != nil {
		return nil, err
	}
	answers, err := conn.Execute(message)
	if err != nil {
		return nil, fmt.Errorf("read nf_tables: %w", withErrNoFilter(err))
	}
	objects := make([][]netlink.Attribute, len(answers))
	for i, answer := range answers {
		if len(answer.Data) < genHeader {
			return nil, fmt.Errorf("read nf_tables: response of %d bytes is too short", len(answer.Data))
		}
		if objects[i], err = netlink.UnmarshalAttributes(answer.Data[genHeader:]); err != nil {
			return nil, fmt.Errorf("read nf_tables: %w", err)
		}
	}
	return objects, nil
}

// genHeader is the size in bytes of the header of netfilter's messages, struct
// nfgenmsg: family, version, and 16 bits in network order.
const genHeader = 4

func request(kind uint16, flags netlink.HeaderFlags, attrs []attr) (netlink.Message, error) {
	body, err := encode(attrs)
	if err != nil {
		return netlink.Message{}, fmt.Errorf("encode a message to nf_tables: %w", err)
	}
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: netlink.Request | flags},
		Data:   append([]byte{unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0}, body...),
	}, nil
}

// commit applies the messages in one transaction: all of them or, with an error,
// none.
func commit(ctx context.Context, objects ...object) error {
	conn, err := dialFilter(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	limit := func(kind int) netlink.Message {
		return netlink.Message{
			Header: netlink.Header{Type: netlink.HeaderType(kind), Flags: netlink.Request},
			Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES},
		}
	}
	batch := []netlink.Message{limit(unix.NFNL_MSG_BATCH_BEGIN)}
	for _, o := range objects {
		message, err := request(o.message, netlink.Create|netlink.Append, o.attrs)
		if err != nil {
			return err
		}
		batch = append(batch, message)
	}
	// The last message is acknowledged after all are processed; errors arrive before that.
	last := len(batch) - 1
	batch[last].Header.Flags |= netlink.Acknowledge
	batch = append(batch, limit(unix.NFNL_MSG_BATCH_END))
	sent, err := conn.SendMessages(batch)
	if err != nil {
		return err
	}
	for {
		answers, err := conn.Receive()
		if err != nil {
			return withErrNoFilter(err)
		}
		for _, answer := range answers {
			if answer.Header.Type == netlink.Error && answer.Header.Sequence == sent[last].Header.Sequence {
				return nil
			}
		}
	}
}
