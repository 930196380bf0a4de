package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
)

// deviceState is the supervisor's state of a device.
//
// Lock order: configuring, then the supervisor's mu.
type deviceState struct {
	name  string
	index int // of the link, from the client's request
	tun   int
	log   *slog.Logger
	ctx   context.Context // ends with the device
	end   func()

	// ready is the server that has the device and all of its configuration; nil: none.
	ready atomic.Pointer[server]
	// responseSize is the size of the last answer to a "get" request, in bytes.
	responseSize atomic.Int64

	// configuring guards the following fields, and is locked while a server changes the
	// device or hands it over.
	configuring sync.Mutex
	server      *server // that has the device; nil: none
	model       *model
	wantUp      bool

	// Guarded by the supervisor's mu.
	listener *control.Listener
	sockets  control.Files // duplicates of the server's UDP sockets
	port     uint16        // of the sockets
	// confirmed is closed when another engine reports that it has taken over the device.
	confirmed chan struct{}
}

// serve starts to serve a TUN link.
func (sup *supervisor) serve(ctx context.Context, m control.Message, files *control.Files) error {
	if len(*files) != 1 {
		return fmt.Errorf("serve %q: got %d descriptors, want one of a TUN", m.Name, len(*files))
	}
	if err := checkTUN((*files)[0], m.Name); err != nil {
		return fmt.Errorf("serve %q: %w", m.Name, err)
	}
	d, err := sup.add(m.Name, m.Index, files)
	if err != nil {
		return fmt.Errorf("serve %q: %w", m.Name, err)
	}
	sup.acceptUAPI(d, d.listener)
	err = sup.withServer(ctx, d, noChange)
	if err != nil {
		return errors.Join(err, sup.remove(ctx, d))
	}
	return nil
}

func (sup *supervisor) add(name string, index int, files *control.Files) (*deviceState, error) {
	sup.mu.Lock()
	defer sup.mu.Unlock()
	switch {
	case sup.ctx.Err() != nil:
		return nil, sup.ctx.Err()
	case sup.devices[name] != nil:
		return nil, unix.EEXIST
	case len(sup.devices) >= maxDevices:
		return nil, errors.New("too many devices")
	}
	listener, err := control.Listen(control.DevicePath(name))
	if err != nil {
		return nil, err
	}
	d := &deviceState{
		name: name, index: index, tun: (*files)[0], log: sup.log.With("device", name),
		model: newModel(), listener: listener,
	}
	*files = nil
	d.ctx, d.end = context.WithCancel(sup.ctx)
	sup.devices[name] = d
	sup.notify()
	d.log.Info("serving", "index", index)
	return d, nil
}

// checkTUN returns an error unless the descriptor is an attached TUN of that name, with the
// header that wireguard-go needs.
func checkTUN(fd int, name string) error {
	request, err := unix.NewIfreq("")
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.TUNGETIFF, request)
	}
	if err != nil {
		return fmt.Errorf("descriptor isn't an attached TUN: %w", err)
	}
	const kind = unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR
	if request.Name() != name || request.Uint16()&(kind|unix.IFF_TAP|unix.IFF_MULTI_QUEUE) != kind {
		return fmt.Errorf("descriptor is of %q, with flags %#x", request.Name(), request.Uint16())
	}
	return nil
}

// up opens the device's UDP sockets and restores its UAPI socket, unless they exist.
func (sup *supervisor) up(ctx context.Context, d *deviceState) (changed bool, err error) {
	if changed, err = sup.restoreSocket(d); err != nil {
		return changed, err
	}
	d.setUp()
	err = sup.withServer(ctx, d, func(s *server) error { return s.up(ctx, d) })
	return changed, err
}

func (d *deviceState) setUp() {
	d.configuring.Lock()
	defer d.configuring.Unlock()
	d.wantUp = true
}

func (sup *supervisor) restoreSocket(d *deviceState) (changed bool, err error) {
	sup.mu.Lock()
	defer sup.mu.Unlock()
	if sup.devices[d.name] != d || d.listener == nil || d.listener.InPlace() {
		return false, nil
	}
	fresh, err := control.Listen(control.DevicePath(d.name))
	if err != nil {
		return false, err
	}
	_ = d.listener.Close()
	d.listener = fresh
	sup.acceptUAPI(d, fresh)
	return true, nil
}

// remove stops serving a device.
func (sup *supervisor) remove(ctx context.Context, d *deviceState) error {
	d.configuring.Lock()
	defer d.configuring.Unlock()
	// First, so that the port is free when remove returns.
	var err error
	if d.server != nil && d.ctx.Err() == nil {
		err = d.server.endDevice(ctx, d.name)
	}
	sup.mu.Lock()
	defer sup.mu.Unlock()
	if sup.devices[d.name] == d {
		sup.dropDevice(d)
		d.log.Info("removed")
	}
	return err
}

// dropDevice releases a device and its descriptors. The caller has locked sup.mu.
func (sup *supervisor) dropDevice(d *deviceState) {
	d.end()
	delete(sup.devices, d.name)
	if d.listener != nil {
		_ = d.listener.Close()
	}
	_ = unix.Close(d.tun)
	d.sockets.Close()
	d.sockets = nil
	if len(sup.devices) == 0 && sup.server != nil {
		sup.server.stop()
	}
	sup.notify()
}

// setSockets replaces the supervisor's duplicates of the server's sockets, and owns files.
func (sup *supervisor) setSockets(name string, port int, files control.Files) {
	sup.mu.Lock()
	defer sup.mu.Unlock()
	d := sup.devices[name]
	if d == nil {
		files.Close()
		return
	}
	d.sockets.Close()
	d.sockets, d.port = files, uint16(port)
}

// withServer calls f with a server that has the device, and again with the next server
// when that one ends meanwhile. d.configuring is locked during the call.
func (sup *supervisor) withServer(ctx context.Context, d *deviceState, f func(*server) error) error {
	return sup.retry(ctx, func(s *server) error { return sup.with(ctx, d, s, f) })
}

// with calls f when the server has the device.
func (sup *supervisor) with(ctx context.Context, d *deviceState, s *server, f func(*server) error) error {
	d.configuring.Lock()
	defer d.configuring.Unlock()
	if err := sup.restore(ctx, d, s); err != nil {
		return err
	}
	return f(s)
}

func noChange(*server) error { return nil }

// retry calls f with the server, and again with the next one when that ends meanwhile.
func (sup *supervisor) retry(ctx context.Context, f func(*server) error) error {
	for {
		s, err := sup.waitServer(ctx)
		if err != nil {
			return err
		}
		if err = f(s); err == nil || ctx.Err() != nil || !s.goneSoon(ctx) {
			return err
		}
	}
}

// waitServer returns the server, as soon as one runs.
func (sup *supervisor) waitServer(ctx context.Context) (*server, error) {
	for {
		sup.mu.Lock()
		s, changed := sup.server, sup.changed
		sup.mu.Unlock()
		if s != nil && !s.gone() {
			return s, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the serving process: %w", ctx.Err())
		}
	}
}

// restore passes the device to a server that doesn't have it yet, with the packets that
// its descriptors have queued. The caller has locked d.configuring.
func (sup *supervisor) restore(ctx context.Context, d *deviceState, s *server) (err error) {
	if d.server == s {
		return nil
	}
	files, port, err := sup.duplicates(d)
	if err != nil {
		return err
	}
	_, _, err = s.conn.Ask(ctx, control.Message{Op: opOpen, Name: d.name, Index: d.index}, files...)
	files.Close()
	if err != nil {
		return err
	}
	d.server = s
	defer func() { //nolint:contextcheck // The request's context may have ended.
		if err != nil {
			// The server has a part of the device. The monitor restores all of it.
			d.server = nil
			err = errors.Join(err, sup.closeOnServer(s, d))
		}
	}()
	answer, err := s.uapi(ctx, d, d.model.request(port))
	if err != nil {
		return err
	}
	if string(answer) != "errno=0\n\n" {
		d.log.Warn("configuration restored in part", "answer", string(answer))
	}
	if d.wantUp {
		if err := s.up(ctx, d); err != nil && !s.gone() {
			d.log.Warn("reopening UDP sockets failed", "err", err)
		}
	}
	keys, live := d.model.recent(time.Now())
	if err := s.greet(ctx, d, keys[:live]); err != nil {
		return err
	}
	d.ready.Store(s)
	if len(keys) > 0 {
		sup.wg.Go(func() { sup.restoreKeepalives(d, s, keys) })
	}
	return nil
}

// closeOnServer closes a device that a server has in part, because another process needs
// its link and its port. A server that doesn't close it is killed.
func (sup *supervisor) closeOnServer(s *server, d *deviceState) error {
	ctx, cancel := context.WithTimeout(sup.ctx, serverTimeout)
	defer cancel()
	err := s.endDevice(ctx, d.name)
	if err == nil || sup.ctx.Err() != nil {
		return nil
	}
	return errors.Join(err, s.process.Kill())
}

// duplicates returns duplicates of the device's descriptors, the TUN first, and the port
// that it listens on.
func (sup *supervisor) duplicates(d *deviceState) (files control.Files, port uint16, err error) {
	sup.mu.Lock()
	defer sup.mu.Unlock()
	if err := d.ctx.Err(); err != nil {
		return nil, 0, err
	}
	for _, fd := range append(control.Files{d.tun}, d.sockets...) {
		dup, err := duplicate(fd)
		if err != nil {
			files.Close()
			return nil, 0, err
		}
		files = append(files, dup)
	}
	if len(d.sockets) > 0 {
		return files, d.port, nil
	}
	return files, d.model.port, nil
}

func duplicate(fd int) (int, error) {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("duplicate a descriptor: %w", err)
	}
	return dup, nil
}

// Keepalive intervals are set for some peers at a time, because a device sends a keepalive,
// and so begins a handshake, at once.
const (
	keepalivesAtOnce = 64
	keepalivesPause  = 20 * time.Millisecond
)

func (sup *supervisor) restoreKeepalives(d *deviceState, s *server, keys []key) {
	for len(keys) > 0 {
		n := min(len(keys), keepalivesAtOnce)
		err := func() error {
			d.configuring.Lock()
			defer d.configuring.Unlock()
			request := d.model.keepalives(keys[:n])
			if d.server != s || request == nil {
				return nil
			}
			_, err := s.uapi(d.ctx, d, request)
			return err
		}()
		if err != nil {
			return // The next server restarts this.
		}
		if keys = keys[n:]; len(keys) == 0 {
			return
		}
		select {
		case <-time.After(keepalivesPause):
		case <-d.ctx.Done():
			return
		}
	}
}
