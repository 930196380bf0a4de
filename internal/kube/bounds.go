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

// Bounds of what one remote cluster can make this process hold. The zero value
// is none, for the own cluster.
type Bounds struct {
	// Answer is the most bytes of one list, and four times as many as are kept
	// of one kind of object.
	Answer int64
	// Objects is the most objects of one kind; 0: as many as kindLimits says.
	Objects int
}

// Bounds that hold for everything that a remote sends, whatever is configured.
const (
	// maxObject is the most bytes of one object, or one event of a watch. etcd
	// takes 1.5 MiB unless told otherwise, which are more in JSON.
	maxObject = 3 << 20
	// maxDecoded is the most bytes that one object may take in memory: two
	// bytes of protobuf can stand for the whole struct of a container.
	maxDecoded = 32 << 20
	// maxAnswerDecoded is the most bytes that an answer that isn't a list or a watch
	// may take in memory. The largest is discovery, see TestLargeDiscoveryIsTaken.
	maxAnswerDecoded = 64 << 20
	// maxErrorBody is how much is read of an answer that isn't a success.
	maxErrorBody = 64 << 10
	// maxListHead is the most bytes of a list beside its items.
	maxListHead = 64 << 10
	// keptShare is the part of Bounds.Answer that is kept of one kind.
	keptShare = 4
)

// How many objects are taken of a kind when nobody says. A mesh of 10,000 nodes
// is beyond what one node can have as peers.
const (
	maxNodes        = 10_000
	maxOtherObjects = 50_000
)

// objects returns the most objects of a kind; 0: any number.
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

// kindNodes is WatchConfig.Kind of nodes.
const kindNodes = "nodes"

// kept returns the most bytes that are kept of a kind; 0: any number.
func (b Bounds) kept() int64 { return b.Answer / keptShare }

// Media types of answers, the only ones that a remote may send.
const (
	typeJSON     = "application/json"
	typeProtobuf = "application/vnd.kubernetes.protobuf"
)

// answerTransport refuses redirects: net/http would follow them with the token
// to wherever the server says. With a limit it bounds what an answer can make
// of the memory, before client-go reads it:
//
//	list           is taken apart item by item, each of which is given to the
//	               watch that asked; client-go gets the list without items
//	watch          passes event by event, each of bounded size
//	no success     is cut to what an error needs
//	anything else  is cut off with an error at the limit
//
// Compressed answers are refused: nobody asked for them.
type answerTransport struct {
	limit int64 // bytes; 0: none
	// weigh has answers in JSON read and weighed before client-go decodes them, and
	// protobuf neither asked for nor taken where the object isn't known.
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
		// The connection may be in the middle of an endless answer.
		_ = response.Body.Close()
		return nil, err
	}
	return response, nil
}

// WrappedRoundTripper lets client-go find the transport below.
func (t *answerTransport) WrappedRoundTripper() http.RoundTripper { return t.next }

func (t *answerTransport) check(req *http.Request, response *http.Response) error {
	if code := response.StatusCode; code >= 300 && code < 400 {
		return fmt.Errorf("the server answered %d %s: redirects are not followed", code, http.StatusText(code))
	}
	if t.limit <= 0 {
		return nil
	}
	taking := readingOf(req.Context())
	if response.StatusCode == http.StatusSwitchingProtocols {
		if taking != nil && taking.stream {
			return nil
		}
		return errors.New("the server switched to another protocol, which was not asked for")
	}
	if coding := response.Header.Get("Content-Encoding"); coding != "" && coding != "identity" {
		return errors.New("the server answered with a compressed body, which was not asked for")
	}
	// A type that can't be parsed is none of those below.
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
		return fmt.Errorf("the server answered in another format than %s", formats(t.weigh && asked == nil))
	}
	switch {
	case watches(req):
		replaceBody(response, newFrames(response.Body, media == typeProtobuf, asked))
	case asked != nil && asked.item != nil:
		from := &allowance{from: response.Body, whole: t.limit, left: maxListHead}
		if asked.left != nil {
			from.whole = *asked.left
		}
		head, err := takeList(from, media == typeProtobuf, asked)
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
			return fmt.Errorf("read answer: %w", err)
		}
		if err := response.Body.Close(); err != nil {
			return fmt.Errorf("read answer: %w", err)
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

// replaceBody gives a response another body, whose length isn't known.
func replaceBody(response *http.Response, body io.ReadCloser) {
	response.Body, response.ContentLength = body, -1
	response.Header.Del("Content-Length")
}

type readCloser struct {
	io.Reader
	io.Closer
}

// errTooLong ends answers that are beyond their bounds.
type tooLongError struct {
	what string
	most int64
}

func (e *tooLongError) Error() string { return fmt.Sprintf("%s of more than %d bytes", e.what, e.most) }

// allowance reads from an answer no more than it may have: whole bytes in all,
// left until the next part begins.
type allowance struct {
	from  io.Reader
	whole int64 // of the answer; negative: any number
	left  int64 // of the part
	read  int64
}

// Read implements io.Reader.
func (a *allowance) Read(p []byte) (int, error) {
	switch {
	case a.whole >= 0 && a.read >= a.whole:
		return 0, &tooLongError{"an answer", a.whole}
	case a.left <= 0:
		return 0, &tooLongError{"an object", maxObject}
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

// part begins a part of at most so many bytes.
func (a *allowance) part(most int64) { a.left = most }
