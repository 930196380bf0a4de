package kube

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
)

// tokenTransport adds the bearer token of a file to requests. It reads the
// file at each: the kubelet replaces tokens of pods as they age, requests are
// few (lists, watches, writes), and a read from the page cache costs
// microseconds. The token appears in no error.
type tokenTransport struct {
	file string
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t *tokenTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	token, err := readToken(t.file)
	if err != nil {
		if req.Body != nil {
			// The contract of RoundTrip; its error would say nothing more.
			_ = req.Body.Close()
		}
		return nil, err
	}
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+token)
	return t.next.RoundTrip(req)
}

// WrappedRoundTripper lets client-go find the transport below.
func (t *tokenTransport) WrappedRoundTripper() http.RoundTripper { return t.next }

func readToken(file string) (string, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read token: %w", err)
	}
	token := strings.TrimSpace(string(content))
	if err := checkToken(token); err != nil {
		return "", fmt.Errorf("read token: %s %w", file, err)
	}
	return token, nil
}

// checkToken refuses what can't be in a header: a token is one word of
// printable ASCII (RFC 6750, section 2.1).
func checkToken(token string) error {
	if token == "" {
		return errors.New("is empty")
	}
	for i := range len(token) {
		if c := token[i]; c <= ' ' || c > '~' {
			return errors.New("holds more than a token")
		}
	}
	return nil
}
