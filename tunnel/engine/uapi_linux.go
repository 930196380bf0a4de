package engine

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"

	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
)

// maxRequest bounds a UAPI request, in bytes: some 50,000 peers.
const maxRequest = 16 << 20

// listen creates the device's UAPI socket with create, and serves it until the device ends.
func (d *deviceState) listen(create func(path string) (*control.Listener, error)) error {
	listener, err := create(control.DevicePath(d.name))
	if err != nil {
		return err
	}
	d.all.mu.Lock()
	defer d.all.mu.Unlock()
	if d.ctx.Err() != nil {
		return errors.Join(d.ctx.Err(), listener.Close())
	}
	if d.listener != nil {
		_ = d.listener.Close()
	}
	d.listener = listener
	d.all.wg.Go(func() { accept(d.ctx, listener, d.serveUAPI) })
	return nil
}

// serveUAPI answers the requests of one connection to the device's UAPI socket.
func (d *deviceState) serveUAPI(conn *net.UnixConn) {
	d.all.wg.Go(func() {
		stop := context.AfterFunc(d.ctx, func() { _ = conn.Close() })
		defer stop()
		defer func() { _ = conn.Close() }()
		reader := bufio.NewReader(conn)
		for {
			request, err := readRequest(reader)
			if err != nil {
				if !errors.Is(err, io.EOF) && d.ctx.Err() == nil {
					d.log.Warn("reading a UAPI request failed", "err", err)
				}
				return
			}
			answer, err := d.configure(request)
			if err != nil {
				if d.ctx.Err() == nil {
					d.log.Warn("answering a UAPI request failed", "err", err)
				}
				return
			}
			if _, err := conn.Write(answer); err != nil {
				return
			}
		}
	})
}

// readRequest reads a UAPI request with its empty line, or up to a line without "=", where
// wireguard-go stops, too.
func readRequest(r *bufio.Reader) (request []byte, err error) {
	for begin := 0; ; {
		part, err := r.ReadSlice('\n')
		request = append(request, part...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull) && len(request) <= maxRequest:
			continue
		case err != nil && (len(request) == 0 || !errors.Is(err, io.EOF)):
			return nil, err
		case err != nil:
			return nil, io.ErrUnexpectedEOF
		case len(request) > maxRequest:
			return nil, errors.New("request is too large")
		}
		line := request[begin:]
		if len(line) == 1 || !bytes.ContainsRune(line, '=') {
			return request, nil
		}
		if begin == 0 && string(line) != "get=1\n" && string(line) != "set=1\n" {
			return nil, errors.New("operation is neither get nor set")
		}
		begin = len(request)
	}
}

// configure sends a UAPI request to the server, applies changes to the model, and returns
// the response.
func (d *deviceState) configure(request []byte) (answer []byte, err error) {
	ctx, cancel := context.WithTimeout(d.ctx, requestTimeout)
	defer cancel()
	changes := bytes.HasPrefix(request, []byte("set"))
	ask := func(s *server) error {
		if answer, err = s.uapi(ctx, d, request); err != nil || !changes {
			return err
		}
		if bytes.HasSuffix(answer, []byte(answerOK)) {
			_, lines, _ := bytes.Cut(request, []byte("\n"))
			if err = d.model.set(bytes.NewReader(lines)); err == nil {
				return nil
			}
		}
		// The request may have been applied in part.
		return s.exchange(ctx, d, getRequest, d.model.read)
	}
	if changes {
		return answer, d.withServer(ctx, ask)
	}
	// "get" requests don't lock d.configuring: changes and upgrades may take long.
	err = d.all.retry(ctx, func(s *server) error {
		if d.ready.Load() != s {
			return d.with(ctx, s, ask)
		}
		return ask(s)
	})
	return answer, err
}
