package run

import (
	"bytes"
	"compress/gzip"
	"context"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// Responses of /metrics and /status use at most about a fiftieth of a core, independent of
// the number of requests: after one that took d to generate, the next one starts 50*d
// later, maxPause at most.
const (
	pauseShare = 50
	maxPause   = time.Second
)

// page is a path whose responses are generated one at a time, with a pause in between. All
// requests before the start of a generation share its response, which therefore isn't older
// than the request. Responses don't depend on the request.
type page struct {
	// make handles a request without Accept headers.
	make http.Handler

	generating sync.Mutex // held by the request that generates a response, or waits to
	earliest   time.Time  // start of the next generation; guarded by generating

	mu   sync.Mutex
	next *making // not started; nil: not requested
}

// making is a response that is being generated.
type making struct {
	done   chan struct{}
	answer *answer // nil: failed; to be read after done
}

// answer is a generated response.
type answer struct {
	code        int
	contentType string
	body        []byte
	gzipped     func() []byte
}

// ServeHTTP implements http.Handler.
func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a := p.get(r.Context())
	if a == nil {
		http.Error(w, "the response could not be generated", http.StatusInternalServerError)
		return
	}
	header, body := w.Header(), a.body
	header.Set("Content-Type", a.contentType)
	header.Set("Cache-Control", "no-store")
	header.Set("Vary", "Accept-Encoding")
	if takesGzip(r) {
		header.Set("Content-Encoding", "gzip")
		body = a.gzipped()
	}
	w.WriteHeader(a.code)
	_, _ = w.Write(body) // fails if the client is gone
}

// get returns a response whose generation started after the call, nil if ctx ends first. The
// first request generates it.
func (p *page) get(ctx context.Context) *answer {
	p.mu.Lock()
	if m := p.next; m != nil {
		p.mu.Unlock()
		select {
		case <-m.done:
			return m.answer
		case <-ctx.Done():
			return nil
		}
	}
	m := &making{done: make(chan struct{})}
	p.next = m
	p.mu.Unlock()
	// Others wait for this response, so it is generated even if the client is gone.
	defer close(m.done)
	p.generating.Lock()
	defer p.generating.Unlock()
	<-time.After(time.Until(p.earliest))
	p.mu.Lock()
	p.next = nil
	p.mu.Unlock()

	began := time.Now()
	defer func() {
		ended := time.Now()
		p.earliest = ended.Add(min(maxPause, pauseShare*ended.Sub(began)))
	}()
	m.answer = p.record()
	return m.answer
}

// record generates a response to a synthetic request.
func (p *page) record() *answer {
	r := recorder{header: http.Header{}, code: http.StatusOK}
	p.make.ServeHTTP(&r, &http.Request{Method: http.MethodGet, URL: &url.URL{Path: "/"}, Header: http.Header{}, Body: http.NoBody})
	body := r.body.Bytes()
	return &answer{
		code: r.code, contentType: r.header.Get("Content-Type"), body: body,
		gzipped: sync.OnceValue(func() []byte { return compress(body) }),
	}
}

// recorder is an http.ResponseWriter that records the response.
type recorder struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header            { return r.header }
func (r *recorder) WriteHeader(code int)           { r.code = code }
func (r *recorder) Write(text []byte) (int, error) { return r.body.Write(text) }

func compress(body []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	// Writes to memory never fail.
	_, _ = w.Write(body)
	_ = w.Close()
	return b.Bytes()
}

// takesGzip reports whether the client accepts gzip (RFC 9110, 12.5.3).
func takesGzip(r *http.Request) bool {
	for _, header := range r.Header.Values("Accept-Encoding") {
		for part := range strings.SplitSeq(header, ",") {
			coding, weight, _ := strings.Cut(part, ";")
			if strings.EqualFold(strings.TrimSpace(coding), "gzip") {
				return strings.TrimRight(strings.TrimSpace(weight), "0.") != "q="
			}
		}
	}
	return false
}
