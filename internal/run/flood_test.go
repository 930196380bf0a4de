package run

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
)

// flood opens connections to an address from the loopback until stop is called, and blocks the
// server in all known ways.
func flood(t *testing.T, address string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	const clients, each = 4, 256
	ended, opened := make(chan struct{}, clients), make(chan struct{}, clients)
	for client := range clients {
		go func() {
			defer func() { ended <- struct{}{} }()
			var held []net.Conn
			defer func() {
				for _, c := range held {
					_ = c.Close()
				}
			}()
			for n := 0; ctx.Err() == nil; n++ {
				dial := net.Dialer{Timeout: time.Second} // A full queue of the kernel's accepts none.
				c, err := dial.DialContext(ctx, "tcp", address)
				if err != nil {
					continue
				}
				held = append(held, c)
				switch (n + client) % 3 {
				case 1: // A request that never ends.
					_, _ = io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: a\r\nX: ")
				case 2: // Unread responses.
					_, _ = io.WriteString(c, strings.Repeat("GET /status HTTP/1.1\r\nHost: a\r\n\r\n", 20))
				}
				if n == each/2 {
					opened <- struct{}{}
				}
				if len(held) > each {
					_ = held[0].Close()
					held = held[1:]
				}
			}
		}()
	}
	stopped := false
	stop = func() {
		cancel()
		for !stopped {
			for range clients {
				<-ended
			}
			stopped = true
		}
	}
	t.Cleanup(stop)
	for range clients {
		select {
		case <-opened:
		case <-time.After(time.Minute):
			t.Fatal("the flood doesn't come about")
		}
	}
	return stop
}

// TestFlood floods one port after the other: the other one and the socket continue to respond,
// the flood causes few reports, and its port responds again afterwards.
func TestFlood(t *testing.T) {
	for _, flooded := range []string{"probe", "status"} {
		t.Run(flooded, func(t *testing.T) {
			var reports atomic.Int64
			began, socket := time.Now(), filepath.Join(t.TempDir(), "probe.sock")
			servers := start(t, ServersConfig{
				ProbeAddress: "127.0.0.1:0", ListenAddress: "127.0.0.1:0", ProbeSocket: socket,
				Status: func() any {
					reports.Add(1)
					// Long enough for the longest pause.
					<-time.After(maxPause / pauseShare)
					return strings.Repeat("all is well ", 100_000)
				},
			})
			one, other := servers.Status, servers.Probes
			if flooded == "probe" {
				one, other = other, one
			}
			stop := flood(t, one.Addr().String())
			for range 20 {
				if code, body := askSocket(t, socket, "/healthz"); code != http.StatusOK {
					t.Fatalf("the socket responds with %d %q", code, body)
				}
			}
			answers(t, other, "/metrics")
			if code, _ := askSocket(t, socket, "/status"); code != http.StatusOK {
				t.Errorf("the socket's /status responds with %d", code)
			}
			// Each of the servers generates its own, at the beginning without a pause.
			if n, most := reports.Load(), 3+int64(time.Since(began)/maxPause); n > most {
				t.Errorf("%d reports were made in %v", n, time.Since(began))
			}
			stop()
			polltest.Until(t, time.Minute, "the flooded port to respond", func() bool {
				return once(t.Context(), one.Addr().String(), "/metrics") == nil
			})
		})
	}
}

// answers requests a path on a connection of its own, up to three times.
func answers(t *testing.T, server *Server, path string) {
	t.Helper()
	var err error
	for range 3 {
		if err = once(t.Context(), server.Addr().String(), path); err == nil {
			return
		}
	}
	t.Fatalf("%s of the %s server: %v", path, server.name, err)
}

func once(ctx context.Context, address, path string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", path); err != nil {
		return err
	}
	answer, err := io.ReadAll(conn)
	if err == nil && !strings.HasPrefix(string(answer), "HTTP/1.1 200 ") {
		err = fmt.Errorf("answered %.80q", answer)
	}
	return err
}
