package peers

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"time"

	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// Prober asks the kernels of a device's peers for signs of life: a [tunnel.Prober].
type Prober interface {
	Send(to netip.Addr, large bool) error
	Receive(answered func(tunnel.Answer)) error
	// Refresh has it work on; an error says that another one is needed.
	Refresh() error
	Close() error
}

const (
	// refreshAfter is how often the device's address is looked after, which a link that
	// went down and up again has lost, and its MTU.
	refreshAfter = 30 * time.Second
	// reopenFailed is the same where there is no prober.
	reopenFailed = 5 * time.Second
	// verifyAgain is how soon after a handshake was begun we look whether it succeeded.
	verifyAgain = 250 * time.Millisecond
	// lookRest is for how many times as long as a look at the whole device took there
	// is no other one, for the sake of handshakes.
	lookRest = 40
)

// probing is what is open to ask the peers of a device. It belongs to Probe.
type probing struct {
	prober Prober
	asked  bool      // it has asked somebody
	index  int       // of the device
	until  time.Time // it is looked after
}

// Probe judges the paths to all peers, after it has taken their answers, and asks those
// whose turn it is. It is meant to be called when ProbeDue says, and may run beside
// everything but itself. Where the device can't have an address for probes, paths are
// judged by what WireGuard shows.
func (c *Controller) Probe(context.Context) error {
	prober, err := c.prober()
	now := time.Now()
	changed := false
	if prober == nil {
		c.paths.blind(now)
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
			err = c.refused(sendErr)
			break
		}
		if sendErr == nil && !c.probing.asked {
			c.probing.asked = true
			c.unprobed.Store(nil)
		}
		// One that the device has no way for is one without an answer.
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

// ProbeDue returns when Probe is to be called next.
func (c *Controller) ProbeDue() time.Time { return time.Now().Add(pathTick) }

// prober returns what there is to ask with, nil when there is nothing. That a device
// can't have an address is no error.
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
	// Answers that are on their way are to this one.
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
		c.cannotProbe(openErr)
	case errors.Is(openErr, os.ErrNotExist):
		// The device is being made, and others ask it for the first time in a moment.
		p.until = now
	default:
		err = errors.Join(err, openErr)
	}
	return p.prober, err
}

// refused is told that nobody could be asked. The address, the device or its MTU is
// another one, which a new prober knows. When that hasn't asked anybody either it is of no
// use for a while.
func (c *Controller) refused(why error) error {
	before := c.probing
	err := c.stopProbing()
	if !before.asked {
		c.probing.index, c.probing.until = before.index, time.Now().Add(reopenFailed)
		c.cannotProbe(why)
	}
	return err
}

func (c *Controller) cannotProbe(because error) {
	why := because.Error()
	if c.unprobed.Swap(&why) == nil {
		c.log.Warn("peers can't be probed: paths are judged by handshakes and by what is received, in minutes", "err", because)
	}
}

// StopProbing closes what Probe has opened. Probe must not be running.
func (c *Controller) StopProbing() error { return c.stopProbing() }

func (c *Controller) stopProbing() error {
	p := c.probing.prober
	c.probing = probing{}
	if p == nil {
		return nil
	}
	return p.Close()
}

// Unprobed says why peers can't be probed; empty when they are.
func (c *Controller) Unprobed() string {
	if why := c.unprobed.Load(); why != nil {
		return *why
	}
	return ""
}

// Renew begins handshakes with peers that don't answer probes any more, or that are down,
// see [Device.Contact]. It reads the whole device, and may run beside
// everything but itself. It is meant to be called when ControllerConfig.Renew was, and
// when RenewDue says.
func (c *Controller) Renew(ctx context.Context) error {
	if _, exists := c.cfg.Device.Index(); !exists || time.Now().Before(c.renewing.rest) {
		return nil
	}
	started := time.Now()
	begun, read := 0, 0
	_, err := c.cfg.Device.Contact(ctx, func(p tunnel.PeerStatus) tunnel.Contact {
		read++
		c.readPath(started, &p)
		if begun >= contactBurst {
			return tunnel.ContactNone
		}
		do := c.paths.contact(started, p.PublicKey)
		if do != tunnel.ContactNone {
			begun++
		}
		return do
	})
	took := time.Since(started)
	c.renewing.rest = started.Add(max(verifyAgain, min(lookRest*took, time.Duration(read)*pausePerPeer)))
	c.renewing.due = time.Time{}
	if begun > 0 {
		c.log.Debug("handshakes begun with peers that don't answer", "peers", begun)
		c.renewing.due = c.renewing.rest
	}
	return err
}

// renewing is when Renew may and should be called. It belongs to Renew.
type renewing struct{ rest, due time.Time }

// RenewDue returns when Renew has something to do without being told; zero: never. It
// may not run beside Renew.
func (c *Controller) RenewDue() time.Time { return c.renewing.due }

// Paths returns what is known of the ways to all peers, sorted by node.
func (c *Controller) Paths() []Path { return c.paths.show() }

// Path returns what is known of the way to one peer.
func (c *Controller) Path(key tunnel.Key) (Path, bool) { return c.paths.find(key) }
