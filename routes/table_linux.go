package routes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ErrInTheWay says that a route which isn't ours has the place of ours, or is
// preferred to it.
var ErrInTheWay = errors.New("in the way")

// netlinkTimeout bounds the wait for one answer of the kernel. Answers take
// microseconds; the bound keeps a fault from holding a pass for ever.
const netlinkTimeout = 10 * time.Second

// Table is our routing table, our part of the main one and our policy rules, of the
// network namespace it was opened in. Its methods may be called from several
// goroutines.
type Table struct {
	log    *slog.Logger
	mu     sync.Mutex
	handle *netlink.Handle
	dumps  *netlink.Handle // has the kernel filter what it lists, where it can
	probe  func(family int) error
	told   int // how many families were told to be missing
}

// NewTable opens the routing tables of the network namespace that the calling
// thread is in.
func NewTable(log *slog.Logger) (*Table, error) {
	handle, err := openHandle()
	if err != nil {
		return nil, err
	}
	dumps, err := openHandle()
	if err != nil {
		handle.Close()
		return nil, err
	}
	// Kernels before 4.20 can't, and list more than they were asked for. The other
	// handle does without: the library lists rules in a form that this refuses.
	_ = dumps.SetStrictCheck(true)
	return &Table{log: log, handle: handle, dumps: dumps, probe: probe}, nil
}

func openHandle() (*netlink.Handle, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open routing table: %w", err)
	}
	if err := handle.SetSocketTimeout(netlinkTimeout); err != nil {
		handle.Close()
		return nil, fmt.Errorf("set netlink timeout: %w", err)
	}
	return handle, nil
}

// Close releases the connection to the kernel. Routes stay as they are.
func (t *Table) Close() {
	t.handle.Close()
	t.dumps.Close()
}

// Sync makes the routes of ours exactly want, which is what all remotes
// together want: a route of ours that isn't in it is removed, and Sync with
// nothing removes them all. Those of a family that the kernel doesn't have are left
// out.
//
// When nothing is to be done nothing is written or logged. A fault with one
// route doesn't stop the others; the error joins an [Error] for each. A foreign
// route in the place of ours stays. In our own table it is such a fault
// ([ErrInTheWay]), in the main table, which decides only when our rules are gone,
// it isn't. As long as a route can't be installed, an older route of ours for the
// same prefix stays too.
//
// A route is replaced in one step: no packet takes another way meanwhile. What
// the kernel doesn't rule out over IPv6 is that a packet which has just found
// the old route fails with "network is unreachable" when that is released.
func (t *Table) Sync(ctx context.Context, want []Route) (Changes, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	families := t.families()
	want = slices.DeleteFunc(slices.Clone(want), func(r Route) bool { return !has(families, r.Prefix.Addr()) })
	var (
		changes Changes
		errs    []error
	)
	for _, number := range []int{OwnTable, unix.RT_TABLE_MAIN} {
		p := pass{table: t, number: number, held: make(map[slot]bool)}
		errs = append(errs, p.sync(ctx, want))
		changes.Added += p.changes.Added
		changes.Replaced += p.changes.Replaced
		changes.Removed += p.changes.Removed
	}
	return changes, errors.Join(errs...)
}

func (p *pass) sync(ctx context.Context, want []Route) error {
	before, err := p.table.read(p.number, want)
	if err != nil {
		return err
	}
	p.inspect(before, want)
	add, remove := Diff(before.ours, want)
	if err := p.install(ctx, before, add); err != nil {
		return errors.Join(append(p.faults, err)...)
	}
	if len(remove) == 0 && len(before.stray) == 0 {
		return errors.Join(p.faults...)
	}

	// A replaced route is gone already, and asking for its removal could hit
	// its successor: IPv4 takes an absent source in such a request for "any".
	after, err := p.table.read(p.number, want)
	if err != nil {
		return errors.Join(append(p.faults, err)...)
	}
	_, remove = Diff(after.ours, want)
	err = p.remove(ctx, remove, after.stray)
	return errors.Join(append(p.faults, err)...)
}

// pass is the state of one Sync of one table.
type pass struct {
	table   *Table
	number  int
	changes Changes
	faults  []error
	// held are the slots whose wanted route isn't in place: what we have there
	// stays, and what others have there isn't touched.
	held map[slot]bool
}

func (p *pass) fault(r Route, err error) {
	p.faults = append(p.faults, &Error{Route: r, Err: err})
}

// inspect reports foreign routes that keep wanted ones from being installed or
// from being effective.
func (p *pass) inspect(have snapshot, want []Route) {
	for _, r := range normalise(want) {
		others := have.foreign[r.Prefix]
		for i := range others {
			foreign := &others[i]
			if takesPrecedence(foreign, r) {
				p.held[r.slot()] = uint32(foreign.Priority) == r.metric()
				if p.number == OwnTable {
					p.fault(r, fmt.Errorf("%s is %w", p.table.describe(foreign), ErrInTheWay))
				}
				break
			}
		}
	}
}

func (p *pass) install(ctx context.Context, have snapshot, add []Route) error {
	for _, r := range add {
		if p.held[r.slot()] {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		// Without anything to replace, the kernel is asked to refuse instead:
		// what somebody else installed since have was read isn't overwritten.
		apply, count := p.table.handle.RouteAdd, &p.changes.Added
		replaces := have.occupied(r)
		if replaces {
			apply, count = p.table.handle.RouteReplace, &p.changes.Replaced
		}
		msg := message(p.number, r)
		if err := apply(msg); err != nil {
			p.held[r.slot()] = true
			p.fault(r, fmt.Errorf("install: %w", err))
			continue
		}
		*count++
		p.table.log.Info("route installed", "route", p.table.describe(msg), "replaced", replaces)
	}
	return nil
}

func (p *pass) remove(ctx context.Context, ours []Route, stray []netlink.Route) error {
	for _, r := range ours {
		if err := p.delete(ctx, r, message(p.number, r)); err != nil {
			return err
		}
	}
	for i := range stray {
		if err := p.delete(ctx, fromMessage(&stray[i]), &stray[i]); err != nil {
			return err
		}
	}
	return nil
}

// delete removes one route. Only the end of ctx is returned; other errors are
// faults of that route.
func (p *pass) delete(ctx context.Context, r Route, msg *netlink.Route) error {
	if p.held[slotOf(msg)] {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	switch err := p.table.handle.RouteDel(msg); {
	case errors.Is(err, unix.ESRCH):
		// Gone since it was read, most likely together with its device.
	case err != nil:
		p.fault(r, fmt.Errorf("remove: %w", err))
	default:
		p.changes.Removed++
		p.table.log.Info("route removed", "route", p.table.describe(msg))
	}
	return nil
}
