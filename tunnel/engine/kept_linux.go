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

// kept is what the keeper has of a device.
//
// Locks are taken in this order: configuring, the keeper's mu.
type kept struct {
	name  string
	index int // of the link, as the client said
	tun   int
	log   *slog.Logger
	ctx   context.Context // ends with the device
	end   func()

	// answers is the server that has the device and all of its configuration; nil: none.
	answers atomic.Pointer[server]
	// answered is the size of the last answer to a question, in bytes.
	answered atomic.Int64

	// configuring guards what follows, and is held while a server is told to
	// change the device, or hands it over.
	configuring sync.Mutex
	on          *server // that has it; nil: none
	model       *model
	wantUp      bool

	// Guarded by the keeper's mu.
	listener *control.Listener
	sockets  control.Files // the server's UDP sockets
	port     uint16        // of the sockets
	given    chan struct{} // closed when another engine says that it has the device
}

// serve begins to serve a TUN link.
func (k *keeper) serve(ctx context.Context, m control.Message, files *control.Files) error {
	if len(*files) != 1 {
		return fmt.Errorf("serve %q: %d descriptors, want that of the TUN", m.Name, len(*files))
	}
	if err := checkTUN((*files)[0], m.Name); err != nil {
		return fmt.Errorf("serve %q: %w", m.Name, err)
	}
	d, err := k.add(m.Name, m.Index, files)
	if err != nil {
		return fmt.Errorf("serve %q: %w", m.Name, err)
	}
	k.acceptUAPI(d, d.listener)
	err = k.withServer(ctx, d, nothing)
	if err != nil {
		return errors.Join(err, k.remove(ctx, d))
	}
	return nil
}

func (k *keeper) add(name string, index int, files *control.Files) (*kept, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.ctx.Err() != nil:
		return nil, k.ctx.Err()
	case k.devices[name] != nil:
		return nil, unix.EEXIST
	case len(k.devices) >= maxDevices:
		return nil, errors.New("too many devices")
	}
	listener, err := control.Listen(control.DevicePath(name))
	if err != nil {
		return nil, err
	}
	d := &kept{
		name: name, index: index, tun: (*files)[0], log: k.log.With("device", name),
		model: newModel(), listener: listener,
	}
	*files = nil
	d.ctx, d.end = context.WithCancel(k.ctx)
	k.devices[name] = d
	k.notify()
	d.log.Info("serving", "index", index)
	return d, nil
}

// checkTUN refuses descriptors that aren't an attached TUN of that name, with the
// header that wireguard-go reads.
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

// up opens the device's UDP sockets, if they aren't open, and puts its UAPI socket
// in its place, if it isn't there.
func (k *keeper) up(ctx context.Context, d *kept) (changed bool, err error) {
	if changed, err = k.restoreSocket(d); err != nil {
		return changed, err
	}
	d.setUp()
	err = k.withServer(ctx, d, func(s *server) error { return s.up(ctx, d) })
	return changed, err
}

func (d *kept) setUp() {
	d.configuring.Lock()
	defer d.configuring.Unlock()
	d.wantUp = true
}

func (k *keeper) restoreSocket(d *kept) (changed bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.devices[d.name] != d || d.listener == nil || d.listener.InPlace() {
		return false, nil
	}
	fresh, err := control.Listen(control.DevicePath(d.name))
	if err != nil {
		return false, err
	}
	_ = d.listener.Close()
	d.listener = fresh
	k.acceptUAPI(d, fresh)
	return true, nil
}

// remove ends a device.
func (k *keeper) remove(ctx context.Context, d *kept) error {
	d.configuring.Lock()
	defer d.configuring.Unlock()
	// First: its port is free when this returns.
	var err error
	if d.on != nil && d.ctx.Err() == nil {
		err = d.on.endDevice(ctx, d.name)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.devices[d.name] == d {
		k.forget(d)
		d.log.Info("removed")
	}
	return err
}

// forget gives up all that belongs to a device. The caller holds k.mu.
func (k *keeper) forget(d *kept) {
	d.end()
	delete(k.devices, d.name)
	if d.listener != nil {
		_ = d.listener.Close()
	}
	_ = unix.Close(d.tun)
	d.sockets.Close()
	d.sockets = nil
	if len(k.devices) == 0 && k.server != nil {
		k.server.stop()
	}
	k.notify()
}

// setSockets keeps duplicates of the sockets that the server opened, instead of those
// before. They become the keeper's.
func (k *keeper) setSockets(name string, port int, files control.Files) {
	k.mu.Lock()
	defer k.mu.Unlock()
	d := k.devices[name]
	if d == nil {
		files.Close()
		return
	}
	d.sockets.Close()
	d.sockets, d.port = files, uint16(port)
}

// withServer has a server that has the device do something with it, or the next one
// when that ends meanwhile. Nobody else changes the device.
func (k *keeper) withServer(ctx context.Context, d *kept, f func(*server) error) error {
	return k.retry(ctx, func(s *server) error { return k.with(ctx, d, s, f) })
}

// with is withServer for one server.
func (k *keeper) with(ctx context.Context, d *kept, s *server, f func(*server) error) error {
	d.configuring.Lock()
	defer d.configuring.Unlock()
	if err := k.restore(ctx, d, s); err != nil {
		return err
	}
	return f(s)
}

func nothing(*server) error { return nil }

// retry calls f with the server, and with the next one when that ends meanwhile.
func (k *keeper) retry(ctx context.Context, f func(*server) error) error {
	for {
		s, err := k.waitServer(ctx)
		if err != nil {
			return err
		}
		if err = f(s); err == nil || ctx.Err() != nil || !s.goneSoon(ctx) {
			return err
		}
	}
}

// waitServer returns the process that serves, as soon as there is one.
func (k *keeper) waitServer(ctx context.Context) (*server, error) {
	for {
		k.mu.Lock()
		s, changed := k.server, k.changed
		k.mu.Unlock()
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

// restore gives the device to a server that doesn't have it yet, as it was: with what
// has arrived meanwhile. The caller holds d.configuring.
func (k *keeper) restore(ctx context.Context, d *kept, s *server) (err error) {
	if d.on == s {
		return nil
	}
	files, port, err := k.duplicates(d)
	if err != nil {
		return err
	}
	_, _, err = s.conn.Ask(ctx, control.Message{Op: opOpen, Name: d.name, Index: d.index}, files...)
	files.Close()
	if err != nil {
		return err
	}
	d.on = s
	defer func() { //nolint:contextcheck // That of the request may have ended.
		if err != nil {
			// It has a part of it. The next look gives it all.
			d.on = nil
			err = errors.Join(err, k.letGo(s, d))
		}
	}()
	answer, err := s.uapi(ctx, d, d.model.request(port))
	if err != nil {
		return err
	}
	if string(answer) != "errno=0\n\n" {
		d.log.Warn("not all of the configuration could be restored", "answer", string(answer))
	}
	if d.wantUp {
		if err := s.up(ctx, d); err != nil && !s.gone() {
			d.log.Warn("cannot listen as before", "err", err)
		}
	}
	keys, live := d.model.recent(time.Now())
	if err := s.greet(ctx, d, keys[:live]); err != nil {
		return err
	}
	d.answers.Store(s)
	if len(keys) > 0 {
		k.wg.Go(func() { k.restoreKeepalives(d, s, keys) })
	}
	return nil
}

// letGo has a server end a device that it has a part of: whoever serves it instead needs its
// link and its port. A server that doesn't is killed.
func (k *keeper) letGo(s *server, d *kept) error {
	ctx, cancel := context.WithTimeout(k.ctx, hangLimit)
	defer cancel()
	err := s.endDevice(ctx, d.name)
	if err == nil || k.ctx.Err() != nil {
		return nil
	}
	return errors.Join(err, s.process.Kill())
}

// duplicates returns those of the descriptors that the device's server needs, the TUN
// first, and the port that it listens on.
func (k *keeper) duplicates(d *kept) (files control.Files, port uint16, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
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

// Peers get their intervals some at a time, because a device sends a keepalive, and
// so begins a handshake, at once.
const (
	keepalivesAtOnce = 64
	keepalivesPause  = 20 * time.Millisecond
)

func (k *keeper) restoreKeepalives(d *kept, s *server, keys []key) {
	for len(keys) > 0 {
		n := min(len(keys), keepalivesAtOnce)
		err := func() error {
			d.configuring.Lock()
			defer d.configuring.Unlock()
			request := d.model.keepalives(keys[:n])
			if d.on != s || request == nil {
				return nil
			}
			_, err := s.uapi(d.ctx, d, request)
			return err
		}()
		if err != nil {
			return // Another server begins anew.
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
