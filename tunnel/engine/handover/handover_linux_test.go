package handover

import (
	"context"
	"strings"
	"testing"
	"time"
)

// handOver hands a node over from one engine to a new one, and returns that.
func handOver(t *testing.T, old *engine, with ...func(*Side)) *engine {
	t.Helper()
	fresh := old.node.start(t, true)
	pairFor(t, old, fresh)
	old.Limits.Drain = 500 * time.Millisecond
	fresh.Limits.Drain = 5 * time.Second
	for _, change := range with {
		change(&old.Side)
		change(&fresh.Side)
	}
	handedOver := make(chan error, 1)
	go func() {
		err := HandOver(context.Background(), old.Side, func() {})
		old.Device.Close()
		handedOver <- err
	}()
	err := TakeOver(context.Background(), fresh.Side, func() {
		have, err := peersOf(fresh.Device)
		if err != nil {
			t.Error(err)
		}
		for _, p := range have {
			if strings.Contains(old.node.config, "keepalive_interval=25") && p.keepalive != 25 {
				t.Error("a peer has no persistent keepalives when the device is taken")
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-handedOver; err != nil {
		t.Fatal(err)
	}
	return fresh
}

// connect waits until the tunnel works in both directions.
func connect(t *testing.T, flows ...*flow) {
	t.Helper()
	for _, f := range flows {
		f.flowing(t)
		f.connected = f.sent.Load()
	}
}

// interval is that of the packets of a flow.
const interval = 2 * time.Millisecond

// Packets in both directions while one engine hands over to the next, several times.
func TestNothingIsLost(t *testing.T) {
	test := func(t *testing.T, under underlay, handOvers int, more string, every time.Duration) {
		n := newNode(t, under, "10.0.0.1")
		r := newRemote(t, "10.0.0.2", n, more)
		n.peer(r.node, r.endpoint(), more)
		e := n.start(t, false).up(t)
		t.Cleanup(n.closeFiles)
		out := startFlow(t, n, r.node, every)
		connect(t, out)
		in := startFlow(t, r.node, n, every)
		connect(t, in)
		for range handOvers {
			e = handOver(t, e)
		}
		t.Logf("%d packets out, %d in", out.sent.Load(), in.sent.Load())
		if lost := out.missing(t); lost > 0 {
			t.Errorf("%d packets out are lost", lost)
		}
		if lost := in.missing(t); lost > 0 {
			t.Errorf("%d packets in are lost", lost)
		}
		r.noNonceTwice(t)
	}
	for name, more := range map[string]string{
		"plain":         "",
		"keepalives":    "persistent_keepalive_interval=25\n",
		"preshared key": "preshared_key=0101010101010101010101010101010101010101010101010101010101010101\n",
	} {
		runInBubble(t, name, func(t *testing.T) { test(t, newLAN(), 5, more, interval) })
	}
	t.Run("with sockets of the kernel", func(t *testing.T) {
		verifyNoLeaks(t)
		handOvers := 5
		if testing.Short() {
			handOvers = 1
		}
		test(t, loopback{}, handOvers, "", 200*time.Microsecond)
	})
}
