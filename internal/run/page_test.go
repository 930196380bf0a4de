package run

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/polltest"
)

// counting answers with how often it was asked.
func counting(asked *atomic.Int64) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintf(w, "answer %d", asked.Add(1)) }
}

// TestPageIsMadeOnceForAll makes many requests during a generation: they share
// the next one.
func TestPageIsMadeOnceForAll(t *testing.T) {
	var asked atomic.Int64
	begun, release := make(chan struct{}, 3), make(chan struct{})
	p := &page{make: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begun <- struct{}{}
		<-release
		counting(&asked)(w, r)
	})}
	first := make(chan string)
	go func() {
		_, body := ask(p, "/status")
		first <- body
	}()
	<-begun
	const clients = 50
	bodies := make(chan string, clients)
	for range clients {
		go func() {
			_, body := ask(p, "/status")
			bodies <- body
		}()
	}
	// One of them leads, the others have found it.
	polltest.Until(t, time.Minute, "a request for the next response", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.next != nil
	})
	close(release)
	if body := <-first; body != "answer 1" {
		t.Errorf("the first one gets %q", body)
	}
	got := make(map[string]int)
	for range clients {
		got[<-bodies]++
	}
	// A request that is late on a busy machine gets a later response.
	if got["answer 1"] > 0 || got["answer 2"] == 0 || len(got) > 3 {
		t.Errorf("%d clients got %v", clients, got)
	}
}

// TestPageIsNotOlderThanTheRequest checks that each generation starts after its request.
func TestPageIsNotOlderThanTheRequest(t *testing.T) {
	var state, asked atomic.Int64
	p := &page{make: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = fmt.Fprint(w, state.Load())
	})}
	for i := range int64(20) {
		state.Store(i)
		if _, body := ask(p, "/status"); body != fmt.Sprint(i) {
			t.Errorf("after change %d: %q", i, body)
		}
	}
}

// TestPagePausesByWhatItCosts makes an answer that takes long wait for its successor.
func TestPagePausesByWhatItCosts(t *testing.T) {
	const takes = 10 * time.Millisecond
	var began, ended []time.Time
	p := &page{make: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		began = append(began, time.Now())
		<-time.After(takes)
		ended = append(ended, time.Now())
	})}
	ask(p, "/status")
	ask(p, "/status")
	if pause := began[1].Sub(ended[0]); pause < pauseShare*takes {
		t.Errorf("the next one came after %v", pause)
	}
}

func TestPageThatFailsDoesNotAffectOthers(t *testing.T) {
	var asked atomic.Int64
	p := &page{make: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Load() == 0 {
			asked.Add(1)
			panic("a fault")
		}
		counting(&asked)(w, r)
	})}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the fault is hidden")
			}
		}()
		ask(p, "/status")
	}()
	if code, body := ask(p, "/status"); code != http.StatusOK || body != "answer 2" {
		t.Errorf("afterwards %d %q", code, body)
	}
}

func TestPageIsCompressedForThoseWhoReadThat(t *testing.T) {
	p := &page{make: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept-Encoding") != "" {
			t.Error("the answer depends on who asks first")
		}
		_, _ = io.WriteString(w, "all is well")
	})}
	for header, want := range map[string]bool{
		"": false, "gzip": true, "deflate, gzip;q=0.5": true, "GZIP ; q=1.0": true, "gzip;q=0": false, "gzip;q=0.00": false, "identity": false,
	} {
		request := httptest.NewRequest(http.MethodGet, "/status", http.NoBody)
		request.Header.Set("Accept-Encoding", header)
		recorder := httptest.NewRecorder()
		p.ServeHTTP(recorder, request)
		var body io.Reader = recorder.Body
		if got := recorder.Header().Get("Content-Encoding") == "gzip"; got != want {
			t.Errorf("%q: compressed is %t, want %t", header, got, want)
		} else if got {
			var err error
			if body, err = gzip.NewReader(recorder.Body); err != nil {
				t.Fatal(err)
			}
		}
		if text, err := io.ReadAll(body); err != nil || string(text) != "all is well" {
			t.Errorf("%q: %q, %v", header, text, err)
		}
	}
}
