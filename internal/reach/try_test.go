package reach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/synctest"
)

// serve serves at a loopback address until the test ends.
func serve(t *testing.T, address string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() {
		if err := Serve(ctx, Request{ServeFor: 120, Own: []string{address}}); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		group.Wait()
	})
}

func TestPodsThatTry(t *testing.T) {
	// Addresses of this test alone; real pods have their own.
	const there, self = "127.86.42.1", "127.0.0.1"
	serve(t, there)
	var got Result
	TryAll(t.Context(), Request{Try: []string{there}, Own: []string{self, there}, Stream: there, StreamFor: 1, Streams: 2}, &got)
	if try := got.Connections[0]; try.Error+try.Datagrams+try.Seen != "" || try.RTT == 0 || try.MTU == 0 || try.Carries != try.MTU {
		t.Errorf("tried: %+v", try)
	}
	if s := got.Streamed; s == nil || s.Error != "" || s.Rate <= 0 || s.Sent == 0 || s.Busy == 0 || s.Longest < s.Busy {
		t.Errorf("streamed: %+v", got.Streamed)
	}
	// It comes from another address than the pod has.
	if try := try(t.Context(), there, []string{"10.2.1.7"}, patience); try.Error != "" || try.Seen != self && try.Seen != there {
		t.Errorf("masqueraded: %+v", try)
	}
}

func TestNoResponse(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	var got Result
	TryAll(ctx, Request{Try: []string{"127.86.42.2"}, Stream: "127.86.42.2", Own: []string{"127.0.0.1"}}, &got)
	if got.Connections[0].Error == "" || got.Streamed.Error == "" {
		t.Errorf("got %+v, %+v", got.Connections, got.Streamed)
	}
}

func TestMeasure(t *testing.T) {
	for name, tt := range map[string]struct {
		believed []int // one after the other
		carries  int
		mtu      int
		largest  int
	}{
		"the path carries what the interface does": {[]int{1500}, 1500, 1500, 1500},
		"a router says what it carries":            {[]int{1500, 1420}, 1420, 1420, 1420},
		"two routers do, one after the other":      {[]int{9000, 1500, 1420}, 1420, 1420, 1420},
		"no ICMP error":                            {[]int{1500, 1500}, 1333, 1500, 1333},
		"one does, and another one doesn't":        {[]int{1500, 1420, 1420}, 1300, 1420, 1300},
		"only small ones get through":              {[]int{1500, 1500}, 28 + smallest, 1500, 28 + smallest},
	} {
		t.Run(name, func(t *testing.T) {
			left := tt.believed
			mtu, largest := measure(28, func() int {
				now := left[0]
				left = left[min(1, len(left)-1):]
				return now
			}, func(size, _ int) bool { return size+28 <= tt.carries })
			if mtu != tt.mtu || largest != tt.largest {
				t.Errorf("got %d and %d, want %d and %d", mtu, largest, tt.mtu, tt.largest)
			}
		})
	}
}

// TestEncodedResultFits checks that the longest result fits into a termination message.
func TestEncodedResultFits(t *testing.T) {
	var r Result
	for range 20 {
		r.Connections = append(r.Connections, Try{Error: strings.Repeat(`"`, longest), Seen: "fd00:10:2:1111:2222:3333:4444:5555", RTT: 1e6, MTU: 65535, Carries: 65535})
	}
	for range 3 {
		r.Services = append(r.Services, ServiceResult{Name: strings.Repeat("x", longest)})
	}
	encoded, err := r.Encode()
	if err != nil || len(encoded) > maxResult {
		t.Fatalf("%d bytes, %v", len(encoded), err)
	}
	servers := Result{Servers: map[string]string{}}
	for i := range 40 {
		servers.Servers[fmt.Sprintf("https://10.0.0.%d:6443", i)] = strings.Repeat("x", 125)
	}
	if encoded, err := servers.Encode(); err != nil || len(encoded) > maxResult {
		t.Fatalf("of API servers: %d bytes, %v", len(encoded), err)
	}
	var back Result
	if err := json.Unmarshal(encoded, &back); err != nil || len(back.Connections) != 20 || back.Connections[0].Error == "" {
		t.Errorf("%v: %+v", err, back)
	}
}

// The second attempt is under way when the limit ends it.
func TestUntilReturnsTheErrorBeforeTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := errors.New("refused")
		attempts := 0
		_, err := until(t.Context(), time.Second, func(ctx context.Context) (string, error) {
			if attempts++; attempts == 1 {
				return "", refused
			}
			<-ctx.Done()
			return "", ctx.Err()
		})
		if !errors.Is(err, refused) || attempts != 2 {
			t.Errorf("error %v after %d attempts", err, attempts)
		}
	})
}
