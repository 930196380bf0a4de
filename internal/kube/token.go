package kube

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
)

// tokenTransport adds the bearer token of a file to requests: at each the one that is
// in the file by then, as the kubelet replaces tokens of pods when they age. The token
// appears in no error.
type tokenTransport struct {
	file string
	next http.RoundTripper

	mu     sync.Mutex
	mark   fileMark
	header string // with the token that was read last
}

// RoundTrip implements http.RoundTripper.
func (t *tokenTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	header, err := t.authorization()
	if err != nil {
		if req.Body != nil {
			// The contract of RoundTrip; its error would say nothing more.
			_ = req.Body.Close()
		}
		return nil, err
	}
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", header)
	return t.next.RoundTrip(req)
}

// WrappedRoundTripper lets client-go find the transport below.
func (t *tokenTransport) WrappedRoundTripper() http.RoundTripper { return t.next }

// authorization returns the header with the token that is in the file now.
func (t *tokenTransport) authorization() (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mark.stays(t.file) {
		return t.header, nil
	}
	token, err := readToken(t.file)
	if err != nil {
		t.mark.forget()
		return "", err
	}
	t.header = "Bearer " + token
	return t.header, nil
}

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
