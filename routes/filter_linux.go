package routes

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Filter drops packets with the source address of a remote pod that did not arrive through
// the tunnel. Routes and rules match destinations only. Without rp_filter, which IPv6
// doesn't have, such a packet would be delivered, and network policies would take it for
// one of the remote pod.
//
// The rules are in our own nf_tables table ([FilterTable]), in the network namespace of
// the calling thread. It outlives the process. The methods may be called concurrently,
// except Sync.
type Filter struct{ log *slog.Logger }

// NewFilter returns a filter. It changes nothing in the kernel.
func NewFilter(log *slog.Logger) *Filter { return &Filter{log: log} }

// Sync installs the rules for the origins atomically. Without origins it removes the
// table. Without a difference it neither writes nor logs anything; only a write resets the
// counts of dropped packets. The error wraps [ErrNoFilter] where the kernel lacks support.
func (f *Filter) Sync(ctx context.Context, origins []Origin) (changed bool, err error) {
	have, err := readTable(ctx)
	if len(origins) == 0 && errors.Is(err, ErrNoFilter) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	want := claims(origins)
	switch {
	case len(want) == 0 && !have.exists():
		return false, nil
	case len(want) == 0:
		err := commit(ctx, object{unix.NFT_MSG_DELTABLE, tableObject().attrs[:1]})
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return false, fmt.Errorf("remove table inet %s: %w", FilterTable, err)
		}
		f.log.Info("source filter removed", "table", FilterTable)
		return true, nil
	case have.valid() && have.hasRules(want):
		return false, nil
	}
	if err := commit(ctx, have.transaction(want)...); err != nil {
		// In a transaction that recreates the table only an expression can be missing.
		if errors.Is(err, unix.ENOENT) && !have.valid() {
			err = fmt.Errorf("%w: %w", ErrNoFilter, err)
		}
		return false, fmt.Errorf("install table inet %s: %w", FilterTable, err)
	}
	f.log.Info("source filter installed", "table", FilterTable, "replaced", have.exists())
	return true, nil
}

// Status reads whether the table enforces the origins, and its counts of dropped packets.
// enforced is false without an error when the table is missing or differs.
func (f *Filter) Status(ctx context.Context, origins []Origin) (dropped Dropped, enforced bool, err error) {
	have, err := readTable(ctx)
	if err != nil {
		return nil, false, err
	}
	want := claims(origins)
	if !have.valid() || !have.hasRules(want) {
		return nil, false, nil
	}
	dropped = Dropped{}
	for i, c := range want {
		dropped[c.device] += countOf(have.rules[i])
	}
	return dropped, true, nil
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

// valid reports whether table and chain are as we create them.
func (s installedTable) valid() bool {
	return s.exists() && matches(s.tables[0], tableObject().attrs) && len(s.chains) == 1 && matches(s.chains[0], chainObject().attrs)
}

// hasRules reports whether the chain has exactly the rules for the claims.
func (s installedTable) hasRules(want []claim) bool {
	return slices.EqualFunc(s.rules, want, func(have []netlink.Attribute, c claim) bool { return matches(have, ruleObject(c).attrs) })
}

// transaction returns the messages that install the rules for the claims. In a valid table
// only the rules are replaced. Another one is recreated: it is created before it is
// deleted, since a deletion "if it exists" is not supported.
func (s installedTable) transaction(want []claim) []object {
	table, chain := tableObject(), chainObject()
	objects := []object{{unix.NFT_MSG_DELRULE, []attr{
		label(unix.NFTA_RULE_TABLE, FilterTable), label(unix.NFTA_RULE_CHAIN, filterChain),
	}}}
	if !s.valid() {
		objects = []object{table, {unix.NFT_MSG_DELTABLE, table.attrs[:1]}, table, chain}
	}
	for _, c := range want {
		objects = append(objects, ruleObject(c))
	}
	return objects
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
