package link

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// messages returns two ends of a channel that preserves message boundaries, as a TUN does.
func messages(t testing.TB) (ours, theirs *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs = os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	t.Cleanup(func() { _, _ = ours.Close(), theirs.Close() })
	return ours, theirs
}

// kernelFrame is a frame of the kernel.
type kernelFrame struct {
	virtio
	data []byte
}

func (f kernelFrame) bytes() []byte {
	b := make([]byte, virtioSize, virtioSize+len(f.data))
	f.write(b)
	return append(b, f.data...)
}

// randomFrame returns a frame that the kernel may send. It uses few sizes, so that a frame
// often has the same segments as the previous one.
func randomFrame(r *rand.Rand) kernelFrame {
	s := shape{six: r.IntN(2) == 0, protocol: 6, flags: byte(r.Uint32()), fragment: []uint16{0, 0x4000}[r.IntN(2)]}
	s.extra = []int{0, 0, 0, 8, 16}[r.IntN(5)]
	s.options = []int{0, 12, 12, 40}[r.IntN(4)]
	if r.IntN(3) == 0 {
		s.protocol = 17
	}
	segment := []int{60, 100, 536, 1368, 1368, 1368, 8900}[r.IntN(7)]
	switch r.IntN(4) {
	case 0: // one packet
		s.payload = r.IntN(1500)
		data, transport, _ := s.packet(r, 1)
		f := kernelFrame{data: sealed(data, transport, s.protocol, false)}
		if r.IntN(2) == 0 {
			f.data = sealed(data, transport, s.protocol, true)
			f.virtio = virtio{flags: needsChecksum, checksumStart: transport, checksumOffset: map[byte]int{6: 16, 17: 6}[s.protocol]}
		}
		return f
	case 1:
		s.payload = 1 + r.IntN(3*segment)
	case 2:
		s.payload = 65000 - r.IntN(100)
	case 3:
		s.payload = segment * (1 + r.IntN(max(1, 65000/segment)))
	}
	s.payload = min(s.payload, 65000)
	data, transport, _ := s.packet(r, 1)
	f := kernelFrame{virtio{flags: needsChecksum, segment: segment, checksumStart: transport, checksumOffset: tcpChecksum}, nil}
	switch {
	case s.protocol == 17:
		f.kind, f.checksumOffset = gsoUDP, udpChecksum
	case s.six:
		f.kind = gsoTCP6
	default:
		f.kind = gsoTCP4
	}
	f.data = sealed(data, transport, s.protocol, true)
	return f
}

func writeAll(file *os.File, frames ...[]byte) error {
	for _, frame := range frames {
		if _, err := file.Write(frame); err != nil {
			return err
		}
	}
	return nil
}

// buffers are as many and as large as wireguard-go's.
func buffers() [][]byte {
	bufs := make([][]byte, 128)
	for i := range bufs {
		bufs[i] = make([]byte, 65535)
	}
	return bufs
}

// readAll reads that many packets, with random numbers of buffers.
func readAll(t *testing.T, d *reader, bufs [][]byte, r *rand.Rand, want int) (packets [][]byte) {
	t.Helper()
	const offset = 16
	for len(packets) < want {
		room := []int{1, 2, 5, 128, 128}[r.IntN(5)]
		sizes := make([]int, room)
		n, err := d.read(bufs[:room], sizes, offset)
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			packets = append(packets, bytes.Clone(bufs[i][offset:offset+sizes[i]]))
		}
	}
	return packets
}

func openReader(t testing.TB) (*reader, *os.File) {
	t.Helper()
	ours, theirs := messages(t)
	raw, err := ours.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	return newReader(raw, 1420), theirs
}

// The packets that are read are those of the kernel's segmentation, for any previous frame.
func TestFramesAreReadAsPackets(t *testing.T) {
	bufs := buffers()
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		d, kernel := openReader(t)
		var last kernelFrame
		for range 5 {
			var want [][]byte
			var frames []string
			var raw [][]byte
			for range 1 + r.IntN(4) {
				f := last // cut like the one before
				if f.data == nil || r.IntN(2) == 0 {
					f = randomFrame(r)
				}
				last = f
				raw = append(raw, f.bytes())
				want = append(want, cutFrame(f.virtio, f.data)...)
				frames = append(frames, fmt.Sprintf("%+v, %d bytes", f.virtio, len(f.data)))
			}
			sent := make(chan error, 1)
			go func() { sent <- writeAll(kernel, raw...) }()
			got := readAll(t, d, bufs, r, len(want))
			if err := <-sent; err != nil {
				t.Fatal(err)
			}
			if len(got) != len(want) {
				t.Fatalf("seed %d: %d packets, want %d of %q", seed, len(got), len(want), frames)
			}
			for i := range got {
				if !bytes.Equal(want[i], got[i]) {
					t.Fatalf("seed %d: packet %d of %q:\ngot  %d bytes, %.100x\nwant %d bytes, %.100x",
						seed, i, frames, len(got[i]), got[i], len(want[i]), want[i])
				}
			}
		}
	}
}

// Malformed frames are dropped, and don't end the reader.
func TestMalformedFramesAreDropped(t *testing.T) {
	bufs := buffers()
	d, kernel := openReader(t)
	r := rand.New(rand.NewPCG(1, 1))
	s := shape{protocol: 6, payload: 3000, flags: flagACK}
	good, transport, _ := s.packet(r, 1)
	sealed(good, transport, 6, true)
	v := virtio{flags: needsChecksum, kind: gsoTCP4, segment: 1000, checksumStart: transport, checksumOffset: 16}
	for name, f := range map[string]kernelFrame{
		"empty":                  {v, nil},
		"a byte":                 {v, good[:1]},
		"no payload":             {v, good[:40]},
		"half a header":          {v, good[:30]},
		"no segment size":        {virtio{flags: v.flags, kind: v.kind, checksumStart: 20, checksumOffset: 16}, good},
		"another address family": {virtio{flags: v.flags, kind: gsoTCP6, segment: 1000, checksumStart: 20, checksumOffset: 16}, good},
		"an unknown kind":        {virtio{flags: v.flags, kind: 3, segment: 1000, checksumStart: 20, checksumOffset: 16}, good},
		"another checksum":       {virtio{flags: v.flags, kind: v.kind, segment: 1000, checksumStart: 20, checksumOffset: 6}, good},
		"a header of 4 bytes":    {v, append(append(append([]byte{}, good[:32]...), 0x10), good[33:]...)},
		"neither 4 nor 6":        {v, append([]byte{0x50}, good[1:]...)},
		"endless headers":        {virtio{flags: v.flags, kind: v.kind, segment: 1000, checksumStart: 65535, checksumOffset: 16}, good},
	} {
		if err := writeAll(kernel, f.bytes(), kernelFrame{v, good}.bytes()); err != nil {
			t.Fatal(err)
		}
		got, want := readAll(t, d, bufs, r, 3), cutFrame(v, good)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("after %s: -want +got:\n%s", name, diff)
		}
	}
}

// FuzzFrames reads an arbitrary frame, and a valid one after it.
func FuzzFrames(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 20 {
		f.Add(randomFrame(r).bytes())
	}
	good := kernelFrame{data: []byte("the next frame")}
	bufs := buffers()
	d, kernel := openReader(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < virtioSize || len(data) > virtioSize+maxFrame {
			return
		}
		if err := writeAll(kernel, data, good.bytes()); err != nil {
			t.Fatal(err)
		}
		sizes := make([]int, len(bufs))
		for {
			n, err := d.read(bufs, sizes, 16)
			if err != nil {
				t.Fatal(err)
			}
			if n > 0 && string(bufs[n-1][16:16+sizes[n-1]]) == "the next frame" {
				return
			}
		}
	})
}
