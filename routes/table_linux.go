package routes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ErrInTheWay means that a foreign route has the slot of ours, or is preferred to it.
var ErrInTheWay = errors.New("in the way")

// netlinkTimeout bounds the wait for one response of the kernel. Responses take
// microseconds; the bound keeps a fault from blocking a pass for ever.
const netlinkTimeout = 10 * time.Second

// Table is our routing table and our policy rules, in the network namespace it was opened in.
type Table struct {
	log     *slog.Logger
	handle  *netlink.Handle
	dumps   *netlink.Handle // with lists filtered by the kernel, where supported
	probe   func(family int) error
	missing int    // missing families, last logged
	mark    uint32 // of the tunnel's own packets, see Fence
	settled bool   // see RemoveCopies
}

// NewTable opens the routing tables of the network namespace that the calling thread is in. Packets
// with the firewall mark, those of the tunnel itself, pass the rules of Fence; 0: none do.
func NewTable(log *slog.Logger, mark uint32) (*Table, error) {
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
	return &Table{log: log, mark: mark, handle: handle, dumps: dumps, probe: probe}, nil
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

// Sync makes the routes of our own table exactly want, those of all remotes together: others
// of ours are removed, and all of them without want. Routes of a family that the kernel doesn't
// support are left out.
//
// Without a difference it neither writes nor logs anything. A fault with one route doesn't
// stop the others; the error joins an [Error] for each. A foreign route in the slot of ours
// stays, which is a fault ([ErrInTheWay]). As long as a route can't be installed, an older
// route of ours for the same prefix stays, too.
//
// A route is replaced atomically: no packet takes another route meanwhile. Over IPv6, a
// packet that has just found the old route may fail with "network is unreachable" when the
// kernel releases that.
func (t *Table) Sync(ctx context.Context, want []Route) (Changes, error) {
	families := t.families()
	want = slices.DeleteFunc(slices.Clone(want), func(r Route) bool { return !has(families, r.Prefix.Addr()) })
	p := pass{table: t, blocked: make(map[slot]bool)}
	err := p.sync(ctx, want)
	return p.changes, errors.Join(append(p.faults, err)...)
}

// RemoveCopies removes our routes from the main table, where earlier releases had copies of
// those of our own table. Call it when routes and rules are installed: then the routes there
// are no longer read, see [Table.Installed].
func (t *Table) RemoveCopies(ctx context.Context) (Changes, error) {
	if t.settled {
		return Changes{}, nil
	}
	var copies []netlink.Route
	err := t.dump(unix.RT_TABLE_MAIN, true, func(msg *netlink.Route) { copies = append(copies, *msg) })
	if err != nil {
		return Changes{}, fmt.Errorf("read routing table: %w", err)
	}
	p := pass{table: t}
	err = p.remove(ctx, nil, copies)
	if err = errors.Join(append(p.faults, err)...); err == nil {
		t.settled = true
	}
	return p.changes, err
}

func (p *pass) sync(ctx context.Context, want []Route) error {
	before, err := p.table.read(want)
	if err != nil {
		return err
	}
	p.inspect(before, want)
	add, remove := Diff(before.ours, want)
	if err := p.install(ctx, before, add); err != nil {
		return err
	}
	if len(remove) == 0 && len(before.stray) == 0 {
		return nil
	}

	// Read again: a replaced route is gone, and deleting it could hit its replacement, as
	// IPv4 takes a missing source in the request for "any".
	after, err := p.table.read(want)
	if err != nil {
		return err
	}
	_, remove = Diff(after.ours, want)
	return p.remove(ctx, remove, after.stray)
}

// pass is the state of one Sync.
type pass struct {
	table   *Table
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
				p.fault(r, fmt.Errorf("%s is %w", p.table.describe(foreign), ErrInTheWay))
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
		msg := message(r)
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
		if err := p.delete(ctx, r, message(r)); err != nil {
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
