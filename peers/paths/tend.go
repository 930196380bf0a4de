package paths

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// tending is the state of Tend, which owns all of it but renew.
type tending struct {
	listenDue            time.Time
	renewAfter, renewDue time.Time
	renew                atomic.Bool // Probe has found peers that need a handshake
}

// Tend establishes and checks sessions: those of new peers, those with peers that no longer answer
// probes, and, every listenSpacing, all of them. Call it after Config.Wake and at TendDue. It may
// run concurrently with everything but itself.
func (m *Monitor) Tend(ctx context.Context) error {
	now, t := time.Now(), &m.tending
	listens := !now.Before(t.listenDue)
	if listens {
		t.listenDue = now.Add(listenSpacing)
	}
	if _, exists := m.cfg.Device.Index(); !exists {
		return nil
	}
	// First what a moment counts for.
	errs := []error{m.rehandshake(ctx)}
	if due := t.renewDue; t.renew.Swap(false) || !due.IsZero() && !time.Now().Before(due) {
		errs = append(errs, m.renew(ctx))
	}
	if listens {
		errs = append(errs, m.listen(ctx))
	}
	return errors.Join(errs...)
}

// TendDue returns when Tend is due without Config.Wake. It must not run concurrently with Tend.
func (m *Monitor) TendDue() time.Time {
	due := m.tending.listenDue
	if _, exists := m.cfg.Device.Index(); !exists {
		return due
	}
	for _, t := range []time.Time{m.handshakes.nextDue(), m.tending.renewDue} {
		if !t.IsZero() && t.Before(due) {
			due = t
		}
	}
	return due
}

func (m *Monitor) wake() {
	if m.cfg.Wake != nil {
		m.cfg.Wake()
	}
}

// renew sends handshakes to peers that no longer answer probes, or that are down, see
// [Device.Nudge]. It reads the whole device.
func (m *Monitor) renew(ctx context.Context) error {
	t := &m.tending
	if time.Now().Before(t.renewAfter) {
		return nil
	}
	started := time.Now()
	begun, read := 0, 0
	_, err := m.cfg.Device.Nudge(ctx, func(p tunnel.PeerStatus) tunnel.Nudge {
		read++
		m.readPath(started, &p)
		if begun >= nudgeBurst {
			return tunnel.NudgeNone
		}
		do := m.table.nudge(started, p.PublicKey)
		if do != tunnel.NudgeNone {
			begun++
		}
		return do
	})
	took := time.Since(started)
	t.renewAfter = started.Add(max(verifyAgain, min(readRest*took, time.Duration(read)*pausePerPeer)))
	t.renewDue = time.Time{}
	if begun > 0 {
		m.cfg.Logger.Debug("handshakes sent to unresponsive peers", "peers", begun)
		t.renewDue = t.renewAfter
	}
	return err
}
