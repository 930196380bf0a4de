package handover

import (
	"encoding/binary"
	"sync"

	"golang.zx2c4.com/wireguard/device"
)

// answers matches responses with initiations. When an initiation is created while
// wireguard-go handles the response to the previous one, the session has the keys of one and
// the index of the other: it sends, and never receives. So no attempt starts after the last
// one has been answered, and responses to cancelled attempts are dropped.
type answers struct {
	mu        sync.Mutex
	current   *Key            // peer whose initiation is being created
	peers     map[uint32]Key  // peers by the index of their latest initiation
	latest    map[Key]uint32  // the reverse of peers
	answered  map[Key]bool    // a response has arrived since the last begin
	cancelled map[uint32]bool // indices of cancelled attempts
}

func newAnswers() *answers {
	return &answers{peers: make(map[uint32]Key), latest: make(map[Key]uint32), answered: make(map[Key]bool), cancelled: make(map[uint32]bool)}
}

// begin calls forget and then send, which sends an initiation to a peer, unless the last one
// has just been answered.
func (a *answers) begin(key Key, forget, send func()) {
	a.mu.Lock()
	if a.answered[key] {
		delete(a.answered, key) // The response may be forged: the next call sends.
		a.mu.Unlock()
		return
	}
	if index, found := a.latest[key]; found {
		delete(a.peers, index)
		delete(a.latest, key)
		a.cancelled[index] = true
	}
	a.current = &key
	a.mu.Unlock()
	forget()
	send()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.current = nil
}

// sent records an initiation among sent packets. It returns whether it is one that begin
// didn't cause.
func (a *answers) sent(packets [][]byte) (foreign bool) {
	if len(packets) != 1 || messageType(packets[0]) != device.MessageInitiationType {
		return false
	}
	index := binary.LittleEndian.Uint32(packets[0][4:])
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.current == nil {
		return true
	}
	a.peers[index], a.latest[*a.current] = *a.current, index
	return false
}

// arrived records arriving responses, and sets the size of those to cancelled attempts to 0.
func (a *answers) arrived(packets [][]byte, sizes []int) {
	for i, size := range sizes {
		message := packets[i][:size]
		if messageType(message) != device.MessageResponseType {
			continue
		}
		index, ok := index(message)
		if !ok {
			continue
		}
		a.mu.Lock()
		if a.cancelled[index] {
			sizes[i] = 0
		} else if key, found := a.peers[index]; found {
			a.answered[key] = true
		}
		a.mu.Unlock()
	}
}
