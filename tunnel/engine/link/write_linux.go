package link

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
)

// writer writes the packets of one call.
type writer struct {
	joining joining
	vectors [conn.IdealBatchSize + 1]unix.Iovec
	virtio  [virtioSize]byte

	bufs   [][]byte
	offset int
	frames []joined // to be written
	err    error
	poll   func(fd uintptr) bool
}

func newWriter() *writer {
	w := new(writer)
	w.poll = func(fd uintptr) bool {
		for ; len(w.frames) > 0; w.frames = w.frames[1:] {
			used := w.prepare(&w.frames[0])
			errno := syscall.EINTR
			for errno == unix.EINTR {
				_, _, errno = unix.RawSyscall(unix.SYS_WRITEV, fd, uintptr(pointer(w.vectors[:])), uintptr(used))
			}
			switch errno {
			case 0:
			case unix.EBADFD: // the link is gone
				w.err = os.ErrClosed
				return true
			default:
				// Also EAGAIN: a TUN has no send buffer to wait for.
				w.err = errors.Join(w.err, fmt.Errorf("write to TUN: %w", errno))
			}
		}
		return true
	}
	return w
}

// prepare sets the vectors of a frame, and returns their number.
func (w *writer) prepare(frame *joined) int {
	first := w.bufs[frame.packets[0]][w.offset:]
	var v virtio
	if len(frame.packets) > 1 {
		v = frame.headers(first)
	}
	v.write(w.virtio[:])
	w.vectors[0], w.vectors[1] = vector(w.virtio[:]), vector(first)
	for i, number := range frame.packets[1:] {
		w.vectors[2+i] = vector(w.bufs[number][w.offset+frame.first.headers:])
	}
	return 1 + len(frame.packets)
}

// Write implements [tun.Device]. Several goroutines may call it at once.
func (d *Device) Write(bufs [][]byte, offset int) (total int, err error) {
	w, ok := d.writers.Get().(*writer)
	if !ok {
		return 0, unix.ENOMEM // unreachable: the pool has only writers
	}
	defer d.writers.Put(w)
	for len(bufs) > 0 {
		n := min(len(bufs), conn.IdealBatchSize)
		w.bufs, w.offset, w.err = bufs[:n], offset, nil
		w.frames = w.joining.join(w.bufs, offset, d.joinUDP)
		if controlErr := d.raw.Write(w.poll); controlErr != nil {
			w.err = os.ErrClosed
		}
		err = errors.Join(err, w.err)
		if errors.Is(w.err, os.ErrClosed) {
			break
		}
		for _, buf := range w.bufs {
			total += len(buf) - offset
		}
		bufs = bufs[n:]
	}
	clear(w.vectors[:]) // don't retain packets
	w.bufs, w.frames = nil, nil
	return total, err
}
