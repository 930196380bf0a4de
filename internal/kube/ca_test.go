package kube

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/connrotation"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/logtest"
)

// watchOver starts a watch through a transport that reloads its authority at an interval.
func watchOver(t *testing.T, api *apiServer, from caSource, period time.Duration) (*bench, *logtest.Buffer) {
	t.Helper()
	var log logtest.Buffer
	from.period = period
	transport := newReloadingTransport(&rest.Config{}, from, &ClientConfig{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	transport.interval = 0
	cfg := &rest.Config{Host: api.url(), Transport: transport}
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &answerTransport{limit: testBounds.Answer, next: next}
	})
	b := &bench{api: api, metrics: NewMetrics("test", "test_failures_total")}
	b.watchBy(clientOf(t, cfg))
	b.run(t)
	return b, &log
}

// TestConnectionOfAReplacedAuthorityIsClosed checks that the holder of a revoked CA key
// doesn't keep a watch open.
func TestConnectionOfAReplacedAuthorityIsClosed(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"file", "URL"} {
		t.Run(kind, func(t *testing.T) {
			before, after := newAuthority(), newAuthority()
			api := newAPIServer(t, before)
			path := writeTemp(t, "ca", before.pem)
			from, replace := caFile(path), func() { replaceFile(t, path, after.pem) }
			if kind == "URL" {
				fetch := newCAServer(t, before.pem)
				from, replace = caURL(fetch.URL, nil, nil), func() { fetch.serve(after.pem) }
			}
			b, log := watchOver(t, api, from, 20*time.Millisecond)
			eventually(t, "sync", b.watch.Synced)
			// The server goes on with the old key.
			replace()
			eventually(t, "error", func() bool {
				return b.watch.Err() != nil && strings.Contains(b.watch.Err().Error(), "does not verify with the authority")
			})
			api.apply("forged", "v1", "")
			if text := log.String(); !strings.Contains(text, "certificate authority replaced") || !strings.Contains(text, "connections_closed=true") {
				t.Errorf("log:\n%s", text)
			}
			// And gets a certificate of the new one.
			api.remove("forged")
			api.set(func() { api.cert = after.issue() })
			eventually(t, "contact", func() bool { return b.watch.Err() == nil })
			if nodes := b.nodes(); len(nodes) > 0 {
				t.Errorf("has %v", nodes)
			}
		})
	}
}

func TestConnectionStaysWhenAnAuthorityIsAdded(t *testing.T) {
	t.Parallel()
	before, after := newAuthority(), newAuthority()
	api := newAPIServer(t, before)
	file := writeTemp(t, "ca", before.pem)
	b, log := watchOver(t, api, caFile(file), 20*time.Millisecond)
	eventually(t, "sync", b.watch.Synced)
	requests := len(api.seen())
	replaceFile(t, file, append(append([]byte{}, after.pem...), before.pem...))
	eventually(t, "the new authorities", func() bool { return strings.Contains(log.String(), "connections_closed=false") })
	api.apply("a", "v1", "")
	eventually(t, "an event", func() bool { return b.has(node{"a", "v1"}) })
	if n := len(api.seen()); n != requests {
		t.Errorf("%d requests more", n-requests)
	}
	// The remaining certificate verifies no open connection.
	replaceFile(t, file, after.pem)
	eventually(t, "the old one's end", func() bool { return strings.Contains(log.String(), "connections_closed=true") })
	api.set(func() { api.cert = after.issue() })
	api.apply("b", "v1", "")
	eventually(t, "going on", func() bool { return b.has(node{"a", "v1"}, node{"b", "v1"}) })
}

// TestConnectionDialedDuringARevocationIsClosed has a server that accepts a connection only
// after its authority was removed.
func TestConnectionDialedDuringARevocationIsClosed(t *testing.T) {
	near, far := net.Pipe()
	c := &connections{}
	c.Dialer = connrotation.NewDialer(func(context.Context, string, string) (net.Conn, error) {
		c.revoke()
		return near, nil
	})
	if conn, err := c.DialContext(t.Context(), "tcp", "api.example:6443"); err == nil {
		t.Errorf("connected: %v", conn)
	}
	if _, err := far.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("error %v, want that of a closed connection", err)
	}
}

func TestAuthorityThatCannotBeLoadedAgainStays(t *testing.T) {
	t.Parallel()
	ca := newAuthority()
	api := newAPIServer(t, ca)
	file := writeTemp(t, "ca", ca.pem)
	b, log := watchOver(t, api, caFile(file), 5*time.Millisecond)
	eventually(t, "sync", b.watch.Synced)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	eventually(t, "warning", func() bool { return strings.Contains(log.String(), "the last one stays in use") })
	api.apply("a", "v1", "")
	eventually(t, "an event", func() bool { return b.has(node{"a", "v1"}) })
	if n := strings.Count(log.String(), "the last one stays in use"); n != 1 {
		t.Errorf("%d warnings:\n%s", n, log.String())
	}
	if err := b.watch.Err(); err != nil {
		t.Errorf("Err() = %v", err)
	}
}

// hanging serves CA certificates once, and hangs afterwards.
type hanging struct {
	pem   []byte
	loads atomic.Int64
	ended chan struct{}
}

func (h *hanging) load() ([]byte, error) {
	if h.loads.Add(1) == 1 {
		return h.pem, nil
	}
	<-h.ended
	return nil, errors.New("ended")
}

// TestRequestsDoNotWaitForAReloadOfTheCA checks that a hanging reload of the CA
// doesn't delay requests to the API server.
func TestRequestsDoNotWaitForAReloadOfTheCA(t *testing.T) {
	t.Parallel()
	ca := newAuthority()
	api := newAPIServer(t, ca)
	source := &hanging{pem: ca.pem, ended: make(chan struct{})}
	t.Cleanup(func() { close(source.ended) })
	b, _ := watchOver(t, api, caSource{"hanging", time.Hour, source.load}, time.Millisecond)
	eventually(t, "sync", b.watch.Synced)
	eventually(t, "another load", func() bool { return source.loads.Load() > 1 })
	for i := range 3 {
		api.compact()
		api.apply(fmt.Sprint(i), "v1", "")
		eventually(t, "going on", func() bool { return len(b.nodes()) == i+1 })
	}
}

func TestPinnedAuthority(t *testing.T) {
	t.Parallel()
	mine, other := newAuthority(), newAuthority()
	sum := sha256.Sum256(mine.cert.Raw)
	pin := hex.EncodeToString(sum[:])
	api := newAPIServer(t, mine)
	fetch := newCAServer(t, append(append([]byte{}, other.pem...), mine.pem...))
	access := config.Access{APIURL: api.url(), CAURL: fetch.URL, CASHA256: strings.Repeat("0", 64) + "," + pin, TokenFile: writeTemp(t, "token", []byte(secret))}
	if err := listNodes(t.Context(), clientFor(t, access)); err != nil {
		t.Errorf("with the fingerprint of one of two: %v", err)
	}
	// A certificate without a pin is not trusted.
	forger := newAPIServer(t, other)
	access.APIURL = forger.url()
	if err := listNodes(t.Context(), clientFor(t, access)); err == nil || len(forger.seen()) > 0 {
		t.Errorf("a server of the other authority: %v, %d requests", err, len(forger.seen()))
	}
	fetch.serve(other.pem)
	if err := listNodes(t.Context(), clientFor(t, access)); err == nil || !strings.Contains(err.Error(), "SHA-256 fingerprint") {
		t.Errorf("with none of the fingerprints: %v", err)
	}
}

// TestRedirectIsNotFollowed checks that a server can't redirect requests with the token.
func TestRedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	ca := newAuthority()
	var visits atomic.Int32
	elsewhere := newTLSServer(t, ca, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { visits.Add(1) }))
	for _, code := range []int{301, 302, 303, 307, 308} {
		api := newTLSServer(t, ca, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL, code)
		}))
		for name, bounds := range map[string]Bounds{"own cluster": {}, "remote": testBounds} {
			access := config.Access{APIURL: api.URL, CAFile: writeTemp(t, "ca", ca.pem), TokenFile: writeTemp(t, "token", []byte(secret))}
			client := clientWith(t, ClientConfig{Access: access, Bounds: bounds})
			if err := listNodes(t.Context(), client); err == nil || !strings.Contains(err.Error(), "redirects are not followed") {
				t.Errorf("%d of %s: %v", code, name, err)
			}
		}
	}
	if n := visits.Load(); n > 0 {
		t.Errorf("%d were followed", n)
	}
}

// TestErrorsOfAServerArePrintable checks that errors of an API server contain no control
// characters.
func TestErrorsOfAServerArePrintable(t *testing.T) {
	t.Parallel()
	ca := newAuthority()
	message := `\u001b[2Jgone\u0007\n` + "\u202e\u009b" + strings.Repeat("x", 5000)
	api := newTLSServer(t, ca, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Warning", `299 - "\x1b[2Jwarned"`)
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","code":403,"reason":"Forbidden","message":"` + message + `"}`))
	}))
	b := &bench{metrics: NewMetrics("test", "test_failures_total")}
	access := config.Access{APIURL: api.URL, CAFile: writeTemp(t, "ca", ca.pem), TokenFile: writeTemp(t, "token", []byte(secret))}
	client := clientWith(t, ClientConfig{Access: access, Bounds: testBounds})
	cfg := b.config(nil)
	cfg.Reader, cfg.ListWatch = nil, ListWatch(Of(func() (Client, error) { return client, nil }, Nodes), nil)
	b.watch = NewWatch(cfg)
	b.run(t)
	eventually(t, "error", func() bool { return b.watch.Err() != nil })
	text := b.watch.Err().Error()
	if strings.IndexFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) >= 0 || len(text) > 1000 || !strings.Contains(text, `\x1b[2Jgone`) {
		t.Errorf("Err() = %q", text)
	}
	b.stop()
	if log := b.log.String(); strings.Contains(log, "warned") || strings.Contains(log, secret) {
		t.Errorf("log:\n%s", log)
	}
}
