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

// Answers to /metrics and /status take at most about a fiftieth of a core, whoever
// asks and how often: after one that took d to make, the next one begins 50*d later,
// or maxPause where that is less.
const (
	pauseShare = 50
	maxPause   = time.Second
)

// page is a path whose answers are made one at a time and with a pause between them.
// All who ask before an answer is begun get that one, so nobody is told what was
// before the question. Answers don't depend on the request, and those that are sent
// at the same time share their bytes.
type page struct {
	// make answers a request that prefers nothing: no encoding, no format.
	make http.Handler

	turn     sync.Mutex // held by the request that makes an answer, or is about to
	earliest time.Time  // when the next answer may be begun; guarded by turn

	mu   sync.Mutex
	next *making // not begun; nil: nobody asks for it yet
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

// get returns an answer that was begun after the call, nil when ctx ends first. The
// first to ask for it makes it.
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
	// The others wait for this one, also when the one that asked first is gone.
	defer close(m.done)

	p.turn.Lock()
	defer p.turn.Unlock()
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

// record makes an answer. Its request is nobody's.
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
