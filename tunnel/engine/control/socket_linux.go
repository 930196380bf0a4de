package control

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/flock"
)

// A socket is created as unfinished<random>/unfinishedName in its later directory.
const (
	unfinished     = ".new-"
	unfinishedName = "s"
	// unfinishedFor is the age after which an unfinished socket is removed.
	unfinishedFor = time.Minute
)

// DevicePath returns the path of a device's UAPI socket.
func DevicePath(name string) string { return filepath.Join(Dir, name+".sock") }

// ErrServed is wrapped by the error for a socket on which another process listens.
var ErrServed = errors.New("served by another process")

// Listener is a listening socket with a file. Only root may connect, because UAPI requests
// can read the private key.
type Listener struct {
	*net.UnixListener
	path string
	file os.FileInfo // of this listener, at path
}

// Listen creates a socket at path, and replaces one on which no process listens. If another
// process listens, it returns [ErrServed]; see Replace. Of concurrent calls one succeeds.
func Listen(path string) (*Listener, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create socket directory: %w", err)
	}
	unlock, err := lockDir(dir)
	if err != nil {
		return nil, fmt.Errorf("create socket %s: %w", path, err)
	}
	defer unlock()
	if err := Unserved(path); err != nil {
		return nil, err
	}
	return Replace(path)
}

// The lock is held for milliseconds.
const (
	lockLimit = 5 * time.Second
	lockPoll  = 2 * time.Millisecond
)

// lockName is a file that only root can open: any user can lock a directory that they can
// read. Tools that list devices ignore it, because it doesn't end in ".sock".
const lockName = ".lock"

// lockDir locks a directory until unlock is called, which removes the lock's file.
func lockDir(dir string) (unlock func(), err error) {
	path := filepath.Join(dir, lockName)
	for end := time.Now().Add(lockLimit); ; time.Sleep(lockPoll) {
		file, err := os.OpenFile(path, os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		locked, err := flock.Try(file)
		ours, _ := file.Stat()
		if current, _ := os.Lstat(path); locked && os.SameFile(ours, current) {
			return func() { _, _ = os.Remove(path), file.Close() }, nil
		}
		if err == nil && time.Now().After(end) {
			err = fmt.Errorf("lock %s: locked by another process", path)
		}
		if err := errors.Join(err, file.Close()); err != nil {
			return nil, err
		}
	}
}

// Replace creates a socket at path and replaces any file there atomically. The socket is
// created in a directory that only root can enter, and renamed after its mode is set, so
// that other users can't connect at any time.
func Replace(path string) (*Listener, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create socket directory: %w", err)
	}
	private, err := os.MkdirTemp(dir, unfinished)
	if err != nil {
		return nil, fmt.Errorf("create socket %s: %w", path, err)
	}
	defer func() { _ = os.RemoveAll(private) }()
	fresh := filepath.Join(private, unfinishedName)
	kind := network
	if strings.HasSuffix(path, ".sock") {
		kind = "unix" // UAPI is a stream.
	}
	listener, err := net.ListenUnix(kind, &net.UnixAddr{Name: fresh, Net: kind})
	if err != nil {
		return nil, fmt.Errorf("create socket %s: %w", path, err)
	}
	listener.SetUnlinkOnClose(false)
	l := &Listener{UnixListener: listener, path: path}
	err = os.Chmod(fresh, 0o600)
	if err == nil {
		l.file, err = os.Lstat(fresh)
	}
	if err == nil {
		err = os.Rename(fresh, path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create socket %s: %w", path, err), listener.Close())
	}
	return l, nil
}

// InPlace reports whether the file at the listener's path is still its own.
func (l *Listener) InPlace() bool {
	info, err := os.Lstat(l.path)
	return err == nil && os.SameFile(info, l.file)
}

// Close closes the listener, and removes its file unless that was replaced.
func (l *Listener) Close() error {
	if l.InPlace() {
		_ = os.Remove(l.path)
	}
	return l.UnixListener.Close()
}

// Unserved returns an error unless path doesn't exist or is a socket on which no process
// listens.
func Unserved(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("stat socket: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("socket %s: the file exists and isn't a socket", path)
	}
	for _, kind := range []string{"unix", network} {
		conn, err := net.Dial(kind, path)
		if err == nil {
			_ = conn.Close()
			return fmt.Errorf("socket %s is %w", path, ErrServed)
		}
	}
	return nil
}

// RemoveUnfinished removes the unfinished sockets of processes that were killed, and returns
// their paths.
func RemoveUnfinished() (removed []string, err error) {
	found, err := filepath.Glob(filepath.Join(Dir, unfinished+"*"))
	errs := []error{err}
	for _, path := range found {
		info, err := os.Lstat(path)
		if err != nil || !info.IsDir() || time.Since(info.ModTime()) < unfinishedFor {
			continue
		}
		err = os.Remove(filepath.Join(path, unfinishedName))
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			err = os.Remove(path)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("remove unfinished socket: %w", err))
			continue
		}
		removed = append(removed, path)
	}
	return removed, errors.Join(errs...)
}
