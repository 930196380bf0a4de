package link

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	maxFrame = 65535
	// maxVectors is the number of parts that one frame is read into: the virtio header,
	// wireguard-go's buffers, and a buffer for the rest.
	maxVectors = 1 + 128 + 1
	// One read returns small frames together, up to these numbers of bytes and frames.
	// More would only delay the first ones.
	maxReadBytes  = 16 << 10
	maxReadFrames = 8
)

// reader reads frames and splits them into packets. It predicts the sizes of headers and
// segments from the previous frame, so that the kernel writes each packet's payload to its
// place, behind the space for the headers. Only one goroutine uses it.
type reader struct {
	raw  syscall.RawConn
	poll func(fd uintptr) bool // reads into vectors
	wait bool                  // for a frame
	n    int                   // what poll returns
	err  error

	virtio  [virtioSize]byte
	vectors [maxVectors]unix.Iovec
	used    int // of vectors

	// Predicted for the next frame: bytes of headers, and of payload in each packet.
	headers, segment int

	whole []byte // a frame that wasn't as predicted, or the part beyond the buffers
	left  []byte // the part of whole that isn't returned yet
	cut   segmentation
}

func newReader(raw syscall.RawConn, mtu int) *reader {
	r := &reader{raw: raw, whole: make([]byte, maxFrame)}
	r.poll = func(fd uintptr) bool {
		for {
			n, _, errno := unix.RawSyscall(unix.SYS_READV, fd, uintptr(pointer(r.vectors[:])), uintptr(r.used))
			switch errno {
			case 0:
				r.n, r.err = int(n), nil
			case unix.EINTR:
				continue
			case unix.EAGAIN:
				r.n, r.err = 0, errno
				return !r.wait
			default:
				r.n, r.err = 0, errno
			}
			return true
		}
	}
	r.headers = ipv4Size + tcpSize + 12 // with timestamps
	r.segment = min(max(mtu, 576), maxFrame/2) - r.headers
	return r
}

// read returns the next packets, at least one, from offset on in bufs.
func (r *reader) read(bufs [][]byte, sizes []int, offset int) (count int, err error) {
	if len(r.left) > 0 {
		return r.rest(bufs, sizes, offset), nil
	}
	total := 0
	for frames := 0; frames < maxReadFrames && total < maxReadBytes && count < len(bufs); frames++ {
		r.wait = count == 0
		r.prepare(bufs[count:], offset)
		err := r.raw.Read(r.poll)
		if err == nil {
			err = r.err
		}
		if err != nil {
			if count > 0 {
				return count, nil // The next read returns the error again.
			}
			return 0, readError(err)
		}
		total += r.n
		count += r.packets(bufs[count:], sizes[count:], offset, r.n-virtioSize)
		if count == 0 {
			frames-- // The frame was malformed.
		}
	}
	return count, nil
}

// readError translates an error for wireguard-go, which logs any but os.ErrClosed.
func readError(err error) error {
	var errno syscall.Errno
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return err
	case errors.Is(err, unix.EBADFD), !errors.As(err, &errno): // The link is gone, or the file is closed.
		return os.ErrClosed
	}
	return fmt.Errorf("read from TUN: %w", err)
}

// prepare sets the vectors for the next frame, as predicted.
func (r *reader) prepare(bufs [][]byte, offset int) {
	r.vectors[0] = vector(r.virtio[:])
	r.vectors[1] = vector(bufs[0][offset : offset+r.headers+r.segment])
	r.used = 2
	from, end := offset+r.headers, offset+r.headers+r.segment
	for room := maxFrame - r.headers - r.segment; room > 0 && r.used <= len(bufs) && r.used < maxVectors-1; room -= r.segment {
		r.vectors[r.used] = vector(bufs[r.used-1][from:end])
		r.used++
	}
	r.vectors[r.used] = vector(r.whole)
	r.used++
}

// packets splits the frame that was read, of that length, and returns the number of its
// packets.
func (r *reader) packets(bufs [][]byte, sizes []int, offset, length int) int {
	if length <= 0 {
		return 0
	}
	v := readVirtio(r.virtio[:])
	first := r.headers + r.segment // bytes in the first buffer
	if v.kind == gsoNone {
		if length > first {
			if offset+length > len(bufs[0]) {
				return 0
			}
			r.gather(bufs, offset, bufs[0][offset:offset+length])
		}
		packet := bufs[0][offset : offset+length]
		finish(v, packet)
		sizes[0] = length
		return 1
	}
	err := r.cut.begin(v, bufs[0][offset:offset+min(length, first)], length)
	if err != nil || r.cut.size != r.headers || r.cut.segment != r.segment {
		r.gather(bufs, offset, r.whole[:length])
		if err := r.cut.begin(v, r.whole[:length], length); err != nil || offset+r.cut.size+r.cut.segment > len(bufs[0]) {
			return 0
		}
		r.headers, r.segment = r.cut.size, r.cut.segment
		r.left = r.whole[r.cut.size:length]
		return r.rest(bufs, sizes, offset)
	}
	// The payload is in place, except the part beyond the buffers.
	left, count := length-r.headers, 0
	for count < min(len(bufs), r.used-2) && left > 0 {
		n := min(left, r.segment)
		left -= n
		r.put(bufs, sizes, offset, count, n, left == 0)
		count++
	}
	r.left = r.whole[:left]
	return count
}

// rest splits the remaining part of a frame.
func (r *reader) rest(bufs [][]byte, sizes []int, offset int) (count int) {
	for count < len(bufs) && len(r.left) > 0 {
		n := copy(bufs[count][offset+r.cut.size:offset+r.cut.size+min(r.cut.segment, len(r.left))], r.left)
		r.left = r.left[n:]
		r.put(bufs, sizes, offset, count, n, len(r.left) == 0)
		count++
	}
	return count
}

func (r *reader) put(bufs [][]byte, sizes []int, offset, i, payload int, last bool) {
	sizes[i] = r.cut.size + payload
	r.cut.put(bufs[i][offset:offset+sizes[i]], last)
}

// gather copies the parts of the frame to contiguous memory: whole, or the first buffer,
// which has its beginning.
func (r *reader) gather(bufs [][]byte, offset int, to []byte) {
	first, length := r.headers+r.segment, len(to)
	scattered := r.used - 2 // buffers that were read into
	within := first + (scattered-1)*r.segment
	if length > within {
		// The end is copied first, because the two parts of whole may overlap.
		copy(to[within:], r.whole[:length-within])
	}
	copy(to, bufs[0][offset:offset+min(first, length)])
	for i, at := 1, first; i < scattered && at < length; i, at = i+1, at+r.segment {
		copy(to[at:], bufs[i][offset+r.headers:offset+r.headers+min(r.segment, length-at)])
	}
}
