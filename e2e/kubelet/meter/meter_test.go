package meter

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestReceiverKnowsWhatIsMissing(t *testing.T) {
	r := &receiver{}
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	for _, p := range []struct {
		number  uint64
		arrived int
	}{{1, 1}, {2, 2}, {5, 40}, {4, 41}, {5, 42}, {9, 50}} {
		r.packet(p.number, int64(p.number)*int64(time.Millisecond), at(p.arrived))
	}
	r.read(0, nil, at(0))
	r.read(10, nil, at(5))
	r.read(10, context.Canceled, at(30))
	got := r.report()
	for i := range got.Lost {
		got.Lost[i].After = got.Lost[i].After.Round(time.Millisecond)
	}
	want := Received{
		Packets: 5, Duplicates: 1, Silence: 38 * time.Millisecond, Resumed: at(40),
		Lost:  []Loss{{0, 1}, {2 * time.Millisecond, 1}, {5 * time.Millisecond, 3}},
		Bytes: 20, Stall: 25 * time.Millisecond, Ended: true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestEverythingArrives sends a stream over the loopback.
func TestEverythingArrives(t *testing.T) {
	packets, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := packets.LocalAddr().(*net.UDPAddr).Port
	streams, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	if err != nil {
		t.Fatal(err)
	}
	m := New(port)
	done := make(chan error, 2)
	go func() { done <- m.takePackets(packets) }()
	go func() { done <- m.takeStreams(streams) }()
	defer func() {
		_ = packets.Close()
		_ = streams.Close()
		for range cap(done) {
			if err := <-done; !errors.Is(err, net.ErrClosed) {
				t.Error(err)
			}
		}
	}()
	s, err := startSender(t.Context(), 7, packets.LocalAddr().String(), 1000)
	if err != nil {
		t.Fatal(err)
	}
	wait(t, func() bool { return m.receiver(7).report().Packets > 100 })
	sent := s.stop()
	wait(t, func() bool {
		got := m.receiver(7).report()
		return got.Packets == sent.Packets && got.Bytes == sent.Bytes && got.Ended
	})
	if got := m.receiver(7).report(); sent.Refused > 0 || sent.Broken != "" || got.Duplicates > 0 || len(got.Lost) > 0 {
		t.Errorf("sent %+v, received %+v", sent, got)
	}
}

func wait(t *testing.T, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !condition(); {
		if time.Now().After(deadline) {
			t.Fatal("not within 30 seconds")
		}
		time.Sleep(5 * time.Millisecond)
	}
}
