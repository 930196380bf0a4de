package handover

import (
	"encoding/binary"
	"sync"

	"golang.zx2c4.com/wireguard/device"
)

// answers keeps answers to initiations apart. When an initiation is begun while the
// answer to the one before is being handled, wireguard-go mixes them up: the session has
// the keys of one and the index of the other, sends, and never receives. So no attempt
// is begun when the last one has been answered, and the answer to one that was given up
// is dropped.
type answers struct {
	mu     sync.Mutex
	begun  *Key            // whose initiation is being made
	of     map[uint32]Key  // of the latest initiations, by index
	latest map[Key]uint32  // the reverse
	came   map[Key]bool    // answered, and not looked at yet
	late   map[uint32]bool // given up
}

func newAnswers() *answers {
	return &answers{of: make(map[uint32]Key), latest: make(map[Key]uint32), came: make(map[Key]bool), late: make(map[uint32]bool)}
}

// begin calls send, which sends an initiation to a peer, unless the last one has just
// been answered. Before, it calls forget, when there was one.
func (a *answers) begin(key Key, forget, send func()) {
	a.mu.Lock()
	if a.came[key] {
		delete(a.came, key) // It may have been forged: next time.
		a.mu.Unlock()
		return
	}
	if index, found := a.latest[key]; found {
		delete(a.of, index)
		delete(a.latest, key)
		a.late[index] = true
	}
	a.begun = &key
	a.mu.Unlock()
	forget()
	send()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.begun = nil
}

// sent notes what is sent, and returns whether that is an initiation that wasn't begun
// here.
func (a *answers) sent(packets [][]byte) (foreign bool) {
	if len(packets) != 1 || messageType(packets[0]) != device.MessageInitiationType {
		return false
	}
	index := binary.LittleEndian.Uint32(packets[0][4:])
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.begun == nil {
		return true
	}
	a.of[index], a.latest[*a.begun] = *a.begun, index
	return false
}

// arrived notes what has arrived, and makes the size of answers 0 that come too late.
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
		if a.late[index] {
			sizes[i] = 0
		} else if key, found := a.of[index]; found {
			a.came[key] = true
		}
		a.mu.Unlock()
	}
}
