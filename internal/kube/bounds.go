package kube

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
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
	// allows 1.5 MiB by default, and JSON is larger.
	maxObject = 3 << 20
	// maxDecoded is the maximum memory of one object in bytes: two bytes of protobuf can
	// decode to the whole struct of a container.
	maxDecoded = 32 << 20
	// maxAnswerDecoded is the maximum memory of a response other than a list or watch, in
	// bytes. The largest one is discovery, see TestLargeDiscoveryIsAccepted.
	maxAnswerDecoded = 64 << 20
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

// The media types that a remote may send.
const (
	typeJSON     = "application/json"
	typeProtobuf = "application/vnd.kubernetes.protobuf"
)

// answerTransport rejects redirects: net/http would follow them, with the token. With a
// limit it bounds the memory that a response can use, before client-go reads it:
//
//	list           each item is decoded and passed to the watch that made the request;
//	               client-go gets the list without items
//	watch          each event is read whole, with a maximum size
//	error          is truncated
//	anything else  ends with an error at the limit
//
// Compressed responses, which the client doesn't request, are rejected.
type answerTransport struct {
	limit int64 // bytes; 0: none
	// weigh estimates the memory of JSON responses before client-go decodes them, and
	// avoids protobuf where the kind of the object is unknown.
	weigh bool
	next  http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t *answerTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if t.weigh && requestOf(req.Context()) == nil && strings.Contains(req.Header.Get("Accept"), typeProtobuf) {
		req = req.Clone(req.Context())
		req.Header.Set("Accept", typeJSON)
	}
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
	taking := readingOf(req.Context())
	if response.StatusCode == http.StatusSwitchingProtocols {
		if taking != nil && taking.stream {
			return nil
		}
		return errors.New("unexpected response: protocol switch")
	}
	if coding := response.Header.Get("Content-Encoding"); coding != "" && coding != "identity" {
		return errors.New("unexpected response: compressed body")
	}
	// A type that doesn't parse is rejected below.
	media, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	if response.StatusCode/100 != 2 {
		if media != typeJSON && media != typeProtobuf {
			response.Header.Set("Content-Type", "text/plain")
		}
		replaceBody(response, &readCloser{io.LimitReader(response.Body, maxErrorBody), response.Body})
		return nil
	}
	if taking != nil {
		replaceBody(response, &readCloser{&allowance{from: response.Body, whole: taking.most, left: taking.most}, response.Body})
		return nil
	}
	asked := requestOf(req.Context())
	if media != typeJSON && (media != typeProtobuf || t.weigh && asked == nil) {
		return fmt.Errorf("unexpected response format: not %s", formats(t.weigh && asked == nil))
	}
	switch {
	case watches(req):
		replaceBody(response, newFrames(response.Body, media == typeProtobuf, asked))
	case asked != nil && asked.item != nil:
		from := &allowance{from: response.Body, whole: t.limit, left: maxListHead}
		if asked.left != nil {
			from.whole = *asked.left
		}
		head, err := readList(from, media == typeProtobuf, asked)
		if asked.left != nil {
			*asked.left -= from.read
		}
		if err != nil {
			return fmt.Errorf("read list: %w", err)
		}
		if err := response.Body.Close(); err != nil {
			return fmt.Errorf("read list: %w", err)
		}
		replaceBody(response, io.NopCloser(bytes.NewReader(head)))
	case t.weigh:
		body, err := io.ReadAll(&allowance{from: response.Body, whole: t.limit, left: t.limit})
		if err == nil {
			err = atMost(body, maxAnswerDecoded)
		}
		if err != nil {
			return fmt.Errorf("read response: %w", err)
		}
		if err := response.Body.Close(); err != nil {
			return fmt.Errorf("read response: %w", err)
		}
		replaceBody(response, io.NopCloser(bytes.NewReader(body)))
	default:
		replaceBody(response, &readCloser{&allowance{from: response.Body, whole: t.limit, left: t.limit}, response.Body})
	}
	return nil
}

func formats(jsonOnly bool) string {
	if jsonOnly {
		return "JSON"
	}
	return "JSON or protobuf"
}

// replaceBody replaces the body of a response by one of unknown length.
func replaceBody(response *http.Response, body io.ReadCloser) {
	response.Body, response.ContentLength = body, -1
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

// allowance bounds the bytes read from a response: whole in total, left for the current
// part.
type allowance struct {
	from  io.Reader
	whole int64 // of the response; negative: unlimited
	left  int64 // of the part
	read  int64
}

// Read implements io.Reader.
func (a *allowance) Read(p []byte) (int, error) {
	switch {
	case a.whole >= 0 && a.read >= a.whole:
		return 0, &tooLongError{"response", a.whole}
	case a.left <= 0:
		return 0, &tooLongError{"object", maxObject}
	}
	if int64(len(p)) > a.left {
		p = p[:a.left]
	}
	if a.whole >= 0 && int64(len(p)) > a.whole-a.read {
		p = p[:a.whole-a.read]
	}
	n, err := a.from.Read(p)
	a.read += int64(n)
	a.left -= int64(n)
	return n, err
}

// part begins a part of at most that many bytes.
func (a *allowance) part(most int64) { a.left = most }
