package scenarios_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httputil"
	neturl "net/url"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// Modes of a relay.
const (
	passing = iota // passes everything on
	silent         // breaks every connection
	failing        // passes pings on, and answers all else with errors
)

// relay is a proxy before the API server of a cluster.
type relay struct {
	pass *httputil.ReverseProxy

	mu      sync.Mutex
	mode    int
	changed chan struct{}  // closed when mode changes
	errors  map[string]int // answers with errors, by program
}

func newRelay(t *testing.T, c *testbed.Cluster) *relay {
	t.Helper()
	target, err := neturl.Parse(c.APIURL())
	must(t, err)
	access := c.RESTConfig()
	access.CertData, access.KeyData = nil, nil
	transport, err := rest.TransportFor(access)
	must(t, err)
	return &relay{
		changed: make(chan struct{}), errors: map[string]int{},
		pass: &httputil.ReverseProxy{
			Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
			Transport:     transport,
			FlushInterval: -1,
			ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		},
	}
}

// relayed are the errors of a failing relay: too old, forbidden, internal.
var relayed = []int{http.StatusGone, http.StatusForbidden, http.StatusInternalServerError}

// set changes the mode, and breaks connections.
func (r *relay) set(mode int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mode = mode
	close(r.changed)
	r.changed = make(chan struct{})
}

// had returns nil when a program has got each of the errors.
func (r *relay) had(program string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.errors[program]; n < len(relayed) {
		return fmt.Errorf("it has had %d", n)
	}
	return nil
}

// ServeHTTP implements http.Handler.
func (r *relay) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	program, _, _ := strings.Cut(q.UserAgent(), "/")
	r.mu.Lock()
	mode, changed := r.mode, r.changed
	code := 0
	if mode == failing && q.URL.Path != "/version" {
		code = relayed[r.errors[program]%len(relayed)]
		r.errors[program]++
	}
	r.mu.Unlock()
	switch {
	case mode == silent:
		panic(http.ErrAbortHandler)
	case code != 0:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"message":"relayed","code":%d}`,
			map[int]string{http.StatusGone: "Expired", http.StatusForbidden: "Forbidden"}[code], code)
	default:
		ctx, cancel := context.WithCancel(q.Context())
		defer cancel()
		go func() {
			select {
			case <-changed:
				cancel()
			case <-ctx.Done():
			}
		}()
		r.pass.ServeHTTP(w, q.WithContext(ctx))
	}
}
