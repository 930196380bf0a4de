package meter

import (
	"context"
	"encoding/binary"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/ipv4"
)

const (
	// packetSize is that of a packet: the stream, its number and when it was sent,
	// three times eight bytes, and nothing.
	packetSize = 200
	headerSize = 24
	// tick is the time between the sender's turns.
	tick = time.Millisecond
	// chunk is what goes into the TCP stream every chunkTime.
	chunk     = 1000
	chunkTime = 5 * time.Millisecond
)

// sender sends one stream.
type sender struct {
	cancel context.CancelFunc
	ended  sync.WaitGroup
	sent   Sent // valid when it has ended
	bytes  atomic.Int64
}

func startSender(ctx context.Context, id uint64, to string, rate int) (*sender, error) {
	dialer := net.Dialer{Timeout: 5 * time.Second}
	stream, err := dialer.DialContext(ctx, "tcp", to)
	if err != nil {
		return nil, err
	}
	packets, err := dialer.DialContext(ctx, "udp", to)
	if err != nil {
		_ = stream.Close()
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &sender{cancel: cancel}
	s.ended.Go(func() {
		defer func() { _ = packets.Close() }()
		s.sendPackets(ctx, packets.(*net.UDPConn), id, rate)
	})
	s.ended.Go(func() {
		// What is still on its way is sent before the end.
		defer func() { _ = stream.Close() }()
		if err := s.sendStream(ctx, stream, id); err != nil {
			s.sent.Broken = err.Error()
		}
	})
	// A write into a stream that stands still ends, too.
	context.AfterFunc(ctx, func() { _ = stream.SetWriteDeadline(time.Now()) })
	return s, nil
}

func (s *sender) stop() Sent {
	s.cancel()
	s.ended.Wait()
	s.sent.Bytes = s.bytes.Load()
	return s.sent
}

// sendPackets sends packets at a rate. A delayed turn is not made up for:
// a burst would fill queues that no steady stream fills.
func (s *sender) sendPackets(ctx context.Context, conn net.PacketConn, id uint64, rate int) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	start := time.Now()
	socket := ipv4.NewPacketConn(conn) // of either family: it is for WriteBatch
	packets := newPackets()
	for _, p := range packets {
		binary.BigEndian.PutUint64(p.Buffers[0], id)
	}
	owed := 0.0 // packets
	for last := start; ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := time.Now()
		s.sent.Late = max(s.sent.Late, now.Sub(last))
		owed += float64(rate) * min(now.Sub(last), 2*tick).Seconds()
		last = now
		for owed >= 1 {
			batch := packets[:min(int(owed), len(packets))]
			owed -= float64(len(batch))
			for _, p := range batch {
				packet := p.Buffers[0]
				binary.BigEndian.PutUint64(packet[8:], uint64(s.sent.Packets))
				binary.BigEndian.PutUint64(packet[16:], uint64(time.Since(start)))
				s.sent.Packets++
			}
			for len(batch) > 0 {
				n, err := socket.WriteBatch(batch, 0)
				if err != nil {
					n = 1 // The first one was refused.
					s.sent.Refused++
				}
				batch = batch[n:]
			}
		}
	}
}

func (s *sender) sendStream(ctx context.Context, conn net.Conn, id uint64) error {
	ticker := time.NewTicker(chunkTime)
	defer ticker.Stop()
	if _, err := conn.Write(binary.BigEndian.AppendUint64(nil, id)); err != nil {
		return err
	}
	content := make([]byte, chunk)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		n, err := conn.Write(content)
		s.bytes.Add(int64(n))
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
}
