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
	// maxHandling is how many questions of one connection are worked on at once.
	maxHandling = 256
	// sendLimit is how long the other side may read nothing while something is sent.
	sendLimit = 10 * time.Second
)

// Files are descriptors that came with a message. They aren't os.File: that would
// have the runtime's poller wake this process for each packet that comes in there.
type Files []int

// Close closes them all.
func (f Files) Close() {
	for _, fd := range f {
		_ = unix.Close(fd)
	}
}

// Handler answers a question, or takes news. It owns the descriptors that it gets;
// those that it returns are closed once they are sent. Calls come at once.
type Handler func(Message, Files) (Message, Files)

// errClosed is the end of a connection by Close.
var errClosed = errors.New("connection was closed")

// Conn is one end of a connection.
type Conn struct {
	unix   *net.UnixConn
	handle Handler
	done   chan struct{}
	wg     sync.WaitGroup

	mu      sync.Mutex
	last    uint64
	waiting map[uint64]chan answer
	err     error // why the connection has ended
}

type answer struct {
	Message
	files Files
}

// NewConn makes a connection of a socket; Start has it read.
func NewConn(c *net.UnixConn, handle Handler) *Conn {
	return &Conn{unix: c, handle: handle, done: make(chan struct{}), waiting: make(map[uint64]chan answer)}
}

// Start reads messages until the connection ends. It is called once.
func (c *Conn) Start() { c.wg.Go(c.run) }

// Done is closed when the connection has ended and nothing is handled any more.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err says why the connection has ended; io.EOF when the other side did.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the connection and waits until nothing is handled any more. It must
// not be called by the handler, see Hangup.
func (c *Conn) Close() {
	c.Hangup()
	c.wg.Wait()
}

// Hangup ends the connection: nothing more is read, and the other side sees its end when
// it has the answers to what was.
func (c *Conn) Hangup() { c.end(errClosed) }

func (c *Conn) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.err = err
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
	turns := make(chan struct{}, maxHandling)
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
		turns <- struct{}{}
		handling.Go(func() {
			defer func() { <-turns }()
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

// deliver hands an answer to whoever waits for it.
func (c *Conn) deliver(m Message, files Files) {
	c.mu.Lock()
	wait, wanted := c.waiting[m.ID]
	delete(c.waiting, m.ID)
	c.mu.Unlock()
	if !wanted {
		files.Close()
		return
	}
	wait <- answer{m, files}
}

// Ask sends a question and waits for the answer. files stay the caller's; those
// of the answer become the caller's.
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
		c.forget(m.ID)
		return Message{}, nil, fmt.Errorf("ask to %s: %w", m.Op, err)
	}
	select {
	case a, ok := <-wait:
		switch {
		case !ok:
			return Message{}, nil, fmt.Errorf("ask to %s: %w", m.Op, c.Err())
		case a.Error != "":
			a.files.Close()
			return a.Message, nil, &failure{text: a.Error, errno: syscall.Errno(a.Errno)}
		}
		return a.Message, a.files, nil
	case <-ctx.Done():
		c.forget(m.ID)
		return Message{}, nil, fmt.Errorf("ask to %s: %w", m.Op, ctx.Err())
	}
}

// forget gives an answer up, which may be there already.
func (c *Conn) forget(id uint64) {
	c.mu.Lock()
	wait, waiting := c.waiting[id]
	delete(c.waiting, id)
	c.mu.Unlock()
	if waiting {
		return
	}
	select {
	case a := <-wait:
		a.files.Close()
	default:
	}
}

// Tell sends news. It is an error when the other side reads nothing for ten seconds.
func (c *Conn) Tell(m Message) error { return c.send(m) }

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

// receive reads a message. One that isn't as the package says is an error.
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
		return m, files, fmt.Errorf("message isn't understood: %w", err)
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
