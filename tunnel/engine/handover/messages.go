package handover

import (
	"encoding/binary"

	"golang.zx2c4.com/wireguard/device"
)

// index returns the index of the receiver's session or handshake in a message, and false for
// a message without one.
func index(message []byte) (uint32, bool) {
	switch kind := messageType(message); {
	case kind == device.MessageResponseType && len(message) == device.MessageResponseSize:
		return binary.LittleEndian.Uint32(message[8:]), true
	case kind == device.MessageCookieReplyType && len(message) == device.MessageCookieReplySize,
		kind == device.MessageTransportType && len(message) >= device.MessageTransportSize:
		return binary.LittleEndian.Uint32(message[4:]), true
	}
	return 0, false
}

// sender returns the sender's index in a handshake message, and false for other messages.
func sender(message []byte) (uint32, bool) {
	switch kind := messageType(message); {
	case kind == device.MessageInitiationType && len(message) == device.MessageInitiationSize,
		kind == device.MessageResponseType && len(message) == device.MessageResponseSize:
		return binary.LittleEndian.Uint32(message[4:]), true
	}
	return 0, false
}

// messageType returns a message's type, 0 for an invalid message.
func messageType(message []byte) uint32 {
	if len(message) < device.MinMessageSize {
		return 0
	}
	return binary.LittleEndian.Uint32(message)
}

// maxIndices bounds the stored indices: two handshakes for each of 65,536 peers, the maximum
// of wireguard-go.
const maxIndices = 1 << 17

// indices are the latest indices of a device's handshakes.
type indices struct {
	has   map[uint32]bool
	order []uint32 // of those in has; a ring when there are maxIndices
	next  int
}

func (i *indices) add(index uint32) {
	if i.has[index] {
		return
	}
	if i.has == nil {
		i.has = make(map[uint32]bool)
	}
	i.has[index] = true
	if len(i.order) < maxIndices {
		i.order = append(i.order, index)
		return
	}
	delete(i.has, i.order[i.next])
	i.order[i.next] = index
	i.next = (i.next + 1) % maxIndices
}
