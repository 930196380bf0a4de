package meter

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// socketBuffer is room for what comes while the receiver doesn't run: some seconds.
const socketBuffer = 64 << 20

// mostPackets bounds a stream, against invalid requests.
const mostPackets = 100_000_000

// receiver holds what has arrived of one stream.
type receiver struct {
	mu       sync.Mutex
	sentAt   []int64 // by number: when it was sent, and 1; 0 when it hasn't come
	came     time.Time
	got      Received
	lastRead time.Time
}

// takePackets takes packets until the socket is closed.
func (m *Meter) takePackets(socket net.PacketConn) error {
	if err := enlarge(socket); err != nil {
		return err
	}
	batches, packets := ipv4.NewPacketConn(socket), newPackets()
	for {
		n, err := batches.ReadBatch(packets, 0)
		if err != nil {
			return err
		}
		now := time.Now()
		for _, p := range packets[:n] {
			if packet := p.Buffers[0][:p.N]; len(packet) >= headerSize {
				m.receiver(binary.BigEndian.Uint64(packet)).packet(
					binary.BigEndian.Uint64(packet[8:]), int64(binary.BigEndian.Uint64(packet[16:])), now)
			}
		}
	}
}

// newPackets returns room for the packets of a call of the kernel.
func newPackets() []ipv4.Message {
	packets := make([]ipv4.Message, 64)
	for i := range packets {
		packets[i].Buffers = [][]byte{make([]byte, packetSize)}
	}
	return packets
}

// enlarge gives a socket a large buffer: with the capability NET_ADMIN past what this
// machine allows.
func enlarge(socket net.PacketConn) error {
	raw, err := socket.(*net.UDPConn).SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketBuffer)
		if errors.Is(failed, unix.EPERM) {
			failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, socketBuffer)
		}
	})
	return errors.Join(err, failed)
}

func (r *receiver) packet(number uint64, sentAt int64, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if number >= mostPackets {
		return
	}
	for uint64(len(r.sentAt)) <= number {
		r.sentAt = append(r.sentAt, 0)
	}
	if r.sentAt[number] != 0 {
		r.got.Duplicates++
		return
	}
	r.sentAt[number] = sentAt + 1
	r.got.Packets++
	if silence := now.Sub(r.came); !r.came.IsZero() && silence > r.got.Silence {
		r.got.Silence, r.got.Resumed = silence, now
	}
	r.came = now
}

func (r *receiver) report() Received {
	r.mu.Lock()
	defer r.mu.Unlock()
	got := r.got
	before := int64(0)
	for i := 0; i < len(r.sentAt); {
		if r.sentAt[i] != 0 {
			before = r.sentAt[i]
			i++
			continue
		}
		first := i
		for i < len(r.sentAt) && r.sentAt[i] == 0 {
			i++
		}
		got.Lost = append(got.Lost, Loss{After: time.Duration(before), Packets: int64(i - first)})
	}
	return got
}

// takeStreams takes TCP streams until the listener is closed.
func (m *Meter) takeStreams(listener net.Listener) error {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go m.takeStream(conn)
	}
}

func (m *Meter) takeStream(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	buffer := make([]byte, 65536)
	if _, err := io.ReadFull(conn, buffer[:8]); err != nil {
		return
	}
	r := m.receiver(binary.BigEndian.Uint64(buffer))
	r.read(0, nil, time.Now())
	for {
		n, err := conn.Read(buffer)
		r.read(n, err, time.Now())
		if err != nil {
			return
		}
	}
}

func (r *receiver) read(n int, err error, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.lastRead.IsZero() {
		r.got.Stall = max(r.got.Stall, now.Sub(r.lastRead))
	}
	r.lastRead = now
	r.got.Bytes += int64(n)
	r.got.Ended = err != nil
}
