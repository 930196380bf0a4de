package tunnel

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
)

// playEngine replaces the test's engine by one that answers all requests except hello with
// the given function.
func playEngine(t *testing.T, handle func(c *control.Conn, m control.Message) control.Message) {
	t.Helper()
	withoutEngine(t)
	listener, err := control.Listen(control.Path)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			raw, err := listener.AcceptUnix()
			if err != nil {
				return
			}
			var c *control.Conn
			c = control.NewConn(raw, func(m control.Message, files control.Files) (control.Message, control.Files) {
				files.Close()
				if m.Op == control.Hello {
					return control.Message{Protocol: control.Protocol}, nil
				}
				return handle(c, m), nil
			})
			c.Start()
			serving.Go(func() { <-c.Done() })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		serving.Wait()
	})
}

func TestAnEngineThatEndsWithoutAnAnswer(t *testing.T) {
	playEngine(t, func(c *control.Conn, m control.Message) control.Message {
		if m.Op == control.End {
			c.Hangup()
		}
		return control.Message{}
	})
	if err := EndEngine(t.Context()); err != nil {
		t.Error(err)
	}
}

// An engine that hangs is reported, and doesn't block the agent for ever.
func TestAnEngineThatHangs(t *testing.T) {
	hang := make(chan struct{})
	playEngine(t, func(*control.Conn, control.Message) control.Message {
		<-hang
		return control.Message{}
	})
	e, err := connectEngine(t.Context(), "", "wireguard.gcp", func() {})
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	defer close(hang)
	e.timeout = 50 * time.Millisecond
	if _, err := e.up(t.Context(), "wireguard.gcp"); err == nil || !strings.Contains(err.Error(), "the engine hangs") {
		t.Errorf("got %v, want an error that says so", err)
	}
}

// A late event about an earlier device of the same name isn't taken for one about the served
// device.
func TestTheEndOfAnEarlierDevice(t *testing.T) {
	var died atomic.Int64
	playEngine(t, func(c *control.Conn, m control.Message) control.Message {
		if m.Op == control.List {
			if err := c.Notify(control.Message{Op: control.Died, Name: "wireguard.gcp", Index: int(died.Load())}); err != nil {
				t.Error(err)
			}
		}
		return control.Message{}
	})
	events := make(chan struct{}, 1)
	e, err := connectEngine(t.Context(), "", "wireguard.gcp", func() { events <- struct{}{} })
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	e.index = 8
	for _, c := range []struct {
		died  int64
		alive bool
	}{{7, true}, {8, false}, {0, false}} { // 0: an engine of an earlier release
		died.Store(c.died)
		if _, err := e.serves(t.Context(), "wireguard.gcp"); err != nil {
			t.Fatal(err)
		}
		<-events
		if got := e.alive(); got != c.alive {
			t.Errorf("after the end of link %d: %d is alive: %v, want %v", c.died, e.index, got, c.alive)
		}
	}
}
