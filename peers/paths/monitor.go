// Package paths judges the paths to the peers of a WireGuard device: whether packets reach a
// peer and return. It probes them, reads WireGuard's status, and sends the handshakes and
// keepalives that establish and check sessions. It knows nothing of Kubernetes.
package paths

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"sync/atomic"
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

// Device is a device whose peers' paths are judged: a tunnel.Device.
type Device interface {
	// Index returns the link's index, and false while the device doesn't exist.
	Index() (int, bool)
	// Nudge applies decide's result to each peer of the device.
	Nudge(ctx context.Context, decide func(tunnel.PeerStatus) tunnel.Nudge) (tunnel.Nudges, error)
}

// Config describes a Monitor.
type Config struct {
	Device Device
	// Prober opens a prober of the device's peers, which the Monitor closes; nil: peers are
	// not probed.
	Prober func() (Prober, error)
	// Changed, unless nil, is called when Probe has changed the state of a path, and Wake when
	// Tend is due. They must not block.
	Changed, Wake func()
	Logger        *slog.Logger
}

// Monitor judges the paths to the peers of one device, by probes and by WireGuard's status.
type Monitor struct {
	cfg Config

	handshakes handshakes
	activity   activity
	table      table
	probing    probing
	tending    tending

	unprobed atomic.Pointer[string] // why; nil: peers are probed
}

// NewMonitor returns a monitor of a device without peers.
func NewMonitor(cfg Config) *Monitor {
	return &Monitor{cfg: cfg, table: newTable(), handshakes: handshakes{fresh: map[tunnel.Key]*newPeer{}}}
}

// Peer is a peer whose path is judged.
type Peer struct {
	Node      string
	PublicKey tunnel.Key
	Addr      netip.Addr // for probes; invalid: it isn't probed
	Passive   bool       // it has no endpoint, and has to send first
	Since     time.Time  // when it was configured
}

// Set replaces the peers of the device, whose public key is own. Known peers keep their
// state. With those in fresh, which were configured just now, Tend establishes
// sessions.
func (m *Monitor) Set(now time.Time, own tunnel.Key, peers []Peer, fresh map[tunnel.Key]struct{}) {
	m.handshakes.add(own, peers, fresh)
	m.table.set(now, own, peers)
	if len(fresh) > 0 {
		m.wake()
	}
}

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
func (m *Monitor) Probe(context.Context) error {
	prober, err := m.prober()
	now := time.Now()
	changed := false
	if prober == nil {
		m.table.fallBackAll(now)
	} else if err = prober.Receive(func(a tunnel.Answer) {
		changed = m.table.answer(now, a) || changed
	}); err != nil {
		err = errors.Join(err, m.StopProbing())
		prober = nil
	}
	ask, judged, handshakes := m.table.tick(now)
	for _, p := range ask {
		if prober == nil {
			break
		}
		sendErr := prober.Send(p.to, p.large)
		if errors.Is(sendErr, tunnel.ErrNoProbes) {
			err = m.probesFailed(sendErr)
			break
		}
		if sendErr == nil && !m.probing.sent {
			m.probing.sent = true
			m.unprobed.Store(nil)
		}
		// A probe that can't be routed counts as unanswered.
		m.table.sent(now, p)
	}
	if (changed || judged) && m.cfg.Changed != nil {
		m.cfg.Changed()
	}
	if handshakes {
		m.tending.renew.Store(true)
		m.wake()
	}
	return err
}

// ProbeDue returns when Probe is due.
func (m *Monitor) ProbeDue() time.Time { return time.Now().Add(pathTick) }

// prober returns the open prober, or opens one; nil if that fails. It is no error that a
// device can't have an address for probes.
func (m *Monitor) prober() (Prober, error) {
	p := &m.probing
	index, exists := m.cfg.Device.Index()
	now := time.Now()
	if m.cfg.Prober == nil || !exists {
		return nil, m.StopProbing()
	}
	if index == p.index && now.Before(p.until) {
		return p.prober, nil
	}
	// Keep the prober if possible: answers in flight would be lost.
	if p.prober != nil && index == p.index && p.prober.Refresh() == nil {
		p.until = now.Add(refreshAfter)
		return p.prober, nil
	}
	err := m.StopProbing()
	opened, openErr := m.cfg.Prober()
	p.index, p.until = index, now.Add(reopenFailed)
	switch {
	case openErr == nil:
		p.prober, p.until = opened, now.Add(refreshAfter)
	case errors.Is(openErr, tunnel.ErrNoProbes):
		m.logUnprobed(openErr)
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
func (m *Monitor) probesFailed(why error) error {
	before := m.probing
	err := m.StopProbing()
	if !before.sent {
		m.probing.index, m.probing.until = before.index, time.Now().Add(reopenFailed)
		m.logUnprobed(why)
	}
	return err
}

func (m *Monitor) logUnprobed(because error) {
	why := because.Error()
	if m.unprobed.Swap(&why) == nil {
		m.cfg.Logger.Warn("peers can't be probed: broken paths are detected by missing handshakes only, after minutes", "err", because)
	}
}

// StopProbing closes the prober. Probe must not be running.
func (m *Monitor) StopProbing() error {
	p := m.probing.prober
	m.probing = probing{}
	if p == nil {
		return nil
	}
	return p.Close()
}

// Unprobed returns why peers can't be probed; empty: they are probed.
func (m *Monitor) Unprobed() string {
	if why := m.unprobed.Load(); why != nil {
		return *why
	}
	return ""
}

// Paths returns the paths to all peers, sorted by node.
func (m *Monitor) Paths() []Path { return m.table.export() }

// Path returns the path to one peer.
func (m *Monitor) Path(key tunnel.Key) (Path, bool) { return m.table.find(key) }
