package daemon

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/polltest"
)

// counting answers with how often it was asked.
func counting(asked *atomic.Int64) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintf(w, "answer %d", asked.Add(1)) }
}

func TestPageIsMadeOnceForAll(t *testing.T) {
	var asked atomic.Int64
	release := make(chan struct{})
	p := &page{make: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		<-release
		counting(&asked)(w, r)
	})}
	const clients = 50
	bodies := make(chan string, clients)
	var waiting sync.WaitGroup
	for range clients {
		waiting.Go(func() {
			_, body := ask(p, "/status")
			bodies <- body
		})
	}
	close(release)
	waiting.Wait()
	// On a machine that stands still for a second in between there are two.
	for range clients {
		if body := <-bodies; body != "answer 1" && asked.Load() == 1 {
			t.Errorf("one of them gets %q", body)
		}
	}
	if n := asked.Load(); n > 2 {
		t.Errorf("%d clients had %d answers made", clients, n)
	}
}

func TestPageIsMadeAgainAndForgotten(t *testing.T) {
	var asked atomic.Int64
	p := &page{make: counting(&asked)}
	_, first := ask(p, "/status")
	polltest.Until(t, time.Minute, "the answer to be forgotten", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.last == nil
	})
	if _, second := ask(p, "/status"); first == second {
		t.Errorf("the answer %q doesn't end", first)
	}
}

func TestPageThatCannotBeMadeIsNobodyElsesFault(t *testing.T) {
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
