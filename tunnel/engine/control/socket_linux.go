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

	"github.com/kube-semaphore/kube-semaphore/internal/flock"
)

// A socket is created as unfinished<random>/unfinishedName in the directory where
// it will be.
const (
	unfinished     = ".new-"
	unfinishedName = "s"
	// unfinishedFor is how long one may take to get to its place.
	unfinishedFor = time.Minute
)

// DevicePath is the UAPI socket of a device.
func DevicePath(name string) string { return filepath.Join(Dir, name+".sock") }

// ErrServed is wrapped by the error about a socket that another process answers on.
var ErrServed = errors.New("served by another process")

// Listener is a socket with a file. Only root may connect: who can write to a UAPI
// socket can read the private key.
type Listener struct {
	*net.UnixListener
	path string
	file os.FileInfo // identifies our file at path
}

// Listen puts a socket at path, in the place of one that nobody serves any more. One that
// another process answers on is an error; see Replace. Of several who call it at once one
// gets the place.
func Listen(path string) (*Listener, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create socket directory: %w", err)
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, fmt.Errorf("create socket %s: %w", path, err)
	}
	defer func() { _ = lock.Close() }()
	if err := Unserved(path); err != nil {
		return nil, err
	}
	return Replace(path)
}

// Whoever has the lock has it for milliseconds.
const (
	lockLimit = 5 * time.Second
	lockPoll  = 2 * time.Millisecond
)

// lockDir locks a directory until the file is closed.
func lockDir(path string) (*os.File, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(lockLimit); ; time.Sleep(lockPoll) {
		locked, err := flock.Try(dir)
		if locked {
			return dir, nil
		}
		if err == nil && time.Now().After(end) {
			err = fmt.Errorf("lock %s: another process has it", path)
		}
		if err != nil {
			return nil, errors.Join(err, dir.Close())
		}
	}
}

// Replace puts a socket at path, whatever is there, in one step. The socket is made
// in a directory that only root can enter and moved to its place when its mode is
// right, so at no time can others reach it.
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

// InPlace reports whether the file at the socket's path is still ours.
func (l *Listener) InPlace() bool {
	info, err := os.Lstat(l.path)
	return err == nil && os.SameFile(info, l.file)
}

// Close ends the listener and removes its file if that is still ours.
func (l *Listener) Close() error {
	if l.InPlace() {
		_ = os.Remove(l.path)
	}
	return l.UnixListener.Close()
}

// Unserved returns an error unless path is free or a socket that nobody answers
// on.
func Unserved(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("stat socket: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("socket %s: a file that isn't a socket is in the way", path)
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

// RemoveUnfinished removes sockets that never got to their places, because the
// process that made them was killed, and returns what it removed.
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
			errs = append(errs, fmt.Errorf("remove what an earlier run left: %w", err))
			continue
		}
		removed = append(removed, path)
	}
	return removed, errors.Join(errs...)
}
