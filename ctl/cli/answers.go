package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
	apijson "k8s.io/apimachinery/pkg/util/json"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
)

const (
	// maxDecoded bounds the memory of one object of a list, in bytes.
	maxDecoded = 32 << 20
	// maxResponseDecoded bounds the memory of a response that isn't a list, in bytes. The
	// largest one is discovery, see TestLargeDiscoveryIsAccepted.
	maxResponseDecoded = 64 << 20
)

// answers bounds the memory of the objects in responses, which kube.Bound has limited in
// bytes: client-go decodes a list with the types of Kubernetes, in which "{}" can be the
// struct of a container. Lists of List are decoded object by object, and client-go gets them
// without objects; other responses are weighed.
type answers struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (a answers) RoundTrip(req *http.Request) (*http.Response, error) {
	response, err := a.next.RoundTrip(req)
	if err != nil || response.StatusCode/100 != 2 || req.Context().Value(rawKey{}) != nil {
		return response, err
	}
	var body []byte
	if l, ok := req.Context().Value(pageKey{}).(*listing); ok {
		body, err = l.read(req.Context(), response.Body)
	} else if body, err = io.ReadAll(response.Body); err == nil {
		// A server that notices the end of a request ends its response, which may look whole.
		err = errors.Join(atMost(body, maxResponseDecoded), req.Context().Err())
	}
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return nil, fmt.Errorf("read response: %w", err)
	}
	response.Body, response.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return response, nil
}

// WrappedRoundTripper lets client-go find the transport below.
func (a answers) WrappedRoundTripper() http.RoundTripper { return a.next }

type rawKey struct{}

// WithRaw returns the context of a request whose response the caller reads itself, of any
// type and at most that many bytes.
func WithRaw(ctx context.Context, most int64) context.Context {
	return context.WithValue(kube.WithAnswer(ctx, kube.Answer{Most: most, Any: true}), rawKey{}, true)
}

type pageKey struct{}

// listing reads a list page by page.
type listing struct {
	object reflect.Type // such as corev1.Node
	each   func(runtime.Object) error
	found  int   // objects
	left   int64 // bytes
	begun  bool  // the current page was read, or a part of it
	// refused is why the list was ended; client-go may retry, or hide errors of a transport.
	refused error
}

func (l *listing) refuse(format string, args ...any) error {
	if l.refused == nil {
		l.refused = fmt.Errorf(format, args...)
	}
	return l.refused
}

// take passes one object on.
func (l *listing) take(object runtime.Object) error {
	if l.found++; l.found > maxObjects {
		return l.refuse("list of more than %d objects", maxObjects)
	}
	if err := l.each(object); err != nil {
		return l.refuse("%w", err)
	}
	return nil
}

// read reads a page, and returns it without its objects.
func (l *listing) read(ctx context.Context, body io.Reader) ([]byte, error) {
	if l.begun {
		// client-go retried the page.
		return nil, l.refuse("list was interrupted")
	}
	l.begun = true
	counted := &counter{from: body}
	var raw json.RawMessage
	head, err := kube.ReadList(counted, func(decode func(any) error) error {
		if err := decode(&raw); err != nil {
			return err
		}
		object, ok := reflect.New(l.object).Interface().(runtime.Object)
		if !ok || atMost(raw, maxDecoded) != nil || apijson.Unmarshal(raw, object) != nil {
			return l.refuse("an object can't be decoded, or needs more than %d bytes of memory", maxDecoded)
		}
		return errors.Join(l.take(object), ctx.Err())
	})
	if err != nil && counted.read >= l.left {
		return nil, l.refuse("list of more than %d bytes", int64(maxList))
	}
	l.left -= counted.read
	if err != nil {
		return nil, err
	}
	return json.Marshal(head)
}

// counter counts what is read.
type counter struct {
	from io.Reader
	read int64
}

// Read implements io.Reader.
func (c *counter) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	c.read += int64(n)
	return n, err
}
