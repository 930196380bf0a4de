package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

const (
	caTimeout   = 10 * time.Second // of one fetch, redirects included
	caMaxBytes  = 1 << 20
	caInterval  = 5 * time.Second // least time between two attempts to load
	caRedirects = 3
)

// caSource is where the certificates of a certificate authority come from.
type caSource interface {
	// load returns certificates in PEM.
	load(ctx context.Context) ([]byte, error)
	// String names the source for people.
	String() string
}

type caFile string

func (f caFile) String() string { return string(f) }

func (f caFile) load(context.Context) ([]byte, error) { return os.ReadFile(string(f)) }

// caURL fetches from an https address, whose own certificate must chain to
// the authorities that the system trusts.
type caURL struct {
	address string
	client  *http.Client
}

// newCAURL takes the authorities that vouch for the address; nil is those of
// the system.
func newCAURL(address string, roots *x509.CertPool) *caURL {
	transport := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         dialer().DialContext,
		TLSClientConfig:     &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout: handshakeTimeout,
		DisableKeepAlives:   true, // hours lie between two fetches
	}
	return &caURL{address: address, client: &http.Client{
		Transport: transport,
		Timeout:   caTimeout,
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if req.URL.Scheme != "https" {
				return errors.New("redirected away from https")
			}
			if len(via) > caRedirects {
				return errors.New("too many redirects")
			}
			return nil
		},
	}}
}

func (u *caURL) String() string { return u.address }

func (u *caURL) load(ctx context.Context) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.address, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := u.client.Do(req)
	if err != nil {
		return nil, err
	}
	// What matters of it has been read by then.
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered %s", u.address, response.Status)
	}
	content, err := io.ReadAll(io.LimitReader(response.Body, caMaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read the answer of %s: %w", u.address, err)
	}
	if len(content) > caMaxBytes {
		return nil, fmt.Errorf("%s answered with more than %d bytes", u.address, caMaxBytes)
	}
	return content, nil
}

// caTransport verifies servers against an authority that it loads before the
// first request, and loads again when a server's certificate doesn't verify:
// the authority may have been renewed. While nothing new is to be had the
// last one that was loaded stays.
type caTransport struct {
	source   caSource
	interval time.Duration

	// loading holds one value while no load is under way. A channel rather
	// than a lock, because requests that wait for it may be cancelled.
	loading chan struct{}

	mu       sync.Mutex
	current  *http.Transport // nil until the first load
	pem      []byte          // what current trusts
	tried    time.Time       // the last attempt to load
	triedErr error           // its error
}

func newCATransport(source caSource) *caTransport {
	t := &caTransport{source: source, interval: caInterval, loading: make(chan struct{}, 1)}
	t.loading <- struct{}{}
	return t
}

// RoundTrip implements http.RoundTripper.
func (t *caTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	used := t.transport()
	if used == nil {
		var err error
		if used, err = t.reload(req.Context(), nil); err != nil {
			if req.Body != nil {
				// The contract of RoundTrip; its error would say nothing more.
				_ = req.Body.Close()
			}
			return nil, err
		}
	}
	response, err := used.RoundTrip(req)
	if !untrusted(err) {
		return response, err
	}
	renewed, reloadErr := t.reload(req.Context(), used)
	switch {
	case reloadErr != nil:
		return nil, fmt.Errorf("certificate of %s: %w (%w)", req.URL.Host, err, reloadErr)
	case renewed == used:
		return nil, fmt.Errorf("certificate of %s does not verify with the authority from %s: %w", req.URL.Host, t.source, err)
	}
	again, ok := replay(req)
	if !ok {
		return nil, err
	}
	return renewed.RoundTrip(again)
}

// CloseIdleConnections closes those of the current authority; others have been
// closed already.
func (t *caTransport) CloseIdleConnections() {
	if current := t.transport(); current != nil {
		current.CloseIdleConnections()
	}
}

func (t *caTransport) transport() *http.Transport {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.current
}

// reload returns another transport than the given one, when somebody made one
// meanwhile or the source has something new, and the given one otherwise.
func (t *caTransport) reload(ctx context.Context, used *http.Transport) (*http.Transport, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-t.loading:
	}
	defer func() { t.loading <- struct{}{} }()

	t.mu.Lock()
	current, pem, tried, err := t.current, t.pem, t.tried, t.triedErr
	t.mu.Unlock()
	if current != used {
		return current, nil
	}
	if time.Since(tried) < t.interval {
		return current, err
	}
	fresh, err := t.source.load(ctx)
	if ctx.Err() != nil {
		return nil, ctx.Err() // says nothing about the source
	}
	if err != nil {
		err = fmt.Errorf("load certificate authority: %w", err)
	} else if !bytes.Equal(fresh, pem) {
		current, err = newTransport(fresh, t.source)
	}

	t.mu.Lock()
	t.tried, t.triedErr = time.Now(), err
	if err == nil {
		t.current, t.pem = current, fresh
	}
	t.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if used != nil && current != used {
		used.CloseIdleConnections()
	}
	return current, nil
}

func newTransport(pem []byte, source caSource) (*http.Transport, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("load certificate authority: %s holds no certificate in PEM", source)
	}
	return utilnet.SetTransportDefaults(&http.Transport{
		DialContext:         dialer().DialContext,
		TLSClientConfig:     &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout: handshakeTimeout,
	}), nil
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
