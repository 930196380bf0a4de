package daemon

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

// pageAge is how long an answer stands for those that follow it.
const pageAge = time.Second

// page is a path whose answer is made at most once in pageAge and by one request
// at a time, whoever asks, and how many do. Its answers don't depend on the
// request, and those that are sent at the same time share their bytes.
type page struct {
	// make answers a request that prefers nothing: no encoding, no format.
	make http.Handler

	mu    sync.Mutex
	last  *answer // nil: none, or too old
	doing *making // nil: nobody makes one
}

// making is an answer that is being made.
type making struct {
	done   chan struct{}
	answer *answer // nil: making it went wrong; to be read after done
}

// answer is what everybody gets.
type answer struct {
	code        int
	contentType string
	body        []byte
	gzipped     func() []byte
}

// ServeHTTP sends the answer.
func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a := p.get(r.Context())
	if a == nil {
		http.Error(w, "no answer could be made", http.StatusInternalServerError)
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
	// A client that is gone needs no answer.
	_, _ = w.Write(body)
}

// get returns the last answer while it is fresh, or else the next one.
func (p *page) get(ctx context.Context) *answer {
	p.mu.Lock()
	if last := p.last; last != nil {
		p.mu.Unlock()
		return last
	}
	if m := p.doing; m != nil {
		p.mu.Unlock()
		select {
		case <-m.done:
			return m.answer
		case <-ctx.Done():
			return nil
		}
	}
	m := &making{done: make(chan struct{})}
	p.doing = m
	p.mu.Unlock()

	defer func() {
		p.mu.Lock()
		p.doing, p.last = nil, m.answer
		p.mu.Unlock()
		close(m.done)
		time.AfterFunc(pageAge, func() { p.forget(m.answer) })
	}()
	m.answer = p.record()
	return m.answer
}

// forget lets an answer go that is too old, so that it takes no memory either.
func (p *page) forget(a *answer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last == a {
		p.last = nil
	}
}

// record makes an answer. Its request is nobody's: others wait for the same
// answer when the one that asked first is gone.
func (p *page) record() *answer {
	r := recorder{header: http.Header{}, code: http.StatusOK}
	p.make.ServeHTTP(&r, &http.Request{Method: http.MethodGet, URL: &url.URL{Path: "/"}, Header: http.Header{}, Body: http.NoBody})
	body := r.body.Bytes()
	return &answer{
		code: r.code, contentType: r.header.Get("Content-Type"), body: body,
		gzipped: sync.OnceValue(func() []byte { return compress(body) }),
	}
}

// recorder is an http.ResponseWriter that keeps what a handler answers.
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
	// Nothing that is written to memory fails.
	_, _ = w.Write(body)
	_ = w.Close()
	return b.Bytes()
}

// takesGzip reports whether the client says that it reads gzip (RFC 9110, 12.5.3).
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
