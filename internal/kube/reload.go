package kube

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"k8s.io/client-go/util/connrotation"

	"github.com/kube-semaphore/kube-semaphore/internal/errlog"
)

const (
	// reloadInterval is the minimum interval between loads caused by certificates that don't
	// verify.
	reloadInterval = 5 * time.Second
	// reloadRetry is the maximum wait after a failed load.
	reloadRetry = time.Minute
)

// reloadingTransport connects to an API server with an authority that it loads from a source
//
//   - before the first request,
//   - when a server's certificate doesn't verify: the CA may have been renewed,
//   - and periodically, at the interval of the source, when a request begins and while
//     watches are open. The holder of a revoked CA key never causes the second.
//
// When CA certificates are removed, connections are closed, with all their requests. If loading
// fails, the last authority stays in use.
//
// client-go reloads CA files every 5 minutes, no URLs, and leaves connections open: the holder of
// a removed CA's key keeps those that it has.
type reloadingTransport struct {
	base     *rest.Config // without an authority
	source   caSource
	dial     dialFunc
	interval time.Duration
	log      *slog.Logger
	faults   errlog.Log
	loads    singleflight.Group

	mu      sync.Mutex
	current *access // nil until the first load
	tried   time.Time
	err     error // of the last load
}

// access is a transport with an authority.
type access struct {
	certs     map[string]struct{} // in DER
	transport http.RoundTripper
	conns     *connections
}

// dialFunc is net.Dialer.DialContext.
type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

func newReloadingTransport(base *rest.Config, authority caSource, c *ClientConfig) *reloadingTransport {
	base.DisableCompression = c.Bounds.Answer > 0
	t := &reloadingTransport{
		base: base, source: authority, dial: c.Dial, interval: reloadInterval, log: c.Logger,
		faults: errlog.Log{
			Logger: c.Logger, Level: slog.LevelWarn,
			Failing: "certificate authority can't be reloaded, the last one stays in use", Over: "certificate authority reloaded",
			Kind: func(error) string { return "" }, // one line, whatever the error
		},
	}
	if t.dial == nil {
		t.dial = dialer().DialContext
	}
	return t
}

// RoundTrip implements http.RoundTripper. A request that fails because the authority was renewed
// is the caller's to repeat.
func (t *reloadingTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	used, err := t.access(req.Context())
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close() // required by http.RoundTripper
		}
		return nil, err
	}
	ctx, end := context.WithCancel(req.Context())
	if watches(req) {
		go t.follow(ctx)
	}
	response, err := used.transport.RoundTrip(req.WithContext(ctx))
	if err == nil {
		response.Body = &endingBody{response.Body, end}
		return response, nil
	}
	end()
	err = Through(t.base.Proxy, req.URL.String(), err)
	if !untrusted(err) {
		return nil, err
	}
	_, reloadErr := t.reload(req.Context(), t.interval)
	err = fmt.Errorf("certificate of %s does not verify with the authority from %s: %w", req.URL.Host, t.source.name, err)
	if reloadErr != nil {
		err = fmt.Errorf("%w (%w)", err, reloadErr)
	}
	return nil, err
}

// CloseIdleConnections closes idle connections of the current access.
func (t *reloadingTransport) CloseIdleConnections() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current != nil {
		utilnet.CloseIdleConnectionsFor(t.current.transport)
	}
}

// access returns the current authority. Requests only wait for the first load.
func (t *reloadingTransport) access(ctx context.Context) (*access, error) {
	t.mu.Lock()
	current := t.current
	t.mu.Unlock()
	if current == nil {
		return t.reload(ctx, t.interval)
	}
	if t.untilDue() <= 0 {
		t.start(ctx, 0)
	}
	return current, nil
}

// untilDue returns the time until the next periodic load.
func (t *reloadingTransport) untilDue() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	wait := t.source.period
	if t.err != nil {
		wait = min(wait, reloadRetry)
	}
	return wait - time.Since(t.tried)
}

// follow makes the periodic loads while a watch is open.
func (t *reloadingTransport) follow(watch context.Context) {
	for {
		select {
		case <-watch.Done():
			return
		case <-time.After(max(t.untilDue(), 0)):
			if t.untilDue() <= 0 {
				_, _ = t.reload(watch, 0) // logged
			}
		}
	}
}

// reload loads the authority, if the last attempt is at least that long ago, and returns the
// current one.
func (t *reloadingTransport) reload(ctx context.Context, least time.Duration) (*access, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case done := <-t.start(ctx, least):
		current, _ := done.Val.(*access)
		return current, done.Err
	}
}

// start starts a load, unless one is under way. It doesn't end with the request that causes
// it.
func (t *reloadingTransport) start(ctx context.Context, least time.Duration) <-chan singleflight.Result {
	return t.loads.DoChan("", func() (any, error) {
		t.mu.Lock()
		current, tried, err := t.current, t.tried, t.err
		t.mu.Unlock()
		if time.Since(tried) < least {
			return current, err
		}
		fresh, err := t.load(current)
		if err != nil {
			fresh = current
		}
		t.mu.Lock()
		t.current, t.tried, t.err = fresh, time.Now(), err
		t.mu.Unlock()
		if current != nil {
			t.replaced(context.WithoutCancel(ctx), current, fresh, err)
		}
		return fresh, err
	})
}

// load returns current if the source has the same authority.
func (t *reloadingTransport) load(current *access) (*access, error) {
	cfg, certs, err := t.source.config(t.base)
	if err != nil {
		return nil, err
	}
	fresh := &access{certs: certs, conns: &connections{Dialer: connrotation.NewDialer(t.dial)}}
	switch {
	case current == nil:
	case maps.Equal(certs, current.certs):
		return current, nil
	case covers(certs, current.certs):
		fresh.conns = current.conns // what was verified still would be
	}
	cfg.Dial = fresh.conns.DialContext
	if fresh.transport, err = rest.TransportFor(cfg); err != nil {
		return nil, fmt.Errorf("connect with the authority from %s: %w", t.source.name, err)
	}
	return fresh, nil
}

// replaced closes the connections that fresh doesn't allow, and logs the outcome of a load.
func (t *reloadingTransport) replaced(ctx context.Context, old, fresh *access, err error) {
	t.faults.Note(ctx, err, "source", t.source.name)
	if fresh == old {
		return
	}
	utilnet.CloseIdleConnectionsFor(old.transport)
	revoked := fresh.conns != old.conns
	if revoked {
		old.conns.revoke()
	}
	t.log.InfoContext(ctx, "certificate authority replaced", "source", t.source.name, "connections_closed", revoked)
}

// addToken moves the token file of a configuration to another one. The clients made of that read the file before their first request, then every 50 s, and after the
// server has rejected the token; with BearerTokenFile they would not do the latter.
func addToken(to, from *rest.Config) {
	file := from.BearerTokenFile
	if file == "" {
		return
	}
	from.BearerToken, from.BearerTokenFile = "", ""
	to.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return transport.ResettableTokenSourceWrapTransport(transport.NewCachedFileTokenSource(file))(next)
	})
}

// connections are those of an access, and of later ones with more CA certificates.
type connections struct {
	*connrotation.Dialer
	revoked atomic.Bool
}

// DialContext dials, unless the connections were revoked meanwhile.
func (c *connections) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := c.Dialer.DialContext(ctx, network, address)
	switch {
	case err != nil:
		return nil, err
	case c.revoked.Load():
		return nil, errors.Join(errors.New("the certificate authority was replaced meanwhile"), conn.Close())
	}
	return &answering{Conn: conn}, conn.SetReadDeadline(time.Now().Add(handshakeTimeout))
}

// answering is a connection whose first answer has a deadline: net/http waits a minute for that of a
// proxy to CONNECT, and for SOCKS as long as the request lasts.
type answering struct {
	net.Conn
	answered atomic.Bool
}

// Read implements net.Conn.
func (a *answering) Read(p []byte) (int, error) {
	n, err := a.Conn.Read(p)
	if err == nil && !a.answered.Swap(true) {
		err = a.SetReadDeadline(time.Time{})
	}
	return n, err
}

func (c *connections) revoke() {
	c.revoked.Store(true)
	c.CloseAll()
}

// covers reports whether what verifies with the certificates old verifies with fresh.
func covers(fresh, old map[string]struct{}) bool {
	for cert := range old {
		if _, ok := fresh[cert]; !ok {
			return false
		}
	}
	return true
}

// untrusted reports whether err is about the chain of the server's certificate rather than
// its name: other CA certificates may verify it.
func untrusted(err error) bool {
	var verification *tls.CertificateVerificationError
	var hostname x509.HostnameError
	return errors.As(err, &verification) && !errors.As(err, &hostname)
}
