package udp

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

// datagram is what a bind received.
type datagram struct {
	data string
	from conn.Endpoint
}

// opened is a bind and the datagrams that it receives.
type opened struct {
	*Bind
	port uint16
	got  chan datagram
}

// openBind opens a bind in the calling thread's network namespace, and reads it until the
// test ends.
func openBind(t *testing.T, port uint16) *opened {
	t.Helper()
	return readBind(t, New(Config{}), port)
}

func readBind(t *testing.T, b *Bind, port uint16) *opened {
	t.Helper()
	o := &opened{Bind: b, got: make(chan datagram, 4096)}
	receive, port, err := o.Open(port)
	if err != nil {
		t.Fatal(err)
	}
	o.port = port
	done := make(chan error, len(receive))
	for _, f := range receive {
		go func() { done <- o.read(f) }()
	}
	t.Cleanup(func() {
		if err := o.Close(); err != nil {
			t.Error(err)
		}
		for range receive {
			if err := <-done; !errors.Is(err, net.ErrClosed) {
				t.Errorf("receiving ended with %v, want net.ErrClosed", err)
			}
		}
	})
	return o
}

func (o *opened) read(receive conn.ReceiveFunc) error {
	var (
		packets   = make([][]byte, o.BatchSize())
		sizes     = make([]int, len(packets))
		endpoints = make([]conn.Endpoint, len(packets))
	)
	for i := range packets {
		packets[i] = make([]byte, 65535)
	}
	for {
		n, err := receive(packets, sizes, endpoints)
		if err != nil {
			return err
		}
		for i, size := range sizes[:n] {
			if size > 0 {
				o.got <- datagram{string(packets[i][:size]), endpoints[i]}
			}
		}
	}
}

// to returns the endpoint of an address and port.
func (o *opened) to(t *testing.T, addr string, port uint16) conn.Endpoint {
	t.Helper()
	e, err := o.ParseEndpoint(netip.AddrPortFrom(netip.MustParseAddr(addr), port).String())
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func (o *opened) next(t *testing.T) datagram {
	t.Helper()
	select {
	case d := <-o.got:
		return d
	case <-time.After(time.Minute):
		t.Fatal("nothing arrives")
		return datagram{}
	}
}

// numbered returns packets of these sizes that differ.
func numbered(sizes ...int) [][]byte {
	packets := packetsOf(sizes...)
	for i, p := range packets {
		copy(p, fmt.Sprintf("packet %d ", i))
	}
	return packets
}

// want checks that exactly these packets arrive next, in order, and returns their endpoint.
func (o *opened) want(t *testing.T, packets [][]byte) conn.Endpoint {
	t.Helper()
	var last datagram
	for i, p := range packets {
		last = o.next(t)
		if last.data != string(p) {
			t.Fatalf("packet %d is %d bytes, %.12q, want %d, %.12q", i, len(last.data), last.data, len(p), p)
		}
	}
	return last.from
}

// Batches of all shapes arrive whole and in order, and are answered from the address
// that they were sent to.
func TestBatchesArriveAndAreAnswered(t *testing.T) {
	nstest.Namespaces(t)
	for _, addr := range []string{"127.0.0.2", "::1"} {
		t.Run(addr, func(t *testing.T) {
			a, b := openBind(t, 0), openBind(t, 0)
			var various []int
			for i := range 128 {
				various = append(various, 64+i*37%1300)
			}
			for name, sizes := range map[string][]int{
				"one":           {148},
				"many":          slices.Repeat([]int{1452}, 128),
				"a small last":  append(slices.Repeat([]int{1452}, 60), 96),
				"all different": various,
				"large":         slices.Repeat([]int{8953}, 20),
				"largest":       {65507, 65507},
			} {
				packets := numbered(sizes...)
				if err := a.Send(packets, a.to(t, addr, b.port)); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				from := b.want(t, packets)
				if got := from.SrcIP().String(); got != addr {
					t.Errorf("%s: sent to %s, as received: %s", name, addr, got)
				}
				if err := b.Send(packets, from); err != nil {
					t.Fatalf("%s: answer: %v", name, err)
				}
				if got := a.want(t, packets).DstIP().String(); got != addr {
					t.Errorf("%s: answered from %s, want %s", name, got, addr)
				}
			}
		})
	}
}

// A packet too large for IP is an error, and doesn't prevent sending the others.
func TestTooLargePacketsAreSkipped(t *testing.T) {
	nstest.Namespaces(t)
	a, b := openBind(t, 0), openBind(t, 0)
	packets := numbered(1452, 1452, 65508, 1452, 1452)
	if err := a.Send(packets, a.to(t, "127.0.0.1", b.port)); !errors.Is(err, unix.EMSGSIZE) {
		t.Errorf("error %v, want %v", err, unix.EMSGSIZE)
	}
	b.want(t, append(packets[:2:2], packets[3:]...))
}

// Packets aren't sent from an address that this host no longer has.
func TestStaleSourceIsCleared(t *testing.T) {
	nstest.Namespaces(t)
	for _, addr := range []string{"127.0.0.1", "::1"} {
		a, b := openBind(t, 0), openBind(t, 0)
		gone := map[string]string{"127.0.0.1": "192.0.2.99", "::1": "fd00::99"}[addr]
		e := newEndpoint(netip.AddrPortFrom(netip.MustParseAddr(addr), b.port), source{addr: netip.MustParseAddr(gone)})
		for _, packets := range [][][]byte{numbered(slices.Repeat([]int{1452}, 100)...), numbered(148)} {
			e.chosen.Store(true)
			if err := a.Send(packets, e); err != nil {
				t.Errorf("to %s: %v", addr, err)
			}
			b.want(t, packets)
			if e.SrcIP().IsValid() {
				t.Errorf("to %s: still from %s", addr, e.SrcIP())
			}
		}
		if limit := a.paths.limit(e.DstIP(), time.Now); limit != maxPayload6 {
			t.Errorf("the path to %s counts as narrow: %d", addr, limit)
		}
	}
}

// No datagram is lost of a sender with larger messages than ours.
func TestMessagesOfManyDatagrams(t *testing.T) {
	nstest.Namespaces(t)
	b := openBind(t, 0)
	sender, err := net.DialUDP("udp4", nil, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(b.port)})
	if err != nil {
		t.Fatal(err)
	}
	defer sender.Close()
	const most = 128 // segments, in kernels since 6.9
	packets := numbered(slices.Repeat([]int{100}, most)...)
	control := appendSegmentSize(nil, 100)
	if _, _, err := sender.WriteMsgUDP(bytes.Join(packets, nil), control, nil); errors.Is(err, unix.EINVAL) {
		packets = packets[:maxSegments] // older kernel
	} else if err == nil {
		b.want(t, packets)
	}
	for range 50 {
		if _, _, err := sender.WriteMsgUDP(bytes.Join(packets, nil), control, nil); err != nil {
			t.Fatal(err)
		}
	}
	for range 50 {
		b.want(t, packets)
	}
}

// Fragments and small packets arrive as messages of one datagram each: many are read at once,
// and nothing is lost when messages of many datagrams arrive again.
func TestSingleDatagramsAreReadTogether(t *testing.T) {
	nstest.Root(t)
	b := New(Config{})
	receive, port, err := b.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	sender, err := net.DialUDP("udp4", nil, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(port)})
	if err != nil {
		t.Fatal(err)
	}
	defer sender.Close()
	var (
		packets   = make([][]byte, b.BatchSize())
		sizes     = make([]int, len(packets))
		endpoints = make([]conn.Endpoint, len(packets))
		sent, got int
	)
	for i := range packets {
		packets[i] = make([]byte, 65535)
	}
	read := func() (reads int) {
		t.Helper()
		for ; got < sent; reads++ {
			n, err := receive[0](packets, sizes, endpoints)
			if err != nil {
				t.Fatal(err)
			}
			for i := range n {
				if sizes[i] == 0 {
					continue // between those of two messages
				}
				if want := fmt.Sprint(got, " "); sizes[i] != 100 || !bytes.HasPrefix(packets[i], []byte(want)) {
					t.Fatalf("packet %d is %d bytes that begin with %.10q", got, sizes[i], packets[i])
				}
				got++
			}
		}
		return reads
	}
	next := func(n int) (batch []byte) {
		for range n {
			packet := make([]byte, 100)
			copy(packet, fmt.Sprint(sent, " "))
			batch = append(batch, packet...)
			sent++
		}
		return batch
	}
	alone := func(n int) {
		t.Helper()
		for range n {
			if _, err := sender.Write(next(1)); err != nil {
				t.Fatal(err)
			}
		}
	}
	together := func() {
		t.Helper()
		if _, _, err := sender.WriteMsgUDP(next(50), appendSegmentSize(nil, 100), nil); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		alone(512)
		if reads := read(); reads > 512/16 {
			t.Errorf("512 packets took %d reads", reads)
		}
		alone(3)
		for range 10 {
			together()
		}
		alone(3)
		read()
	}
}

// A bind has one port in both families, and a port in use is an error.
func TestPortOfBothFamilies(t *testing.T) {
	nstest.Namespaces(t)
	a := openBind(t, 0)
	if a.port == 0 || a.four.Load().port() != a.port || a.six.Load().port() != a.port {
		t.Errorf("port %d, IPv4 %d, IPv6 %d", a.port, a.four.Load().port(), a.six.Load().port())
	}
	if _, _, err := a.Open(0); !errors.Is(err, conn.ErrBindAlreadyOpen) {
		t.Errorf("opened twice: %v", err)
	}
	if _, _, err := New(Config{}).Open(a.port); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a port in use: %v", err)
	}
	six, err := net.ListenUDP("udp6", &net.UDPAddr{})
	if err != nil {
		t.Fatal(err)
	}
	defer six.Close()
	taken := uint16(six.LocalAddr().(*net.UDPAddr).Port)
	if _, _, err := New(Config{}).Open(taken); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a port in use over IPv6: %v", err)
	}
	// It leaves no socket open.
	four, err := net.ListenUDP("udp4", &net.UDPAddr{Port: int(taken)})
	if err != nil {
		t.Fatal(err)
	}
	if err := four.Close(); err != nil {
		t.Error(err)
	}
}

// On a host without one of the families, the bind has the other one, on the requested port.
func TestHostsWithOneFamily(t *testing.T) {
	nstest.Namespaces(t)
	for without, c := range map[int]struct{ here, missing string }{
		unix.AF_INET6: {"127.0.0.1", "::1"}, unix.AF_INET: {"::1", "127.0.0.1"},
	} {
		type answer struct {
			err  error
			port uint16
		}
		for _, port := range []uint16{0, 51899} {
			b := New(Config{})
			answers := make(chan answer, 1)
			go func() {
				runtime.LockOSThread() // and never unlocked: the thread ends with its filter
				if err := refuseFamily(without); err != nil {
					answers <- answer{err: err}
					return
				}
				_, port, err := b.Open(port)
				answers <- answer{err, port}
			}()
			got := <-answers
			if got.err != nil {
				t.Fatalf("without %s: %v", c.missing, got.err)
			}
			if got.port == 0 || port != 0 && got.port != port {
				t.Errorf("without %s: port %d, asked for %d", c.missing, got.port, port)
			}
			target := openBind(t, 0)
			for addr, want := range map[string]error{c.here: nil, c.missing: unix.EAFNOSUPPORT} {
				if err := b.Send(numbered(148), target.to(t, addr, target.port)); !errors.Is(err, want) {
					t.Errorf("send to %s: %v, want %v", addr, err, want)
				}
			}
			target.want(t, numbered(148))
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// refuseFamily makes the kernel refuse sockets of an address family to the calling thread, as
// a kernel without that family does (seccomp(2)).
func refuseFamily(family int) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	const number, first = 0, 16 // of struct seccomp_data; the low half of a little-endian argument
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	equal := func(k uint32, otherwise uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jf: otherwise}
	}
	answer := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	filter := []unix.SockFilter{
		load(number), equal(unix.SYS_SOCKET, 3),
		load(first), equal(uint32(family), 1),
		answer(unix.SECCOMP_RET_ERRNO | uint32(unix.EAFNOSUPPORT)),
		answer(unix.SECCOMP_RET_ALLOW),
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return os.NewSyscallError("seccomp", errno)
	}
	return nil
}

// A bind inherits the sockets of an ended process, with the packets that arrived in them.
func TestSocketsAreInherited(t *testing.T) {
	nstest.Namespaces(t)
	// The port of an ended process, and duplicates of its sockets in another process.
	ended := func() (port uint16, duplicates []*os.File) {
		t.Helper()
		closed := false
		b := New(Config{
			Opened: func(_ uint16, sockets []*os.File) { duplicates = sockets },
			Closed: func() { closed = true },
		})
		_, port, err := b.Open(0)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Close(); err != nil || !closed || len(duplicates) != 2 {
			t.Fatalf("close: %v; Closed was called: %v; %d duplicates, want 2", err, closed, len(duplicates))
		}
		return port, duplicates
	}
	port, duplicates := ended()
	otherPort, other := ended()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	sender := openBind(t, 0)
	packets := numbered(slices.Repeat([]int{1452}, 100)...)
	for _, addr := range []string{"127.0.0.1", "::1"} {
		if err := sender.Send(packets, sender.to(t, addr, port)); err != nil {
			t.Fatal(err)
		}
	}

	b := New(Config{Inherited: append(append(other, null), duplicates...)})
	if _, _, err := b.Open(0); err != nil { // leaves them
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	heir := readBind(t, b, port)
	got := map[bool]int{}
	for range 2 * len(packets) {
		d := heir.next(t)
		four := d.from.DstIP().Is4()
		if want := string(packets[got[four]]); d.data != want {
			t.Fatalf("%d bytes, %.12q, want %.12q", len(d.data), d.data, want)
		}
		got[four]++
	}
	if err := heir.Send(packets, heir.to(t, "127.0.0.1", sender.port)); err != nil {
		t.Fatal(err)
	}
	if from, want := sender.want(t, packets).DstToString(), fmt.Sprint("127.0.0.1:", port); from != want {
		t.Errorf("sent from %s, want %s", from, want)
	}
	openBind(t, otherPort) // free again
}
