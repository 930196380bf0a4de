package peers

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
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

// asking returns a controller of a device with one peer, with open for its prober.
func asking(t *testing.T, logs slog.Handler, open func() (Prober, error)) *Controller {
	t.Helper()
	r := &remote{nodes: []*Node{node(1)}, synced: true}
	c := NewController(ControllerConfig{
		Cluster: "gcp", Device: &device{}, Store: NewStore(t.TempDir(), "wireguard.gcp", "gcp"),
		Nodes: func() ([]*Node, bool) { return r.nodes, r.synced }, Rules: func() Rules { return rules },
		Prober: open, Logger: slog.New(logs),
	})
	reconcile(t, c)
	return c
}

// A host that blocks probes, by its firewall or a route, is handled like one whose device
// can't have the address: missing answers mean neither up nor down, and the prober isn't
// reopened in each pass.
func TestHostThatBlocksProbes(t *testing.T) {
	var logs strings.Builder
	p := &prober{}
	c := asking(t, slog.NewTextHandler(&logs, nil), p.open)
	probe := func(times int) Path {
		t.Helper()
		for range times {
			for _, to := range c.paths.of {
				to.next = time.Now()
			}
			if err := c.Probe(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		return c.Paths()[0]
	}
	if is := probe(2); is.State != PathUp || !is.Answers || c.Unprobed() != "" {
		t.Fatalf("%+v, unprobed: %s", is, c.Unprobed())
	}
	p.refuses = fmt.Errorf("%w: send: no", tunnel.ErrNoProbes)
	if is := probe(9); is.Answers || !strings.Contains(c.Unprobed(), "send: no") {
		t.Errorf("%+v, unprobed: %q", is, c.Unprobed())
	}
	if p.opened != 2 || strings.Count(logs.String(), "can't be probed") != 1 {
		t.Errorf("opened %d times, logged:\n%s", p.opened, logs.String())
	}
	c.probing.until = time.Now()
	probe(1)
	if p.opened != 3 || strings.Count(logs.String(), "can't be probed") != 1 {
		t.Errorf("later opened %d times, logged:\n%s", p.opened, logs.String())
	}
	p.refuses, c.probing.until = nil, time.Now()
	if is := probe(2); is.State != PathUp || !is.Answers || c.Unprobed() != "" {
		t.Errorf("%+v, unprobed: %q", is, c.Unprobed())
	}
}

// A working prober is kept: reopening it would lose answers in flight, and a slow peer would
// count as one that doesn't answer.
func TestProberIsKept(t *testing.T) {
	p := &prober{}
	c := asking(t, slog.DiscardHandler, p.open)
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
		p.outdated, c.probing.until = s.outdated, time.Now()
		for _, to := range c.paths.of {
			to.next, to.answers = time.Now(), false
		}
		if err := c.Probe(t.Context()); err != nil {
			t.Fatal(err)
		}
		if is := c.Paths()[0]; p.opened != s.opened || is.Answers != s.answers {
			t.Errorf("%s: opened %d times, %+v", s.what, p.opened, is)
		}
	}
}

// A device that is being created has no key yet. It has to answer as soon as it has, since
// other nodes probe it from then on.
func TestProbesBeginWithTheDevice(t *testing.T) {
	p := &prober{}
	c := asking(t, slog.DiscardHandler, func() (Prober, error) {
		if p.opened++; p.opened == 1 {
			return nil, fmt.Errorf("it has no key yet: %w", os.ErrNotExist)
		}
		return p, nil
	})
	for range 2 {
		if err := c.Probe(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if p.opened != 2 || len(p.asked) != 1 || c.Unprobed() != "" {
		t.Errorf("opened %d times, %d asked, unprobed: %q", p.opened, len(p.asked), c.Unprobed())
	}
}
