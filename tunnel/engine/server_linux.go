package engine

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
)

// What the keeper asks the serving process for, by the device's name.
const (
	opOpen      = "open"      // the descriptors of the TUN and of UDP sockets: have the device, down
	opUAPI      = "uapi"      // the descriptor of a socket: answer requests that come there
	opUp        = "up"        // open UDP sockets
	opGreet     = "greet"     // Keys: begin handshakes with these peers, which had sessions
	opHandshake = "handshake" // Keys: begin handshakes with these peers, which have sessions
	opStart     = "start"     // read the TUN
	opClose     = "close"     // end
	opGive      = "give"      // the descriptor of a pair: hand the device over, and end
	opTake      = "take"      // the descriptor of a pair: take the device over
)

// opSockets is what the serving process tells the keeper, and waits for: a device's
// Port and UDP sockets, as they are from now on. The keeper's duplicates of those
// before are closed then.
const opSockets = "sockets"

// server is a process that serves, as the keeper knows it.
type server struct {
	conn    *control.Conn
	process *os.Process
	stop    func()
	ready   atomic.Bool // it had all devices once
}

func (s *server) gone() bool { return s.conn.Err() != nil }

// goneSoon reports whether the process has ended, or does so at this moment, which
// is what a failed request may be the first sign of.
func (s *server) goneSoon(ctx context.Context) bool {
	select {
	case <-s.conn.Done():
		return true
	case <-time.After(time.Second):
	case <-ctx.Done():
	}
	return false
}

// Deaths in a row that come within shortLife, or before all devices are served, are
// followed by a pause when there are more than freeDeaths of them.
const (
	shortLife  = 200 * time.Millisecond
	freeDeaths = 20
	deathPause = 50 * time.Millisecond // times the deaths beyond
	maxPause   = time.Second
)

// nurse has a process serve while there are devices, and starts another one when it
// ends.
func (k *keeper) nurse() {
	// The child is killed when the thread ends that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	deaths := 0
	for k.waitDevices() {
		began := time.Now()
		ready, err := k.runServer()
		switch {
		case k.ctx.Err() != nil:
			return
		case err == nil:
			continue
		case !ready:
			deaths += freeDeaths / 4
		case time.Since(began) < shortLife:
			deaths++
		default:
			deaths = 0
		}
		pause := min(max(0, time.Duration(deaths-freeDeaths)*deathPause), maxPause)
		k.log.Warn("the serving process has ended: starting another one", "err", err, "lived", time.Since(began), "pause", pause)
		select {
		case <-k.ctx.Done():
		case <-time.After(pause):
		}
	}
}

// waitDevices returns when there are devices; false: the keeper ends.
func (k *keeper) waitDevices() bool {
	for {
		k.mu.Lock()
		n, changed := len(k.devices), k.changed
		k.mu.Unlock()
		if n > 0 {
			return k.ctx.Err() == nil
		}
		select {
		case <-changed:
		case <-k.ctx.Done():
			return false
		}
	}
}

// runServer runs a process that serves all devices, until it ends or is needed no
// more. Then there is no error.
func (k *keeper) runServer() (ready bool, err error) {
	ours, theirs, err := socketpair()
	if err != nil {
		return false, err
	}
	ctx, stop := context.WithCancel(k.ctx)
	defer stop()
	s := &server{stop: stop}
	s.conn = control.NewConn(ours, func(m control.Message, files control.Files) (control.Message, control.Files) {
		k.fromServer(s, m, files)
		return control.Message{}, nil
	})
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = k.cfg.Server
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { s.conn.Hangup(); return nil }
	cmd.WaitDelay = 3 * time.Second
	err = cmd.Start()
	_ = theirs.Close()
	if err != nil {
		_ = ours.Close()
		return false, fmt.Errorf("start the serving process: %w", err)
	}
	s.process = cmd.Process
	s.conn.Start()
	k.setServer(s)
	k.wg.Go(func() { k.restoreAll(ctx, s) })
	err = cmd.Wait()
	stopped := ctx.Err() != nil
	k.setServer(nil)
	s.conn.Close()
	if stopped {
		return true, nil
	}
	if err == nil {
		err = errors.New("it ended by itself")
	}
	return s.ready.Load(), err
}

// socketpair returns a connection and the descriptor of its other end.
func socketpair() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a socket pair: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "server"), os.NewFile(uintptr(fds[1]), "keeper")
	conn, err := net.FileConn(ours)
	_ = ours.Close()
	if err != nil {
		_ = theirs.Close()
		return nil, nil, err
	}
	return conn.(*net.UnixConn), theirs, nil
}

func (k *keeper) setServer(s *server) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.server = s
	k.notify()
}

// restoreAll gives all devices to a new server, none waiting for another.
func (k *keeper) restoreAll(ctx context.Context, s *server) {
	failed := make(chan bool)
	devices := k.list()
	for _, d := range devices {
		k.wg.Go(func() {
			limited, cancel := context.WithTimeout(ctx, askLimit)
			defer cancel()
			err := k.with(limited, d, s, nothing)
			if err != nil && d.ctx.Err() == nil && ctx.Err() == nil {
				d.log.Warn("cannot serve", "err", err)
			}
			failed <- err != nil
		})
	}
	ready := true
	for range devices {
		ready = !<-failed && ready
	}
	s.ready.Store(ready)
}

// fromServer handles what the serving process tells.
func (k *keeper) fromServer(s *server, m control.Message, files control.Files) {
	if m.Op == opSockets {
		k.setSockets(m.Name, m.Port, files)
		return
	}
	files.Close()
	// Another device may have got that name meanwhile.
	if d := k.device(m.Name); d != nil && d.index == m.Index && m.Op == control.Died {
		k.died(d, s)
	}
}

// endDevice has the process end a device. It is no error when that has ended already, or the
// process has.
func (s *server) endDevice(ctx context.Context, name string) error {
	_, _, err := s.conn.Ask(ctx, control.Message{Op: opClose, Name: name})
	if errors.Is(err, unix.ENODEV) || s.gone() {
		return nil
	}
	return err
}

// died takes notice of a device that has ended by itself: somebody deleted its link, or
// reading from it broke.
func (k *keeper) died(d *kept, s *server) {
	d.configuring.Lock()
	defer d.configuring.Unlock()
	if d.on != s || k.giveUp(d) || d.ctx.Err() != nil {
		return
	}
	d.log.Warn("the link is there, and can't be read: serving it again")
	d.on = nil // The next look restores it.
	d.answers.Store(nil)
}

// giveUp gives a device up when its link is gone. The caller holds d.configuring.
func (k *keeper) giveUp(d *kept) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.devices[d.name] != d || checkTUN(d.tun, d.name) == nil {
		return false
	}
	k.forget(d)
	d.log.Warn("link is gone or broken")
	for c := range k.clients {
		// One that doesn't read is none.
		k.wg.Go(func() {
			if err := c.Tell(control.Message{Op: control.Died, Name: d.name, Index: d.index}); err != nil {
				c.Hangup()
			}
		})
	}
	return true
}

const (
	// watchPause is how often the keeper asks where peers are, unless that takes long.
	watchPause = 2 * time.Second
	// watchMost is how long it doesn't ask, at most: a server may hang meanwhile.
	watchMost = 20 * time.Second
)

// watchRest returns how long to rest after a look that took so long: for a hundred times as
// long, unless a server hung in it.
func watchRest(took time.Duration) time.Duration {
	return min(max(watchPause, 100*took), watchMost)
}

// hangLimit is how long the server may take to say where peers are.
const hangLimit = 10 * time.Second

// watch keeps the models up to date with what changes without requests. A server that
// doesn't answer is killed.
func (k *keeper) watch() {
	for pause := watchPause; ; {
		select {
		case <-time.After(pause):
		case <-k.ctx.Done():
			return
		}
		began := time.Now()
		k.holdPlace()
		for _, d := range k.list() {
			if err := k.observe(d); err != nil && d.ctx.Err() == nil {
				d.log.Warn("cannot ask where peers are", "err", err)
			}
		}
		pause = watchRest(time.Since(began))
	}
}

func (k *keeper) observe(d *kept) error {
	s, err := k.waitServer(d.ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(d.ctx, hangLimit)
	defer cancel()
	if !d.configuring.TryLock() {
		// Who has it waits for a server, for a minute and more during a hand-over. One that
		// lives says at once that it has no such device.
		if _, _, err = s.conn.Ask(ctx, control.Message{Op: opUAPI}); late(err) {
			return errors.Join(err, s.process.Kill())
		}
		return nil
	}
	defer d.configuring.Unlock()
	err = k.restore(ctx, d, s)
	if err == nil {
		err = s.exchange(ctx, d, getRequest, d.model.observe)
	}
	if late(err) {
		_ = s.process.Kill()
	}
	if err != nil && k.giveUp(d) {
		return nil
	}
	return err
}

// late reports whether an error says that something wasn't done in time.
func late(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
}

var getRequest = []byte("get=1\n\n")

// exchange has the server carry out a UAPI request of a device, and read take the
// answer.
func (s *server) exchange(ctx context.Context, d *kept, request []byte, take func(io.Reader) error) error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("make a socket pair: %w", err)
	}
	ours := os.NewFile(uintptr(fds[0]), "uapi")
	defer func() { _ = ours.Close() }()
	_, _, err = s.conn.Ask(ctx, control.Message{Op: opUAPI, Name: d.name}, fds[1])
	_ = unix.Close(fds[1])
	if err != nil {
		return err
	}
	deadline, limited := ctx.Deadline()
	if !limited {
		deadline = time.Now().Add(askLimit)
	}
	if err := ours.SetDeadline(deadline); err != nil {
		return err
	}
	if _, err := ours.Write(request); err != nil {
		return err
	}
	if err := unix.Shutdown(fds[0], unix.SHUT_WR); err != nil {
		return err
	}
	return take(ours)
}

// uapi is exchange for who wants the whole answer.
func (s *server) uapi(ctx context.Context, d *kept, request []byte) (answer []byte, err error) {
	question := bytes.HasPrefix(request, []byte("get"))
	err = s.exchange(ctx, d, request, func(r io.Reader) error {
		var text bytes.Buffer
		if question {
			// Megabytes: what grows to that leaves several times as much behind.
			last := int(d.answered.Load())
			text.Grow(last + last/8 + bytes.MinRead)
		}
		_, err := text.ReadFrom(r)
		answer = text.Bytes()
		return err
	})
	if question {
		d.answered.Store(int64(len(answer)))
	}
	if n := len(answer); err == nil && (n < 2 || string(answer[n-2:]) != "\n\n") {
		return nil, io.ErrUnexpectedEOF
	}
	return answer, err
}

func (s *server) up(ctx context.Context, d *kept) error {
	_, _, err := s.conn.Ask(ctx, control.Message{Op: opUp, Name: d.name})
	return err
}

// handshake has handshakes begun with peers, beside the sessions that they have.
func (s *server) handshake(ctx context.Context, d *kept, keys []string) error {
	_, _, err := s.conn.Ask(ctx, control.Message{Op: opHandshake, Name: d.name, Keys: keys})
	return err
}

// greet has handshakes begun with peers that had sessions, and then the TUN read.
func (s *server) greet(ctx context.Context, d *kept, keys []key) error {
	for len(keys) > 0 {
		n := min(len(keys), control.MaxKeys)
		m := control.Message{Op: opGreet, Name: d.name}
		for _, k := range keys[:n] {
			m.Keys = append(m.Keys, hex.EncodeToString(k[:]))
		}
		if _, _, err := s.conn.Ask(ctx, m); err != nil {
			return err
		}
		keys = keys[n:]
	}
	_, _, err := s.conn.Ask(ctx, control.Message{Op: opStart, Name: d.name})
	return err
}
