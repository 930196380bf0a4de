package cluster

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
)

// Connections that don't come about, or lose their other end, are given up in
// these times. HTTP/2 connections are probed beyond that: client-go's defaults
// send a ping after 30 s of silence and wait 15 s for its answer.
const (
	dialTimeout      = 10 * time.Second
	handshakeTimeout = 10 * time.Second
	keepAlive        = 30 * time.Second
)

// RESTConfig returns the configuration of a client that reaches a cluster in
// the given way. The user agent should name program, version and local cluster.
//
// It makes no request. A certificate authority that access names by URL is
// fetched before the first request, and fetched again when the server's
// certificate doesn't verify any more. Token files are read at each request,
// so that a rotated token counts at once.
//
// Requests aren't limited in rate by the client: the priority and fairness of
// the API server is the brake. Answers come as protobuf where the server can.
func RESTConfig(access config.Access, userAgent string) (*rest.Config, error) {
	cfg, err := baseConfig(access)
	if err != nil {
		return nil, err
	}
	cfg.UserAgent = userAgent
	cfg.QPS = -1
	cfg.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	if cfg.Transport == nil {
		cfg.Dial = dialer().DialContext
	}
	if path := cfg.BearerTokenFile; path != "" {
		// client-go's own reader keeps a token for a minute, even when the
		// server says that it is no longer valid.
		cfg.BearerToken, cfg.BearerTokenFile = "", ""
		cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return &tokenTransport{file: path, next: next}
		})
	}
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return &timeoutTransport{next: next} })
	return cfg, nil
}

func baseConfig(access config.Access) (*rest.Config, error) {
	switch {
	case access.InCluster():
		cfg, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("access to the own cluster: %w", err)
		}
		return cfg, nil
	case access.Kubeconfig != "":
		return kubeconfig(access.Kubeconfig)
	default:
		return direct(access)
	}
}

func kubeconfig(path string) (*rest.Config, error) {
	loaded, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return nil, fmt.Errorf("load kubeconfig %s: %w", path, err)
	}
	cfg, err := clientcmd.NewDefaultClientConfig(*loaded, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("use kubeconfig %s: %w", path, err)
	}
	if cfg.Insecure {
		return nil, fmt.Errorf("use kubeconfig %s: insecure-skip-tls-verify is not supported, name the certificate authority", path)
	}
	if err := requireHTTPS(cfg.Host); err != nil {
		return nil, fmt.Errorf("use kubeconfig %s: %w", path, err)
	}
	return cfg, nil
}

func direct(access config.Access) (*rest.Config, error) {
	if err := requireHTTPS(access.APIURL); err != nil {
		return nil, err
	}
	if access.TokenFile == "" {
		return nil, errors.New("no token file")
	}
	var source caSource
	switch {
	case access.CAFile != "" && access.CAURL != "":
		return nil, errors.New("both a file and an URL for the certificate authority")
	case access.CAFile != "":
		source = caFile(access.CAFile)
	case access.CAURL != "":
		if err := requireHTTPS(access.CAURL); err != nil {
			return nil, fmt.Errorf("certificate authority: %w", err)
		}
		source = newCAURL(access.CAURL, nil)
	default:
		return nil, errors.New("no certificate authority")
	}
	return &rest.Config{
		Host:            access.APIURL,
		Transport:       newCATransport(source),
		BearerTokenFile: access.TokenFile,
	}, nil
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
type timeoutTransport struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t *timeoutTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(req)
	var timeout interface{ Timeout() bool }
	if errors.As(err, &timeout) && timeout.Timeout() && req.Context().Err() == nil {
		return nil, fmt.Errorf("no contact: %w", err)
	}
	return response, err
}

// WrappedRoundTripper lets client-go find the transport below.
func (t *timeoutTransport) WrappedRoundTripper() http.RoundTripper { return t.next }
