package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"

	"k8s.io/client-go/rest"
)

// Bounds limit the memory that one remote cluster can use in this process. The zero value
// is without limits, for the local cluster.
type Bounds struct {
	// Answer is the maximum size of one list in bytes, and four times the maximum size of
	// the cached objects of one kind.
	Answer int64
	// Objects is the maximum number of objects of one kind; 0: the default of the kind.
	Objects int
}

// Bounds of everything that a remote sends, independent of the configuration.
const (
	// maxObject is the maximum size of one object, or one watch event, in bytes. etcd
	// allows 1.5 MiB by default, and API servers write some characters as 6 bytes of JSON.
	maxObject = 10 << 20
	// maxErrorBody is the maximum size of an error response in bytes.
	maxErrorBody = 64 << 10
	// maxListHead is the maximum size of a list without its items, in bytes.
	maxListHead = 64 << 10
	// keptShare: the cached objects of one kind have at most Bounds.Answer/keptShare bytes.
	keptShare = 4
)

// Default maximum number of objects of a kind. A mesh of 10,000 nodes exceeds what one
// node can have as peers.
const (
	maxNodes        = 10_000
	maxOtherObjects = 50_000
)

// objects returns the maximum number of objects of a kind; 0: unlimited.
func (b Bounds) objects(kind string) int {
	switch {
	case b.Answer <= 0:
		return 0
	case b.Objects > 0:
		return b.Objects
	case kind == kindNodes:
		return maxNodes
	default:
		return maxOtherObjects
	}
}

// kindNodes is the WatchConfig.Kind of nodes.
const kindNodes = "nodes"

// kept returns the maximum size of the cached objects of a kind in bytes; 0: unlimited.
func (b Bounds) kept() int64 { return b.Answer / keptShare }

// The media types that clients accept; of remotes only JSON.
const (
	typeJSON     = "application/json"
	typeProtobuf = "application/vnd.kubernetes.protobuf"
)

// Answer describes the response that a request may have, beside errors.
type Answer struct {
	// Most is its maximum size in bytes; that of a watch is unlimited.
	Most int64
	// Any format is accepted, as opposed to JSON.
	Any bool
	// Switch accepts a switch to another protocol; the caller must bound its data.
	Switch bool
}

type answerKey struct{}

// WithAnswer returns the context of a request whose response has other limits than those of
// the client.
func WithAnswer(ctx context.Context, a Answer) context.Context {
	return context.WithValue(ctx, answerKey{}, a)
}

// Bound adds bounds to a configuration of client-go, for a program that requests objects of
// all kinds from clusters that it doesn't trust. It disables redirects and compression, sets a
// deadline for requests without one, and limits responses to JSON of most bytes.
func Bound(cfg *rest.Config, most int64) {
	cfg.DisableCompression = true
	cfg.AcceptContentTypes = typeJSON
	bound(cfg, most)
}

func bound(cfg *rest.Config, most int64) {
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &timeoutTransport{limit: requestTimeout, next: next}
	})
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &answerTransport{limit: most, next: next}
	})
}

// answerTransport rejects redirects: net/http would follow them, with the token. With a limit
// it also rejects compressed responses, which the client doesn't request, and other formats
// than JSON, cuts errors, and ends other responses at the limit; a reader limits the events of
// a watch.
type answerTransport struct {
	limit int64 // bytes; 0: none
	next  http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t *answerTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if err := t.check(req, response); err != nil {
		// The rest of the response may be endless.
		_ = response.Body.Close()
		return nil, err
	}
	return response, nil
}

// WrappedRoundTripper lets client-go find the transport below.
func (t *answerTransport) WrappedRoundTripper() http.RoundTripper { return t.next }

func (t *answerTransport) check(req *http.Request, response *http.Response) error {
	if code := response.StatusCode; code >= 300 && code < 400 {
		return fmt.Errorf("response %d %s: redirects are not followed", code, http.StatusText(code))
	}
	if t.limit <= 0 {
		return nil
	}
	expected, special := req.Context().Value(answerKey{}).(Answer)
	if !special {
		expected.Most = t.limit
	}
	if response.StatusCode == http.StatusSwitchingProtocols {
		if expected.Switch {
			return nil
		}
		return errors.New("unexpected response: protocol switch")
	}
	if coding := response.Header.Get("Content-Encoding"); coding != "" && coding != "identity" {
		return errors.New("unexpected response: compressed body")
	}
	// A type that doesn't parse is rejected below.
	media, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	switch {
	case response.StatusCode/100 != 2:
		if media != typeJSON {
			response.Header.Set("Content-Type", "text/plain")
		}
		replaceBody(response, io.LimitReader(response.Body, maxErrorBody))
	case media != typeJSON && !expected.Any:
		return errors.New("unexpected response format: not JSON")
	case !watches(req):
		from := &allowance{from: response.Body}
		from.part("response", expected.Most)
		replaceBody(response, from)
	}
	return nil
}

// replaceBody replaces what is read of a response, whose length is then unknown.
func replaceBody(response *http.Response, from io.Reader) {
	response.Body, response.ContentLength = &readCloser{from, response.Body}, -1
	response.Header.Del("Content-Length")
}

type readCloser struct {
	io.Reader
	io.Closer
}

// tooLongError reports a response, or a part of one, that exceeds its bound.
type tooLongError struct {
	what string
	most int64
}

func (e *tooLongError) Error() string { return fmt.Sprintf("%s of more than %d bytes", e.what, e.most) }

// allowance bounds the bytes read for a part of a response. Unlike io.LimitReader it returns
// an error at its end.
type allowance struct {
	from   io.Reader
	what   string
	most   int64
	left   int64
	failed bool // with another error than io.EOF
}

// part begins a part of at most that many bytes.
func (a *allowance) part(what string, most int64) { a.what, a.most, a.left = what, most, most }

// Read implements io.Reader.
func (a *allowance) Read(p []byte) (n int, err error) {
	if a.left <= 0 {
		err = &tooLongError{a.what, a.most}
	} else {
		n, err = a.from.Read(p[:min(int64(len(p)), a.left)])
		a.left -= int64(n)
	}
	a.failed = a.failed || err != nil && !errors.Is(err, io.EOF)
	return n, err
}
