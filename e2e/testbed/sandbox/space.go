// Package sandbox isolates the testbed's machines: a Space is a set of namespaces, for
// network, mounts and processes, and a Process is a program that runs in one. Linux only;
// needs root.
//
// A Space never outlives the process that created it, even if that is killed. A namespace
// exists as long as it has references: open files of this process, sockets opened through
// the Space, and the processes started in it. When this process ends, the kernel closes its
// files and sockets, and kills the processes of the Space: they are in a process namespace
// whose first process gets a signal when its parent dies (PR_SET_PDEATHSIG).
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"runtime"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Space is a network, a mount and a process namespace. Its methods may be called
// from any goroutine.
type Space struct {
	// Netlink configures links, addresses and routes of the namespace.
	Netlink *netlink.Handle

	name   string
	net    *os.File
	mnt    *os.File
	mounts []Mount

	initOnce sync.Once
	init     *initProcess
	initErr  error

	mu      sync.Mutex
	closed  bool
	sockets map[io.Closer]struct{}
	running map[*Process]struct{}
}

// New creates a Space. Its network has a loopback that is up, and IPv6 duplicate
// address detection is off, so that addresses are usable at once. Its mounts are
// a private copy of this process's with the given ones added in order. The name
// appears in errors.
func New(name string, mounts ...Mount) (*Space, error) {
	s := &Space{
		name:    name,
		mounts:  mounts,
		sockets: make(map[io.Closer]struct{}),
		running: make(map[*Process]struct{}),
	}
	err := onOwnThread(s.create)
	if err != nil {
		err = errors.Join(err, s.Close())
		return nil, fmt.Errorf("create the namespaces of %s: %w", name, err)
	}
	return s, nil
}

// create moves the calling thread, which ends afterwards, into new namespaces.
func (s *Space) create() error {
	if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare (needs root): %w", err)
	}
	var err error
	if s.net, err = os.Open("/proc/thread-self/ns/net"); err != nil {
		return err
	}
	if s.Netlink, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	for _, scope := range []string{"all", "default"} {
		err := os.WriteFile("/proc/sys/net/ipv6/conf/"+scope+"/accept_dad", []byte("0"), 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("switch off duplicate address detection: %w", err)
		}
	}
	lo, err := s.Netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find the loopback: %w", err)
	}
	if err := s.Netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set the loopback up: %w", err)
	}
	if s.mnt, err = os.Open("/proc/thread-self/ns/mnt"); err != nil {
		return err
	}
	return mountAll(nil, s.mounts)
}

// String returns the name.
func (s *Space) String() string { return s.name }

// NsFd refers to the network namespace for netlink, as the target of a link
// that moves. It is valid until Close.
func (s *Space) NsFd() netlink.NsFd { return netlink.NsFd(s.net.Fd()) }

// Handle refers to the network namespace for package netns. It is valid until
// Close.
func (s *Space) Handle() netns.NsHandle { return netns.NsHandle(s.net.Fd()) }

// ID is the inode number of the network namespace, which names it in
// /proc/<pid>/ns/net as net:[ID].
func (s *Space) ID() (uint64, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(s.net.Fd()), &stat); err != nil {
		return 0, fmt.Errorf("inspect the namespace of %s: %w", s.name, err)
	}
	return stat.Ino, nil
}

// Do runs f on a thread inside the network namespace and returns its error.
// Sockets that f opens stay in the namespace and keep it alive; goroutines that
// it starts are outside. /proc/sys/net is the namespace's inside f.
func (s *Space) Do(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := errors.New("ended by runtime.Goexit")
		defer func() { done <- err }()
		before, openErr := os.Open("/proc/thread-self/ns/net")
		if openErr != nil {
			err = openErr
			runtime.UnlockOSThread()
			return
		}
		defer func() { _ = before.Close() }()
		if err = unix.Setns(int(s.net.Fd()), unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("enter the namespace of %s: %w", s.name, err)
			runtime.UnlockOSThread()
			return
		}
		err = f()
		if back := unix.Setns(int(before.Fd()), unix.CLONE_NEWNET); back != nil {
			// Still locked, so the thread ends here instead of carrying the
			// namespace to another goroutine.
			err = errors.Join(err, fmt.Errorf("leave the namespace of %s: %w", s.name, back))
			return
		}
		runtime.UnlockOSThread()
	}()
	return <-done
}

// Dial connects from inside the namespace, like net.Dialer. The host must be an
// IP address. Close closes connections that are still open.
func (s *Space) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	var dialer net.Dialer
	return s.DialFrom(ctx, &dialer, network, address)
}

// DialFrom is Dial with the caller's dialer.
func (s *Space) DialFrom(ctx context.Context, dialer *net.Dialer, network, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	// A name would be resolved, and raced over two families, on other threads.
	if net.ParseIP(host) == nil {
		return nil, fmt.Errorf("dial %s in %s: the host is not an IP address", address, s.name)
	}
	var c net.Conn
	if err := s.Do(func() (err error) {
		c, err = dialer.DialContext(ctx, network, address)
		return err
	}); err != nil {
		return nil, err
	}
	tracked := &conn{Conn: c, space: s}
	if err := s.adopt(tracked); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return tracked, nil
}

// Listen listens inside the namespace, like net.Listen. Close closes the
// listener, not the connections that it accepted.
func (s *Space) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	var l net.Listener
	if err := s.Do(func() (err error) {
		var config net.ListenConfig
		l, err = config.Listen(ctx, network, address)
		return err
	}); err != nil {
		return nil, err
	}
	tracked := &listener{Listener: l, space: s}
	if err := s.adopt(tracked); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return tracked, nil
}

// adopt leaves the closing of c to Close.
func (s *Space) adopt(c io.Closer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("%s is closed", s.name)
	}
	s.sockets[c] = struct{}{}
	return nil
}

func (s *Space) forget(c io.Closer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sockets, c)
}

// Close kills the processes, closes the sockets and lets the namespaces go. It
// may be called twice.
func (s *Space) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	sockets, running := s.sockets, s.running
	s.sockets, s.running = nil, nil
	s.mu.Unlock()

	// Later callers find none; earlier ones have finished.
	s.initOnce.Do(func() { s.initErr = fmt.Errorf("%s is closed", s.name) })
	var errs []error
	if s.init != nil {
		errs = append(errs, s.init.kill())
	}
	for p := range running {
		p.Kill()
	}
	for c := range sockets {
		if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if s.Netlink != nil {
		s.Netlink.Close()
	}
	for _, f := range []*os.File{s.net, s.mnt} {
		if f == nil {
			continue
		}
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

type conn struct {
	net.Conn
	space *Space
}

func (c *conn) Close() error {
	c.space.forget(c)
	return c.Conn.Close()
}

// CloseWrite ends our direction of a TCP connection.
func (c *conn) CloseWrite() error {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	return half.CloseWrite()
}

type listener struct {
	net.Listener
	space *Space
}

func (l *listener) Close() error {
	l.space.forget(l)
	return l.Listener.Close()
}
