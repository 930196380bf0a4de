package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// network is what net calls SOCK_SEQPACKET.
const network = "unixpacket"

const (
	// MaxMessage bounds a message, in bytes.
	MaxMessage = 64 << 10
	// MaxFiles bounds the descriptors of a message. The kernel closes those beyond.
	MaxFiles = 16
	// maxHandling bounds the requests of one connection that are handled concurrently.
	maxHandling = 256
	// sendLimit bounds how long a send blocks when the other side doesn't read.
	sendLimit = 10 * time.Second
)

// Files are the descriptors of a message. They aren't os.File: the runtime's poller would
// wake this process for each packet that arrives there.
type Files []int

// Close closes all of them.
func (f Files) Close() {
	for _, fd := range f {
		_ = unix.Close(fd)
	}
}

// Handler handles a request and returns the response, or handles a notification. It owns the
// descriptors that it gets; those that it returns are closed after they were sent. Calls
// run concurrently.
type Handler func(Message, Files) (Message, Files)

var errClosed = errors.New("connection was closed")

// Conn is one end of a connection.
type Conn struct {
	unix   *net.UnixConn
	handle Handler
	ending chan struct{}
	done   chan struct{}
	wg     sync.WaitGroup

	mu      sync.Mutex
	last    uint64
	waiting map[uint64]chan answer
	err     error // that ended the connection
}

type answer struct {
	Message
	files Files
}

// NewConn returns a connection over a socket, see [Conn.Start].
func NewConn(c *net.UnixConn, handle Handler) *Conn {
	return &Conn{unix: c, handle: handle, ending: make(chan struct{}), done: make(chan struct{}), waiting: make(map[uint64]chan answer)}
}

// Start starts to read messages. It is called once.
func (c *Conn) Start() { c.wg.Go(c.run) }

// Done is closed when the connection has ended and all handlers have returned.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Ending is closed when the connection ends; handlers may still run.
func (c *Conn) Ending() <-chan struct{} { return c.ending }

// Err returns the error that ended the connection, io.EOF if the other side closed it.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the connection and waits for the handlers. A handler must call Hangup instead.
func (c *Conn) Close() {
	c.Hangup()
	c.wg.Wait()
}

// Hangup stops reading. The connection is closed after the responses to earlier requests
// were sent.
func (c *Conn) Hangup() { c.end(errClosed) }

func (c *Conn) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.err = err
	close(c.ending)
	_ = c.unix.CloseRead()
	for id, wait := range c.waiting {
		close(wait)
		delete(c.waiting, id)
	}
}

func (c *Conn) run() {
	defer close(c.done)
	defer func() { _ = c.unix.Close() }()
	var handling sync.WaitGroup
	defer handling.Wait()
	slots := make(chan struct{}, maxHandling)
	buffer := make([]byte, MaxMessage)
	for {
		m, files, err := c.receive(buffer)
		if err != nil {
			c.end(err)
			return
		}
		if c.Err() != nil {
			files.Close()
			return
		}
		if m.Op == "" {
			c.deliver(m, files)
			continue
		}
		slots <- struct{}{}
		handling.Go(func() {
			defer func() { <-slots }()
			reply, replyFiles := c.handle(m, files)
			if m.ID != 0 {
				reply.ID, reply.Op = m.ID, ""
				if err := c.send(reply, replyFiles...); err != nil {
					c.end(err)
				}
			}
			replyFiles.Close()
		})
	}
}

// deliver passes a response to its request's Ask. It sends under the lock, without blocking,
// so that forget finds what it must close.
func (c *Conn) deliver(m Message, files Files) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wait, wanted := c.waiting[m.ID]
	delete(c.waiting, m.ID)
	if !wanted {
		files.Close()
		return
	}
	wait <- answer{m, files}
}

// Ask sends a request and waits for the response. files still belong to the caller, and so
// do those of the response.
func (c *Conn) Ask(ctx context.Context, m Message, files ...int) (Message, Files, error) {
	wait := make(chan answer, 1)
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return Message{}, nil, fmt.Errorf("ask to %s: %w", m.Op, c.err)
	}
	c.last++
	m.ID = c.last
	c.waiting[m.ID] = wait
	c.mu.Unlock()
	if err := c.send(m, files...); err != nil {
		c.forget(m.ID, wait)
		return Message{}, nil, fmt.Errorf("ask to %s: %w", m.Op, err)
	}
	select {
	case a, ok := <-wait:
		switch {
		case !ok:
			return Message{}, nil, fmt.Errorf("ask to %s: %w", m.Op, c.Err())
		case a.Error != "":
			a.files.Close()
			return a.Message, nil, &remoteError{text: a.Error, errno: syscall.Errno(a.Errno)}
		}
		return a.Message, a.files, nil
	case <-ctx.Done():
		c.forget(m.ID, wait)
		return Message{}, nil, fmt.Errorf("ask to %s: %w", m.Op, ctx.Err())
	}
}

// forget discards the response to a request, which may have arrived already.
func (c *Conn) forget(id uint64, wait <-chan answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, id)
	select {
	case a := <-wait:
		a.files.Close()
	default:
	}
}

// Notify sends a notification. It returns an error if the other side doesn't read for 10 s.
func (c *Conn) Notify(m Message) error { return c.send(m) }

func (c *Conn) send(m Message, files ...int) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(text) > MaxMessage || len(files) > MaxFiles {
		return fmt.Errorf("message of %d bytes and %d descriptors: too large", len(text), len(files))
	}
	var rights []byte
	if len(files) > 0 {
		rights = unix.UnixRights(files...)
	}
	if err := c.unix.SetWriteDeadline(time.Now().Add(sendLimit)); err != nil {
		return err
	}
	_, _, err = c.unix.WriteMsgUnix(text, rights, nil)
	return err
}

// receive reads a message.
func (c *Conn) receive(buffer []byte) (m Message, files Files, err error) {
	rights := make([]byte, unix.CmsgSpace(4*MaxFiles))
	n, rn, flags, _, err := c.unix.ReadMsgUnix(buffer, rights)
	files, rightsErr := parseRights(rights[:rn])
	defer func() {
		if err != nil {
			files.Close()
			files = nil
		}
	}()
	switch {
	case err == nil && n == 0:
		err = io.EOF
	case err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		err = errors.New("message is too large")
	}
	err = errors.Join(err, rightsErr)
	if err != nil {
		return m, files, err
	}
	if err = json.Unmarshal(buffer[:n], &m); err != nil {
		return m, files, fmt.Errorf("decode message: %w", err)
	}
	return m, files, nil
}

func parseRights(rights []byte) (files Files, err error) {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil, err
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err == nil {
			files = append(files, fds...)
		}
	}
	for _, fd := range files {
		unix.CloseOnExec(fd)
	}
	return files, nil
}
