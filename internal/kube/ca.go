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
	// caInterval is the least time between two attempts to load that
	// certificates cause which don't verify.
	caInterval = 5 * time.Second
	// caRetry is how long after one that failed at most another one follows.
	caRetry = time.Minute
)

// caTransport verifies servers against an authority that it loads
//
//   - before the first request,
//   - again when a server's certificate doesn't verify: the authority may have
//     been renewed,
//   - and again from time to time, as the source says: before a request, and
//     while there are connections. The holder of a key that was taken out of the
//     authority never causes the second.
//
// When certificates are gone, connections that were verified with them are
// closed, under whatever goes on. While nothing new is to be had the last ones
// that were loaded stay.
type caTransport struct {
	source   caSource
	build    transportBuilder
	dial     dialFunc
	interval time.Duration
	period   time.Duration
	log      *slog.Logger
	lost     errlog.Log // that what is current can't be loaded again

	// loading holds one value while no load is under way. A channel rather
	// than a lock, because requests that wait for it may be cancelled.
	loading chan struct{}

	mu       sync.Mutex
	current  *trust   // nil until the first load
	earlier  []*trust // those that current covers, whose connections stay
	tried    time.Time
	triedErr error // of the last attempt to load
	armed    bool  // a timer runs
}

func newCATransport(source caSource, build transportBuilder, log *slog.Logger) *caTransport {
	t := &caTransport{
		source: source, build: build, dial: dialer().DialContext, log: log,
		lost: errlog.Log{
			Logger: log, Level: slog.LevelWarn, Failing: "certificate authority can't be loaded again, the last one stays", Over: "certificate authority loaded again",
			Kind: func(error) string { return "" }, // one line, however it fails
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
		// A request doesn't wait for a server that serves certificates, as long
		// as there are some.
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
				// The contract of RoundTrip; its error would say nothing more.
				_ = req.Body.Close()
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

// refresh loads the authority beside what goes on, unless it is being loaded.
func (t *caTransport) refresh(ctx context.Context, used *trust) {
	if len(t.loading) == 0 {
		return
	}
	go t.reloadBeside(context.WithoutCancel(ctx), used, t.wait())
}

// reloadBeside is reload for nobody in particular: others need it, too, when a request
// is over.
func (t *caTransport) reloadBeside(ctx context.Context, used *trust, least time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, 2*caTimeout)
	defer cancel()
	// It is logged, and shows in the next request that fails for it.
	_, _ = t.reload(ctx, used, least)
}

// CloseIdleConnections closes those of the current authority; others have been
// closed already.
func (t *caTransport) CloseIdleConnections() {
	if current, _ := t.trusted(); current != nil {
		utilnet.CloseIdleConnectionsFor(current.transport)
	}
}

// trusted returns the current authority, and whether it is time to load it.
func (t *caTransport) trusted() (current *trust, due bool) {
	wait := t.wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.current, t.current == nil || time.Since(t.tried) >= wait
}

// wait is how long after an attempt to load another one is due.
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

// reload returns another authority than the given one, when somebody loaded one
// meanwhile or the source has something new, and the given one otherwise. It
// asks the source only if the last attempt is long enough ago.
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
		return nil, ctx.Err() // says nothing about the source
	}
	t.mu.Lock()
	t.tried, t.triedErr = time.Now(), err
	t.mu.Unlock()
	switch {
	case err != nil:
		if current != nil {
			t.lost.Note(ctx, err, "source", t.source.name)
		}
		return nil, err
	case fresh != current:
		t.replace(ctx, current, fresh)
	}
	t.lost.Note(ctx, nil, "source", t.source.name)
	return fresh, nil
}

// load returns the current authority when the source has the same certificates.
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

// replace makes another authority the current one, and closes connections that
// it may not vouch for.
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

// revoke closes all connections, and has no more come about. It returns how many
// there were.
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

// all returns the current authority and those whose connections stay; mu is held.
func (t *caTransport) all() []*trust {
	if t.current == nil {
		return nil
	}
	return append([]*trust{t.current}, t.earlier...)
}

// arm has the authority loaded after a period, and again for as long as there
// are connections.
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
	t.reloadBeside(context.Background(), current, 0)
	t.arm()
}

// untrusted reports whether another authority might accept the server: the
// chain of its certificate is at fault, not the name in it.
func untrusted(err error) bool {
	var verification *tls.CertificateVerificationError
	var hostname x509.HostnameError
	return errors.As(err, &verification) && !errors.As(err, &hostname)
}

// replay returns a request that can be sent after req wasn't, because no
// connection came about.
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
