package routes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ErrInTheWay means that a foreign route has the slot of ours, or is preferred to it.
var ErrInTheWay = errors.New("in the way")

// netlinkTimeout bounds the wait for one response of the kernel. Responses take
// microseconds; the bound keeps a fault from blocking a pass for ever.
const netlinkTimeout = 10 * time.Second

// Table is our routing table, our part of the main one and our policy rules, in the network
// namespace it was opened in. It is safe for concurrent use.
type Table struct {
	log     *slog.Logger
	mu      sync.Mutex
	handle  *netlink.Handle
	dumps   *netlink.Handle // with lists filtered by the kernel, where supported
	probe   func(family int) error
	missing int    // missing families, last logged
	mark    uint32 // see SetMark
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
	// Kernels before 4.20 don't support it, and list more than requested. Not set on the
	// other handle, since it rejects the library's request for rules.
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

// Close closes the connection to the kernel. Routes are not changed.
func (t *Table) Close() {
	t.handle.Close()
	t.dumps.Close()
}

// Sync makes our routes exactly want, the routes of all remotes together: others of ours
// are removed, and all of them without want. Routes of a family that the kernel doesn't
// support are left out. Routes to the subnets apart are in our own table only: the tunnel's
// own packets, which pass our rules, must not find them in the main table.
//
// Without a difference it neither writes nor logs anything. A fault with one route doesn't
// stop the others; the error joins an [Error] for each. A foreign route in the slot of ours
// stays. In our own table that is a fault ([ErrInTheWay]), in the main table, which only
// matters without our rules, it isn't. As long as a route can't be installed, an older
// route of ours for the same prefix stays, too.
//
// A route is replaced atomically: no packet takes another route meanwhile. Over IPv6, a
// packet that has just found the old route may fail with "network is unreachable" when the
// kernel releases that.
func (t *Table) Sync(ctx context.Context, want []Route, apart ...netip.Prefix) (Changes, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	families := t.families()
	want = slices.DeleteFunc(slices.Clone(want), func(r Route) bool { return !has(families, r.Prefix.Addr()) })
	var (
		changes Changes
		errs    []error
	)
	for _, number := range []int{OwnTable, unix.RT_TABLE_MAIN} {
		p := pass{table: t, number: number, blocked: make(map[slot]bool)}
		if number == unix.RT_TABLE_MAIN {
			want = slices.DeleteFunc(want, func(r Route) bool { return slices.Contains(apart, r.Prefix) })
		}
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

	// Read again: a replaced route is gone, and deleting it could hit its replacement, as
	// IPv4 takes a missing source in the request for "any".
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
	// blocked are the slots whose wanted route could not be installed: routes there stay, ours
	// and foreign ones.
	blocked map[slot]bool
}

func (p *pass) fault(r Route, err error) {
	p.faults = append(p.faults, &Error{Route: r, Err: err})
}

// inspect records foreign routes that keep wanted ones from being installed or from taking
// effect.
func (p *pass) inspect(have snapshot, want []Route) {
	for _, r := range normalise(want) {
		others := have.foreign[r.Prefix]
		for i := range others {
			foreign := &others[i]
			if takesPrecedence(foreign, r) {
				p.blocked[r.slot()] = uint32(foreign.Priority) == r.metric()
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
		if p.blocked[r.slot()] {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		// With nothing to replace, add exclusively: a foreign route that was installed since
		// have was read must not be overwritten.
		apply, count := p.table.handle.RouteAdd, &p.changes.Added
		replaces := have.occupied(r)
		if replaces {
			apply, count = p.table.handle.RouteReplace, &p.changes.Replaced
		}
		msg := message(p.number, r)
		if err := apply(msg); err != nil {
			p.blocked[r.slot()] = true
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
	if p.blocked[slotOf(msg)] {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	switch err := p.table.handle.RouteDel(msg); {
	case errors.Is(err, unix.ESRCH):
		// Removed since it was read, most likely with its device.
	case err != nil:
		p.fault(r, fmt.Errorf("remove: %w", err))
	default:
		p.changes.Removed++
		p.table.log.Info("route removed", "route", p.table.describe(msg))
	}
	return nil
}
