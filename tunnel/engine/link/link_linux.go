package link

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/tun"
)

// Device implements wireguard-go's tun.Device. It differs from wireguard-go's own one:
//
//   - A frame of several packets is read directly into the packets' buffers.
//   - Packets of one flow are written as one frame, without copying. Their checksums aren't
//     verified again, because their sender is authenticated; kernel WireGuard does the same
//     (drivers/net/wireguard/receive.c).
//   - Several small packets are read at once.
//   - A frame of more packets than there are buffers is returned by several reads.
//   - A malformed frame is dropped, and doesn't end the device.
type Device struct {
	tun.Device // watches the link
	raw        syscall.RawConn
	reader     *reader
	joinUDP    bool      // the kernel accepts frames of several datagrams
	writers    sync.Pool // of *writer
}

var _ tun.Device = (*Device)(nil)

var errBlocking = errors.New("serve TUN: the file isn't open with O_NONBLOCK")

// New returns the device of the TUN link that file is attached to, with IFF_VNET_HDR
// and IFF_NO_PI, and sets the link's MTU in bytes. Without an error, the device owns the
// file, which must be non-blocking.
//
// Its system calls never block, so they bypass Go's scheduler: that would retake the
// processor from a call of more than 20 µs, as for a frame of 64 KiB, which costs more than
// it gains.
func New(file *os.File, mtu int) (*Device, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("serve TUN: %w", err)
	}
	if blocks, err := blocking(raw); err != nil {
		return nil, fmt.Errorf("serve TUN: %w", err)
	} else if blocks {
		return nil, errBlocking
	}
	d := &Device{raw: raw, reader: newReader(raw, mtu)}
	if d.Device, err = tun.CreateTUNFromFile(file, mtu); err != nil {
		return nil, fmt.Errorf("serve TUN: %w", err)
	}
	// Linux has USO since 6.2. If this fails because the file was closed, Read returns the
	// error.
	_ = raw.Control(func(fd uintptr) {
		const all = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6 | unix.TUN_F_USO4 | unix.TUN_F_USO6
		d.joinUDP = unix.IoctlSetInt(int(fd), unix.TUNSETOFFLOAD, all) == nil
	})
	d.writers.New = func() any { return newWriter() }
	return d, nil
}

func blocking(raw syscall.RawConn) (blocks bool, err error) {
	var flags int
	controlErr := raw.Control(func(fd uintptr) { flags, err = unix.FcntlInt(fd, unix.F_GETFL, 0) })
	return flags&unix.O_NONBLOCK == 0, errors.Join(controlErr, err)
}

// Read implements [tun.Device]. Only one goroutine may call it.
func (d *Device) Read(bufs [][]byte, sizes []int, offset int) (int, error) {
	return d.reader.read(bufs, sizes, offset)
}

// BatchSize implements [tun.Device]. It is the number of packets in a frame of 64 KiB at the
// minimum MTU, 1,280 bytes. wireguard-go uses the bind's batch size if that is larger.
func (*Device) BatchSize() int { return 55 }

func vector(b []byte) (v unix.Iovec) {
	v.Base = unsafe.SliceData(b)
	v.SetLen(len(b))
	return v
}

func pointer(v []unix.Iovec) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(v)) }
