package handover

import (
	"encoding/binary"
	"net"
	"sync"
	"sync/atomic"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
)

// relay forwards messages to the old engine that belong to none of this process's handshakes
// and sessions.
type relay struct {
	send func(frame []byte) // must not retain the frame

	accept atomic.Bool // send and receive initiations

	mu       sync.RWMutex
	own      indices
	sending  sync.Mutex
	frame    []byte
	last     conn.Endpoint // of the last message in frame
	lastText string
}

// maxFrame bounds a frame of several messages, in bytes.
const maxFrame = 60000

// learn records the indices of handshake messages that this process sends.
func (r *relay) learn(packets [][]byte) {
	for _, packet := range packets {
		if index, ok := sender(packet); ok {
			r.mu.Lock()
			r.own.add(index)
			r.mu.Unlock()
		}
	}
}

// forward forwards messages that aren't for this process, and sets their size to 0.
func (r *relay) forward(packets [][]byte, sizes []int, from []conn.Endpoint) {
	r.mu.RLock()
	foreign := false
	for i, size := range sizes {
		message := packets[i][:size]
		if index, ok := index(message); ok {
			if r.own.has[index] {
				continue
			}
			sizes[i] = 0
			if messageType(message) == device.MessageResponseType {
				continue // Late: the remote has received an initiation of this process by now.
			}
			if !foreign {
				foreign = true
				r.sending.Lock()
			}
			r.add(message, from[i])
		} else if messageType(message) == device.MessageInitiationType && !r.accept.Load() {
			sizes[i] = 0
		}
	}
	r.mu.RUnlock()
	if foreign {
		r.flush()
		r.sending.Unlock()
	}
}

// add appends a message to the frame. The frame is
//
//	{ length of endpoint, 1 byte | length of message, 4 | endpoint, text | message }
func (r *relay) add(message []byte, from conn.Endpoint) {
	if from != r.last {
		r.last, r.lastText = from, from.DstToString()
	}
	if len(r.lastText) > 255 {
		return
	}
	if len(r.frame)+5+len(r.lastText)+len(message) > maxFrame {
		r.flush()
	}
	if len(r.frame) == 0 {
		r.frame = append(r.frame, byte(kindRelayed))
	}
	r.frame = append(r.frame, byte(len(r.lastText)))
	r.frame = binary.LittleEndian.AppendUint32(r.frame, uint32(len(message)))
	r.frame = append(r.frame, r.lastText...)
	r.frame = append(r.frame, message...)
}

// flush sends the frame.
func (r *relay) flush() {
	if len(r.frame) > 0 {
		r.send(r.frame)
		r.frame = r.frame[:0]
	}
}

// cutRelayed returns the first message of a frame without its kind, and the rest of the
// frame. The message is nil if the frame has none.
func cutRelayed(frame []byte) (endpoint string, message, rest []byte) {
	if len(frame) < 5 {
		return "", nil, nil
	}
	text, size := int(frame[0]), binary.LittleEndian.Uint32(frame[1:])
	if frame = frame[5:]; uint64(len(frame)) < uint64(text)+uint64(size) {
		return "", nil, nil
	}
	end := text + int(size)
	return string(frame[:text]), frame[text:end:end], frame[end:]
}

// relayReceiver receives the messages that another process relays, for a bind.
type relayReceiver struct {
	relayed   <-chan []byte
	over      chan struct{}
	drained   chan struct{}            // closed when relayed is closed and empty
	empty     func()                   // closes drained
	rest      []byte                   // of the current frame; only for the first function
	busy      atomic.Bool              // the first function or the device has a frame
	endpoints map[string]conn.Endpoint // by their text; only for the first function

	mu      sync.Mutex
	in      map[int]bool // functions that have stopped reading their sockets
	missing int
	all     chan struct{} // closed when missing is 0
}

// maxEndpoints bounds the cached endpoints of relayed messages.
const maxEndpoints = 1 << 12

// receive implements receive function i of the bind: the first one receives relayed messages,
// and the others wait. It returns 0 when the bind reads its sockets again.
func (r *relayReceiver) receive(i int, b *Bind, closed <-chan struct{}, packets [][]byte, sizes []int, from []conn.Endpoint) (n int, err error) {
	r.enter(i)
	if i > 0 {
		select {
		case <-r.over:
			return 0, nil
		case <-closed:
			return 0, net.ErrClosed
		}
	}
	for relayed := r.relayed; n == 0; {
		if len(r.rest) == 0 {
			r.busy.Store(false)
			select {
			case frame, more := <-relayed:
				r.busy.Store(more)
				if r.rest = frame; !more {
					relayed = nil
					r.empty()
				}
			case <-r.over:
				return 0, nil
			case <-closed:
				return 0, net.ErrClosed
			}
		}
		for n < len(packets) && len(r.rest) > 0 {
			var endpoint string
			var message []byte
			if endpoint, message, r.rest = cutRelayed(r.rest); message == nil {
				break
			}
			known, found := r.endpoints[endpoint]
			if !found {
				if known, err = b.ParseEndpoint(endpoint); err != nil {
					continue // not an endpoint of this bind
				}
				if len(r.endpoints) >= maxEndpoints {
					clear(r.endpoints)
				}
				r.endpoints[endpoint] = known
			}
			sizes[n], from[n] = copy(packets[n], message), known
			n++
		}
	}
	return n, nil
}

// enter records that a function has stopped reading its socket.
func (r *relayReceiver) enter(i int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.in[i] {
		r.in[i] = true
		if r.missing--; r.missing == 0 {
			close(r.all)
		}
	}
}
