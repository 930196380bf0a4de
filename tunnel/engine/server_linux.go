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

// Requests of the supervisor to the serving process, each with the device's Name.
const (
	opOpen      = "open"      // descriptors of the TUN and of UDP sockets: create the device, down
	opUAPI      = "uapi"      // descriptor of a socket: answer UAPI requests from it
	opUp        = "up"        // open UDP sockets
	opGreet     = "greet"     // Keys: peers that had sessions, with which opStart begins handshakes
	opHandshake = "handshake" // Keys: begin handshakes with these peers, which have sessions
	opStart     = "start"     // begin handshakes, then read the TUN
	opClose     = "close"     // close the device
	opHandOver  = "give"      // descriptor of a pair: hand over the device and close it
	opTakeOver  = "take"      // descriptor of a pair: take over the device
)

// opSockets is a request of the serving process, which waits for the answer: Port and the
// UDP sockets of a device have changed, the supervisor replaces its duplicates.
const opSockets = "sockets"

// server is the supervisor's view of a serving process.
type server struct {
	conn    *control.Conn
	process *os.Process
	stop    func()
	ready   atomic.Bool // all devices were restored
}

func (s *server) gone() bool { return s.conn.Err() != nil }

// goneSoon reports whether the process ends within a second: a failed request may be the
// first sign of it.
func (s *server) goneSoon(ctx context.Context) bool {
	select {
	case <-s.conn.Done():
		return true
	case <-time.After(time.Second):
	case <-ctx.Done():
	}
	return false
}

// Back-off: a server that ends within shortLife, or before it serves all devices, counts
// as a death. After more than freeDeaths in a row the next start waits.
const (
	shortLife  = 200 * time.Millisecond
	freeDeaths = 20
	deathPause = 50 * time.Millisecond // times the deaths beyond
	maxPause   = time.Second
)

// superviseServer runs the serving process while there are devices, and restarts it when it
// exits.
func (sup *supervisor) superviseServer() {
	// Pdeathsig is sent when the thread that started the child ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	deaths := 0
	for sup.waitDevices() {
		began := time.Now()
		ready, err := sup.runServer()
		switch {
		case sup.ctx.Err() != nil:
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
		sup.log.Warn("the serving process has ended: restarting it", "err", err, "lived", time.Since(began), "pause", pause)
		select {
		case <-sup.ctx.Done():
		case <-time.After(pause):
		}
	}
}

// waitDevices waits until there are devices. It returns false when the supervisor ends.
func (sup *supervisor) waitDevices() bool {
	for {
		sup.mu.Lock()
		n, changed := len(sup.devices), sup.changed
		sup.mu.Unlock()
		if n > 0 {
			return sup.ctx.Err() == nil
		}
		select {
		case <-changed:
		case <-sup.ctx.Done():
			return false
		}
	}
}

// runServer runs a process that serves all devices. It returns nil when the process was
// stopped because there are no devices, and an error when it ended by itself.
func (sup *supervisor) runServer() (ready bool, err error) {
	ours, theirs, err := socketpair()
	if err != nil {
		return false, err
	}
	ctx, stop := context.WithCancel(sup.ctx)
	defer stop()
	s := &server{stop: stop}
	s.conn = control.NewConn(ours, func(m control.Message, files control.Files) (control.Message, control.Files) {
		sup.handleServer(s, m, files)
		return control.Message{}, nil
	})
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = sup.cfg.Server
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
	sup.setServer(s)
	sup.wg.Go(func() { sup.restoreAll(ctx, s) })
	err = cmd.Wait()
	stopped := ctx.Err() != nil
	sup.setServer(nil)
	s.conn.Close()
	if stopped {
		return true, nil
	}
	if err == nil {
		err = errors.New("exited unexpectedly")
	}
	return s.ready.Load(), err
}

// socketpair returns a connection and the descriptor of its other end.
func socketpair() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a socket pair: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "server"), os.NewFile(uintptr(fds[1]), "supervisor")
	conn, err := net.FileConn(ours)
	_ = ours.Close()
	if err != nil {
		_ = theirs.Close()
		return nil, nil, err
	}
	return conn.(*net.UnixConn), theirs, nil
}

func (sup *supervisor) setServer(s *server) {
	sup.mu.Lock()
	defer sup.mu.Unlock()
	sup.server = s
	sup.notify()
}

// restoreAll restores all devices concurrently on a new server.
func (sup *supervisor) restoreAll(ctx context.Context, s *server) {
	failed := make(chan bool)
	devices := sup.list()
	for _, d := range devices {
		sup.wg.Go(func() {
			limited, cancel := context.WithTimeout(ctx, requestTimeout)
			defer cancel()
			err := sup.with(limited, d, s, noChange)
			if err != nil && d.ctx.Err() == nil && ctx.Err() == nil {
				d.log.Warn("restoring the device on the server failed", "err", err)
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

// handleServer handles messages of the serving process.
func (sup *supervisor) handleServer(s *server, m control.Message, files control.Files) {
	if m.Op == opSockets {
		sup.setSockets(m.Name, m.Port, files)
		return
	}
	files.Close()
	// Another device may have the name by now.
	if d := sup.device(m.Name); d != nil && d.index == m.Index && m.Op == control.Died {
		sup.deviceDied(d, s)
	}
}

// endDevice closes a device of the process. It returns nil if device or process have ended.
func (s *server) endDevice(ctx context.Context, name string) error {
	_, _, err := s.conn.Ask(ctx, control.Message{Op: opClose, Name: name})
	if errors.Is(err, unix.ENODEV) || s.gone() {
		return nil
	}
	return err
}

// deviceDied handles a device that ended by itself, because its link was deleted or a read
// failed.
func (sup *supervisor) deviceDied(d *deviceState, s *server) {
	d.configuring.Lock()
	defer d.configuring.Unlock()
	if d.server != s || sup.dropIfGone(d) || d.ctx.Err() != nil {
		return
	}
	d.log.Warn("reading the link failed: serving it again")
	d.server = nil // The monitor restores it.
	d.ready.Store(nil)
}

// dropIfGone drops a device whose link doesn't exist any more, and notifies all clients.
// The caller has locked d.configuring.
func (sup *supervisor) dropIfGone(d *deviceState) bool {
	sup.mu.Lock()
	defer sup.mu.Unlock()
	if sup.devices[d.name] != d || checkTUN(d.tun, d.name) == nil {
		return false
	}
	sup.dropDevice(d)
	d.log.Warn("link is gone or broken")
	for c := range sup.clients {
		sup.wg.Go(func() {
			if err := c.Notify(control.Message{Op: control.Died, Name: d.name, Index: d.index}); err != nil {
				c.Hangup()
			}
		})
	}
	return true
}

const (
	// monitorPause is the least pause between two rounds of monitor.
	monitorPause = 2 * time.Second
	// maxMonitorPause bounds the pause, in which a hanging server isn't noticed.
	maxMonitorPause = 20 * time.Second
)

// pauseAfter returns the pause after a round of that duration: monitoring takes at most 1 %
// of the time, within the bounds.
func pauseAfter(took time.Duration) time.Duration {
	return min(max(monitorPause, 100*took), maxMonitorPause)
}

// serverTimeout bounds the server's answer to the monitor; beyond it, the server hangs.
const serverTimeout = 10 * time.Second

// monitor reads endpoints and handshake times into the models, restores devices and the
// control socket, and kills a server that doesn't answer.
func (sup *supervisor) monitor() {
	for pause := monitorPause; ; {
		select {
		case <-time.After(pause):
		case <-sup.ctx.Done():
			return
		}
		began := time.Now()
		sup.ensureControlSocket()
		for _, d := range sup.list() {
			if err := sup.monitorDevice(d); err != nil && d.ctx.Err() == nil {
				d.log.Warn("reading the state of peers failed", "err", err)
			}
		}
		pause = pauseAfter(time.Since(began))
	}
}

func (sup *supervisor) monitorDevice(d *deviceState) error {
	s, err := sup.waitServer(d.ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(d.ctx, serverTimeout)
	defer cancel()
	if !d.configuring.TryLock() {
		// A request or a hand-over is in progress, which may take more than a minute. A
		// server that runs answers at once that it has no device without a name.
		if _, _, err = s.conn.Ask(ctx, control.Message{Op: opUAPI}); timedOut(err) {
			return errors.Join(err, s.process.Kill())
		}
		return nil
	}
	defer d.configuring.Unlock()
	err = sup.restore(ctx, d, s)
	if err == nil {
		err = s.exchange(ctx, d, getRequest, d.model.observe)
	}
	if timedOut(err) {
		_ = s.process.Kill()
	}
	if err != nil && sup.dropIfGone(d) {
		return nil
	}
	return err
}

func timedOut(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
}

var getRequest = []byte("get=1\n\n")

// exchange sends a UAPI request of a device, and calls read with the response.
func (s *server) exchange(ctx context.Context, d *deviceState, request []byte, read func(io.Reader) error) error {
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
		deadline = time.Now().Add(requestTimeout)
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
	return read(ours)
}

// uapi sends a UAPI request and returns the whole response.
func (s *server) uapi(ctx context.Context, d *deviceState, request []byte) (answer []byte, err error) {
	question := bytes.HasPrefix(request, []byte("get"))
	err = s.exchange(ctx, d, request, func(r io.Reader) error {
		var text bytes.Buffer
		if question {
			// The response may have megabytes: growing the buffer would leave several times
			// as much garbage.
			last := int(d.responseSize.Load())
			text.Grow(last + last/8 + bytes.MinRead)
		}
		_, err := text.ReadFrom(r)
		answer = text.Bytes()
		return err
	})
	if question {
		d.responseSize.Store(int64(len(answer)))
	}
	if n := len(answer); err == nil && (n < 2 || string(answer[n-2:]) != "\n\n") {
		return nil, io.ErrUnexpectedEOF
	}
	return answer, err
}

func (s *server) up(ctx context.Context, d *deviceState) error {
	_, _, err := s.conn.Ask(ctx, control.Message{Op: opUp, Name: d.name})
	return err
}

// handshake begins handshakes with peers, which retain their sessions.
func (s *server) handshake(ctx context.Context, d *deviceState, keys []string) error {
	_, _, err := s.conn.Ask(ctx, control.Message{Op: opHandshake, Name: d.name, Keys: keys})
	return err
}

// greet begins handshakes with peers that had sessions, and then reads the TUN.
func (s *server) greet(ctx context.Context, d *deviceState, keys []key) error {
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
