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

	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
)

// Connections that don't come about, or lose their other end, are given up in
// these times. HTTP/2 connections are probed beyond that: client-go's defaults
// send a ping after 30 s of silence and wait 15 s for its answer.
const (
	dialTimeout      = 10 * time.Second
	handshakeTimeout = 10 * time.Second
	keepAlive        = 30 * time.Second
	// What isn't a watch, and has no deadline of its own, has this one, for the
	// whole answer: that is when an API server gives up by itself.
	requestTimeout = time.Minute
)

// ClientConfig describes a client of one cluster. Only Access and UserAgent are
// required.
type ClientConfig struct {
	// Access says how the cluster is reached.
	Access config.Access
	// Token, and CA in PEM, take the place of Access.TokenFile and Access.CAFile for a
	// caller that has them elsewhere than in files.
	Token string
	CA    []byte
	// UserAgent should name program, version and local cluster.
	UserAgent string
	// Bounds are those of a remote. With any, compressed answers, and others than
	// JSON and protobuf, are refused.
	Bounds Bounds
	// Dial connects to the cluster's API server; nil: as net.Dialer does.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Logger is told when the cluster's certificate authority changes.
	Logger *slog.Logger
}

// RESTConfig returns the configuration of a client.
//
// It makes no request. A certificate authority is loaded before the first
// request, and again as caTransport says. Token files and kubeconfigs are read at
// each request, so that a rotated token counts at once. No redirect is followed.
//
// Requests aren't limited in rate by the client: the priority and fairness of
// the API server is the brake. Answers come as protobuf where the server can.
func RESTConfig(c ClientConfig) (*rest.Config, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	cfg := &rest.Config{
		UserAgent: c.UserAgent, QPS: -1,
		ContentConfig: rest.ContentConfig{AcceptContentTypes: typeProtobuf + "," + typeJSON},
	}
	if c.Access.Kubeconfig != "" {
		transport, err := newKubeconfigTransport(c)
		if err != nil {
			return nil, err
		}
		cfg.Host, cfg.Transport = transport.asked.String(), transport
	} else {
		base, source, err := c.base()
		if err != nil {
			return nil, err
		}
		cfg.Host, cfg.APIPath = base.Host, base.APIPath
		cfg.Transport, _ = c.reach(base, source)
	}
	if c.Bounds.Answer > 0 {
		// They would be logged, and are the remote's words.
		cfg.WarningHandler = rest.NoWarnings{}
	}
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &timeoutTransport{limit: requestTimeout, next: next}
	})
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &answerTransport{limit: c.Bounds.Answer, next: next}
	})
	return cfg, nil
}

// reach returns what reaches a server with its authority and credentials.
func (c *ClientConfig) reach(base *rest.Config, source caSource) (http.RoundTripper, *caTransport) {
	tokenFile := base.BearerTokenFile
	if tokenFile != "" {
		// client-go's own reader keeps a token for a minute, even when the
		// server says that it is no longer valid.
		base.BearerToken, base.BearerTokenFile = "", ""
	}
	base.CAFile, base.CAData = "", nil
	base.DisableCompression = c.Bounds.Answer > 0
	ca := newCATransport(source, builder(base), c.Logger)
	if c.Dial != nil {
		ca.dial = c.Dial
	}
	if tokenFile == "" {
		return ca, ca
	}
	return &tokenTransport{file: tokenFile, next: ca}, ca
}

// builder returns what makes a transport of a configuration and certificates.
func builder(base *rest.Config) transportBuilder {
	return func(pem []byte, dial dialFunc) (http.RoundTripper, error) {
		cfg := rest.CopyConfig(base)
		cfg.CAData, cfg.Dial = pem, dial
		return rest.TransportFor(cfg)
	}
}

// inClusterCA is where the kubelet puts the authority of a pod's own cluster.
const inClusterCA = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"

// base returns how to reach a cluster without a kubeconfig, and where its authority
// comes from.
func (c *ClientConfig) base() (*rest.Config, caSource, error) {
	access := c.Access
	if access.InCluster() {
		cfg, err := rest.InClusterConfig()
		if err != nil {
			return nil, caSource{}, fmt.Errorf("access to the own cluster: %w", err)
		}
		// Without the file client-go would take the system's authorities.
		return cfg, caFile(inClusterCA), nil
	}
	if err := requireHTTPS(access.APIURL); err != nil {
		return nil, caSource{}, err
	}
	if access.TokenFile == "" && c.Token == "" {
		return nil, caSource{}, errors.New("no token file")
	}
	var source caSource
	switch {
	case c.CA != nil:
		source = caGiven(c.CA)
	case access.CAFile != "" && access.CAURL != "":
		return nil, caSource{}, errors.New("both a file and an URL for the certificate authority")
	case access.CAFile != "":
		source = caFile(access.CAFile)
	case access.CAURL != "":
		if err := requireHTTPS(access.CAURL); err != nil {
			return nil, caSource{}, fmt.Errorf("certificate authority: %w", err)
		}
		source = caURL(access.CAURL, access.Pins())
	default:
		return nil, caSource{}, errors.New("no certificate authority")
	}
	return &rest.Config{
		Host: access.APIURL, BearerTokenFile: access.TokenFile, BearerToken: c.Token,
		Proxy: func(*http.Request) (*url.URL, error) { return nil, nil },
	}, source, nil
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

// timeoutTransport makes plain errors of timeouts. A watch request that meets
// one which says Timeout() is tried ten times over by client-go, and then
// reported as a watch that came about and ended: an unreachable server would
// go unnoticed for minutes.
//
// It also gives a deadline to each request that has none and isn't a watch: a
// server that takes requests and never answers holds nobody up for ever.
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
			return nil, fmt.Errorf("no contact: %w", err)
		}
		return nil, err
	}
	response.Body = &endingBody{response.Body, end}
	return response, nil
}

// watches reports whether the answer to a request may go on for as long as it likes.
func watches(req *http.Request) bool {
	watching := req.URL.Query().Get("watch")
	return watching == "true" || watching == "1"
}

// endingBody ends the context of a request whose answer has been read.
type endingBody struct {
	io.ReadCloser
	end context.CancelFunc
}

// Close implements io.Closer.
func (b *endingBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}

// WrappedRoundTripper lets client-go find the transport below.
func (t *timeoutTransport) WrappedRoundTripper() http.RoundTripper { return t.next }
