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

// acceptUAPI answers what comes to a device's socket, until that is closed.
func (k *keeper) acceptUAPI(d *kept, listener *control.Listener) {
	k.wg.Go(func() { k.accept(listener, func(c *net.UnixConn) { k.uapi(d, c) }) })
}

// uapi answers the requests of a connection to the device's socket.
func (k *keeper) uapi(d *kept, conn net.Conn) {
	k.wg.Go(func() {
		stop := context.AfterFunc(d.ctx, func() { _ = conn.Close() })
		defer stop()
		defer func() { _ = conn.Close() }()
		reader := bufio.NewReader(conn)
		for {
			request, err := readRequest(reader)
			if err != nil {
				if !errors.Is(err, io.EOF) && d.ctx.Err() == nil {
					d.log.Warn("cannot read a UAPI request", "err", err)
				}
				return
			}
			answer, err := k.configure(d.ctx, d, request)
			if err != nil {
				if d.ctx.Err() == nil {
					d.log.Warn("cannot answer a UAPI request", "err", err)
				}
				return
			}
			if _, err := conn.Write(answer); err != nil {
				return
			}
		}
	})
}

// readRequest reads a UAPI request up to and with its empty line, or the line that
// isn't name=value: wireguard-go reads no further, either.
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

// configure has a server carry out a UAPI request and returns the answer.
func (k *keeper) configure(ctx context.Context, d *kept, request []byte) (answer []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	changes := bytes.HasPrefix(request, []byte("set"))
	ask := func(s *server) error {
		if answer, err = s.uapi(ctx, d, request); err != nil || !changes {
			return err
		}
		if bytes.HasSuffix(answer, []byte("errno=0\n\n")) {
			_, lines, _ := bytes.Cut(request, []byte("\n"))
			if err = d.model.set(bytes.NewReader(lines)); err == nil {
				return nil
			}
		}
		// What was carried out is what counts.
		return s.exchange(ctx, d, getRequest, d.model.read)
	}
	if changes {
		return answer, k.withServer(ctx, d, ask)
	}
	// A question doesn't wait for a change or a hand-over, nor these for it.
	err = k.retry(ctx, func(s *server) error {
		if d.answers.Load() != s {
			return k.with(ctx, d, s, ask)
		}
		return ask(s)
	})
	return answer, err
}
