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
	kindBegin    kind = 'b' // taker: | version, 1 byte
	kindProgress kind = 'p' // taker: it lives; before its first handshake, and later
	kindRelayed  kind = 'r' // taker: | frame, see relay
	kindReady    kind = 'y' // taker: has sessions, asks for the TUN
	kindTaken    kind = 't' // taker: has the TUN
	kindPeers    kind = 'n' // both: | news, see appendNews
	kindPaused   kind = 's' // giver: reads no UDP any more
	kindGiven    kind = 'g' // giver: reads no TUN any more
	kindAborted  kind = 'x' // giver: keeps the device | reason, text
)

// version is that of this protocol.
const version = 1

// maxMessage is more bytes than any message has: a relayed message of 64 KiB and its
// endpoint are the largest.
const maxMessage = 70000

// Writing waits as long as writePatience when the other one takes nothing, and then no
// longer than stuckPatience, until it takes something again. What is relayed waits in this
// process, as long as the other one lives: that one may get no processor time for a while.
// What doesn't fit into maxPosted bytes any more is lost, with those of the pair, that is
// beyond what comes in a second at 10,000 full packets a second.
const (
	writePatience = 200 * time.Millisecond
	stuckPatience = time.Millisecond
	maxPosted     = 16 << 20
	postPause     = 2 * time.Millisecond // until it is looked again whether there is room
)

// drainPatience is how long a device may take for what was relayed to it, when it goes on
// alone.
const drainPatience = 2 * time.Second

// message is one of the other process.
type message struct {
	kind kind
	body []byte
}

// End is an end of a pair of SEQPACKET sockets: one Read returns what one Write wrote.
// Tests have one in memory.
type End interface {
	io.ReadWriteCloser
	SetWriteDeadline(t time.Time) error
	// CloseRead makes writing fail at the other end. What was written there before is
	// still read here.
	CloseRead() error
	// try writes a message, unless more than half of the pair's room is taken: the other
	// half is for messages that don't wait. It returns an error when the other end is shut.
	try(message []byte) (wrote bool, err error)
	// unread reports whether the pair holds messages that this end hasn't read.
	unread() bool
}

// pair reads and writes an end.
type pair struct {
	conn     End
	messages chan message  // all but relayed ones; closed at the end
	relayed  chan []byte   // frames; closed at the end
	ended    chan struct{} // closed when the channels aren't read any more
	end      func()        // closes it
	pumping  sync.WaitGroup

	mu    sync.Mutex
	stuck bool

	posting sync.Mutex
	posted  [][]byte // to be written, in order
	bytes   int      // of posted
	dropped int      // messages for which there was no room in it
	deaf    bool     // the other one has ended
	wake    chan struct{}
}

// newPair starts to read an end, which belongs to it.
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
			continue // The other one left something unread, and what it wrote is still to come.
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

// write writes a message. It returns an error when the other end is shut or takes
// nothing for too long.
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

// post has a message written when the other one has room for it, and doesn't wait for that.
// It doesn't keep the message.
func (p *pair) post(message []byte) {
	p.posting.Lock()
	defer p.posting.Unlock()
	switch {
	case p.deaf:
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

// carry writes what is posted, until the pair is closed at one end.
func (p *pair) carry() {
	defer func() {
		p.posting.Lock()
		defer p.posting.Unlock()
		p.deaf, p.posted, p.bytes = true, nil, 0
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

// first takes the first message that is posted; nil: there is none.
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

// lost returns how many messages were lost, because the other one took nothing for so long.
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

// tell sends news of peers.
func (p *pair) tell(all []news) error {
	message := []byte{byte(kindPeers)}
	for i, n := range all {
		message = appendNews(message, n)
		if len(message) > maxNews || i == len(all)-1 {
			if err := p.write(message); err != nil {
				return err
			}
			message = message[:1]
		}
	}
	return nil
}

// next returns the next message, io.EOF when the other end is closed.
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

// refuse makes the other end, a taker's, unable to write. Then it returns whether that
// has written that it begins handshakes, and that it took the device.
func (p *pair) refuse() (began, took bool) {
	_ = p.conn.CloseRead()
	// A device that has ended takes nothing that was relayed to it.
	defer time.AfterFunc(drainPatience, p.end).Stop()
	for m := range p.messages {
		began = began || m.kind != kindBegin
		took = took || m.kind == kindTaken
	}
	return began, took
}

// close closes this end and waits until nothing is read of it any more.
func (p *pair) close() {
	p.end()
	_ = p.conn.Close()
	p.pumping.Wait()
}
