package run

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/synctest"
)

// TestPauseFollowsTheCost makes a response that takes long wait for its successor.
func TestPauseFollowsTheCost(t *testing.T) {
	for takes, want := range map[time.Duration]time.Duration{
		0: 0, 10 * time.Millisecond: 500 * time.Millisecond, 50 * time.Millisecond: maxPause,
	} {
		synctest.Test(t, func(t *testing.T) {
			var began []time.Time
			p := paced(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				began = append(began, time.Now())
				<-time.After(takes)
			}))
			ask(p, "/status")
			ask(p, "/status")
			if pause := began[1].Sub(began[0]) - takes; pause != want {
				t.Errorf("the response after one that took %v began %v later, want %v", takes, pause, want)
			}
			<-time.After(maxPause)
		})
	}
}

// TestResponsesAreGeneratedOneAtATime makes more requests than may wait: the others get an
// error at once, and those afterwards a response. One is never done.
func TestResponsesAreGeneratedOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running atomic.Int64
		hangs := make(chan struct{})
		p := paced(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if n := running.Add(1); n > 1 {
				t.Errorf("%d at once", n)
			}
			defer running.Add(-1)
			if r.URL.Path == "/hangs" {
				<-hangs
			}
			<-time.After(time.Second)
		}))
		const clients = 50
		codes := make(chan int, clients)
		for range clients {
			go func() {
				code, _ := ask(p, "/status")
				codes <- code
			}()
		}
		synctest.Wait()
		if len(codes) != clients-maxWaiting {
			t.Errorf("%d requests wait", clients-len(codes))
		}
		got := map[int]int{}
		for range clients {
			got[<-codes]++
		}
		if got[http.StatusOK] != maxWaiting || got[http.StatusServiceUnavailable] != clients-maxWaiting {
			t.Errorf("responses by code: %v", got)
		}
		if code, _ := ask(p, "/status"); code != http.StatusOK {
			t.Errorf("afterwards %d", code)
		}
		if code, _ := ask(p, "/hangs"); code != http.StatusServiceUnavailable {
			t.Errorf("without an end: %d", code)
		}
		close(hangs)
		<-time.After(time.Minute)
	})
}

// TestResponseIsNotOlderThanTheRequest checks that each generation starts after its request.
func TestResponseIsNotOlderThanTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var state atomic.Int64
		p := paced(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, state.Load()) }))
		for i := range int64(20) {
			state.Store(i)
			if _, body := ask(p, "/status"); body != fmt.Sprint(i) {
				t.Errorf("after change %d: %q", i, body)
			}
		}
	})
}

func TestHandlerThatPanicsDoesNotAffectOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failing := true
		p := paced(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			if failing {
				panic("a fault")
			}
		}))
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the fault is hidden")
				}
			}()
			ask(p, "/status")
		}()
		failing = false
		if code, _ := ask(p, "/status"); code != http.StatusOK {
			t.Errorf("afterwards %d", code)
		}
	})
}
