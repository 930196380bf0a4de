package kube

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/kube-semaphore/kube-semaphore/internal/errlog"
)

const (
	// caInterval is the minimum interval between reloads caused by certificates that don't
	// verify.
	caInterval = 5 * time.Second
	// caRetry is the maximum wait after a failed load.
	caRetry = time.Minute
)

// caTransport verifies servers with CA certificates that it loads
//
//   - before the first request,
//   - when a server's certificate doesn't verify: the CA may have been renewed,
//   - and periodically, at the interval of the source, before a request and while
//     connections are open. The holder of a revoked CA key never causes the second.
//
// When CA certificates are removed, connections that were verified with them are closed,
// with all their requests. If loading fails, the last certificates stay in use.
type caTransport struct {
	source   caSource
	build    transportBuilder
	dial     dialFunc
	interval time.Duration
	period   time.Duration
	log      *slog.Logger
	reloads  errlog.Log
	// loading holds one value while no load is under way. It is a channel rather than a
	// lock because waiting requests may be cancelled.
	loading chan struct{}

	mu       sync.Mutex
	current  *trust   // nil until the first load
	earlier  []*trust // covered by current: their connections stay
	tried    time.Time
	triedErr error // of the last attempt to load
	armed    bool  // the timer of tick runs
}

func newCATransport(source caSource, build transportBuilder, log *slog.Logger) *caTransport {
	t := &caTransport{
		source: source, build: build, dial: dialer().DialContext, log: log,
		reloads: errlog.Log{
			Logger: log, Level: slog.LevelWarn, Failing: "certificate authority can't be reloaded, the last one stays in use", Over: "certificate authority reloaded",
			Kind: func(error) string { return "" }, // one line, whatever the error
		},
		interval: caInterval, period: source.period, loading: make(chan struct{}, 1),
	}
	t.loading <- struct{}{}
	return t
}

// RoundTrip implements http.RoundTripper.
func (t *caTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	used, due := t.trusted()
	if due && used != nil && t.period > t.interval {
		// Requests don't wait for a periodic reload from a URL.
		t.refresh(req.Context(), used)
		due = false
	}
	if due {
		loaded, err := t.reload(req.Context(), used, t.wait())
		switch {
		case err == nil:
			used = loaded
		case used == nil || req.Context().Err() != nil:
			if req.Body != nil {
				_ = req.Body.Close() // required by http.RoundTripper
			}
			return nil, err
		}
	}
	response, err := used.transport.RoundTrip(req)
	if !untrusted(err) {
		return response, err
	}
	renewed, reloadErr := t.reload(req.Context(), used, t.interval)
	switch {
	case reloadErr != nil:
		return nil, fmt.Errorf("certificate of %s: %w (%w)", req.URL.Host, err, reloadErr)
	case renewed == used:
		return nil, fmt.Errorf("certificate of %s does not verify with the authority from %s: %w", req.URL.Host, t.source.name, err)
	}
	again, ok := replay(req)
	if !ok {
		return nil, err
	}
	return renewed.transport.RoundTrip(again)
}

// refresh reloads in the background, unless a load is under way.
func (t *caTransport) refresh(ctx context.Context, used *trust) {
	if len(t.loading) == 0 {
		return
	}
	go t.reloadBackground(context.WithoutCancel(ctx), used, t.wait())
}

// reloadBackground reloads with a timeout of its own. Errors are logged by reload, and
// returned by the next request that fails to verify.
func (t *caTransport) reloadBackground(ctx context.Context, used *trust, least time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, 2*caTimeout)
	defer cancel()
	_, _ = t.reload(ctx, used, least)
}

// CloseIdleConnections closes idle connections of the current trust; those of earlier ones
// are closed already.
func (t *caTransport) CloseIdleConnections() {
	if current, _ := t.trusted(); current != nil {
		utilnet.CloseIdleConnectionsFor(current.transport)
	}
}

// trusted returns the current trust, and whether a load is due.
func (t *caTransport) trusted() (current *trust, due bool) {
	wait := t.wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.current, t.current == nil || time.Since(t.tried) >= wait
}

// wait returns the time between the last attempt to load and the next one.
func (t *caTransport) wait() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.current == nil:
		return t.interval
	case t.triedErr != nil:
		return min(t.period, caRetry)
	default:
		return t.period
	}
}

// reload returns the current trust if it is no longer used, loaded by another goroutine.
// Otherwise it loads from the source, if the last attempt is at least that long ago, and
// returns used if the certificates are the same.
func (t *caTransport) reload(ctx context.Context, used *trust, least time.Duration) (*trust, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-t.loading:
	}
	defer func() { t.loading <- struct{}{} }()

	t.mu.Lock()
	current, tried, before := t.current, t.tried, t.triedErr
	t.mu.Unlock()
	if current != used {
		return current, nil
	}
	if time.Since(tried) < least {
		return current, before
	}
	fresh, err := t.load(ctx, current)
	if ctx.Err() != nil {
		return nil, ctx.Err() // not a failure of the source
	}
	t.mu.Lock()
	t.tried, t.triedErr = time.Now(), err
	t.mu.Unlock()
	switch {
	case err != nil:
		if current != nil {
			t.reloads.Note(ctx, err, "source", t.source.name)
		}
		return nil, err
	case fresh != current:
		t.replace(ctx, current, fresh)
	}
	t.reloads.Note(ctx, nil, "source", t.source.name)
	return fresh, nil
}

// load returns current if the source has the same certificates.
func (t *caTransport) load(ctx context.Context, current *trust) (*trust, error) {
	content, err := t.source.load(ctx)
	if err != nil {
		return nil, fmt.Errorf("load certificate authority: %w", err)
	}
	certs, err := parseCerts(content)
	if err != nil {
		return nil, fmt.Errorf("load certificate authority: %s %w", t.source.name, err)
	}
	if current != nil && maps.Equal(certs, current.certs) {
		return current, nil
	}
	conns := &connections{open: map[*connection]struct{}{}, dialer: t.dial, dialed: t.arm}
	transport, err := t.build(content, conns.dial)
	if err != nil {
		return nil, fmt.Errorf("load certificate authority: %s: %w", t.source.name, err)
	}
	return &trust{transport: transport, certs: certs, conns: conns}, nil
}

// replace makes fresh the current trust, and closes the connections of earlier ones unless
// fresh has all of the old certificates.
func (t *caTransport) replace(ctx context.Context, old, fresh *trust) {
	t.mu.Lock()
	t.current = fresh
	var revoked []*trust
	if old != nil {
		t.earlier = append(t.earlier, old)
		if !fresh.covers(old) {
			t.earlier, revoked = nil, t.earlier
		}
	}
	t.mu.Unlock()
	if old == nil {
		return
	}
	utilnet.CloseIdleConnectionsFor(old.transport)
	closed := 0
	for _, r := range revoked {
		closed += r.conns.revoke()
	}
	t.log.InfoContext(ctx, "certificate authority replaced", "source", t.source.name, "closed_connections", closed)
}

// revoke closes all connections, prevents new ones, and returns how many were closed.
func (t *caTransport) revoke() int {
	t.mu.Lock()
	all := t.all()
	t.mu.Unlock()
	closed := 0
	for _, one := range all {
		closed += one.conns.revoke()
	}
	return closed
}

// all returns the current trust and the earlier ones. Callers hold mu.
func (t *caTransport) all() []*trust {
	if t.current == nil {
		return nil
	}
	return append([]*trust{t.current}, t.earlier...)
}

// arm starts periodic reloads, which go on while connections are open.
func (t *caTransport) arm() {
	wait := t.wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.armed {
		t.armed = true
		time.AfterFunc(wait, t.tick)
	}
}

func (t *caTransport) tick() {
	t.mu.Lock()
	t.armed = false
	current, all := t.current, t.all()
	t.mu.Unlock()
	if !slices.ContainsFunc(all, func(one *trust) bool { return one.conns.any() }) {
		return
	}
	t.reloadBackground(context.Background(), current, 0)
	t.arm()
}

// untrusted reports whether err is about the chain of the server's certificate rather than
// its name: other CA certificates may verify it.
func untrusted(err error) bool {
	var verification *tls.CertificateVerificationError
	var hostname x509.HostnameError
	return errors.As(err, &verification) && !errors.As(err, &hostname)
}

// replay returns a copy of req to send again, after req failed without a connection.
func replay(req *http.Request) (*http.Request, bool) {
	again := req.Clone(req.Context())
	if req.Body == nil || req.Body == http.NoBody {
		return again, true
	}
	if req.GetBody == nil {
		return nil, false
	}
	body, err := req.GetBody()
	if err != nil {
		return nil, false
	}
	again.Body = body
	return again, true
}
