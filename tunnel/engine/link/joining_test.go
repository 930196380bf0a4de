package link

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
)

// stream makes packets of one flow that mostly continue each other.
type stream struct {
	shape
	host     byte
	sequence uint32
	id       uint16
}

func (s *stream) next(r *rand.Rand) []byte {
	one := s.shape
	one.payload = []int{s.payload, s.payload, s.payload, s.payload, 1 + r.IntN(s.payload), 0, s.payload + 1}[r.IntN(7)]
	if one.protocol == 17 {
		one.payload++
	}
	one.flags = []byte{flagACK, flagACK, flagACK, flagACK | flagPSH, flagACK | flagFIN, flagACK | flagCWR, flagACK | flagECE}[r.IntN(7)]
	packet, transport, headers := one.packet(rand.New(rand.NewPCG(1, 1)), s.host) // the same options and acknowledgement
	if one.protocol == 6 {
		binary.BigEndian.PutUint32(packet[transport+4:], s.sequence)
		switch r.IntN(20) {
		case 0:
			packet[transport+11]++ // acknowledges more
		case 1:
			packet[transport+15]++ // another window
		case 2:
			s.sequence++ // something was lost
		case 3:
			packet[headers-1]++ // another option, or the urgent pointer
		}
		s.sequence += uint32(one.payload)
	}
	if !s.six {
		switch s.id++; r.IntN(20) {
		case 0:
			s.id++
		case 1:
			packet[8]-- // another TTL
		case 2:
			packet[1]++ // congestion was met
		}
		binary.BigEndian.PutUint16(packet[4:], s.id)
	}
	sealed(packet, transport, one.protocol, false)
	switch {
	case one.protocol == 17 && r.IntN(20) == 0:
		packet[transport+6], packet[transport+7] = 0, 0 // no checksum
	case r.IntN(50) == 0:
		packet = packet[:len(packet)-1] // shorter than it says
	}
	return packet
}

// randomStreams are flows that differ in some fields.
func randomStreams(r *rand.Rand) (streams []*stream) {
	for host := range byte(1 + r.IntN(10)) {
		s := &stream{host: host, sequence: r.Uint32(), id: uint16(r.Uint32())}
		s.shape = shape{
			six: r.IntN(2) == 0, protocol: []byte{6, 6, 17}[r.IntN(3)], options: []int{0, 12}[r.IntN(2)],
			extra: []int{0, 0, 0, 8}[r.IntN(4)], payload: []int{1, 100, 1368, 9000}[r.IntN(4)],
			fragment: []uint16{0, 0x4000, 0x4000, 0x2000, 0x0010}[r.IntN(5)],
		}
		streams = append(streams, s)
	}
	return streams
}

func isFlow(packet []byte) bool {
	_, ok := flowOf(packet)
	return ok
}

// withoutID returns a packet without its identification, if that has no meaning.
func withoutID(packet []byte) string {
	packet = bytes.Clone(packet)
	if packet[0]>>4 == 4 && binary.BigEndian.Uint16(packet[6:]) == dontFragment {
		clear(packet[4:6])
		clear(packet[10:12])
	}
	return string(packet)
}

// hostOf returns the flow of a packet of these tests.
func hostOf(packet []byte) byte {
	if packet[0]>>4 == 4 {
		return packet[15]
	}
	return packet[23]
}

// checkFrames checks that the kernel segments frames to the written packets, with each flow's
// packets in order.
func checkFrames(packets [][]byte, frames []kernelFrame) error {
	want, got := map[byte][]string{}, map[byte][]string{}
	for _, packet := range packets {
		want[hostOf(packet)] = append(want[hostOf(packet)], withoutID(packet))
	}
	for _, f := range frames {
		if f.flags&needsChecksum != 0 {
			head := pseudo(f.data, map[bool]byte{true: 17, false: 6}[f.kind == gsoUDP], len(f.data)-f.checksumStart)
			if sum := onesSum(head); binary.BigEndian.Uint16(f.data[f.checksumStart+f.checksumOffset:]) != sum {
				return fmt.Errorf("pseudo header's sum of %+v isn't %x", f.virtio, sum)
			}
		}
		for _, packet := range cutFrame(f.virtio, f.data) {
			got[hostOf(packet)] = append(got[hostOf(packet)], withoutID(packet))
		}
	}
	for host, all := range want {
		if len(got[host]) != len(all) {
			return fmt.Errorf("flow %d: %d packets, want %d", host, len(got[host]), len(all))
		}
		for i, packet := range all {
			if got[host][i] != packet {
				return fmt.Errorf("flow %d: packet %d:\ngot  %.100x\nwant %.100x", host, i, got[host][i], packet)
			}
		}
	}
	return nil
}

// inBuffers copies packets to buffers as wireguard-go's.
func inBuffers(packets [][]byte, offset int) (bufs [][]byte) {
	for _, packet := range packets {
		bufs = append(bufs, append(make([]byte, offset), packet...))
	}
	return bufs
}

// The kernel segments joined frames to the packets that were joined. Only fragments and
// malformed packets may be overtaken.
func TestJoinedPacketsAreTheSame(t *testing.T) {
	var j joining
	most := 0
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 2))
		streams := randomStreams(r)
		var packets [][]byte
		for range 1 + r.IntN(128) {
			s := streams[r.IntN(len(streams))]
			for range 1 + r.IntN(6) {
				packet := s.next(r)
				if isFlow(packet) && len(packets) < 128 {
					packets = append(packets, packet)
				}
			}
		}
		const offset = 16
		bufs := inBuffers(packets, offset)
		udp := r.IntN(2) == 0
		var frames []kernelFrame
		for _, f := range j.join(bufs, offset, udp) {
			most = max(most, len(f.packets))
			first := bufs[f.packets[0]][offset:]
			var frame kernelFrame
			if len(f.packets) > 1 {
				frame.virtio = f.headers(first)
			}
			if frame.kind == gsoUDP && !udp {
				t.Fatalf("seed %d: the kernel doesn't take %+v", seed, frame.virtio)
			}
			frame.data = bytes.Clone(first)
			for _, number := range f.packets[1:] {
				frame.data = append(frame.data, bufs[number][offset+f.first.headers:]...)
			}
			frames = append(frames, frame)
		}
		if err := checkFrames(packets, frames); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
	if most < 4 {
		t.Errorf("the largest frame has only %d packets", most)
	}
}

// Single and concurrent streams become as few frames as possible.
func TestPacketsAreJoined(t *testing.T) {
	of := func(protocol byte, hosts, each, payload int) (packets [][]byte) {
		sequence := make([]uint32, hosts)
		for i := range hosts * each {
			s := shape{protocol: protocol, options: 12, payload: payload, flags: flagACK, fragment: dontFragment}
			host := i % hosts
			packet, transport, _ := s.packet(rand.New(rand.NewPCG(1, 1)), byte(host))
			if protocol == 6 {
				binary.BigEndian.PutUint32(packet[transport+4:], sequence[host])
				sequence[host] += uint32(payload)
			}
			packets = append(packets, sealed(packet, transport, protocol, false))
		}
		return packets
	}
	for name, c := range map[string]struct {
		packets [][]byte
		want    int
	}{
		"a stream":                     {of(6, 1, 40, 1368), 1},
		"more than a frame holds":      {of(6, 1, 48, 1368), 2},
		"eight streams":                {of(6, 8, 10, 1368), 8},
		"datagrams":                    {of(17, 1, 64, 200), 1},
		"more than old kernels accept": {of(17, 1, 65, 200), 2},
	} {
		var j joining
		if got := len(j.join(inBuffers(c.packets, 16), 16, true)); got != c.want {
			t.Errorf("%s: %d frames, want %d", name, got, c.want)
		}
	}
}

// FuzzJoin joins arbitrary packets of a peer.
func FuzzJoin(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 20 {
		s := randomStreams(r)[0]
		f.Add(s.next(r), s.next(r), s.next(r))
	}
	f.Fuzz(func(t *testing.T, a, b, c []byte) {
		var packets [][]byte
		for _, packet := range [][]byte{a, b, c} {
			if len(packet) >= ipv4Size && len(packet) <= 65000 {
				packets = append(packets, packet)
			}
		}
		bufs := inBuffers(packets, 16)
		var j joining
		count, cut := 0, 0
		for _, frame := range j.join(bufs, 16, true) {
			first := bufs[frame.packets[0]][16:]
			var v virtio
			if len(frame.packets) > 1 {
				v = frame.headers(first)
			}
			data := bytes.Clone(first)
			for _, number := range frame.packets[1:] {
				data = append(data, bufs[number][16+frame.first.headers:]...)
			}
			count += len(frame.packets)
			cut += len(cutFrame(v, data))
		}
		if count != len(packets) || cut != len(packets) {
			t.Fatalf("%d packets became %d, and cut %d", len(packets), count, cut)
		}
	})
}
