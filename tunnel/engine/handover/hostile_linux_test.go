package handover

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/device"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
)

// An attacker on the path sends recorded and forged messages during the hand-over, from an
// address of its own, while a second remote keeps the hand-over waiting. It gets no answer,
// the tunnel doesn't move to it, and nothing is lost.
func TestMessagesAreForgedAndReplayed(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		p := newPassage(t, true) // The remote began: its initiation is among what was recorded.
		goOn := p.keepWaiting(t)
		attacker := p.node.lan.listen()
		began := len(p.of(device.MessageInitiationType))
		over := make(chan struct{})
		go func() {
			defer close(over)
			handOver(t, p.e, patiently)
		}()
		polltest.Until(t, time.Minute, "the new engine begins", func() bool { return len(p.of(device.MessageInitiationType)) > began })
		recorded := append(p.recorded(false), p.recorded(true)...)
		kinds := make(map[uint32]int)
		for range 3 {
			for _, m := range recorded {
				kinds[messageType(m)]++
				attacker.send(m, p.e.node.at)
				attacker.send(forged(m), p.e.node.at)
				time.Sleep(latency)
			}
		}
		t.Logf("sent again, by type: %v", kinds)
		select {
		case <-over:
			t.Error("the hand-over hasn't waited")
		default:
		}
		p.out.flowing(t)
		p.in.flowing(t)
		goOn()
		<-over
		p.nothingIsLost(t)
		for len(attacker.arrived) > 0 {
			if kind := messageType((<-attacker.arrived).message); kind != device.MessageCookieReplyType {
				t.Errorf("a message of type %d is sent to the attacker", kind)
			}
		}
	})
}

// forged returns a copy of a message whose content, index or counter is changed.
func forged(m []byte) []byte {
	m = append([]byte(nil), m...)
	switch rand.N(3) {
	case 0:
		m[4+rand.N(len(m)-4)] ^= 1
	case 1:
		binary.LittleEndian.PutUint32(m[4:], rand.Uint32())
	default:
		binary.LittleEndian.PutUint64(m[8:], rand.Uint64())
	}
	return m
}
