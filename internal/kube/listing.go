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

// Bound makes a configuration of client-go's one whose answers are bounded, for a program
// that asks clusters of others for objects of all kinds, and has the configuration of
// elsewhere. No redirect is followed, compression isn't asked for, a request without a
// deadline has one, and what an answer makes of the memory is bounded: by Listing for
// lists, by WithRaw and WithStream where a caller reads by itself, and to so many bytes,
// as JSON alone, for all others.
func Bound(cfg *rest.Config, most int64) {
	cfg.DisableCompression = true
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &timeoutTransport{limit: requestTimeout, next: next}
	})
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &answerTransport{limit: most, weigh: true, next: next}
	})
}

// reading is how a caller reads an answer by itself.
type reading struct {
	most   int64
	stream bool
}

type readingKey struct{}

// WithRaw returns the context for a request whose answer the caller reads as it is, of
// any type, up to so many bytes. Of a configuration that is Bound.
func WithRaw(ctx context.Context, most int64) context.Context {
	return context.WithValue(ctx, readingKey{}, &reading{most: most})
}

// WithStream returns the context for a request that switches to another protocol. What
// comes over the connection is for the caller to bound, and the answer's headers as well.
func WithStream(ctx context.Context) context.Context {
	return context.WithValue(ctx, readingKey{}, &reading{most: maxErrorBody, stream: true})
}

func readingOf(ctx context.Context) *reading {
	r, _ := ctx.Value(readingKey{}).(*reading)
	return r
}

// pageSize is how many objects of a list are asked for at once, when nothing else is said.
const pageSize = 500

// Listing lists the objects of a kind page by page, and bounds what a server can make of
// that. Each object is decoded by itself, and bounded as those of a watch are.
type Listing struct {
	// Of is an object of the kind.
	Of runtime.Object
	// Options select the objects. Their Limit is the size of a page; 0: 500 objects.
	Options metav1.ListOptions
	// Objects and Bytes are the most that the whole list may have.
	Objects int
	Bytes   int64
}

// Each calls take for each object. List asks for a page, of a client whose configuration
// is Bound, or of a fake one. A list that has more than it may is an error, as is an error
// of take; take has had some objects then.
func (l Listing) Each(ctx context.Context, list func(context.Context, metav1.ListOptions) (runtime.Object, error), take func(runtime.Object) error) error {
	left, found := l.Bytes, 0
	of := reflect.TypeOf(l.Of).Elem()
	var refused error
	handedOn, again := false, false
	asked := &request{object: of, shape: shapeOf(of), whole: true, left: &left}
	asked.begin = func() { handedOn, again = true, handedOn }
	asked.item = func(object runtime.Object) error {
		if again {
			// Client-go asked once more for what take has had a part of.
			refused = errors.New("a list that broke off")
			return refused
		}
		if found++; found > l.Objects {
			refused = fmt.Errorf("a list of more than %d objects", l.Objects)
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
			refused = fmt.Errorf("an object that can't be decoded, or takes more than %d bytes in memory", maxDecoded)
		}
	}
	options := l.Options
	if options.Limit == 0 {
		options.Limit = pageSize
	}
	// Pages may have fewer objects than were asked for, but not all of them.
	const slack = 10
	for pages := 2*l.Objects/pageSize + slack; ; pages-- {
		if pages == 0 {
			return fmt.Errorf("a list that doesn't end: %d pages had %d objects", 2*l.Objects/pageSize+slack, found)
		}
		handedOn, again = false, false
		page, err := list(withRequest(ctx, asked), options)
		var long *tooLongError
		switch {
		case refused != nil:
			return refused
		case errors.As(err, &long) && long.most != maxObject && left <= 0:
			return fmt.Errorf("a list of more than %d bytes", l.Bytes)
		case err != nil:
			return err
		}
		if !handedOn {
			// It is that of a fake.
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
