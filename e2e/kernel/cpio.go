package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"strings"
)

// File types in the mode of a cpio entry, from the kernel's
// Documentation/driver-api/early-userspace/buffer-format.rst.
const (
	modeType      = 0o170000
	modeDirectory = 0o040000
	modeRegular   = 0o100000
	modeSymlink   = 0o120000
)

// archive writes a cpio archive of the "newc" form, the one that the kernel
// unpacks as its first file system. Everything in it belongs to root.
type archive struct {
	w    io.Writer
	size int64
	ino  uint32
	dirs map[string]bool
}

func newArchive(w io.Writer) *archive {
	return &archive{w: w, dirs: map[string]bool{"": true}}
}

// dir adds a directory and those above it. Adding one again does nothing.
func (a *archive) dir(name string) error {
	name = clean(name)
	if a.dirs[name] {
		return nil
	}
	if err := a.dir(path.Dir(name)); err != nil {
		return err
	}
	a.dirs[name] = true
	return a.entry(name, modeDirectory|0o755, 0, nil)
}

// file adds a regular file of the given permissions that holds size bytes of
// content.
func (a *archive) file(name string, permissions uint32, size int64, content io.Reader) error {
	name = clean(name)
	if err := a.dir(path.Dir(name)); err != nil {
		return err
	}
	return a.entry(name, modeRegular|permissions, size, content)
}

// symlink adds a symbolic link to target.
func (a *archive) symlink(name, target string) error {
	name = clean(name)
	if err := a.dir(path.Dir(name)); err != nil {
		return err
	}
	return a.entry(name, modeSymlink|0o777, int64(len(target)), strings.NewReader(target))
}

// end writes the entry that closes the archive.
func (a *archive) end() error {
	return a.entry("TRAILER!!!", 0, 0, nil)
}

func (a *archive) entry(name string, mode uint32, size int64, content io.Reader) error {
	if size > math.MaxUint32 {
		return fmt.Errorf("archive %s: %d bytes are more than the format can say", name, size)
	}
	a.ino++
	links := 1
	if mode&modeType == modeDirectory {
		links = 2
	}
	// ino, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor,
	// rdevmajor, rdevminor, namesize (with its zero byte), check.
	header := fmt.Sprintf("070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		a.ino, mode, 0, 0, links, 0, size, 0, 0, 0, 0, len(name)+1, 0, name)
	if err := a.write(strings.NewReader(header), int64(len(header))); err != nil {
		return fmt.Errorf("archive %s: %w", name, err)
	}
	if size == 0 {
		return nil
	}
	if err := a.write(content, size); err != nil {
		return fmt.Errorf("archive %s: %w", name, err)
	}
	return nil
}

// write copies exactly size bytes and pads them to a multiple of four.
func (a *archive) write(content io.Reader, size int64) error {
	n, err := io.Copy(a.w, io.LimitReader(content, size))
	a.size += n
	if err != nil {
		return err
	}
	if n != size {
		return fmt.Errorf("%d of %d bytes: %w", n, size, io.ErrUnexpectedEOF)
	}
	if rest, _ := content.Read(make([]byte, 1)); rest != 0 {
		return errors.New("more bytes than announced")
	}
	padding := (4 - a.size%4) % 4
	n, err = io.CopyN(a.w, zeros{}, padding)
	a.size += n
	return err
}

// clean makes name relative to the root of the archive.
func clean(name string) string {
	return strings.TrimPrefix(path.Clean("/"+name), "/")
}

// zeros reads as zero bytes without end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
