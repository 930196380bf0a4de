package kube

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
)

// tokenTransport adds the bearer token of a file to requests, and reloads it when the file
// changes: the kubelet rotates the tokens of pods. Errors don't contain the token.
type tokenTransport struct {
	file string
	next http.RoundTripper

	mu     sync.Mutex
	mark   fileMark
	header string // with the last token
}

// RoundTrip implements http.RoundTripper.
func (t *tokenTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	header, err := t.authorization()
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close() // required by http.RoundTripper
		}
		return nil, err
	}
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", header)
	return t.next.RoundTrip(req)
}

// WrappedRoundTripper implements net.RoundTripperWrapper of apimachinery.
func (t *tokenTransport) WrappedRoundTripper() http.RoundTripper { return t.next }

// authorization returns the header with the current token.
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

// checkToken checks that a token is one word of printable ASCII (RFC 6750, section 2.1).
func checkToken(token string) error {
	if token == "" {
		return errors.New("is empty")
	}
	for i := range len(token) {
		if c := token[i]; c <= ' ' || c > '~' {
			return errors.New("contains characters that a token can't have")
		}
	}
	return nil
}
