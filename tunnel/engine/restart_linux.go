package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
)

// A device restarts on a server in two steps, see package doc. What differs between the
// restarts is only where descriptors and configuration come from:
//
//	            after a crash of the server    in an upgrade
//	prepare     of this supervisor             of the old supervisor (control.State)
//	(stop)                                     the old server stops reading (control.Stop)
//	resume      on the next server             on the new engine's server
//	            at an error: once more         at an error, or the end of the new engine: on the
//	                                           old engine's server, once more

// restore restarts the device on a server that doesn't have it yet, with the packets that its
// descriptors have queued. The caller has locked d.configuring.
func (d *deviceState) restore(ctx context.Context, s *server) error {
	if d.server == s && d.ready.Load() == s {
		return nil
	}
	if err := d.ctx.Err(); err != nil {
		return err
	}
	err := d.prepare(ctx, s)
	if err == nil {
		err = d.resume(ctx, s)
	}
	if err != nil {
		// The server has a part of the device. The monitor restores all of it.
		err = errors.Join(err, d.leave(s)) //nolint:contextcheck // The request's context may have ended.
	}
	return err
}

// prepare creates the configured device on a server, unless it has it already. It reads no
// packets there.
func (d *deviceState) prepare(ctx context.Context, s *server) error {
	if d.server == s {
		return nil
	}
	files, port, err := d.duplicates()
	if err != nil {
		return err
	}
	err = s.ask(ctx, control.Message{Op: opOpen, Name: d.name, Index: d.index}, files...)
	files.Close()
	if err != nil {
		return err
	}
	d.server = s
	answer, err := s.uapi(ctx, d, d.model.request(port))
	if err != nil {
		return err
	}
	if string(answer) != answerOK {
		d.log.Warn("configuration restored in part", "answer", string(answer))
	}
	if d.wantUp {
		if err := s.ask(ctx, control.Message{Op: opUp, Name: d.name}); err != nil && !s.gone() {
			d.log.Warn("reopening UDP sockets failed", "err", err)
		}
	}
	return nil
}

// resume lets packets pass on the server that has the device, see [server.start].
func (d *deviceState) resume(ctx context.Context, s *server, after ...int) error {
	keys, live := d.model.recent(time.Now())
	if err := s.start(ctx, d.name, keys[:live], after...); err != nil {
		return err
	}
	d.ready.Store(s)
	if len(keys) > 0 {
		d.all.wg.Go(func() { d.restoreKeepalives(s, keys) })
	}
	return nil
}

// leave removes the device from a server, which is killed if it doesn't close it. The caller has
// locked d.configuring.
func (d *deviceState) leave(s *server) error {
	if d.server != s {
		return nil
	}
	d.server = nil
	d.ready.Store(nil)
	ctx, cancel := context.WithTimeout(d.all.ctx, serverTimeout)
	defer cancel()
	err := s.closeDevice(ctx, d.name)
	if err == nil || d.all.ctx.Err() != nil {
		return nil
	}
	return errors.Join(err, s.kill())
}

// Keepalive intervals are set for some peers at a time, because a device sends a keepalive,
// and so begins a handshake, at once.
const (
	keepalivesAtOnce = 64
	keepalivesPause  = 20 * time.Millisecond
)

func (d *deviceState) restoreKeepalives(s *server, keys []key) {
	for some := range slices.Chunk(keys, keepalivesAtOnce) {
		err := func() error {
			d.configuring.Lock()
			defer d.configuring.Unlock()
			request := d.model.keepalives(some)
			if d.server != s || request == nil {
				return nil
			}
			_, err := s.uapi(d.ctx, d, request)
			return err
		}()
		if err != nil {
			return // The next server restarts this.
		}
		select {
		case <-time.After(keepalivesPause):
		case <-d.ctx.Done():
			return
		}
	}
}

const (
	// stopTimeout bounds how long a server takes to stop reading; beyond it, it is killed.
	stopTimeout = 2 * time.Second
	// observeTimeout bounds the last reading of the peers' endpoints before an upgrade.
	observeTimeout = time.Second
	// shutdownTimeout bounds how long an engine that ends waits for its upgrade. The agent's
	// pod has 20 s.
	shutdownTimeout = 15 * time.Second
)

// upgrade continues all devices of another engine, and replaces its control socket. If it returns
// an error, this engine has no devices.
func (sup *supervisor) upgrade(ctx context.Context, c *control.Client) (l *control.Listener, err error) {
	defer func() { //nolint:contextcheck // The upgrade's context may have ended.
		if err != nil {
			for _, d := range sup.devices.list() {
				err = errors.Join(err, d.remove(d.ctx))
			}
		}
	}()
	answer, err := c.Ask(ctx, control.Message{Op: control.Upgrade})
	if err != nil {
		return nil, err
	}
	var failed []error
	for _, d := range answer.Devices {
		if err := sup.upgradeDevice(ctx, c, d.Name); err != nil {
			failed = append(failed, fmt.Errorf("continue %s: %w", d.Name, err))
		}
	}
	switch err := errors.Join(failed...); {
	case err != nil && len(failed) == len(answer.Devices):
		return nil, err // The other engine continues.
	case err != nil:
		sup.log.Warn("devices not continued: the agent creates them again", "err", err)
	}
	listener, err := control.Replace(control.Path)
	if err != nil {
		return nil, err
	}
	if _, err := c.Ask(ctx, control.Message{Op: control.Serving}); err != nil {
		sup.log.Info("the old engine has ended during the upgrade", "err", err)
	}
	return listener, nil
}

// upgradeDevice continues one device of another engine. If it returns an error, no process of
// this engine has the device's link open.
func (sup *supervisor) upgradeDevice(ctx context.Context, c *control.Client, name string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	answer, files, err := c.AskFiles(ctx, control.Message{Op: control.State, Name: name})
	if err != nil {
		return err
	}
	defer func() { files.Close() }()
	if len(files) < 2 {
		return fmt.Errorf("got %d descriptors, want at least 2", len(files))
	}
	config, err := readMemfd(files[0])
	files = files[1:]
	if err == nil {
		err = checkTUN(files[0], name)
	}
	if err != nil {
		return err
	}
	// The old server writes to the pipe, so that the new one doesn't wait for the supervisors.
	stopped := make([]int, 2)
	if err := unix.Pipe2(stopped, unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	defer control.Files(stopped).Close()
	d := &deviceState{name: name, index: answer.Index, tun: files[0], sockets: files[1:], port: uint16(answer.Port), wantUp: true}
	d.configuring.Lock()
	defer d.configuring.Unlock()
	if err := sup.devices.add(d); err != nil {
		return err
	}
	files = nil
	defer func() { //nolint:contextcheck // The upgrade's context may have ended.
		if s := d.server; err != nil {
			if s != nil {
				err = errors.Join(err, d.leave(s))
			}
			d.drop()
		}
	}()
	if err := d.model.read(bytes.NewReader(config)); err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	err = sup.devices.retry(ctx, func(s *server) error {
		if err := d.prepare(ctx, s); err != nil {
			return err
		}
		return d.resume(ctx, s, stopped[0])
	})
	if err != nil {
		return err
	}
	if _, err := c.Ask(ctx, control.Message{Op: control.Stop, Name: name}, stopped[1]); err != nil {
		select {
		case <-c.Done(): // The old engine was killed, so it has stopped.
		default:
			return err
		}
	}
	if err := sup.devices.retry(ctx, func(s *server) error { return d.restore(ctx, s) }); err != nil {
		return err
	}
	d.log.Info("continued the device of another engine")
	return d.listen(control.Replace) //nolint:contextcheck // Its requests outlive the upgrade.
}

// upgrades are the old engine's side of upgrades: it decides which engine may continue the
// devices, and restores them if that one ends before it serves.
type upgrades struct {
	devices *devices
	log     *slog.Logger
	end     func() // ends this engine

	mu      sync.Mutex
	waiting []*control.Conn // engines that wait, the latest last
	running *upgrade        // nil: none
	changed chan struct{}   // closed and replaced when one of them changes
}

// upgrade is one attempt of an engine.
type upgrade struct {
	engine *control.Conn
	// locked are the devices whose state that engine has, so that nothing changes it:
	// configuring is locked until the attempt ends.
	locked  []*deviceState
	serving bool // it has the devices
}

func newUpgrades(d *devices, end func()) *upgrades {
	return &upgrades{devices: d, log: d.log, end: end, changed: make(chan struct{})}
}

var errUpgrading = errors.New("another engine continues the devices")

// mayChange returns an error during an upgrade, in which devices can't be changed.
func (u *upgrades) mayChange() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.running != nil {
		return errUpgrading
	}
	return nil
}

// notify wakes the goroutines that wait for a change. The caller has locked u.mu.
func (u *upgrades) notify() {
	close(u.changed)
	u.changed = make(chan struct{})
}

// wait registers an engine that waits until this one ends.
func (u *upgrades) wait(c *control.Conn) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if slices.Contains(u.waiting, c) {
		return
	}
	u.waiting = append(u.waiting, c)
	u.notify()
	u.log.Info("another engine waits")
	u.devices.wg.Go(func() {
		<-c.Done()
		u.mu.Lock()
		defer u.mu.Unlock()
		u.waiting = slices.DeleteFunc(u.waiting, func(other *control.Conn) bool { return other == c })
		u.notify()
	})
}

// begin begins an upgrade, which lasts as long as the connection.
func (u *upgrades) begin(c *control.Conn) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.running != nil {
		return errUpgrading
	}
	current := &upgrade{engine: c}
	u.running = current
	u.notify()
	u.log.Info("upgrade begins")
	u.devices.wg.Go(func() {
		<-c.Done() // and all of its requests were handled
		u.finish(current)
	})
	return nil
}

// finish unlocks the devices of an attempt, and restores those that the other engine doesn't
// have.
func (u *upgrades) finish(current *upgrade) {
	u.mu.Lock()
	u.running = nil
	u.notify()
	u.mu.Unlock()
	for _, d := range current.locked {
		if s := d.server; d.stopped && s != nil && d.ctx.Err() == nil {
			if err := d.leave(s); err != nil {
				d.log.Warn("closing the stopped device failed", "err", err)
			}
		}
		d.stopped = false
		d.configuring.Unlock()
	}
	if !current.serving {
		u.log.Warn("upgrade failed, because the other engine has ended: still serving")
		u.devices.restoreAll()
	}
}

// of returns the upgrade of an engine. The caller has locked u.mu.
func (u *upgrades) of(c *control.Conn) (*upgrade, error) {
	if u.running == nil || u.running.engine != c || u.running.serving {
		return nil, unix.EPERM
	}
	return u.running, nil
}

// lock locks a device until the attempt of an engine ends.
func (u *upgrades) lock(c *control.Conn, d *deviceState) error {
	u.mu.Lock()
	current, err := u.of(c)
	if err == nil && (d == nil || slices.Contains(current.locked, d)) {
		err = unix.ENODEV
	}
	if err == nil {
		current.locked = append(current.locked, d)
	}
	u.mu.Unlock()
	if err == nil {
		d.configuring.Lock()
	}
	return err
}

// state returns the response to [control.State]. From here on nothing changes the device.
func (u *upgrades) state(ctx context.Context, c *control.Conn, d *deviceState) (answer control.Message, files control.Files, err error) {
	if err := u.lock(c, d); err != nil {
		return answer, nil, err
	}
	if s := d.ready.Load(); s != nil && !s.gone() {
		limited, cancel := context.WithTimeout(ctx, observeTimeout)
		err := s.exchange(limited, d, getRequest, d.model.observe)
		cancel()
		if err != nil {
			d.log.Warn("reading the peers' endpoints failed: those of the last reading count", "err", err)
		}
	}
	files, port, err := d.duplicates()
	if err != nil {
		return answer, nil, err
	}
	config, err := writeMemfd(d.model.text())
	if err != nil {
		files.Close()
		return answer, nil, err
	}
	return control.Message{Name: d.name, Index: d.index, Port: int(port)}, append(control.Files{config}, files...), nil
}

// stop makes the server stop reading the packets of a device whose state the other engine has.
// files are the descriptor of a pipe.
func (u *upgrades) stop(ctx context.Context, c *control.Conn, d *deviceState, files control.Files) error {
	u.mu.Lock()
	current, err := u.of(c)
	if err == nil && (d == nil || !slices.Contains(current.locked, d)) {
		err = unix.ENODEV
	}
	u.mu.Unlock()
	if err != nil {
		return err
	}
	d.stopped = true
	s := d.server
	if s == nil {
		return nil // No server has it.
	}
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	err = s.ask(ctx, control.Message{Op: opStop, Name: d.name}, files...)
	if err != nil && !errors.Is(err, unix.ENODEV) && !s.gone() {
		d.log.Warn("the serving process doesn't stop: killing it", "err", err)
		return s.kill()
	}
	return nil
}

// complete ends this engine: the other one has the devices.
func (u *upgrades) complete(c *control.Conn) error {
	u.mu.Lock()
	current, err := u.of(c)
	if err == nil {
		current.serving = true
	}
	u.mu.Unlock()
	if err != nil {
		return err
	}
	u.log.Info("another engine serves")
	u.devices.drop()
	u.end()
	return nil
}

// passOn lets the engine that waits continue the devices, and returns when it serves; or after
// two failures, or at once if none waits: then the agent makes the next engine serve the links.
func (u *upgrades) passOn(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, shutdownTimeout)
	defer cancel()
	asked := make(map[*control.Conn]bool)
	for {
		u.mu.Lock()
		running, changed := u.running, u.changed
		var next *control.Conn
		if n := len(u.waiting); n > 0 {
			next = u.waiting[n-1]
		}
		u.mu.Unlock()
		var timeout <-chan time.Time
		switch {
		case running != nil:
		case next == nil && (len(asked) == 0 || len(asked) >= maxUpgrades):
			return
		case next == nil:
			timeout = time.After(helloTimeout) // for an engine that is started again
		case next != nil && !asked[next]:
			if len(asked) >= maxUpgrades {
				return
			}
			asked[next] = true
			u.log.Info("waiting for the upgrade by another engine before ending")
			if next.Notify(control.Message{Op: control.Ending}) != nil {
				next.Hangup()
			}
		}
		select {
		case <-changed:
		case <-timeout:
			return
		case <-limited.Done():
			if ctx.Err() == nil {
				u.log.Warn("no upgrade by the other engine: ending")
			}
			return
		}
	}
}

// maxUpgrades bounds the attempts of engines when this one ends.
const maxUpgrades = 2
