package link

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

// The kernel segments the frames of a batch to the packets of the batch.
func TestPacketsAreWrittenAsFrames(t *testing.T) {
	ours, kernel := messages(t)
	raw, err := ours.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	d := &Device{raw: raw, joinUDP: true}
	d.writers.New = func() any { return newWriter() }
	buf := make([]byte, virtioSize+maxFrame)
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 3))
		s := randomStreams(r)[0]
		var packets [][]byte
		for range 1 + r.IntN(10) {
			// Other packets may be overtaken.
			if packet := s.next(r); isFlow(packet) {
				packets = append(packets, packet)
			}
		}
		if _, err := d.Write(inBuffers(packets, 16), 16); err != nil {
			t.Fatal(err)
		}
		var frames []kernelFrame
		for got := 0; got < len(packets); {
			n, err := kernel.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			f := kernelFrame{readVirtio(buf), bytes.Clone(buf[virtioSize:n])}
			frames = append(frames, f)
			got += len(cutFrame(f.virtio, f.data))
		}
		if err := checkFrames(packets, frames); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// host is a namespace with a TUN, whose packets the test carries.
type host struct {
	ns        *nstest.Namespace
	dev       *Device
	four, six netip.Addr
}

func newHost(t *testing.T, number byte) *host {
	t.Helper()
	h := &host{
		ns: nstest.New(t), four: netip.AddrFrom4([4]byte{192, 0, 2, number}),
		six: netip.AddrFrom16([16]byte{0: 0xfd, 15: number}),
	}
	err := h.ns.Do(func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		request, err := unix.NewIfreq("tun")
		if err != nil {
			return err
		}
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
			return err
		}
		if h.dev, err = New(os.NewFile(uintptr(fd), "tun"), 1420); err != nil {
			return err
		}
		l, err := netlink.LinkByName("tun")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(l); err != nil {
			return err
		}
		for addr, bits := range map[netip.Addr]int{h.four: 24, h.six: 64} {
			one := &netlink.Addr{IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(bits, addr.BitLen())}, Flags: unix.IFA_F_NODAD}
			if err := netlink.AddrAdd(l, one); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// No call may block, see New.
func TestNewRefusesAFileThatBlocks(t *testing.T) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "tun")
	defer file.Close()
	if _, err := New(file, 1420); !errors.Is(err, errBlocking) {
		t.Errorf("%v, want %v", err, errBlocking)
	}
}

// carry takes packets from one host to the other and checks their checksums.
func (h *host) carry(to *host) error {
	bufs, sizes := buffers(), make([]int, 128)
	for {
		n, err := h.dev.Read(bufs, sizes, 16)
		if err != nil {
			return err
		}
		batch := make([][]byte, n)
		for i := range n {
			batch[i] = bufs[i][:16+sizes[i]]
			if err := checkSums(batch[i][16:]); err != nil {
				return err
			}
		}
		if _, err := to.dev.Write(batch, 16); err != nil {
			return err
		}
	}
}

func checkSums(packet []byte) error {
	transport, protocol := 40, packet[6]
	if packet[0]>>4 == 4 {
		transport, protocol = int(packet[0]&0xf)*4, packet[9]
		if onesSum(packet[:transport]) != 0xffff || packet[6]&0x3f != 0 || packet[7] != 0 {
			return fmt.Errorf("header %x", packet[:transport])
		}
	}
	if protocol != 6 && protocol != 17 {
		return nil
	}
	if onesSum(pseudo(packet, protocol, len(packet)-transport), packet[transport:]) != 0xffff {
		return fmt.Errorf("the checksum of %d bytes, %.80x, is wrong", len(packet), packet)
	}
	return nil
}

// TCP and UDP of one kernel arrive at another one, with the segmentation and checksums that
// it leaves to the device.
func TestHostsTalkOverDevices(t *testing.T) {
	nstest.TUN(t)
	a, b := newHost(t, 1), newHost(t, 2)
	carried := make(chan error, 2)
	go func() { carried <- a.carry(b) }()
	go func() { carried <- b.carry(a) }()
	ended := func(h *host) {
		if err := errors.Join(h.dev.Close(), func() error {
			if err := <-carried; !errors.Is(err, os.ErrClosed) {
				return fmt.Errorf("carrying ended with: %w", err)
			}
			return nil
		}()); err != nil {
			t.Error(err)
		}
	}
	defer ended(a)
	defer ended(b)
	for _, pair := range [][2]netip.Addr{{a.four, b.four}, {a.six, b.six}} {
		if err := talk(a.ns, b.ns, pair[1], 4<<20); err != nil {
			t.Errorf("TCP to %s: %v", pair[1], err)
		}
		if err := datagrams(a.ns, b.ns, pair[1]); err != nil {
			t.Errorf("UDP to %s: %v", pair[1], err)
		}
	}
}

// talk sends bytes over some connections, which the other side sends back.
func talk(a, b *nstest.Namespace, to netip.Addr, size int) error {
	var listener net.Listener
	err := b.Do(func() (err error) {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(to, 5201).String())
		return err
	})
	if err != nil {
		return err
	}
	defer listener.Close()
	const streams = 3
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(conn, conn); _ = conn.Close() }()
		}
	}()
	errs := make(chan error, streams)
	for range streams {
		go func() {
			errs <- func() error {
				var conn net.Conn
				err := a.Do(func() (err error) {
					conn, err = net.DialTimeout("tcp", listener.Addr().String(), time.Minute)
					return err
				})
				if err != nil {
					return err
				}
				defer conn.Close()
				if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
					return err
				}
				data := bytes.Repeat([]byte("twelve bytes"), size/12)
				go func() { _, _ = conn.Write(data) }()
				back := sha256.New()
				if _, err := io.CopyN(back, conn, int64(len(data))); err != nil {
					return err
				}
				if want := sha256.Sum256(data); !bytes.Equal(back.Sum(nil), want[:]) {
					return errors.New("other bytes came back")
				}
				return nil
			}()
		}()
	}
	var all []error
	for range streams {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}

// datagrams sends datagrams one by one, and several in one call.
func datagrams(a, b *nstest.Namespace, to netip.Addr) error {
	var receiver *net.UDPConn
	err := b.Do(func() (err error) {
		receiver, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, 5201)))
		return err
	})
	if err != nil {
		return err
	}
	defer receiver.Close()
	var sender *net.UDPConn
	err = a.Do(func() (err error) {
		sender, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, 5201)))
		return err
	})
	if err != nil {
		return err
	}
	defer sender.Close()
	if err := receiver.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	raw, err := sender.SyscallConn()
	if err != nil {
		return err
	}
	buf := make([]byte, 65535)
	for _, size := range []int{1, 200, 1200, 1300} {
		for _, count := range []int{1, 2, 40} {
			var setErr error
			err := raw.Control(func(fd uintptr) {
				setErr = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, size)
			})
			if err := errors.Join(err, setErr); err != nil {
				return err
			}
			data := make([]byte, size*count-size/2)
			for i := range data {
				data[i] = byte(i / size)
			}
			if _, err := sender.Write(data); err != nil {
				return err
			}
			for i := range count {
				n, err := receiver.Read(buf)
				if err != nil {
					return fmt.Errorf("datagram %d of %d of %d bytes: %w", i, count, size, err)
				}
				if want := data[i*size : min((i+1)*size, len(data))]; !bytes.Equal(buf[:n], want) {
					return fmt.Errorf("datagram %d of %d: %d bytes, want %d", i, count, n, len(want))
				}
				runtime.Gosched()
			}
		}
	}
	return nil
}
