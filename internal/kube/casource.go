package kube

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
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
	// Intervals of periodic reloads.
	caFilePeriod = 5 * time.Second
	caURLPeriod  = time.Hour
)

// caSource is a source of CA certificates.
type caSource struct {
	name   string // for logs
	period time.Duration
	load   func(ctx context.Context) (pem []byte, err error)
}

// caFile is a file in PEM.
func caFile(path string) caSource {
	return caSource{path, caFilePeriod, func(context.Context) ([]byte, error) { return os.ReadFile(path) }}
}

// caGiven is a constant.
func caGiven(pem []byte) caSource {
	return caSource{"the caller", caURLPeriod, func(context.Context) ([]byte, error) { return pem, nil }}
}

// caKubeconfig is a kubeconfig with certificate-authority-data.
func caKubeconfig(path string) caSource {
	return caSource{path, caFilePeriod, func(context.Context) ([]byte, error) {
		loaded, err := clientcmd.LoadFromFile(path)
		if err != nil {
			return nil, err
		}
		cfg, err := clientcmd.NewDefaultClientConfig(*loaded, nil).ClientConfig()
		if err != nil {
			return nil, err
		}
		return cfg.CAData, nil
	}}
}

// caURL is an https URL whose own certificate must verify with the system's CAs. Pins are
// SHA-256 fingerprints of certificates in DER, in hexadecimal; without pins all
// certificates are trusted.
func caURL(address string, pins []string) caSource {
	client := caClient()
	return caSource{address, caURLPeriod, func(ctx context.Context) ([]byte, error) {
		content, err := fetchCA(ctx, client, address)
		if err != nil {
			return nil, err
		}
		return pinned(content, pins)
	}}
}

func caClient() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			Proxy:                  environmentProxy(),
			DialContext:            dialer().DialContext,
			TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:    handshakeTimeout,
			DisableKeepAlives:      true, // hours lie between two fetches
			DisableCompression:     true,
			MaxResponseHeaderBytes: maxErrorBody,
		},
		Timeout:       caTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func fetchCA(ctx context.Context, client *http.Client, address string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }() // it was only read
	switch code := response.StatusCode; {
	case code >= 300 && code < 400:
		return nil, fmt.Errorf("%s: response %d %s: redirects are not followed", address, code, http.StatusText(code))
	case code != http.StatusOK:
		return nil, fmt.Errorf("%s: response %d %s", address, code, http.StatusText(code))
	}
	content, err := io.ReadAll(io.LimitReader(response.Body, caMaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read the response of %s: %w", address, err)
	}
	if len(content) > caMaxBytes {
		return nil, fmt.Errorf("%s: response of more than %d bytes", address, caMaxBytes)
	}
	return content, nil
}

// pinned returns the certificates with one of the fingerprints.
func pinned(content []byte, pins []string) ([]byte, error) {
	if len(pins) == 0 {
		return content, nil
	}
	certs, err := parseCerts(content)
	if err != nil {
		return nil, fmt.Errorf("the response %w", err)
	}
	var kept bytes.Buffer
	for cert := range certs {
		sum := sha256.Sum256([]byte(cert))
		if slices.Contains(pins, hex.EncodeToString(sum[:])) {
			kept.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(cert)}))
		}
	}
	if kept.Len() == 0 {
		return nil, errors.New("no certificate of the response has a configured SHA-256 fingerprint")
	}
	return kept.Bytes(), nil
}
