package tunnel

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
)

// playEngine puts an engine in the place of the test's own that answers as a test says, to
// all but hello.
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

func TestAnEngineThatEndsBeforeItAnswersHasEnded(t *testing.T) {
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

// An engine that hangs is told as one, and doesn't have the agent wait for ever.
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
	e.limit = 50 * time.Millisecond
	if _, err := e.up(t.Context(), "wireguard.gcp"); err == nil || !strings.Contains(err.Error(), "the engine hangs") {
		t.Errorf("got %v, want an error that says so", err)
	}
}

// News of an earlier device of a name, which may come late, isn't taken for that of the one
// that is served.
func TestTheEndOfAnEarlierDevice(t *testing.T) {
	var told atomic.Int64
	playEngine(t, func(c *control.Conn, m control.Message) control.Message {
		if m.Op == control.List {
			if err := c.Tell(control.Message{Op: control.Died, Name: "wireguard.gcp", Index: int(told.Load())}); err != nil {
				t.Error(err)
			}
		}
		return control.Message{}
	})
	news := make(chan struct{}, 1)
	e, err := connectEngine(t.Context(), "", "wireguard.gcp", func() { news <- struct{}{} })
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	e.index = 8
	for _, c := range []struct {
		told  int64
		alive bool
	}{{7, true}, {8, false}, {0, false}} { // 0: an engine of an earlier release
		told.Store(c.told)
		if _, err := e.serves(t.Context(), "wireguard.gcp"); err != nil {
			t.Fatal(err)
		}
		<-news
		if got := e.alive(); got != c.alive {
			t.Errorf("link %d is told to be gone: %d is served: %v, want %v", c.told, e.index, got, c.alive)
		}
	}
}
