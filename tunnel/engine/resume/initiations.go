package resume

import (
	"encoding/binary"
	"sync"

	"golang.zx2c4.com/wireguard/device"
)

// initiations matches responses with the initiations that this process has sent. When an
// initiation is created while wireguard-go handles the response to the previous one, the
// session has the keys of one and the index of the other: it sends, and never receives. So no
// attempt starts after the last one has been answered, and responses to cancelled attempts are
// dropped.
type initiations struct {
	mu        sync.Mutex
	current   *Key            // peer whose initiation is being created
	peers     map[uint32]Key  // peers by the index of their latest initiation
	latest    map[Key]uint32  // the reverse of peers
	responded map[Key]bool    // a response has arrived since the last begin
	cancelled map[uint32]bool // indices of cancelled attempts
}

func newInitiations() *initiations {
	return &initiations{peers: make(map[uint32]Key), latest: make(map[Key]uint32), responded: make(map[Key]bool), cancelled: make(map[uint32]bool)}
}

// begin calls forget and then send, which sends an initiation to a peer, unless the last one
// has just been answered.
func (i *initiations) begin(key Key, forget, send func()) {
	i.mu.Lock()
	if i.responded[key] {
		delete(i.responded, key) // The response may be forged: the next call sends.
		i.mu.Unlock()
		return
	}
	if index, found := i.latest[key]; found {
		delete(i.peers, index)
		delete(i.latest, key)
		i.cancelled[index] = true
	}
	i.current = &key
	i.mu.Unlock()
	forget()
	send()
	i.mu.Lock()
	defer i.mu.Unlock()
	i.current = nil
}

// sent records an initiation among sent packets, if begin caused it.
func (i *initiations) sent(packets [][]byte) {
	if len(packets) != 1 || messageType(packets[0]) != device.MessageInitiationType {
		return
	}
	index := binary.LittleEndian.Uint32(packets[0][4:])
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.current != nil {
		i.peers[index], i.latest[*i.current] = *i.current, index
	}
}

// arrived records arriving responses, and sets the size of those to cancelled attempts to 0.
func (i *initiations) arrived(packets [][]byte, sizes []int) {
	for n, size := range sizes {
		message := packets[n][:size]
		if messageType(message) != device.MessageResponseType || size != device.MessageResponseSize {
			continue
		}
		index := binary.LittleEndian.Uint32(message[8:]) // the receiver's
		i.mu.Lock()
		if i.cancelled[index] {
			sizes[n] = 0
		} else if key, found := i.peers[index]; found {
			i.responded[key] = true
		}
		i.mu.Unlock()
	}
}

// messageType returns a message's type, 0 for an invalid message.
func messageType(message []byte) uint32 {
	if len(message) < device.MinMessageSize {
		return 0
	}
	return binary.LittleEndian.Uint32(message)
}
