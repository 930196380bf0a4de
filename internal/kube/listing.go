package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// Bound adds bounds to a configuration of client-go, for a program that requests objects
// of all kinds from clusters that it doesn't trust. It disables redirects and compression,
// sets a deadline for requests without one, and bounds the memory of responses: lists by
// Listing, raw responses and streams by WithRaw and WithStream, all others by most bytes,
// as JSON only.
func Bound(cfg *rest.Config, most int64) {
	cfg.DisableCompression = true
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &timeoutTransport{limit: requestTimeout, next: next}
	})
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &answerTransport{limit: most, weigh: true, next: next}
	})
}

// reading describes a response that the caller reads itself.
type reading struct {
	most   int64
	stream bool
}

type readingKey struct{}

// WithRaw returns the context of a request whose response the caller reads itself, of any
// type and at most that many bytes. It is for configurations with Bound.
func WithRaw(ctx context.Context, most int64) context.Context {
	return context.WithValue(ctx, readingKey{}, &reading{most: most})
}

// WithStream returns the context of a request that switches to another protocol. The
// caller must bound the data and the response headers.
func WithStream(ctx context.Context) context.Context {
	return context.WithValue(ctx, readingKey{}, &reading{most: maxErrorBody, stream: true})
}

func readingOf(ctx context.Context) *reading {
	r, _ := ctx.Value(readingKey{}).(*reading)
	return r
}

// pageSize is the default number of objects per page.
const pageSize = 500

// Listing lists the objects of a kind page by page, with bounds. Each object is decoded
// separately, with the bounds of objects of a watch.
type Listing struct {
	// Of is an object of the kind.
	Of runtime.Object
	// Options select the objects. Limit is the size of a page; 0: 500 objects.
	Options metav1.ListOptions
	// Objects and Bytes are the maximum of the whole list.
	Objects int
	Bytes   int64
}

// Each calls take for each object. List requests a page, from a client with Bound or a fake
// client. A list that exceeds a bound is an error, as is an error of take, after take was
// called for some objects.
func (l Listing) Each(ctx context.Context, list func(context.Context, metav1.ListOptions) (runtime.Object, error), take func(runtime.Object) error) error {
	left, found := l.Bytes, 0
	of := reflect.TypeOf(l.Of).Elem()
	var refused error
	handedOn, again := false, false
	asked := &request{object: of, shape: shapeOf(of), whole: true, left: &left}
	asked.begin = func() { handedOn, again = true, handedOn }
	asked.item = func(object runtime.Object) error {
		if again {
			// client-go retried the page after take was called for a part of it.
			refused = errors.New("list was interrupted")
			return refused
		}
		if found++; found > l.Objects {
			refused = fmt.Errorf("list of more than %d objects", l.Objects)
			return refused
		}
		if err := take(object); err != nil {
			refused = err
			return err
		}
		return ctx.Err()
	}
	asked.dropped = func() {
		if refused == nil {
			refused = fmt.Errorf("an object can't be decoded, or needs more than %d bytes of memory", maxDecoded)
		}
	}
	options := l.Options
	if options.Limit == 0 {
		options.Limit = pageSize
	}
	// Servers may return smaller pages, but not arbitrarily many of them.
	const slack = 10
	for pages := 2*l.Objects/pageSize + slack; ; pages-- {
		if pages == 0 {
			return fmt.Errorf("list doesn't end: %d pages with %d objects", 2*l.Objects/pageSize+slack, found)
		}
		handedOn, again = false, false
		page, err := list(withRequest(ctx, asked), options)
		var long *tooLongError
		switch {
		case refused != nil:
			return refused
		case errors.As(err, &long) && long.most != maxObject && left <= 0:
			return fmt.Errorf("list of more than %d bytes", l.Bytes)
		case err != nil:
			return err
		}
		if !handedOn {
			// A fake client has no transport that decodes items.
			if err := meta.EachListItem(page, asked.item); err != nil {
				return err
			}
		}
		head, err := meta.ListAccessor(page)
		if err != nil {
			return fmt.Errorf("read list: %w", err)
		}
		if options.Continue = head.GetContinue(); options.Continue == "" {
			return nil
		}
	}
}
