package run

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestSurplus(t *testing.T) {
	for name, tt := range map[string]struct {
		open []string // in the order of their arrival; * is served
		want int      // index
	}{
		"the only source loses its oldest":                       {[]string{"10.0.0.1", "10.0.0.1", "10.0.0.1"}, 0},
		"who holds the most loses, not who came first":           {[]string{"10.0.0.9", "10.0.0.1", "10.0.0.1"}, 1},
		"a /64 is one source":                                    {[]string{"fd00::9", "fd00:0:0:1::1", "fd00:0:0:1::2"}, 1},
		"silent ones don't push out who is served":               {[]string{"10.0.0.1*", "10.0.0.1", "10.0.0.1"}, 1},
		"those that don't read don't push out who has just come": {[]string{"10.0.0.1*", "10.0.0.1*", "10.0.0.1"}, 0},
		"sources with one each count as one":                     {[]string{"10.0.0.1*", "10.0.0.2", "10.0.0.3"}, 1},
		"many sources that don't read":                           {[]string{"10.0.0.1*", "10.0.0.2*", "10.0.0.3"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			l := newFairListener(nil, len(tt.open))
			var open []*fairConn
			for i, text := range tt.open {
				address, serving := strings.CutSuffix(text, "*")
				c := &fairConn{owner: l, source: sourceOf(netip.MustParseAddr(address)), since: time.Unix(int64(i), 0)}
				l.add(c)
				if serving {
					c.serve(true)
				}
				open = append(open, c)
			}
			if got := l.surplus(); got != open[tt.want] {
				t.Errorf("of %q goes number %d, want %d", tt.open, slices.Index(open, got), tt.want)
			}
		})
	}
}

// TestSurplusLeavesTheFewAlone opens connections of many sources at random: one
// that holds fewer than another never loses one.
func TestSurplusLeavesTheFewAlone(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		held := map[netip.Prefix]int{}
		l := newFairListener(nil, maxConnections)
		for range 1 + rng.IntN(maxConnections) {
			c := &fairConn{owner: l, source: sourceOf(netip.AddrFrom4([4]byte{10, 0, 0, byte(rng.IntN(8))})), since: time.Now()}
			held[c.source]++
			l.add(c)
			c.serve(rng.IntN(2) == 0)
		}
		one := l.surplus()
		for source, n := range held {
			if n > held[one.source] {
				t.Fatalf("%s holds %d and keeps them, %s loses one of %d", source, n, one.source, held[one.source])
			}
		}
	}
}

// flood opens connections to an address from the loopback until the test ends, and blocks
// the server in all known ways.
func flood(t *testing.T, address string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	const clients = 4
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
				c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
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
				if n == maxProbeConnections/2 {
					opened <- struct{}{}
				}
				if len(held) > maxProbeConnections/2 {
					_ = held[0].Close()
					held = held[1:]
				}
			}
		}()
	}
	t.Cleanup(func() {
		cancel()
		for range clients {
			<-ended
		}
	})
	for range clients {
		select {
		case <-opened:
		case <-time.After(time.Minute):
			t.Fatal("the flood doesn't come about")
		}
	}
}

// TestFlood floods one server after the other: both continue to respond, and
// a flood makes neither many connections nor many reports.
func TestFlood(t *testing.T) {
	for _, flooded := range []string{"probe", "status"} {
		t.Run(flooded, func(t *testing.T) {
			if testing.Short() && flooded == "probe" {
				t.Skip("left out by -short: the same server as the other one")
			}
			var reports atomic.Int64
			began := time.Now()
			servers := start(t, ServersConfig{
				ProbeAddress: "127.0.0.1:0", ListenAddress: "127.0.0.1:0",
				Status: func() any {
					reports.Add(1)
					// Long enough for the longest pause.
					<-time.After(maxPause / pauseShare)
					return strings.Repeat("all is well ", 100_000)
				},
			})
			address := servers.Status.Addr()
			if flooded == "probe" {
				address = servers.Probes.Addr()
			}
			flood(t, address.String())
			for range 20 {
				answers(t, servers.Probes, "/healthz")
				if open := servers.Status.connections() + servers.Probes.connections(); open > maxConnections+maxProbeConnections {
					t.Fatalf("%d connections are open", open)
				}
			}
			answers(t, servers.Status, "/metrics")
			answers(t, servers.Probes, "/status")
			if n, most := reports.Load(), 2+int64(time.Since(began)/maxPause); n > most {
				t.Errorf("%d reports were made in %v", n, time.Since(began))
			}
		})
	}
}

// answers asks a server as the kubelet does, on a connection of its own, and as
// often as that allows before it acts.
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
