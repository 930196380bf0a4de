package tunnel

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.zx2c4.com/wireguard/device"
)

// socketDir is where wg(8) and wgctrl look for userspace devices.
const socketDir = "/var/run/wireguard"

func socketPath(name string) string { return filepath.Join(socketDir, name+".sock") }

// A socket is created as unfinishedSocket<random>/socketName in the same directory.
const (
	unfinishedSocket = ".new-"
	socketName       = "s"
)

// acceptPause is how long to wait after a connection couldn't be accepted.
const acceptPause = 100 * time.Millisecond

// socket serves a userspace device's UAPI socket: the configuration protocol of
// https://www.wireguard.com/xplatform/. Who can write to the socket can read the
// private key, so only root may.
//
// The listener of wireguard-go's ipc package isn't used: it changes the umask of
// the whole process, and leaves goroutines behind when it is closed.
type socket struct {
	path     string
	listener *net.UnixListener
	file     os.FileInfo // identifies our file at path
	handler  func(net.Conn)

	done chan struct{} // closed by close
	wg   sync.WaitGroup

	mu      sync.Mutex
	closing bool
	conns   map[net.Conn]bool
}

// listenSocket takes the place of a socket that nobody serves any more. One that
// another process answers on is an error.
func listenSocket(name string) (*socket, error) {
	path := socketPath(name)
	if err := os.MkdirAll(socketDir, 0o700); err != nil {
		return nil, fmt.Errorf("create socket directory: %w", err)
	}
	if err := checkUnserved(path); err != nil {
		return nil, err
	}
	listener, err := bindPrivately(path)
	if err != nil {
		return nil, err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("stat UAPI socket: %w", err), listener.Close())
	}
	return &socket{path: path, listener: listener, file: info, done: make(chan struct{}), conns: make(map[net.Conn]bool)}, nil
}

// bindPrivately creates the socket in a directory that only root can enter and
// moves it to its place when its mode is right, so at no time can others reach
// it, and a stale file is replaced in one step.
func bindPrivately(path string) (*net.UnixListener, error) {
	private, err := os.MkdirTemp(filepath.Dir(path), unfinishedSocket)
	if err != nil {
		return nil, fmt.Errorf("create UAPI socket: %w", err)
	}
	defer func() { _ = os.RemoveAll(private) }()
	fresh := filepath.Join(private, socketName)
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: fresh, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("create UAPI socket: %w", err)
	}
	listener.SetUnlinkOnClose(false)
	err = os.Chmod(fresh, 0o600)
	if err == nil {
		err = os.Rename(fresh, path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create UAPI socket: %w", err), listener.Close())
	}
	return listener, nil
}

// checkUnserved returns an error unless path is free or a socket that nobody
// answers on.
func checkUnserved(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("stat UAPI socket: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("UAPI socket %s: a file that isn't a socket is in the way", path)
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		return nil
	}
	_ = conn.Close()
	return fmt.Errorf("UAPI socket %s is served by another process", path)
}

// removeStaleSocket removes the socket file of a device that nobody serves.
func removeStaleSocket(name string) error {
	path := socketPath(name)
	if err := checkUnserved(path); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove UAPI socket: %w", err)
	}
	return nil
}

// inPlace reports whether the file at the socket's path is still ours.
func (s *socket) inPlace() bool {
	info, err := os.Lstat(s.path)
	return err == nil && os.SameFile(info, s.file)
}

// serve answers requests with the device, on goroutines that end with close.
func (s *socket) serve(dev *device.Device) {
	s.handler = dev.IpcHandle
	s.wg.Go(func() {
		for {
			conn, err := s.listener.Accept()
			if err == nil {
				s.answer(conn)
				continue
			}
			// Other errors than our own close pass: out of descriptors, for
			// instance.
			select {
			case <-s.done:
				return
			case <-time.After(acceptPause):
			}
		}
	})
}

func (s *socket) answer(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		_ = conn.Close()
		return
	}
	s.conns[conn] = true
	s.wg.Go(func() {
		s.handler(conn) // closes the connection
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.conns, conn)
	})
}

// close ends all connections and removes the file if it is still ours.
func (s *socket) close() {
	s.mu.Lock()
	s.closing = true
	close(s.done)
	for conn := range s.conns {
		_ = conn.Close()
	}
	s.mu.Unlock()
	if s.inPlace() {
		_ = os.Remove(s.path)
	}
	_ = s.listener.Close()
	s.wg.Wait()
}
