package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
)

// deviceState is the supervisor's state of a device: what must survive the server.
//
// Lock order: configuring, then the devices' mu.
type deviceState struct {
	all   *devices
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
	// device, and during an upgrade.
	configuring sync.Mutex
	server      *server // that has the device; nil: none
	stopped     bool    // server reads no packets, see control.Stop
	model       *model
	wantUp      bool

	// Guarded by the devices' mu.
	listener *control.Listener // of the UAPI socket; nil: none yet
	sockets  control.Files     // duplicates of the server's UDP sockets
	port     uint16            // of the sockets
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
func (d *deviceState) up(ctx context.Context) (changed bool, err error) {
	if changed, err = d.prepareUp(); err != nil {
		return changed, err
	}
	return changed, d.withServer(ctx, func(s *server) error { return s.ask(ctx, control.Message{Op: opUp, Name: d.name}) })
}

// prepareUp restores the UAPI socket, and makes later servers open UDP sockets.
func (d *deviceState) prepareUp() (changed bool, err error) {
	d.configuring.Lock()
	defer d.configuring.Unlock()
	d.all.mu.Lock()
	removed := d.ctx.Err() == nil && d.listener != nil && !d.listener.InPlace()
	d.all.mu.Unlock()
	if removed {
		if err := d.listen(control.Listen); err != nil {
			return false, err
		}
	}
	d.wantUp = true
	return removed, nil
}

// remove stops serving a device.
func (d *deviceState) remove(ctx context.Context) error {
	d.configuring.Lock()
	defer d.configuring.Unlock()
	// First, so that the port is free when remove returns.
	var err error
	if d.server != nil && d.ctx.Err() == nil {
		err = d.server.closeDevice(ctx, d.name)
	}
	if d.drop() {
		d.log.Info("removed")
	}
	return err
}

// drop releases the device, and returns false if it was dropped before.
func (d *deviceState) drop() bool {
	d.all.mu.Lock()
	defer d.all.mu.Unlock()
	if d.all.byName[d.name] != d {
		return false
	}
	d.release()
	return true
}

// release releases the device and its descriptors. The caller has locked the devices' mu.
func (d *deviceState) release() {
	d.end()
	delete(d.all.byName, d.name)
	if d.listener != nil {
		_ = d.listener.Close()
	}
	_ = unix.Close(d.tun)
	d.sockets.Close()
	d.sockets = nil
	if len(d.all.byName) == 0 && d.all.server != nil {
		d.all.server.stop()
	}
	d.all.notify()
}

// dropIfGone drops a device whose link doesn't exist any more.
func (d *deviceState) dropIfGone() bool {
	d.all.mu.Lock()
	gone := d.all.byName[d.name] == d && checkTUN(d.tun, d.name) != nil
	if gone {
		d.release()
	}
	d.all.mu.Unlock()
	if gone {
		d.log.Warn("link is gone or broken")
		d.all.died(d)
	}
	return gone
}

// endedOn handles the end of the device on a server by itself, because its link was deleted or
// a read failed.
func (d *deviceState) endedOn(s *server) {
	d.configuring.Lock()
	defer d.configuring.Unlock()
	if d.server != s || d.dropIfGone() || d.ctx.Err() != nil {
		return
	}
	d.log.Warn("reading the link failed: serving it again")
	d.server = nil // The monitor restores it.
	d.ready.Store(nil)
}

// withServer calls f with a server that has the device, and again with the next server
// when that one ends meanwhile. d.configuring is locked during the call.
func (d *deviceState) withServer(ctx context.Context, f func(*server) error) error {
	return d.all.retry(ctx, func(s *server) error { return d.with(ctx, s, f) })
}

// with calls f when the server has the device.
func (d *deviceState) with(ctx context.Context, s *server, f func(*server) error) error {
	d.configuring.Lock()
	defer d.configuring.Unlock()
	if err := d.restore(ctx, s); err != nil {
		return err
	}
	return f(s)
}

func noChange(*server) error { return nil }

// duplicates returns duplicates of the device's descriptors, the TUN first, and the port
// that it listens on.
func (d *deviceState) duplicates() (files control.Files, port uint16, err error) {
	d.all.mu.Lock()
	defer d.all.mu.Unlock()
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

// serverTimeout bounds the server's answer to the monitor; beyond it, the server hangs.
const serverTimeout = 10 * time.Second

// monitor is a round of the devices' monitor for this device.
func (d *deviceState) monitor() error {
	s, err := d.all.waitServer(d.ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(d.ctx, serverTimeout)
	defer cancel()
	if !d.configuring.TryLock() {
		// A request or an upgrade is in progress, which may take longer. A
		// server that runs answers at once that it has no device without a name.
		if err = s.ask(ctx, control.Message{Op: opUAPI}); timedOut(err) {
			return errors.Join(err, s.kill())
		}
		return nil
	}
	defer d.configuring.Unlock()
	err = d.restore(ctx, s)
	if err == nil {
		err = s.exchange(ctx, d, getRequest, d.model.observe)
	}
	if timedOut(err) {
		_ = s.kill()
	}
	if err != nil && d.dropIfGone() {
		return nil
	}
	return err
}

func timedOut(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
}
