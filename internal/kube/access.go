package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/net/http/httpproxy"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
)

// Timeouts of connections. client-go's defaults for HTTP/2 add a ping after 30 s of
// silence, which times out after 15 s.
const (
	dialTimeout      = 10 * time.Second
	handshakeTimeout = 10 * time.Second
	keepAlive        = 30 * time.Second
	// requestTimeout bounds requests other than watches that have no deadline, including
	// the response body. API servers time out after the same time.
	requestTimeout = time.Minute
)

// ClientConfig describes a client of one cluster. Only Access and UserAgent are
// required.
type ClientConfig struct {
	Access config.Access
	// Token, and CA in PEM, replace Access.TokenFile and Access.CAFile for callers that
	// don't have them in files.
	Token string
	CA    []byte
	// UserAgent should name program, version and local cluster.
	UserAgent string
	// Bounds are those of a remote. With any, compressed responses, and other formats than
	// JSON, are rejected.
	Bounds Bounds
	// Dial connects to the cluster's API server; nil: net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Logger gets changes of the CA.
	Logger *slog.Logger
}

// RESTConfig returns the configuration of a client.
//
// It makes no request. A kubeconfig is read now. CA certificates are loaded before the first
// request, and reloaded as described at reloadingTransport. Redirects are not followed.
//
// The client doesn't limit the rate of requests, which is left to the API server's
// priority and fairness. It prefers protobuf, except from a remote, whose objects are read in
// parts.
func RESTConfig(c ClientConfig) (*rest.Config, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	cfg := &rest.Config{
		UserAgent: c.UserAgent, QPS: -1,
		ContentConfig: rest.ContentConfig{AcceptContentTypes: typeProtobuf + "," + typeJSON},
	}
	base, authority, err := c.base()
	if err != nil {
		return nil, err
	}
	cfg.Host, cfg.APIPath = base.Host, base.APIPath
	addToken(cfg, base)
	cfg.Transport = newReloadingTransport(base, authority, &c)
	if c.Bounds.Answer > 0 {
		cfg.AcceptContentTypes = typeJSON
		// Warnings contain text of the remote and would be logged.
		cfg.WarningHandler = rest.NoWarnings{}
	}
	bound(cfg, c.Bounds.Answer)
	return cfg, nil
}

// inClusterCA has the CA of a pod's own cluster; the kubelet mounts it.
const inClusterCA = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"

// base returns the configuration of the transport, and the source of its CA.
func (c *ClientConfig) base() (*rest.Config, caSource, error) {
	access := c.Access
	if access.Kubeconfig != "" {
		return readKubeconfig(access.Kubeconfig)
	}
	if access.InCluster() {
		cfg, err := rest.InClusterConfig()
		if err != nil {
			return nil, caSource{}, fmt.Errorf("in-cluster configuration: %w", err)
		}
		cfg.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
		// If the file is missing, client-go would trust the system's CAs.
		return cfg, caFile(inClusterCA), nil
	}
	if err := requireHTTPS(access.APIURL); err != nil {
		return nil, caSource{}, err
	}
	if access.TokenFile == "" && c.Token == "" {
		return nil, caSource{}, errors.New("no token file")
	}
	proxy := environmentProxy()
	if access.ProxyURL != "" {
		parsed, err := config.ParseProxy(access.ProxyURL)
		if err != nil {
			return nil, caSource{}, fmt.Errorf("proxy: %w", err)
		}
		proxy = http.ProxyURL(parsed)
	}
	var source caSource
	switch {
	case c.CA != nil:
		source = caGiven("the caller", c.CA)
	case access.CAFile != "" && access.CAURL != "":
		return nil, caSource{}, errors.New("both a file and a URL for the certificate authority")
	case access.CAFile != "":
		source = caFile(access.CAFile)
	case access.CAURL != "":
		if err := requireHTTPS(access.CAURL); err != nil {
			return nil, caSource{}, fmt.Errorf("certificate authority: %w", err)
		}
		source = caURL(access.CAURL, access.Pins(), proxy)
	default:
		return nil, caSource{}, errors.New("no certificate authority")
	}
	return &rest.Config{
		Host: access.APIURL, BearerTokenFile: access.TokenFile, BearerToken: c.Token, Proxy: proxy,
	}, source, nil
}

// proxyFunc is http.Transport.Proxy.
type proxyFunc = func(*http.Request) (*url.URL, error)

// environmentProxy selects the proxy of a request by HTTPS_PROXY and NO_PROXY. Requests to
// API servers and for their CAs use it, except those to the pod's own cluster, and those
// with an Access.ProxyURL, or a kubeconfig that has a proxy-url.
func environmentProxy() proxyFunc {
	of := httpproxy.FromEnvironment().ProxyFunc()
	return func(r *http.Request) (*url.URL, error) { return of(r.URL) }
}

// proxyError is the error of a request through a proxy.
type proxyError struct {
	proxy string
	err   error
}

// Error implements error.
func (e *proxyError) Error() string { return "through the proxy " + e.proxy + ": " + e.err.Error() }

// Unwrap returns the error without the proxy.
func (e *proxyError) Unwrap() error { return e.err }

// Through names the proxy of a request in its error: net/http doesn't if the proxy refuses it, or
// doesn't answer.
func Through(proxy proxyFunc, address string, err error) error {
	to, invalid := url.Parse(address)
	if err == nil || invalid != nil || proxy == nil {
		return err
	}
	if u, _ := proxy(&http.Request{URL: to}); u != nil {
		return &proxyError{u.Scheme + "://" + u.Host, err}
	}
	return err
}

func requireHTTPS(address string) error {
	parsed, err := url.Parse(address)
	if err != nil {
		return fmt.Errorf("parse address: %w", err)
	}
	if parsed.Scheme != "https" || parsed.Host == "" {
		return fmt.Errorf("address %s does not begin with https:// and a host", parsed.Redacted())
	}
	return nil
}

func dialer() *net.Dialer {
	return &net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}
}

// timeoutTransport hides the method Timeout of errors. client-go retries a watch request
// with such an error ten times, and then reports a watch that was opened and closed: an
// unreachable server would go unnoticed for minutes.
//
// It also sets a deadline for requests without one, other than watches.
type timeoutTransport struct {
	limit time.Duration
	next  http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t *timeoutTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	asked := req.Context()
	end := context.CancelFunc(func() {})
	if _, bounded := asked.Deadline(); !bounded && !watches(req) {
		var ctx context.Context
		ctx, end = context.WithTimeout(asked, t.limit)
		req = req.WithContext(ctx)
	}
	response, err := t.next.RoundTrip(req)
	if err != nil {
		end()
		var timeout interface{ Timeout() bool }
		if errors.As(err, &timeout) && timeout.Timeout() && asked.Err() == nil {
			return nil, fmt.Errorf("timed out: %w", err)
		}
		return nil, err
	}
	response.Body = &endingBody{response.Body, end}
	return response, nil
}

// watches reports whether a request is a watch, whose response has no end.
func watches(req *http.Request) bool {
	watching := req.URL.Query().Get("watch")
	return watching == "true" || watching == "1"
}

// endingBody cancels the context of a request when its response is closed.
type endingBody struct {
	io.ReadCloser
	end context.CancelFunc
}

// Close implements io.Closer.
func (b *endingBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}

// WrappedRoundTripper implements net.RoundTripperWrapper of apimachinery.
func (t *timeoutTransport) WrappedRoundTripper() http.RoundTripper { return t.next }
