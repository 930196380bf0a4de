package peers

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/pathreport"
	"github.com/kube-semaphore/kube-semaphore/peers/paths"
)

const (
	// upFor is how long a path must have been up until it is no longer reported.
	upFor = 2 * time.Second
	// reportSpacing is the minimum interval between two writes of a report.
	reportSpacing = 500 * time.Millisecond
	// All nodes notice the same failure at the same time. Their writes are spread over
	// reportShare per node, at most reportSpread.
	reportSpread, reportShare = time.Second, time.Millisecond
	// settling is the time after start in which the report of an earlier process counts:
	// peers may not be configured yet, or seem up by an earlier handshake, which lasts no
	// longer than silentAfter.
	settling = time.Minute
	// A report may change changesBurst times without delay, then every changesShare per
	// node: all nodes together write at a rate below that of their kubelets' Leases, each
	// every 10 s. Changes to up leave changesKept of the burst, so that when paths flap a
	// path that goes down is still reported at once.
	changesBurst, changesKept       = 12, 6
	changesShare, changesEveryLeast = 10 * time.Millisecond, 2 * time.Second
	// reportFrame is the size in bytes reserved per remote for its name and fields.
	reportFrame = 200
)

// ReporterConfig describes a Reporter.
type ReporterConfig struct {
	// Leases are those of Namespace; needs get, create, patch, delete.
	Leases    kube.Objects[*coordinationv1.Lease, *coordinationv1.LeaseList]
	Namespace string
	Node      string // this one
	// Owner is this process's pod: the report is deleted with it.
	Owner metav1.OwnerReference
	// Paths returns all paths, by remote.
	Paths func() map[string][]paths.Path
	// Reporters returns the number of nodes that may report at the same time.
	Reporters func() int
	Logger    *slog.Logger
}

// Reporter maintains the report of this node, a Lease that exists while a path is down.
//
//	a path        up ____/---- down ----\__________ up
//	reported      _______/--------------------\____
//	                      ^ within 1 s   2 s   ^
type Reporter struct {
	cfg ReporterConfig

	loadedAt   time.Time // when the report of an earlier process was read
	written    pathreport.Report
	exists     bool      // the object exists
	writtenAt  time.Time // last write; zero: not by this process
	writeAfter time.Time // earliest write of a pending change; zero: none
	changes    *rate.Limiter
	due        time.Time
}

// NewReporter returns a reporter.
func NewReporter(cfg ReporterConfig) *Reporter {
	return &Reporter{cfg: cfg, written: pathreport.Report{Node: cfg.Node}, changes: rate.NewLimiter(rate.Every(changesEveryLeast), changesBurst)}
}

// Due returns when Reconcile is due without a trigger; zero: never.
func (r *Reporter) Due() time.Time { return r.due }

// Reconcile writes the report if needed. It must not be called concurrently.
func (r *Reporter) Reconcile(ctx context.Context) error {
	now := time.Now()
	if r.loadedAt.IsZero() {
		if err := r.load(ctx, now); err != nil {
			return err
		}
	}
	return r.pass(ctx, now)
}

// load reads the report of an earlier process. Paths that it reported stay reported until
// this process knows their state.
func (r *Reporter) load(ctx context.Context, now time.Time) error {
	l, err := r.cfg.Leases.Get(ctx, pathreport.Name(r.cfg.Node), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return fmt.Errorf("read the report of paths: %w", err)
	default:
		r.exists = true
		if report, err := pathreport.Read(l); err == nil && report.Node == r.cfg.Node {
			r.written = report
		}
	}
	r.loadedAt = now
	return nil
}

func (r *Reporter) pass(ctx context.Context, now time.Time) error {
	settled := r.loadedAt.Add(settling)
	all := r.cfg.Paths()
	want, due := reportAt(now, r.cfg.Node, &r.written, all, now.Before(settled))
	r.due = due
	if now.Before(settled) && len(want.Remotes) > 0 {
		r.remind(settled)
	}
	if !r.exists && len(want.Remotes) == 0 {
		r.writeAfter = time.Time{}
		return nil
	}
	same := r.exists && !r.writtenAt.IsZero() && want.Equal(&r.written)
	renew := r.writtenAt.Add(pathreport.Renewal)
	if same && now.Before(renew) {
		r.writeAfter = time.Time{}
		r.remind(renew)
		return nil
	}
	if !same && r.writeAfter.IsZero() {
		r.writeAfter = latest(now.Add(writeDelay(r.cfg.Reporters())), r.writtenAt.Add(reportSpacing))
	}
	change := !want.Equal(&r.written)
	until := r.writeAfter
	if change {
		until = latest(until, r.allowed(now, worse(&r.written, &want, all)))
	}
	if r.exists && !r.writtenAt.IsZero() && renew.Before(until) {
		until = renew
	}
	if now.Before(until) {
		r.remind(until)
		return nil
	}
	if err := r.write(ctx, now, &want); err != nil {
		return err
	}
	if change {
		r.changes.ReserveN(now, 1)
	}
	r.writeAfter = time.Time{}
	if r.exists {
		r.remind(now.Add(pathreport.Renewal))
	}
	return nil
}

// allowed returns when the rate limit permits a change.
func (r *Reporter) allowed(now time.Time, worse bool) time.Time {
	every := max(changesEveryLeast, time.Duration(r.cfg.Reporters())*changesShare)
	r.changes.SetLimitAt(now, rate.Every(every))
	missing := 1 - r.changes.TokensAt(now)
	if !worse {
		missing += changesKept
	}
	return now.Add(time.Duration(max(0, missing) * float64(every)))
}

// worse reports whether a path is newly reported as down.
func worse(before, now *pathreport.Report, all map[string][]paths.Path) bool {
	for remote, known := range all {
		was, is := before.Remotes[remote], now.Remotes[remote]
		for i := range known {
			if is.Has(known[i].Node) && !was.Has(known[i].Node) {
				return true
			}
		}
	}
	return false
}

// remind makes Due no later than at.
func (r *Reporter) remind(at time.Time) {
	if r.due.IsZero() || at.Before(r.due) {
		r.due = at
	}
}

func (r *Reporter) write(ctx context.Context, now time.Time, want *pathreport.Report) error {
	if len(want.Remotes) == 0 {
		return r.Withdraw(ctx)
	}
	// Not by server-side apply, which costs the API server several times as much: when a
	// cluster fails, all nodes write within a second.
	lease := want.Lease(r.cfg.Namespace, r.cfg.Owner, now)
	var err error
	if r.exists {
		var patch []byte
		if patch, err = pathreport.Patch(lease); err == nil {
			_, err = r.cfg.Leases.Patch(ctx, lease.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager})
		}
	} else {
		_, err = r.cfg.Leases.Create(ctx, lease, metav1.CreateOptions{FieldManager: FieldManager})
	}
	switch {
	case apierrors.IsNotFound(err):
		r.exists = false
	case apierrors.IsAlreadyExists(err):
		r.exists = true
	}
	if err != nil {
		return fmt.Errorf("report paths that are down: %w", err)
	}
	if !want.Equal(&r.written) || !r.exists {
		for remote, down := range want.Remotes {
			r.cfg.Logger.DebugContext(ctx, "paths reported", "cluster", remote, "all_but", down.AllBut, "nodes", down.Nodes)
		}
	}
	r.written, r.exists, r.writtenAt = *want, true, now
	return nil
}

// Withdraw deletes the report; a missing one is no error.
func (r *Reporter) Withdraw(ctx context.Context) error {
	err := r.cfg.Leases.Delete(ctx, pathreport.Name(r.cfg.Node), metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("withdraw the report of paths: %w", err)
	}
	r.written, r.exists, r.writtenAt = pathreport.Report{Node: r.cfg.Node}, false, time.Time{}
	return nil
}

// writeDelay returns a random delay by the number of nodes that report at the same time.
func writeDelay(reporters int) time.Duration {
	most := min(reportSpread, time.Duration(reporters)*reportShare)
	if most <= 0 {
		return 0
	}
	return rand.N(most)
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// reportAt returns the desired report of a node at the time now, given its last one, and
// when it changes without a change of paths; zero: not known.
//
//	| a path                                        | is reported |
//	| --------------------------------------------- | ----------- |
//	| is down                                       | yes         |
//	| is up, for upFor                              | no          |
//	| is up, for less                               | if it was   |
//	| is unknown                                    | if it was   |
//	| settling: doesn't exist, or is up by a        |             |
//	| handshake, which may be an old one            | if it was   |
func reportAt(now time.Time, node string, before *pathreport.Report, all map[string][]paths.Path, settling bool) (want pathreport.Report, due time.Time) {
	type state struct {
		down, others []string
		more         bool // down has nodes that this process doesn't know yet
	}
	states := map[string]*state{}
	want = pathreport.Report{Node: node, Remotes: map[string]pathreport.Down{}}
	for remote, known := range all {
		s := &state{}
		was, reported := before.Remotes[remote]
		for _, p := range known {
			down := p.State == paths.Down
			if !down && reported && was.Has(p.Node) {
				settled := p.Since.Add(upFor)
				down = p.State == paths.Unknown || now.Before(settled) || settling && p.Sign != paths.SignAnswer
				if p.State == paths.Up && now.Before(settled) && (due.IsZero() || settled.Before(due)) {
					due = settled
				}
			}
			if down {
				s.down = append(s.down, p.Node)
			} else {
				s.others = append(s.others, p.Node)
			}
		}
		if reported && settling && !was.AllBut {
			for _, name := range was.Nodes {
				if _, is := slices.BinarySearchFunc(known, name, func(p paths.Path, name string) int { return strings.Compare(p.Node, name) }); !is {
					s.down, s.more = append(s.down, name), true
				}
			}
		}
		switch {
		case len(s.down) > 0:
			states[remote] = s
		case reported && settling && len(known) == 0:
			want.Remotes[remote] = was
		}
	}
	for remote, s := range states {
		slices.Sort(s.down)
		slices.Sort(s.others)
		size := pathreport.MaxSize/len(states) - reportFrame
		if s.more {
			want.Remotes[remote] = pathreport.Listed(s.down, size)
		} else {
			want.Remotes[remote] = pathreport.NewDown(s.down, s.others, size)
		}
	}
	return want, due
}
