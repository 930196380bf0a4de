package kubetest

import (
	"context"
	"io"
	"net/http"
	"sync"
	"syscall"
)

// connection is one request and its answer, which ends with the first of: the handler
// returns, the client closes the body or cancels, the server breaks the connection.
type connection struct {
	header  http.Header
	code    int
	body    *io.PipeWriter
	started chan struct{} // closed when code is set
	cancel  context.CancelFunc
	once    sync.Once
	broken  chan struct{}
}

// Header implements http.ResponseWriter.
func (c *connection) Header() http.Header { return c.header }

// WriteHeader implements http.ResponseWriter. A second call does nothing.
func (c *connection) WriteHeader(code int) {
	if c.code == 0 {
		c.code = code
		close(c.started)
	}
}

// Write implements http.ResponseWriter. It returns when the client has read.
func (c *connection) Write(data []byte) (int, error) {
	c.WriteHeader(http.StatusOK)
	return c.body.Write(data)
}

// end ends the connection with an error for the client.
func (c *connection) end(err error) {
	c.once.Do(func() {
		_ = c.body.CloseWithError(err) // which never fails
		close(c.broken)
		c.cancel()
	})
}

// closing ends a request when its body is closed.
type closing struct {
	io.ReadCloser
	cancel context.CancelFunc
}

// Close implements io.Closer.
func (c *closing) Close() error {
	c.cancel()
	return c.ReadCloser.Close()
}

// RoundTrip implements http.RoundTripper. The handler runs in a goroutine that ends with
// the answer.
func (a *API) RoundTrip(r *http.Request) (*http.Response, error) {
	asked := r.Context()
	ctx, cancel := context.WithCancel(asked)
	read, write := io.Pipe()
	c := &connection{header: http.Header{}, body: write, started: make(chan struct{}), cancel: cancel, broken: make(chan struct{})}
	a.mu.Lock()
	if a.down {
		a.mu.Unlock()
		cancel()
		return nil, syscall.ECONNREFUSED
	}
	a.connections[c] = struct{}{}
	a.mu.Unlock()
	stop := context.AfterFunc(asked, func() { c.end(asked.Err()) })
	if r.Body == nil {
		r.Body = http.NoBody
	}
	go func() {
		a.serve(c, r.WithContext(ctx))
		c.WriteHeader(http.StatusOK)
		c.end(io.EOF)
		stop()
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.connections, c)
	}()
	select {
	case <-c.started:
	case <-c.broken:
		if err := asked.Err(); err != nil {
			return nil, err
		}
		select {
		case <-c.started: // The handler has answered all, without a body.
		default:
			return nil, syscall.ECONNRESET
		}
	}
	return &http.Response{
		Status: http.StatusText(c.code), StatusCode: c.code, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: c.header, Body: &closing{read, cancel}, ContentLength: -1, Request: r,
	}, nil
}
