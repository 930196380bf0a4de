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

// Filter keeps out packets that claim the address of a remote pod without having
// come through the tunnel. Routes and rules look at destinations only. Where
// rp_filter doesn't check, as over IPv6 always, such a packet would be delivered
// and would count as the remote pod's with network policies.
//
// The rules are a table of ours in nf_tables ([FilterTable]), of the network
// namespace of whoever calls. It outlives the process. Its methods may be called
// from several goroutines, but Sync only from one at a time.
type Filter struct{ log *slog.Logger }

// NewFilter returns a filter. It changes nothing in the kernel.
func NewFilter(log *slog.Logger) *Filter { return &Filter{log: log} }

// Sync makes the table what the origins need, all at once: no packet finds it
// half made. Without origins it removes the table. When nothing is to be done
// nothing is written or logged; counts of dropped packets begin anew only when
// something is written. The error is [ErrNoFilter] where the kernel can't.
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
	case len(want) == 0 && !have.there():
		return false, nil
	case len(want) == 0:
		err := commit(ctx, object{unix.NFT_MSG_DELTABLE, tableObject().attrs[:1]})
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return false, fmt.Errorf("remove table inet %s: %w", FilterTable, err)
		}
		f.log.Info("source filter removed", "table", FilterTable)
		return true, nil
	case have.sound() && have.refuses(want):
		return false, nil
	}
	if err := commit(ctx, have.toRefuse(want)...); err != nil {
		// Of a table that is made anew only an expression can be missing.
		if errors.Is(err, unix.ENOENT) && !have.sound() {
			err = fmt.Errorf("%w: %w", ErrNoFilter, err)
		}
		return false, fmt.Errorf("install table inet %s: %w", FilterTable, err)
	}
	f.log.Info("source filter installed", "table", FilterTable, "replaced", have.there())
	return true, nil
}

// Look reads whether the table is what the origins need now, and what it has
// dropped. enforced is false without an error when there is no such table, or
// another one.
func (f *Filter) Look(ctx context.Context, origins []Origin) (dropped Dropped, enforced bool, err error) {
	have, err := readTable(ctx)
	if err != nil {
		return nil, false, err
	}
	want := claims(origins)
	if !have.sound() || !have.refuses(want) {
		return nil, false, nil
	}
	dropped = Dropped{}
	for i, c := range want {
		dropped[c.device] += countOf(have.rules[i])
	}
	return dropped, true, nil
}

// dialFilter opens a connection to nf_tables in the network namespace of the
// calling thread. It is for one operation: what a failed one leaves unread ends
// with it.
func dialFilter(ctx context.Context) (*netlink.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("connect to nf_tables: %w", lacking(err))
	}
	if err := conn.SetDeadline(time.Now().Add(netlinkTimeout)); err != nil {
		return nil, errors.Join(fmt.Errorf("set netlink timeout: %w", err), conn.Close())
	}
	return conn, nil
}

// lacking adds ErrNoFilter to the errors by which the kernel says that it has no
// nf_tables, no such table family or no such expression.
func lacking(err error) error {
	for _, sign := range []error{unix.EPROTONOSUPPORT, unix.EOPNOTSUPP, unix.EAFNOSUPPORT, unix.EINVAL} {
		if errors.Is(err, sign) {
			return fmt.Errorf("%w: %w", ErrNoFilter, err)
		}
	}
	return err
}

// seen is the table as the kernel shows it: the attributes of each object.
// Without a table it is empty.
type seen struct{ tables, chains, rules [][]netlink.Attribute }

func (s seen) there() bool { return len(s.tables) > 0 }

// sound reports whether the table is one that works once its chain has rules.
func (s seen) sound() bool {
	return s.there() && shows(s.tables[0], tableObject().attrs) && len(s.chains) == 1 && shows(s.chains[0], chainObject().attrs)
}

// refuses reports whether the chain has exactly the rules for the claims.
func (s seen) refuses(want []claim) bool {
	return slices.EqualFunc(s.rules, want, func(have []netlink.Attribute, c claim) bool { return shows(have, ruleObject(c).attrs) })
}

// toRefuse returns what makes the table the one for the claims. In a sound table
// only the rules are replaced. Another one is made anew: it must be there before
// it is removed, since there is no other way to say "if it exists".
func (s seen) toRefuse(want []claim) []object {
	table, chain := tableObject(), chainObject()
	objects := []object{{unix.NFT_MSG_DELRULE, []attr{
		label(unix.NFTA_RULE_TABLE, FilterTable), label(unix.NFTA_RULE_CHAIN, filterChain),
	}}}
	if !s.sound() {
		objects = []object{table, {unix.NFT_MSG_DELTABLE, table.attrs[:1]}, table, chain}
	}
	for _, c := range want {
		objects = append(objects, ruleObject(c))
	}
	return objects
}

// readTable reads the table.
func readTable(ctx context.Context) (s seen, err error) {
	conn, err := dialFilter(ctx)
	if err != nil {
		return seen{}, err
	}
	defer conn.Close()
	for _, part := range []struct {
		objects    *[][]netlink.Attribute
		ask, table uint16
		filter     []attr // what the kernel leaves out by itself
	}{
		{&s.tables, unix.NFT_MSG_GETTABLE, unix.NFTA_TABLE_NAME, nil},
		{&s.chains, unix.NFT_MSG_GETCHAIN, unix.NFTA_CHAIN_TABLE, nil},
		{&s.rules, unix.NFT_MSG_GETRULE, unix.NFTA_RULE_TABLE, []attr{label(unix.NFTA_RULE_TABLE, FilterTable)}},
	} {
		objects, err := ask(conn, part.ask, part.filter...)
		if err != nil {
			return seen{}, err
		}
		*part.objects = ofKind(objects, func(o []netlink.Attribute) bool { return textOf(o, part.table) == FilterTable })
	}
	return s, nil
}

// textOf returns an attribute that is a text, without the zero byte at its end.
func textOf(attrs []netlink.Attribute, kind uint16) string {
	return string(bytes.TrimRight(find(attrs, kind), "\x00"))
}

// countOf returns how many packets the counter of a rule has counted.
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

// ask returns the attributes of all objects of a kind in tables of the family.
func ask(conn *netlink.Conn, question uint16, attrs ...attr) ([][]netlink.Attribute, error) {
	message, err := request(question, netlink.Dump, attrs)
	if err != nil {
		return nil, err
	}
	answers, err := conn.Execute(message)
	if err != nil {
		return nil, fmt.Errorf("read nf_tables: %w", lacking(err))
	}
	objects := make([][]netlink.Attribute, len(answers))
	for i, answer := range answers {
		if len(answer.Data) < genHeader {
			return nil, fmt.Errorf("read nf_tables: an answer of %d bytes", len(answer.Data))
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
	// The last one is answered when all are done. A fault is told before that.
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
			return lacking(err)
		}
		for _, answer := range answers {
			if answer.Header.Type == netlink.Error && answer.Header.Sequence == sent[last].Header.Sequence {
				return nil
			}
		}
	}
}
