package tunnel

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
)

// flow is a flow of UDP packets from a pod of one site to one of another.
type flow struct {
	mu      sync.Mutex
	sent    []time.Time // by number
	arrived []arrival
}

type arrival struct {
	number int
	at     time.Time
}

// startFlow sends a packet each millisecond, until the test ends.
func startFlow(t *testing.T, from, to *site) *flow {
	t.Helper()
	f := new(flow)
	open := func(s *site) (conn *net.UDPConn) {
		err := s.ns.Do(func() (err error) {
			conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(s.pods[0], 0)))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	sender, receiver := open(from), open(to)
	target := receiver.LocalAddr().(*net.UDPAddr).AddrPort()
	var wg sync.WaitGroup
	stop := make(chan struct{})
	t.Cleanup(func() {
		close(stop)
		_ = receiver.Close()
		wg.Wait()
		_ = sender.Close()
	})
	wg.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		packet := make([]byte, 100)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			f.mu.Lock()
			f.sent = append(f.sent, time.Now())
			f.mu.Unlock()
			binary.BigEndian.PutUint32(packet, uint32(n))
			_, _ = sender.WriteToUDPAddrPort(packet, target) // It may fail between two servers.
		}
	})
	wg.Go(func() {
		packet := make([]byte, 200)
		for {
			if _, err := receiver.Read(packet); err != nil {
				return
			}
			f.mu.Lock()
			f.arrived = append(f.arrived, arrival{int(binary.BigEndian.Uint32(packet)), time.Now()})
			f.mu.Unlock()
		}
	})
	return f
}

// goesOn waits until packets that were sent after the given time have arrived.
func (f *flow) goesOn(t *testing.T, after time.Time) {
	t.Helper()
	polltest.Until(t, time.Minute, "packets to arrive", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		fresh := 0
		for i := len(f.arrived) - 1; i >= 0 && fresh < 50 && f.sent[f.arrived[i].number].After(after); i-- {
			fresh++
		}
		return fresh == 50
	})
}

// gap returns the longest time without arrivals after the given time, and the numbers of
// packets sent in it, and of those that arrived later.
func (f *flow) gap(after time.Time) (longest time.Duration, waited, sent int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var begin, end time.Time
	for i, a := range f.arrived[1:] {
		before := f.arrived[i].at
		if a.at.After(after) && a.at.Sub(before) > longest {
			longest, begin, end = a.at.Sub(before), before, a.at
		}
	}
	within := func(n int) bool { return f.sent[n].After(begin) && f.sent[n].Before(end) }
	for n := range f.sent {
		if within(n) {
			sent++
		}
	}
	for _, a := range f.arrived {
		if within(a.number) {
			waited++
		}
	}
	return longest, waited, sent
}

// childOf returns the child process of a process; 0: none.
func childOf(t *testing.T, pid int) int {
	t.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if child, convErr := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && convErr == nil {
			return child
		}
	}
	return 0
}

// TestAKilledServerIsReplaced kills the serving process ten times in a row, each time as
// soon as packets arrive again. The engine restarts it at once, with the retained state.
func TestAKilledServerIsReplaced(t *testing.T) {
	nstest.Namespaces(t)
	a, b := twoSites(t, Userspace, Userspace)
	meet(t, a, b, 0)
	there, back := startFlow(t, a, b), startFlow(t, b, a)
	start := time.Now()
	there.goesOn(t, start)
	back.goesOn(t, start)
	before := a.call(t, request{Call: "status"}).Status
	killed := map[int]bool{}
	var gaps []time.Duration
	for i := range 10 {
		server := childOf(t, a.pid)
		if server == 0 || killed[server] {
			t.Fatalf("after %d deaths process %d serves", i, server)
		}
		killed[server] = true
		at := time.Now()
		if err := syscall.Kill(server, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		polltest.Until(t, time.Minute, "another process", func() bool {
			now := childOf(t, a.pid)
			return now != 0 && now != server
		})
		there.goesOn(t, time.Now())
		back.goesOn(t, time.Now())
		gap, waited, sent := there.gap(at)
		gapBack, waitedBack, sentBack := back.gap(at)
		gaps = append(gaps, max(gap, gapBack))
		t.Logf("death %2d: gap %v there (%d of %d packets waited), %v back (%d of %d)", i+1, gap.Round(time.Millisecond), waited, sent, gapBack.Round(time.Millisecond), waitedBack, sentBack)
	}
	t.Logf("longest gap %v", slices.Max(gaps).Round(time.Millisecond))
	after := a.call(t, request{Call: "status"}).Status
	if after.ListenPort != before.ListenPort || after.PublicKey != before.PublicKey || len(after.Peers) != 1 {
		t.Fatalf("afterwards: %+v, before: %+v", after, before)
	}
	// Keepalive intervals are restored last, some peers at a time.
	polltest.Until(t, time.Minute, "its interval of keepalives", func() bool {
		return a.call(t, request{Call: "status"}).Status.Peers[0].Keepalive == before.Peers[0].Keepalive
	})
	if res := a.call(t, request{Call: "ensure"}); res.Changed {
		t.Error("the agent finds something to change")
	}
	if got := a.configure(t, b.peerOf(0)); got.Any() {
		t.Errorf("the agent changes peers: %+v", got)
	}
}
