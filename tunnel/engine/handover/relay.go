package handover

import (
	"encoding/binary"
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
