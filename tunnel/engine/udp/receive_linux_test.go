package udp

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
)

// FuzzMessages checks that the datagrams of any messages are returned whole and in order, with
// any prediction. Three bytes are a message: its size in units of 64 bytes, the size of its
// datagrams in units of 4 bytes, and the expected size in the read that starts with it.
func FuzzMessages(f *testing.F) {
	f.Add([]byte{100, 50, 50, 100, 50, 50}, false)
	f.Add([]byte{255, 25, 25, 200, 25, 25, 1, 0, 25}, false)
	f.Add([]byte{255, 1, 200, 255, 1, 1, 7, 0, 1}, false)
	f.Add([]byte{9, 0, 0, 9, 0, 0, 255, 9, 0, 9, 0, 0}, true)
	f.Add([]byte{255, 200, 255, 255, 0, 255}, false)
	f.Add([]byte{9, 0, 0, 255, 200, 0, 9, 0, 0, 200, 0, 0, 255, 50, 0}, true) // beyond singleSize
	f.Add([]byte{200, 0, 0, 9, 0, 0, 100, 0, 0, 70, 0, 0, 71, 0, 0}, true)
	f.Fuzz(func(t *testing.T, shapes []byte, singly bool) {
		s := &socket{coalesce: true, serializer: newSerializer(time.Now, func(time.Time) {})}
		r := newReceiver(s)
		packets, sizes := make([][]byte, atOnce), make([]int, atOnce)
		endpoints := make([]conn.Endpoint, atOnce)
		for i := range packets {
			packets[i] = make([]byte, maxMessage)
		}
		var want, got [][]byte
		var pending []func(i int) // each writes a message as the kernel does
		read := func() {
			r.n = min(len(pending), r.used)
			for i, write := range pending[:r.n] {
				write(i)
			}
			pending = pending[r.n:]
		}
		number := uint64(0)
		for ; len(shapes) >= 3; shapes = shapes[3:] {
			length, size := 16+64*int(shapes[0]), 4*int(shapes[1])
			data := make([]byte, length)
			for at := 0; at < length; at += 8 {
				number++
				binary.BigEndian.PutUint64(data[at:], number)
			}
			step := size
			if size == 0 || size > length {
				step = length
			}
			for at := 0; at < length; at += step {
				want = append(want, data[at:min(at+step, length)])
			}
			expected := max(4*int(shapes[2]), 1)
			pending = append(pending, func(i int) {
				header := &r.messages[i].header
				rest := data
				for _, v := range vectorsOf(header) {
					rest = rest[copy(v, rest):]
				}
				if len(rest) > 0 {
					t.Fatalf("no room for %d of %d bytes", len(rest), length)
				}
				r.messages[i].length = uint32(length)
				r.names[i] = socketAddressOf(endpointOf("192.0.2.1:51820").addr)
				var control []byte
				if size > 0 {
					var value [4]byte
					binary.NativeEndian.PutUint32(value[:], uint32(size))
					control = appendControl(nil, unix.IPPROTO_UDP, unix.UDP_GRO, value[:])
				}
				header.SetControllen(copy(r.control[i], control))
			})
			r.segment = expected
		}
		if singly {
			r.singles = singleAfter
		}
		for len(pending) > 0 || len(r.held) > 0 {
			count := r.rest(packets, sizes, endpoints)
			if count == 0 {
				r.prepare(packets)
				read()
				count = r.arrived(packets, sizes, endpoints)
			}
			for i, size := range sizes[:count] {
				if size > 0 {
					got = append(got, bytes.Clone(packets[i][:size]))
				}
			}
		}
		if len(got) != len(want) {
			t.Fatalf("%d datagrams, want %d", len(got), len(want))
		}
		for i := range want {
			if !bytes.Equal(got[i], want[i]) {
				t.Fatalf("datagram %d is %d bytes, %x, want %d, %x", i, len(got[i]), got[i], len(want[i]), want[i])
			}
		}
	})
}

// FuzzControl parses arbitrary control messages.
func FuzzControl(f *testing.F) {
	f.Add(appendSegmentSize(nil, 1452))
	f.Add(source{addr: endpointOf("192.0.2.1:1").addr.Addr()}.control())
	f.Add(source{addr: endpointOf("[fe80::1]:1").addr.Addr(), index: 3}.control())
	f.Fuzz(func(_ *testing.T, control []byte) { parseControl(control) })
}

func TestAddressesOfSockets(t *testing.T) {
	for _, text := range []string{"192.0.2.1:51820", "[2001:db8::1]:1", "[fe80::1%1]:65535", "[fe80::1%4294967295]:1"} {
		addr := endpointOf(text).addr
		raw := socketAddressOf(addr)
		if got := raw.addrPort(); got != addr {
			t.Errorf("%s is parsed as %s", addr, got)
		}
	}
	named := socketAddressOf(endpointOf("[fe80::1%lo]:1").addr)
	if got := named.addrPort().String(); got != "[fe80::1%1]:1" {
		t.Errorf("an address with a link's name is parsed as %s", got)
	}
	if got := (&socketAddress{}).addrPort(); got.IsValid() {
		t.Errorf("the zero address is parsed as %s", got)
	}
	mapped := socketAddressOf(endpointOf("[::ffff:192.0.2.1]:7").addr)
	if got := mapped.addrPort().String(); got != "192.0.2.1:7" {
		t.Errorf("an IPv4-mapped address is parsed as %s", got)
	}
}

// Alternating senders don't need a new endpoint for each packet.
func TestEndpointsAreCached(t *testing.T) {
	r := newReceiver(&socket{})
	local := source{addr: endpointOf("192.0.2.9:1").addr.Addr()}
	of := func(text string) *endpoint {
		raw := socketAddressOf(endpointOf(text).addr)
		return r.endpoint(&raw, local)
	}
	a, b := of("192.0.2.1:1"), of("192.0.2.2:1")
	if a == b || of("192.0.2.1:1") != a || of("192.0.2.2:1") != b {
		t.Error("endpoints aren't reused")
	}
	a.ClearSrc() // The kernel chooses the source, until the next packet says which works.
	if got := of("192.0.2.1:1"); got == a || got.SrcIP() != local.addr {
		t.Errorf("answered from %s, want %s", got.SrcIP(), local.addr)
	}
	for i := range 3 * maxOrigins {
		raw := socketAddressOf(endpointOf("192.0.2.3:1").addr)
		binary.BigEndian.PutUint16(raw[2:], uint16(i))
		r.endpoint(&raw, local)
	}
	if len(r.origins) > maxOrigins {
		t.Errorf("%d endpoints are cached", len(r.origins))
	}
}

// vectorsOf returns the buffers of a message.
func vectorsOf(header *unix.Msghdr) (bufs [][]byte) {
	for _, v := range unsafe.Slice(header.Iov, header.Iovlen) {
		bufs = append(bufs, unsafe.Slice(v.Base, v.Len))
	}
	return bufs
}

// Large messages don't fill wireguard-go's many buffers: their pages would stay resident.
func TestOnlyDatagramsFillBuffers(t *testing.T) {
	r := newReceiver(&socket{coalesce: true})
	r.singles = singleAfter
	packets := make([][]byte, atOnce)
	for i := range packets {
		packets[i] = make([]byte, maxMessage)
	}
	r.prepare(packets)
	for i := range r.used {
		bufs := vectorsOf(&r.messages[i].header)
		if len(bufs) != 2 || &bufs[0][0] != &packets[i][0] || len(bufs[0]) != singleSize || len(bufs[1]) != maxMessage {
			t.Fatalf("message %d is read into %d buffers, the first of %d bytes", i, len(bufs), len(bufs[0]))
		}
	}
}
