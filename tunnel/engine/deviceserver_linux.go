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

	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/backpressure"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/link"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/resume"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/udp"
)

// deviceServer is the serving process: it runs wireguard-go for all devices.
type deviceServer struct {
	conn *control.Conn
	log  *slog.Logger
	wg   sync.WaitGroup

	mu      sync.Mutex
	devices map[string]*serverDevice
}

// serverDevice is a device.
type serverDevice struct {
	name    string
	dev     *device.Device
	bind    *resume.Bind
	tun     *resume.Tun // not read until sessions were made
	closing atomic.Bool // this process closes the device
	stopped atomic.Bool // another process continues the device, with its sockets
	// toReconnect are the peers that had sessions.
	toReconnect []resume.Key
	inherited   []*os.File // UDP sockets of an earlier process

	mu   sync.Mutex
	stop func() // ends reconnect, see startTask
}

// serve carries out the requests of the supervisor until the connection ends.
func serve(conn *net.UnixConn, log *slog.Logger) {
	s := &deviceServer{log: log, devices: make(map[string]*serverDevice)}
	s.conn = control.NewConn(conn, func(m control.Message, files control.Files) (control.Message, control.Files) {
		defer func() { files.Close() }()
		if err := s.handle(m, &files); err != nil {
			return control.ErrorResponse(err), nil
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

// handle carries out a request of the supervisor. It removes the descriptors that it retains
// from files.
func (s *deviceServer) handle(m control.Message, files *control.Files) error {
	if m.Op == opOpen {
		owned := *files
		*files = nil
		return s.open(m.Name, m.Index, owned)
	}
	s.mu.Lock()
	d := s.devices[m.Name]
	s.mu.Unlock()
	if d == nil {
		return fmt.Errorf("device %q: %w", m.Name, unix.ENODEV)
	}
	switch m.Op {
	case opUAPI:
		return s.serveUAPI(d, files)
	case opUp:
		if err := d.dev.Up(); err != nil {
			return fmt.Errorf("open UDP sockets: %w", err)
		}
	case opReconnect:
		d.toReconnect = append(d.toReconnect, parseKeys(m.Keys)...)
	case opHandshake:
		d.handshake(m.Keys)
	case opStart:
		return s.start(d, files)
	case opStop:
		return d.stopReading(*files)
	case opClose:
		s.close(d)
	default:
		return fmt.Errorf("unknown request %q", m.Op)
	}
	return nil
}

// open creates a device. index is the link's, files are the descriptors of its TUN and of UDP
// sockets, and belong to open.
func (s *deviceServer) open(name string, index int, files control.Files) error {
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
	// Not read yet: without peers wireguard-go would drop the packets of the TUN, and its link's
	// events would make it open sockets before the port is configured.
	d := &serverDevice{name: name, tun: resume.NewTun(native)}
	for _, fd := range files[1:] {
		d.inherited = append(d.inherited, os.NewFile(uintptr(fd), "udp "+name))
	}
	d.bind = resume.NewBind(udp.New(udp.Config{
		Inherited: d.inherited,
		Opened:    func(port uint16, sockets []*os.File) { s.sendSockets(name, int(port), sockets) },
		Closed: func() {
			if !d.stopped.Load() {
				s.sendSockets(name, 0, nil)
			}
		},
	}))
	d.dev = backpressure.NewDevice(d.tun, d.bind, deviceLog(s.log.With("device", name)))
	s.mu.Lock()
	s.devices[name] = d
	s.mu.Unlock()
	s.wg.Go(func() {
		<-d.dev.Wait()
		if d.closing.Load() {
			return
		}
		s.mu.Lock()
		if s.devices[name] == d { // else a new device has the name
			delete(s.devices, name)
		}
		s.mu.Unlock()
		d.release()
		_ = s.conn.Notify(control.Message{Op: control.Died, Name: name, Index: index})
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

// sendSockets sends the supervisor a device's sockets, and closes these duplicates.
func (s *deviceServer) sendSockets(name string, port int, sockets []*os.File) {
	var fds []int
	for _, socket := range sockets {
		// Not Fd, which would make all duplicates of the socket blocking.
		if raw, err := socket.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { fds = append(fds, int(fd)) })
		}
	}
	_, _, err := s.conn.Ask(background, control.Message{Op: opSockets, Name: name, Port: port}, fds...)
	if err != nil && s.conn.Err() == nil {
		s.log.Warn("sending sockets to the supervisor failed", "device", name, "err", err)
	}
	for _, socket := range sockets {
		_ = socket.Close()
	}
}

// takeFile returns the descriptor of a request, which the caller closes.
func takeFile(files *control.Files, name string) (*os.File, error) {
	if len(*files) != 1 {
		return nil, fmt.Errorf("got %d descriptors, want one: %s", len(*files), name)
	}
	file := os.NewFile(uintptr((*files)[0]), name)
	*files = nil
	return file, nil
}

// serveUAPI answers the UAPI requests of a socket.
func (s *deviceServer) serveUAPI(d *serverDevice, files *control.Files) error {
	file, err := takeFile(files, "uapi")
	if err != nil {
		return err
	}
	conn, err := net.FileConn(file)
	_ = file.Close()
	if err != nil {
		return err
	}
	s.wg.Go(func() { backpressure.Answer(d.dev, conn) })
	return nil
}

// close closes a device.
func (s *deviceServer) close(d *serverDevice) {
	s.mu.Lock()
	delete(s.devices, d.name)
	s.mu.Unlock()
	d.closing.Store(true)
	d.dev.Close()
	d.release()
}

// parseKeys returns the valid keys, in the same order.
func parseKeys(texts []string) (keys []resume.Key) {
	for _, text := range texts {
		if k, err := parseKey(text); err == nil {
			keys = append(keys, resume.Key(k))
		}
	}
	return keys
}

// handshake begins handshakes with the existing peers among keys, while their sessions
// continue to carry packets. wireguard-go skips peers to which it sent a handshake message
// within REKEY_TIMEOUT, 5 s.
func (d *serverDevice) handshake(keys []string) {
	for _, key := range parseKeys(keys) {
		if p := d.dev.LookupPeer(key); p != nil {
			// wireguard-go logs the error, and the agent repeats the request.
			_ = p.SendHandshakeInitiation(false)
		}
	}
}

const (
	// reconnectLimit bounds how long packets wait in the TUN for handshakes. Its queue is
	// full after 200 ms at 10,000 packets a second.
	reconnectLimit = 100 * time.Millisecond
	// handshakeLimit bounds how long handshakes are retried here. wireguard-go by itself
	// retries each 5 s.
	handshakeLimit = 5 * time.Second
)

// reconnect reads the sockets, begins handshakes with the peers that had sessions, and reads the
// TUN as soon as all have one, or after reconnectLimit.
func (d *serverDevice) reconnect(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, handshakeLimit)
	defer cancel()
	d.bind.Start()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = resume.Initiate(ctx, d.dev, d.bind, d.toReconnect)
	}()
	select {
	case <-done:
	case <-time.After(reconnectLimit):
	}
	d.tun.Start()
	<-done
}

// start starts reconnect: at once, or when the pipe whose descriptor is in files was written to or
// closed.
func (s *deviceServer) start(d *serverDevice, files *control.Files) error {
	if len(*files) == 0 {
		d.startTask(&s.wg, d.reconnect)
		return nil
	}
	stopped, err := takeFile(files, "stopped")
	if err != nil {
		return err
	}
	d.startTask(&s.wg, func(ctx context.Context) {
		defer context.AfterFunc(ctx, func() { _ = stopped.Close() })()
		_, _ = stopped.Read(make([]byte, 1))
		_ = stopped.Close()
		if ctx.Err() == nil {
			d.reconnect(ctx)
		}
	})
	return nil
}

// stopReading makes the device read no further packets, and then writes to the pipe whose
// descriptor is in files. The device sends what it had read.
func (d *serverDevice) stopReading(files control.Files) error {
	ctx, cancel := context.WithTimeout(background, stopTimeout)
	defer cancel()
	d.stopTask()
	d.stopped.Store(true)
	err := errors.Join(d.tun.Stop(ctx), d.bind.Stop(ctx))
	if err == nil && len(files) > 0 {
		_, err = unix.Write(files[0], []byte{0})
	}
	return err
}

// startTask runs f with the device until it ends, the next task starts, or stopTask is
// called.
func (d *serverDevice) startTask(wg *sync.WaitGroup, f func(context.Context)) {
	d.stopTask()
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

// release ends the task of a closed device and closes its inherited sockets.
func (d *serverDevice) release() {
	d.stopTask()
	for _, socket := range d.inherited {
		_ = socket.Close() // They hold the port of a device that was never up.
	}
}

// stopTask ends the task and waits for its end.
func (d *serverDevice) stopTask() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stop != nil {
		d.stop()
	}
}
