package peers

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"time"

	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// Prober probes the peers of a device: a [tunnel.Prober].
type Prober interface {
	Send(to netip.Addr, large bool) error
	Receive(answered func(tunnel.Answer)) error
	// Refresh checks the device's address and MTU; after an error another prober is needed.
	Refresh() error
	Close() error
}

const (
	// refreshAfter is the interval of checking the device's MTU and its address for probes,
	// which a link loses when it goes down.
	refreshAfter = 30 * time.Second
	// reopenFailed is the retry interval after a prober could not be opened.
	reopenFailed = 5 * time.Second
	// verifyAgain is the interval of checking whether a handshake succeeded.
	verifyAgain = 250 * time.Millisecond
	// readRest is the minimum pause between reads of the whole device for handshakes, as a
	// multiple of their duration.
	readRest = 40
)

// probing is the open prober of a device. It is owned by Probe.
type probing struct {
	prober Prober
	sent   bool      // it has sent a probe
	index  int       // of the device
	until  time.Time // next refresh
}

// Probe records answers, evaluates the paths to all peers, and sends the probes that are
// due. Call it at ProbeDue. It may run concurrently with everything but itself. Where the
// device can't have an address for probes, paths are evaluated by WireGuard's status.
func (c *Controller) Probe(context.Context) error {
	prober, err := c.prober()
	now := time.Now()
	changed := false
	if prober == nil {
		c.paths.fallBackAll(now)
	} else if err = prober.Receive(func(a tunnel.Answer) {
		changed = c.paths.answer(now, a) || changed
	}); err != nil {
		err = errors.Join(err, c.stopProbing())
		prober = nil
	}
	ask, judged, handshakes := c.paths.tick(now)
	for _, p := range ask {
		if prober == nil {
			break
		}
		sendErr := prober.Send(p.to, p.large)
		if errors.Is(sendErr, tunnel.ErrNoProbes) {
			err = c.probesFailed(sendErr)
			break
		}
		if sendErr == nil && !c.probing.sent {
			c.probing.sent = true
			c.unprobed.Store(nil)
		}
		// A probe that can't be routed counts as unanswered.
		c.paths.sent(now, p)
	}
	if (changed || judged) && c.cfg.PathChanged != nil {
		c.cfg.PathChanged()
	}
	if handshakes && c.cfg.Renew != nil {
		c.cfg.Renew()
	}
	return err
}

// ProbeDue returns when Probe is due.
func (c *Controller) ProbeDue() time.Time { return time.Now().Add(pathTick) }

// prober returns the open prober, or opens one; nil if that fails. It is no error that a
// device can't have an address for probes.
func (c *Controller) prober() (Prober, error) {
	p := &c.probing
	index, exists := c.cfg.Device.Index()
	now := time.Now()
	if c.cfg.Prober == nil || !exists {
		return nil, c.stopProbing()
	}
	if index == p.index && now.Before(p.until) {
		return p.prober, nil
	}
	// Keep the prober if possible: answers in flight would be lost.
	if p.prober != nil && index == p.index && p.prober.Refresh() == nil {
		p.until = now.Add(refreshAfter)
		return p.prober, nil
	}
	err := c.stopProbing()
	opened, openErr := c.cfg.Prober()
	p.index, p.until = index, now.Add(reopenFailed)
	switch {
	case openErr == nil:
		p.prober, p.until = opened, now.Add(refreshAfter)
	case errors.Is(openErr, tunnel.ErrNoProbes):
		c.logUnprobed(openErr)
	case errors.Is(openErr, os.ErrNotExist):
		// The device is being created: retry in the next pass.
		p.until = now
	default:
		err = errors.Join(err, openErr)
	}
	return p.prober, err
}

// probesFailed closes the prober after [tunnel.ErrNoProbes]: the address, the device or
// its MTU may have changed, which a new prober detects. If this one never sent a probe,
// the next one is opened only after reopenFailed.
func (c *Controller) probesFailed(why error) error {
	before := c.probing
	err := c.stopProbing()
	if !before.sent {
		c.probing.index, c.probing.until = before.index, time.Now().Add(reopenFailed)
		c.logUnprobed(why)
	}
	return err
}

func (c *Controller) logUnprobed(because error) {
	why := because.Error()
	if c.unprobed.Swap(&why) == nil {
		c.log.Warn("peers can't be probed: broken paths are detected by missing handshakes only, after minutes", "err", because)
	}
}

// StopProbing closes the prober. Probe must not be running.
func (c *Controller) StopProbing() error { return c.stopProbing() }

func (c *Controller) stopProbing() error {
	p := c.probing.prober
	c.probing = probing{}
	if p == nil {
		return nil
	}
	return p.Close()
}

// Unprobed returns why peers can't be probed; empty: they are probed.
func (c *Controller) Unprobed() string {
	if why := c.unprobed.Load(); why != nil {
		return *why
	}
	return ""
}

// Renew sends handshakes to peers that no longer answer probes, or that are down, see
// [Device.Nudge]. It reads the whole device, and may run concurrently with everything but
// itself. Call it after ControllerConfig.Renew and at RenewDue.
func (c *Controller) Renew(ctx context.Context) error {
	if _, exists := c.cfg.Device.Index(); !exists || time.Now().Before(c.renewAfter) {
		return nil
	}
	started := time.Now()
	begun, read := 0, 0
	_, err := c.cfg.Device.Nudge(ctx, func(p tunnel.PeerStatus) tunnel.Nudge {
		read++
		c.readPath(started, &p)
		if begun >= nudgeBurst {
			return tunnel.NudgeNone
		}
		do := c.paths.nudge(started, p.PublicKey)
		if do != tunnel.NudgeNone {
			begun++
		}
		return do
	})
	took := time.Since(started)
	c.renewAfter = started.Add(max(verifyAgain, min(readRest*took, time.Duration(read)*pausePerPeer)))
	c.renewDue = time.Time{}
	if begun > 0 {
		c.log.Debug("handshakes sent to unresponsive peers", "peers", begun)
		c.renewDue = c.renewAfter
	}
	return err
}

// RenewDue returns when Renew is due without ControllerConfig.Renew; zero: never. It must
// not run concurrently with Renew.
func (c *Controller) RenewDue() time.Time { return c.renewDue }

// Paths returns the paths to all peers, sorted by node.
func (c *Controller) Paths() []Path { return c.paths.export() }

// Path returns the path to one peer.
func (c *Controller) Path(key tunnel.Key) (Path, bool) { return c.paths.find(key) }
