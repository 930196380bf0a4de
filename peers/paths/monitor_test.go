package paths

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// prober answers probes at the next Receive.
type prober struct {
	refuses, outdated error
	asked             []netip.Addr
	opened            int
}

func (p *prober) open() (Prober, error) {
	p.opened++
	return p, nil
}

func (p *prober) Send(to netip.Addr, _ bool) error {
	if p.refuses == nil {
		p.asked = append(p.asked, to)
	}
	return p.refuses
}

func (p *prober) Receive(answered func(tunnel.Answer)) error {
	for _, a := range p.asked {
		answered(tunnel.Answer{From: a})
	}
	p.asked = nil
	return nil
}

func (p *prober) Refresh() error { return p.outdated }

// Close drops pending answers.
func (p *prober) Close() error {
	p.asked = nil
	return nil
}

// monitored is a device in memory.
type monitored struct {
	gone bool
	err  error
	// peers have zero status at first.
	peers map[tunnel.Key]tunnel.PeerStatus

	reads              int
	resets, keepalives []tunnel.Key
}

func (d *monitored) Index() (int, bool) { return 7, !d.gone }

// Nudge implements Device.
func (d *monitored) Nudge(_ context.Context, decide func(tunnel.PeerStatus) tunnel.Nudge) (tunnel.Nudges, error) {
	d.reads++
	if d.err != nil {
		return tunnel.Nudges{}, d.err
	}
	for _, key := range slices.SortedFunc(maps.Keys(d.peers), tunnel.Key.Compare) {
		status := d.peers[key]
		status.PublicKey = key
		switch decide(status) {
		case tunnel.NudgeReset:
			d.resets = append(d.resets, key)
		case tunnel.NudgeKeepalive:
			d.keepalives = append(d.keepalives, key)
		case tunnel.NudgeNone, tunnel.NudgeHandshake:
		}
	}
	return tunnel.Nudges{Resets: len(d.resets)}, nil
}

// monitor returns a monitor of a device with new peers, with open for its prober.
func monitor(size int, open func() (Prober, error), logs slog.Handler) (*Monitor, *monitored) {
	d := &monitored{peers: map[tunnel.Key]tunnel.PeerStatus{}}
	m := NewMonitor(Config{Device: d, Prober: open, Logger: slog.New(logs)})
	var all []Peer
	fresh := map[tunnel.Key]struct{}{}
	for i := range size {
		k := keyOf(i + 1)
		all = append(all, Peer{PublicKey: k, Addr: tunnel.LinkLocal(k), Since: time.Now()})
		d.peers[k], fresh[k] = tunnel.PeerStatus{}, struct{}{}
	}
	m.Set(time.Now(), tunnel.Key{}, all, fresh)
	return m, d
}

// A host that blocks probes, by its firewall or a route, is handled like one whose device
// can't have the address: missing answers mean neither up nor down, and the prober isn't
// reopened in each pass.
func TestHostThatBlocksProbes(t *testing.T) {
	var logs strings.Builder
	p := &prober{}
	m, _ := monitor(1, p.open, slog.NewTextHandler(&logs, nil))
	probe := func(times int) Path {
		t.Helper()
		for range times {
			for _, to := range m.table.of {
				to.next = time.Now()
			}
			if err := m.Probe(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		return m.Paths()[0]
	}
	if is := probe(2); is.State != Up || !is.Answers || m.Unprobed() != "" {
		t.Fatalf("%+v, unprobed: %s", is, m.Unprobed())
	}
	p.refuses = fmt.Errorf("%w: send: no", tunnel.ErrNoProbes)
	if is := probe(9); is.Answers || !strings.Contains(m.Unprobed(), "send: no") {
		t.Errorf("%+v, unprobed: %q", is, m.Unprobed())
	}
	if p.opened != 2 || strings.Count(logs.String(), "can't be probed") != 1 {
		t.Errorf("opened %d times, logged:\n%s", p.opened, logs.String())
	}
	m.probing.until = time.Now()
	probe(1)
	if p.opened != 3 || strings.Count(logs.String(), "can't be probed") != 1 {
		t.Errorf("later opened %d times, logged:\n%s", p.opened, logs.String())
	}
	p.refuses, m.probing.until = nil, time.Now()
	if is := probe(2); is.State != Up || !is.Answers || m.Unprobed() != "" {
		t.Errorf("%+v, unprobed: %q", is, m.Unprobed())
	}
}

// A working prober is kept: reopening it would lose answers in flight, and a slow peer would
// count as one that doesn't answer.
func TestProberIsKept(t *testing.T) {
	p := &prober{}
	m, _ := monitor(1, p.open, slog.DiscardHandler)
	for _, s := range []struct {
		what     string
		outdated error
		opened   int
		answers  bool
	}{
		{"at first", nil, 1, false},
		{"of use", nil, 1, true},
		{"outdated", os.ErrNotExist, 2, false},
	} {
		p.outdated, m.probing.until = s.outdated, time.Now()
		for _, to := range m.table.of {
			to.next, to.answers = time.Now(), false
		}
		if err := m.Probe(t.Context()); err != nil {
			t.Fatal(err)
		}
		if is := m.Paths()[0]; p.opened != s.opened || is.Answers != s.answers {
			t.Errorf("%s: opened %d times, %+v", s.what, p.opened, is)
		}
	}
}

// A device that is being created has no key yet. It has to answer as soon as it has, since
// other nodes probe it from then on.
func TestProbesBeginWithTheDevice(t *testing.T) {
	p := &prober{}
	m, _ := monitor(1, func() (Prober, error) {
		if p.opened++; p.opened == 1 {
			return nil, fmt.Errorf("it has no key yet: %w", os.ErrNotExist)
		}
		return p, nil
	}, slog.DiscardHandler)
	for range 2 {
		if err := m.Probe(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if p.opened != 2 || len(p.asked) != 1 || m.Unprobed() != "" {
		t.Errorf("opened %d times, %d asked, unprobed: %q", p.opened, len(p.asked), m.Unprobed())
	}
}
