package handover

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// kind is the first byte of a message between the two processes; doc.go has their order.
type kind byte

const (
	kindBegin    kind = 'b' // new: | version, 1 byte
	kindProgress kind = 'p' // new: is alive; before its first handshake, and repeated
	kindRelayed  kind = 'r' // new: | frame, see relay
	kindReady    kind = 'y' // new: has sessions, requests the TUN
	kindOwned    kind = 't' // new: owns the device
	kindPeers    kind = 'n' // both: | updates, see appendUpdate
	kindPaused   kind = 's' // old: has stopped reading UDP
	kindReleased kind = 'g' // old: has stopped reading the TUN
	kindAborted  kind = 'x' // old: continues to own the device | reason, text
)

// version of this protocol.
const version = 1

// maxMessage exceeds the size of all messages, in bytes: the largest is a relayed message of
// 64 KiB with its endpoint.
const maxMessage = 70000

// A write blocks for up to writePatience while the other engine doesn't read, and after such
// a timeout only for stuckPatience, until a write succeeds again. Relayed frames queue in
// this process, because the other engine may get no processor time for a while. maxQueued
// bytes, with the pair's buffer, hold a second of 10,000 full packets a second, and
// maxQueuedFrames of small ones; frames beyond are lost.
const (
	writePatience   = 200 * time.Millisecond
	stuckPatience   = time.Millisecond
	maxQueued       = 16 << 20
	maxQueuedFrames = 1 << 14
	queuePause      = 2 * time.Millisecond // interval of retries while the pair is full
)

// drainPatience bounds how long a device that continues alone handles relayed messages.
const drainPatience = 2 * time.Second

// message is a message of the other engine.
type message struct {
	kind kind
	body []byte
}

// End is an end of a pair of SEQPACKET sockets: a Read returns the bytes of one Write. Tests
// use one in memory.
type End interface {
	io.ReadWriteCloser
	SetWriteDeadline(t time.Time) error
	// CloseRead makes writes fail at the other end. Earlier messages can still be read.
	CloseRead() error
	// try writes a message if less than half of the pair's buffer is in use: the other half
	// is for messages that aren't queued. It returns an error if the other end is shut.
	try(message []byte) (wrote bool, err error)
	// unread reports whether there are messages that this end hasn't read.
	unread() bool
}

// pair reads and writes an end.
type pair struct {
	conn     End
	messages chan message  // without relayed ones; closed at the end
	relayed  chan []byte   // frames; closed at the end
	ended    chan struct{} // closed when the channels aren't read any more
	end      func()        // closes ended
	running  sync.WaitGroup

	mu    sync.Mutex
	stuck bool

	queue  chan []byte  // frames to write
	queued atomic.Int64 // bytes in queue
	lost   atomic.Int64 // frames beyond the queue
	closed atomic.Bool  // the pair is closed at one end
}

// newPair starts reading an end, which it owns.
func newPair(conn End) *pair {
	p := &pair{conn: conn, messages: make(chan message, 16), relayed: make(chan []byte, 16), ended: make(chan struct{}), queue: make(chan []byte, maxQueuedFrames)}
	p.end = sync.OnceFunc(func() { close(p.ended) })
	p.running.Go(p.read)
	p.running.Go(p.writeQueue)
	return p
}

func (p *pair) read() {
	defer close(p.messages)
	defer close(p.relayed)
	buf := make([]byte, maxMessage)
	for {
		n, err := p.conn.Read(buf)
		if errors.Is(err, syscall.ECONNRESET) {
			continue // The other end was closed with unread messages; its own are still to be read.
		}
		if err != nil || n == 0 {
			return
		}
		body := append([]byte(nil), buf[1:n]...)
		if kind(buf[0]) == kindRelayed {
			select {
			case p.relayed <- body:
			case <-p.ended:
			}
			continue
		}
		select {
		case p.messages <- message{kind(buf[0]), body}:
		case <-p.ended:
		}
	}
}

// write writes a message. It returns an error if the other end is shut or isn't read in time.
func (p *pair) write(message []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	patience := writePatience
	if p.stuck {
		patience = stuckPatience
	}
	err := p.conn.SetWriteDeadline(time.Now().Add(patience))
	if err == nil {
		_, err = p.conn.Write(message)
	}
	p.stuck = errors.Is(err, os.ErrDeadlineExceeded)
	return err
}

// enqueue queues a copy of a frame without blocking.
func (p *pair) enqueue(frame []byte) {
	size := int64(len(frame))
	if p.closed.Load() {
		return
	}
	if p.queued.Add(size) <= maxQueued {
		select {
		case p.queue <- bytes.Clone(frame):
			return
		default:
		}
	}
	p.queued.Add(-size)
	p.lost.Add(1)
}

// writeQueue writes queued frames until the pair is closed at one end.
func (p *pair) writeQueue() {
	defer p.closed.Store(true)
	for {
		select {
		case frame := <-p.queue:
			for {
				wrote, err := p.conn.try(frame)
				if err != nil {
					return
				}
				if wrote {
					break
				}
				select {
				case <-time.After(queuePause):
				case <-p.ended:
					return
				}
			}
			p.queued.Add(-int64(len(frame)))
		case <-p.ended:
			return
		}
	}
}

func (p *pair) send(k kind, body ...byte) error {
	if err := p.write(append([]byte{byte(k)}, body...)); err != nil {
		return fmt.Errorf("write to the other engine: %w", err)
	}
	return nil
}

// sendPeers sends updates of peers.
func (p *pair) sendPeers(all []peerUpdate) error {
	message := []byte{byte(kindPeers)}
	for i, n := range all {
		message = appendUpdate(message, n)
		if len(message) > maxUpdates || i == len(all)-1 {
			if err := p.write(message); err != nil {
				return err
			}
			message = message[:1]
		}
	}
	return nil
}

// next returns the next message, io.EOF if the other end is closed.
func (p *pair) next(done <-chan struct{}, timeout <-chan time.Time) (message, error) {
	select {
	case m, more := <-p.messages:
		if !more {
			return message{}, io.EOF
		}
		return m, nil
	case <-done:
		return message{}, errEnded
	case <-timeout:
		return message{}, errNoAnswer
	}
}

var (
	errNoAnswer = errors.New("the other engine doesn't answer")
	errEnded    = errors.New("this engine ends")
)

// drain makes writes of the new engine fail, and reads its remaining messages. It returns
// whether it has announced handshakes, and whether it owns the device.
func (p *pair) drain() (began, owned bool) {
	_ = p.conn.CloseRead()
	// A closed device doesn't receive relayed messages.
	defer time.AfterFunc(drainPatience, p.end).Stop()
	for m := range p.messages {
		began = began || m.kind != kindBegin
		owned = owned || m.kind == kindOwned
	}
	return began, owned
}

// close closes this end and waits until it isn't read any more.
func (p *pair) close() {
	p.end()
	_ = p.conn.Close()
	p.running.Wait()
}
