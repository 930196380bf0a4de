package kube

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

const (
	caTimeout  = 10 * time.Second // of one fetch
	caMaxBytes = 1 << 20
	// How often an authority is loaded again without a reason.
	caFilePeriod = 5 * time.Second
	caURLPeriod  = time.Hour
)

// caSource is where the certificates of a certificate authority come from.
type caSource interface {
	// load returns certificates in PEM.
	load(ctx context.Context) ([]byte, error)
	// period is how often to load them again.
	period() time.Duration
	// String names the source for people.
	String() string
}

// caFile is the path of a file of certificates.
type caFile string

func (f caFile) String() string { return string(f) }

func (f caFile) period() time.Duration { return caFilePeriod }

func (f caFile) load(context.Context) ([]byte, error) { return os.ReadFile(string(f)) }

// caGiven are the certificates that a caller holds.
type caGiven []byte

func (g caGiven) String() string { return "what was handed over" }

func (g caGiven) period() time.Duration { return caURLPeriod }

func (g caGiven) load(context.Context) ([]byte, error) { return g, nil }

// caKubeconfig is the path of a kubeconfig that holds the certificates itself.
type caKubeconfig string

func (f caKubeconfig) String() string { return string(f) }

func (f caKubeconfig) period() time.Duration { return caFilePeriod }

func (f caKubeconfig) load(context.Context) ([]byte, error) {
	loaded, err := clientcmd.LoadFromFile(string(f))
	if err != nil {
		return nil, err
	}
	cfg, err := clientcmd.NewDefaultClientConfig(*loaded, nil).ClientConfig()
	if err != nil {
		return nil, err
	}
	return cfg.CAData, nil
}

// caURL fetches from an https address, whose own certificate must chain to
// the authorities that the system trusts.
type caURL struct {
	address string
	client  *http.Client
	// pins are SHA-256 of certificates in DER; without any all count.
	pins []string
}

// newCAURL takes the authorities that vouch for the address; nil is those of
// the system. Pins are in hexadecimal.
func newCAURL(address string, roots *x509.CertPool, pins []string) *caURL {
	transport := &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            dialer().DialContext,
		TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    handshakeTimeout,
		DisableKeepAlives:      true, // hours lie between two fetches
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxErrorBody,
	}
	return &caURL{address: address, pins: pins, client: &http.Client{
		Transport:     transport,
		Timeout:       caTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

func (u *caURL) String() string { return u.address }

func (u *caURL) period() time.Duration { return caURLPeriod }

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
	switch code := response.StatusCode; {
	case code >= 300 && code < 400:
		return nil, fmt.Errorf("%s answered %d %s: redirects are not followed", u.address, code, http.StatusText(code))
	case code != http.StatusOK:
		return nil, fmt.Errorf("%s answered %d %s", u.address, code, http.StatusText(code))
	}
	content, err := io.ReadAll(io.LimitReader(response.Body, caMaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read the answer of %s: %w", u.address, err)
	}
	if len(content) > caMaxBytes {
		return nil, fmt.Errorf("%s answered with more than %d bytes", u.address, caMaxBytes)
	}
	return pinned(content, u.pins)
}

// pinned returns the certificates with one of the fingerprints.
func pinned(content []byte, pins []string) ([]byte, error) {
	if len(pins) == 0 {
		return content, nil
	}
	certs, err := parseCerts(content)
	if err != nil {
		return nil, fmt.Errorf("the answer %w", err)
	}
	var kept bytes.Buffer
	for cert := range certs {
		sum := sha256.Sum256([]byte(cert))
		if slices.Contains(pins, hex.EncodeToString(sum[:])) {
			kept.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(cert)}))
		}
	}
	if kept.Len() == 0 {
		return nil, errors.New("no certificate of the answer has a SHA-256 fingerprint that is configured")
	}
	return kept.Bytes(), nil
}
