package handover

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/device"

	"github.com/kube-semaphore/kube-semaphore/internal/polltest"
)

// Somebody on the way sends during the hand-over what was sent before, and what is
// forged, from an address of their own, while a second remote keeps the hand-over
// waiting. Nobody answers them, the tunnel doesn't move to them, and nothing is lost.
func TestMessagesAreForgedAndSentAgain(t *testing.T) {
	p := newPassage(t, true) // The remote began: its initiation is among what was recorded.
	goOn := p.keepWaiting(t)
	attacker := listenLoopback(t)
	defer func() { _ = attacker.Close() }()
	began := len(p.of(device.MessageInitiationType))
	over := make(chan struct{})
	go func() {
		defer close(over)
		// It waits for as long as sending all of it takes.
		handOver(t, p.e, func(s *Side) { s.Limits.Silent, s.Limits.Sessions = time.Hour, time.Hour })
	}()
	polltest.Until(t, time.Minute, "the new engine begins", func() bool { return len(p.of(device.MessageInitiationType)) > began })
	at := net.UDPAddrFromAddrPort(p.nodeAddr())
	recorded := append(p.recorded(false), p.recorded(true)...)
	kinds := make(map[uint32]int)
	for range 3 {
		for _, m := range recorded {
			kinds[messageType(m)]++
			_, _ = attacker.WriteToUDP(m, at)
			_, _ = attacker.WriteToUDP(forged(m), at)
			time.Sleep(50 * time.Microsecond)
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
	buf := make([]byte, 1<<16)
	for err := attacker.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); ; {
		size, readErr := attacker.Read(buf)
		if err = errors.Join(err, readErr); errors.Is(err, os.ErrDeadlineExceeded) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
		if kind := messageType(buf[:size]); kind != device.MessageCookieReplyType {
			t.Errorf("a message of type %d is sent to the attacker", kind)
		}
	}
}

// forged returns a message like another one, with content, index or counter changed.
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
