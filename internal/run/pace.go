package run

import (
	"net/http"
	"time"
)

// Responses of /metrics and /status use at most about a fiftieth of a core each, however many
// requests there are: after one that took d to generate, the next one starts 50*d later,
// maxPause at most.
const (
	pauseShare = 50
	maxPause   = time.Second
	// maxWaiting is the number of requests that wait for their response, or have it generated.
	maxWaiting = 4
	// patience is the time that one of them waits, as the command "status" does.
	patience = 15 * time.Second
)

// paced returns a handler that generates one response at a time, with a pause in between, and
// responds with 503 to requests beyond maxWaiting. A client that doesn't read its response
// delays no other: the response is complete before it is sent.
//
// promhttp.HandlerOpts.MaxRequestsInFlight bounds the requests, but not their processor time,
// counts clients that don't read, and isn't for /status.
func paced(next http.Handler) http.Handler {
	waiting, turn := make(chan struct{}, maxWaiting), make(chan struct{}, 1)
	return http.TimeoutHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case waiting <- struct{}{}:
			defer func() { <-waiting }()
		default:
			http.Error(w, "too many requests", http.StatusServiceUnavailable)
			return
		}
		select {
		case turn <- struct{}{}:
		case <-r.Context().Done():
			return
		}
		began := time.Now()
		defer func() {
			time.AfterFunc(min(maxPause, pauseShare*time.Since(began)), func() { <-turn })
		}()
		next.ServeHTTP(w, r)
	}), patience, "no response in time\n")
}
