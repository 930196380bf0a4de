package kube

import (
	"bytes"
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

	"k8s.io/client-go/rest"
)

const (
	caTimeout  = 10 * time.Second // of one fetch
	caMaxBytes = 1 << 20
	// Intervals of periodic reloads.
	filePeriod  = 5 * time.Second
	caURLPeriod = time.Hour
)

// caSource is a source of CA certificates.
type caSource struct {
	name   string // for logs
	period time.Duration
	load   func() (pem []byte, err error)
}

// config returns a copy of base with the certificates, and these in DER.
func (s caSource) config(base *rest.Config) (*rest.Config, map[string]struct{}, error) {
	content, err := s.load()
	if err != nil {
		return nil, nil, fmt.Errorf("load certificate authority: %w", err)
	}
	certs, err := parseCerts(content)
	if err != nil {
		return nil, nil, fmt.Errorf("load certificate authority: %s %w", s.name, err)
	}
	cfg := rest.CopyConfig(base)
	cfg.CAData = content
	return cfg, certs, nil
}

// caFile is a file in PEM.
func caFile(path string) caSource {
	return caSource{path, filePeriod, func() ([]byte, error) { return os.ReadFile(path) }}
}

// caGiven is a constant. The name is where it is from.
func caGiven(name string, pem []byte) caSource {
	return caSource{name, caURLPeriod, func() ([]byte, error) { return pem, nil }}
}

// caURL is an https URL whose own certificate must verify with the system's CAs. Pins are
// SHA-256 fingerprints of certificates in DER, in hexadecimal; without pins all
// certificates are trusted.
func caURL(address string, pins []string, proxy proxyFunc) caSource {
	client := caClient(proxy)
	return caSource{address, caURLPeriod, func() ([]byte, error) {
		content, err := fetchCA(client, address)
		if err != nil {
			return nil, Through(proxy, address, err)
		}
		return pinned(content, pins)
	}}
}

func caClient(proxy proxyFunc) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			Proxy:                  proxy,
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

func fetchCA(client *http.Client, address string) ([]byte, error) {
	response, err := client.Get(address)
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

// parseCerts converts certificates from PEM to DER.
func parseCerts(content []byte) (map[string]struct{}, error) {
	certs := map[string]struct{}{}
	for {
		var block *pem.Block
		if block, content = pem.Decode(content); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		if _, err := x509.ParseCertificate(block.Bytes); err == nil {
			certs[string(block.Bytes)] = struct{}{}
		}
	}
	if len(certs) == 0 {
		return nil, errors.New("contains no certificate in PEM")
	}
	return certs, nil
}
