package handover

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
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
// a timeout only for stuckPatience, until a write succeeds again. Relayed messages queue in
// this process, because the other engine may get no processor time for a while. maxPosted
// bytes, with the pair's buffer, hold a second of 10,000 full packets a second; messages
// beyond are lost.
const (
	writePatience = 200 * time.Millisecond
	stuckPatience = time.Millisecond
	maxPosted     = 16 << 20
	postPause     = 2 * time.Millisecond // interval of retries while the pair is full
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
	pumping  sync.WaitGroup

	mu    sync.Mutex
	stuck bool

	posting sync.Mutex
	posted  [][]byte // queued messages, in order
	bytes   int      // of posted
	dropped int      // messages beyond maxPosted
	closed  bool     // the pair is closed at one end
	wake    chan struct{}
}

// newPair starts reading an end, which it owns.
func newPair(conn End) *pair {
	p := &pair{conn: conn, messages: make(chan message, 16), relayed: make(chan []byte, 16), ended: make(chan struct{}), wake: make(chan struct{}, 1)}
	p.end = sync.OnceFunc(func() { close(p.ended) })
	p.pumping.Go(p.pump)
	p.pumping.Go(p.carry)
	return p
}

func (p *pair) pump() {
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

// post queues a copy of a message without blocking.
func (p *pair) post(message []byte) {
	p.posting.Lock()
	defer p.posting.Unlock()
	switch {
	case p.closed:
		return
	case p.bytes+len(message) > maxPosted:
		p.dropped++
		return
	}
	p.posted, p.bytes = append(p.posted, bytes.Clone(message)), p.bytes+len(message)
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// carry writes queued messages until the pair is closed at one end.
func (p *pair) carry() {
	defer func() {
		p.posting.Lock()
		defer p.posting.Unlock()
		p.closed, p.posted, p.bytes = true, nil, 0
	}()
	timer := time.NewTimer(postPause)
	defer timer.Stop()
	for {
		select {
		case <-p.wake:
		case <-p.ended:
			return
		}
		for message := p.first(); message != nil; {
			wrote, err := p.conn.try(message)
			switch {
			case err != nil:
				return
			case wrote:
				message = p.first()
				continue
			}
			timer.Reset(postPause)
			select {
			case <-timer.C:
			case <-p.ended:
				return
			}
		}
	}
}

// first removes and returns the first queued message, nil if there is none.
func (p *pair) first() (message []byte) {
	p.posting.Lock()
	defer p.posting.Unlock()
	if len(p.posted) == 0 {
		p.posted = nil
		return nil
	}
	message, p.posted[0] = p.posted[0], nil
	p.posted, p.bytes = p.posted[1:], p.bytes-len(message)
	return message
}

// lost returns the number of messages lost because the other engine didn't read in time.
func (p *pair) lost() int {
	p.posting.Lock()
	defer p.posting.Unlock()
	return p.dropped
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
	p.pumping.Wait()
}
