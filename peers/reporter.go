package peers

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/time/rate"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	reports "github.com/kube-semaphore/kube-semaphore/internal/paths"
)

const (
	// upFor is how long a path must have been up for it to be reported no more.
	upFor = 2 * time.Second
	// reportSpacing is the least time between two writes of a report.
	reportSpacing = 500 * time.Millisecond
	// What one node sees all see. They write within a millisecond for each of them,
	// and within reportSpread at most.
	reportSpread, reportShare = time.Second, time.Millisecond
	// settling is for how long after its start a process may not know what its
	// predecessor knew: peers that aren't configured yet, or that seem to be up by a
	// handshake of before. The latter lasts no longer than silentAfter.
	settling = time.Minute
	// A report changes changesBurst times without delay, and after that as often as all
	// nodes together may by the rate at which their kubelets renew their own Leases, each
	// 10 s. What comes up again leaves changesKept of them, so that in a mesh that flaps
	// what is down is still told at once.
	changesBurst, changesKept       = 12, 6
	changesShare, changesEveryLeast = 10 * time.Millisecond, 2 * time.Second
	// Room of a report that isn't for names: for each remote its own name and fields.
	reportFrame = 200
)

// ReporterConfig is what a Reporter needs.
type ReporterConfig struct {
	// Leases are those of Namespace; needs get, create, patch, delete.
	Leases    kube.Objects[*coordinationv1.Lease, *coordinationv1.LeaseList]
	Namespace string
	Node      string // this one
	// Owner is this process's pod, with which the report goes.
	Owner metav1.OwnerReference
	// Paths returns what is known of all paths, by remote.
	Paths func() map[string][]Path
	// Reporters returns how many nodes may report at the same time.
	Reporters func() int
	Logger    *slog.Logger
}

// Reporter keeps the report of this node: it is there while a path is down.
//
//	a path        up ____/---- down ----\__________ up
//	reported      _______/--------------------\____
//	                      ^ within 1 s   2 s   ^
type Reporter struct {
	cfg ReporterConfig

	begun   time.Time // when what an earlier process reported was read
	written reports.Report
	there   bool      // an object is
	at      time.Time // when it was last written; zero: not by this process
	wait    time.Time // when a change may be written; zero: there is none
	changes *rate.Limiter
	due     time.Time
}

// NewReporter returns a reporter that has done nothing yet.
func NewReporter(cfg ReporterConfig) *Reporter {
	return &Reporter{cfg: cfg, written: reports.Report{Node: cfg.Node}, changes: rate.NewLimiter(rate.Every(changesEveryLeast), changesBurst)}
}

// Due says when to call Reconcile although nothing has happened.
func (r *Reporter) Due() time.Time { return r.due }

// Reconcile brings the report to what it must be. It must not be called twice at the
// same time.
func (r *Reporter) Reconcile(ctx context.Context) error {
	now := time.Now()
	if r.begun.IsZero() {
		if err := r.begin(ctx, now); err != nil {
			return err
		}
	}
	return r.pass(ctx, now)
}

// begin reads what an earlier process has reported. What that knew to be down and this
// one knows nothing of stays so, until it does.
func (r *Reporter) begin(ctx context.Context, now time.Time) error {
	l, err := r.cfg.Leases.Get(ctx, reports.Name(r.cfg.Node), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return fmt.Errorf("read the report of paths: %w", err)
	default:
		r.there = true
		if report, err := reports.Read(l); err == nil && report.Node == r.cfg.Node {
			r.written = report
		}
	}
	r.begun = now
	return nil
}

func (r *Reporter) pass(ctx context.Context, now time.Time) error {
	settled := r.begun.Add(settling)
	all := r.cfg.Paths()
	want, due := reportAt(now, r.cfg.Node, &r.written, all, now.Before(settled))
	r.due = due
	if now.Before(settled) && len(want.Remotes) > 0 {
		r.remind(settled)
	}
	if !r.there && len(want.Remotes) == 0 {
		r.wait = time.Time{}
		return nil
	}
	same := r.there && !r.at.IsZero() && want.Equal(&r.written)
	renew := r.at.Add(reports.Renewal)
	if same && now.Before(renew) {
		r.wait = time.Time{}
		r.remind(renew)
		return nil
	}
	if !same && r.wait.IsZero() {
		r.wait = latest(now.Add(spread(r.cfg.Reporters())), r.at.Add(reportSpacing))
	}
	change := !want.Equal(&r.written)
	until := r.wait
	if change {
		until = latest(until, r.allowed(now, worse(&r.written, &want, all)))
	}
	if r.there && !r.at.IsZero() && renew.Before(until) {
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
	r.wait = time.Time{}
	if r.there {
		r.remind(now.Add(reports.Renewal))
	}
	return nil
}

// allowed returns when a change may be written for the sake of how many there were. It
// isn't later than the report would be renewed in any case.
func (r *Reporter) allowed(now time.Time, worse bool) time.Time {
	every := max(changesEveryLeast, time.Duration(r.cfg.Reporters())*changesShare)
	r.changes.SetLimitAt(now, rate.Every(every))
	missing := 1 - r.changes.TokensAt(now)
	if !worse {
		missing += changesKept
	}
	return now.Add(time.Duration(max(0, missing) * float64(every)))
}

// worse reports whether something is down that wasn't reported before.
func worse(before, now *reports.Report, all map[string][]Path) bool {
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

// remind has Due be no later than a time.
func (r *Reporter) remind(at time.Time) {
	if r.due.IsZero() || at.Before(r.due) {
		r.due = at
	}
}

func (r *Reporter) write(ctx context.Context, now time.Time, want *reports.Report) error {
	if len(want.Remotes) == 0 {
		return r.Withdraw(ctx)
	}
	// Neither is server-side apply, which costs the API server several times as much:
	// when a cluster dies, all nodes write within a second.
	lease := want.Lease(r.cfg.Namespace, r.cfg.Owner, now)
	var err error
	if r.there {
		var patch []byte
		if patch, err = reports.Patch(lease); err == nil {
			_, err = r.cfg.Leases.Patch(ctx, lease.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager})
		}
	} else {
		_, err = r.cfg.Leases.Create(ctx, lease, metav1.CreateOptions{FieldManager: FieldManager})
	}
	switch {
	case apierrors.IsNotFound(err):
		r.there = false
	case apierrors.IsAlreadyExists(err):
		r.there = true
	}
	if err != nil {
		return fmt.Errorf("report paths that are down: %w", err)
	}
	if !want.Equal(&r.written) || !r.there {
		for remote, down := range want.Remotes {
			r.cfg.Logger.DebugContext(ctx, "paths reported", "cluster", remote, "all_but", down.AllBut, "nodes", down.Nodes)
		}
	}
	r.written, r.there, r.at = *want, true, now
	return nil
}

// Withdraw removes the report. That there is none is no error.
func (r *Reporter) Withdraw(ctx context.Context) error {
	err := r.cfg.Leases.Delete(ctx, reports.Name(r.cfg.Node), metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("withdraw the report of paths: %w", err)
	}
	r.written, r.there, r.at = reports.Report{Node: r.cfg.Node}, false, time.Time{}
	return nil
}

// spread is how long a node waits with what so many see.
func spread(reporters int) time.Duration {
	most := min(reportSpread, time.Duration(reporters)*reportShare)
	if most <= 0 {
		return 0
	}
	return rand.N(most)
}

// reportAt returns what a node must report at a moment, when it last reported before,
// and when that will be different although no path changes; zero: not known.
//
//	| a path                                        | is reported |
//	| --------------------------------------------- | ----------- |
//	| is down                                       | yes         |
//	| is up, for upFor                              | no          |
//	| is up, for less                               | if it was   |
//	| isn't known                                   | if it was   |
//	| settling: isn't there, or is up by a          |             |
//	| handshake, which may be an old one            | if it was   |
func reportAt(now time.Time, node string, before *reports.Report, all map[string][]Path, settling bool) (want reports.Report, due time.Time) {
	type state struct {
		down, others []string
		more         bool // there are nodes of which this process doesn't know yet
	}
	states := map[string]*state{}
	want = reports.Report{Node: node, Remotes: map[string]reports.Down{}}
	for remote, known := range all {
		s := &state{}
		was, reported := before.Remotes[remote]
		for _, p := range known {
			down := p.State == PathDown
			if !down && reported && was.Has(p.Node) {
				settled := p.Since.Add(upFor)
				down = p.State == PathUnknown || now.Before(settled) || settling && p.Sign != SignAnswer
				if p.State == PathUp && now.Before(settled) && (due.IsZero() || settled.Before(due)) {
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
				if !slices.ContainsFunc(known, func(p Path) bool { return p.Node == name }) {
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
		room := reports.MaxSize/len(states) - reportFrame
		if s.more {
			want.Remotes[remote] = reports.Listed(s.down, room)
		} else {
			want.Remotes[remote] = reports.NewDown(s.down, s.others, room)
		}
	}
	return want, due
}
