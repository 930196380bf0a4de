package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/device"

	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/handover"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/link"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/udp"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/window"
)

// serving is the process that serves: wireguard-go, for all devices.
type serving struct {
	conn *control.Conn
	log  *slog.Logger
	wg   sync.WaitGroup

	mu      sync.Mutex
	devices map[string]*served
}

// served is a device.
type served struct {
	name    string
	dev     *device.Device
	bind    *handover.Bind
	tun     *handover.Tun // shut until it may be read
	closing atomic.Bool   // we end it, it doesn't end on its own
	greeted []handover.Key
	given   []*os.File // UDP sockets that it may use

	mu   sync.Mutex
	stop func() // ends what goes on with the device, see work
}

// serve serves what the keeper at the other end of a socket says, until that ends.
func serve(conn *net.UnixConn, log *slog.Logger) {
	s := &serving{log: log, devices: make(map[string]*served)}
	s.conn = control.NewConn(conn, func(m control.Message, files control.Files) (control.Message, control.Files) {
		defer func() { files.Close() }()
		if err := s.handle(m, &files); err != nil {
			return control.Failure(err), nil
		}
		return control.Message{}, nil
	})
	s.conn.Start()
	<-s.conn.Done()
	for _, d := range s.devices {
		d.closing.Store(true)
		d.dev.Close()
	}
	s.wg.Wait()
}

// handle does what the keeper asks for. Descriptors that are kept are taken out of
// files.
func (s *serving) handle(m control.Message, files *control.Files) error {
	if m.Op == opOpen {
		given := *files
		*files = nil
		return s.open(m.Name, m.Index, given)
	}
	s.mu.Lock()
	d := s.devices[m.Name]
	s.mu.Unlock()
	if d == nil {
		return fmt.Errorf("device %q: %w", m.Name, unix.ENODEV)
	}
	switch m.Op {
	case opUAPI:
		return s.answer(d, files)
	case opUp:
		if err := d.dev.Up(); err != nil {
			return fmt.Errorf("open UDP sockets: %w", err)
		}
	case opGreet:
		d.greeted = append(d.greeted, parseKeys(m.Keys)...)
	case opHandshake:
		d.handshake(m.Keys)
	case opStart:
		d.work(&s.wg, d.meet)
	case opGive:
		return s.give(d, files)
	case opTake:
		return s.take(d, files)
	case opClose:
		s.mu.Lock()
		delete(s.devices, m.Name)
		s.mu.Unlock()
		d.closing.Store(true)
		d.dev.Close()
		d.release()
	default:
		return fmt.Errorf("request %q isn't known", m.Op)
	}
	return nil
}

// open makes a device, of a link with that index, of the descriptors of its TUN and of UDP
// sockets, which it owns.
func (s *serving) open(name string, index int, files control.Files) error {
	if len(files) == 0 {
		return errors.New("no TUN")
	}
	mtu, err := mtuOf(name)
	if err != nil {
		files.Close()
		return err
	}
	file := os.NewFile(uintptr(files[0]), "tun "+name)
	native, err := link.New(file, mtu)
	if err != nil {
		files[1:].Close()
		return errors.Join(err, file.Close())
	}
	// Unread until there are peers, wireguard-go would throw packets away; and with
	// its link's events it would open sockets before it knows the port.
	d := &served{name: name, tun: handover.NewTun(native, true)}
	for _, fd := range files[1:] {
		d.given = append(d.given, os.NewFile(uintptr(fd), "udp "+name))
	}
	d.bind = handover.NewBind(udp.New(udp.Config{
		Inherited: d.given,
		Opened:    func(port uint16, sockets []*os.File) { s.tellSockets(name, int(port), sockets) },
		Closed:    func() { s.tellSockets(name, 0, nil) },
	}))
	d.dev = window.NewDevice(d.tun, d.bind, mtu, deviceLog(s.log.With("device", name)))
	s.mu.Lock()
	s.devices[name] = d
	s.mu.Unlock()
	s.wg.Go(func() {
		<-d.dev.Wait()
		if d.closing.Load() {
			return
		}
		s.mu.Lock()
		if s.devices[name] == d { // not the next one of that name
			delete(s.devices, name)
		}
		s.mu.Unlock()
		d.release()
		_ = s.conn.Tell(control.Message{Op: control.Died, Name: name, Index: index})
	})
	return nil
}

// mtuOf returns a link's MTU in bytes.
func mtuOf(name string) (int, error) {
	l, err := net.InterfaceByName(name)
	if err != nil {
		return 0, fmt.Errorf("read MTU of %s: %w", name, err)
	}
	return l.MTU, nil
}

// tellSockets has the keeper hold a device's sockets, and closes these duplicates.
func (s *serving) tellSockets(name string, port int, sockets []*os.File) {
	var fds []int
	for _, socket := range sockets {
		// Not Fd, which would make the socket blocking for all who have it.
		if raw, err := socket.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { fds = append(fds, int(fd)) })
		}
	}
	_, _, err := s.conn.Ask(background, control.Message{Op: opSockets, Name: name, Port: port}, fds...)
	if err != nil && s.conn.Err() == nil {
		s.log.Warn("cannot hand over sockets", "device", name, "err", err)
	}
	for _, socket := range sockets {
		_ = socket.Close()
	}
}

// answer has UAPI requests answered that come from a socket.
func (s *serving) answer(d *served, files *control.Files) error {
	if len(*files) != 1 {
		return errors.New("no socket")
	}
	file := os.NewFile(uintptr((*files)[0]), "uapi")
	*files = nil
	conn, err := net.FileConn(file)
	_ = file.Close()
	if err != nil {
		return err
	}
	s.wg.Go(func() { window.Answer(d.dev, conn) })
	return nil
}

// parseKeys returns those that are keys, in this order.
func parseKeys(texts []string) (keys []handover.Key) {
	for _, text := range texts {
		if k, err := parseKey(text); err == nil {
			keys = append(keys, handover.Key(k))
		}
	}
	return keys
}

// handshake begins handshakes with those of the peers that there are, and that were sent no
// message of one within REKEY_TIMEOUT, 5 s: wireguard-go keeps to that. Packets go on in the
// sessions that the peers have.
func (d *served) handshake(keys []string) {
	for _, key := range parseKeys(keys) {
		if p := d.dev.LookupPeer(key); p != nil {
			// wireguard-go logs that it can't, and who asks asks again.
			_ = p.SendHandshakeInitiation(false)
		}
	}
}

const (
	// meetLimit is how long packets wait in the TUN for handshakes. Its queue is full
	// after 200 ms at 10,000 packets a second.
	meetLimit = 100 * time.Millisecond
	// persistLimit is how long handshakes are begun again here. wireguard-go by itself
	// does so each 5 s.
	persistLimit = 5 * time.Second
)

// meet makes handshakes with those that were greeted, and has the TUN read as soon as all
// have a session, or don't answer in time.
func (d *served) meet(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, persistLimit)
	defer cancel()
	met := make(chan struct{})
	go func() {
		defer close(met)
		_ = handover.Succeed(ctx, d.dev, d.bind, d.greeted)
	}()
	select {
	case <-met:
	case <-time.After(meetLimit):
	}
	d.tun.Open()
	<-met
}

// work has something go on with the device until it ends or is to make way for another.
func (d *served) work(wg *sync.WaitGroup, f func(context.Context)) {
	d.rest()
	ctx, cancel := context.WithCancel(background)
	ended := make(chan struct{})
	wg.Go(func() {
		defer close(ended)
		f(ctx)
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stop = func() {
		cancel()
		<-ended
	}
}

// release lets go of what a closed device still has.
func (d *served) release() {
	d.rest() // Nor is it taken over any more.
	for _, socket := range d.given {
		_ = socket.Close() // A device that was never up has its port by these.
	}
}

// rest ends what goes on, and returns when it has ended.
func (d *served) rest() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stop != nil {
		d.stop()
	}
}
