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

// Device is the TUN link of a userspace device, for wireguard-go. It differs from the
// one of wireguard-go in how packets pass, and in that no frame ends the device:
//
//   - The kernel writes what it hands over as one frame into the buffers of its packets.
//   - Packets of one flow are handed to the kernel as one frame without being copied.
//     Their checksums aren't verified again: who sent them is authenticated, as the
//     kernel's WireGuard has it (drivers/net/wireguard/receive.c).
//   - Several small packets are read at once.
//   - A frame of more packets than the engine has room for is read in several steps.
type Device struct {
	tun.Device // watches the link
	raw        syscall.RawConn
	reader     *reader
	joinUDP    bool      // the kernel takes frames of several datagrams
	writers    sync.Pool // of *writer
}

var _ tun.Device = (*Device)(nil)

var errBlocking = errors.New("serve TUN: the file isn't open with O_NONBLOCK")

// New returns the device of the TUN link that file is attached to, with IFF_VNET_HDR
// and IFF_NO_PI, and sets the link's MTU in bytes. A file that blocks is refused. It
// belongs to the device from then on, unless there is an error.
//
// Since no call waits, Go's scheduler isn't told of any: it would give the processor to
// another thread when one takes more than 20 µs, as a frame of 64 KiB does, and that costs
// more than it gains.
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
	// In Linux since 6.2. It fails when the file was closed, too, which Read tells.
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

// BatchSize implements [tun.Device]. It is how many packets a frame of 64 KiB is cut into
// at the least MTU, 1,280 bytes. wireguard-go takes what its bind wants, if that is more.
func (*Device) BatchSize() int { return 55 }

func vector(b []byte) (v unix.Iovec) {
	v.Base = unsafe.SliceData(b)
	v.SetLen(len(b))
	return v
}

func pointer(v []unix.Iovec) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(v)) }
