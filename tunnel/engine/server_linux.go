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
	"slices"
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
	opReconnect = "reconnect" // Keys: peers that had sessions, with which opStart begins handshakes
	opHandshake = "handshake" // Keys: begin handshakes with these peers, which have sessions
	opStart     = "start"     // read the sockets, begin handshakes, then read the TUN; descriptor of a pipe: after it was written to or closed
	opStop      = "stop"      // read no further packets, and write to the descriptor of a pipe; the next request is opClose
	opClose     = "close"     // close the device
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

func (s *server) kill() error { return s.process.Kill() }

// ask sends a request, and waits for its response, which is empty.
func (s *server) ask(ctx context.Context, m control.Message, files ...int) error {
	_, _, err := s.conn.Ask(ctx, m, files...)
	return err
}

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
	for sup.devices.wait() {
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
	sup.devices.setServer(s)
	sup.wg.Go(func() { sup.devices.restore(ctx, s) })
	err = cmd.Wait()
	stopped := ctx.Err() != nil
	sup.devices.setServer(nil)
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

// handleServer handles messages of the serving process.
func (sup *supervisor) handleServer(s *server, m control.Message, files control.Files) {
	if m.Op == opSockets {
		sup.devices.setSockets(m.Name, m.Port, files)
		return
	}
	files.Close()
	// Another device may have the name by now.
	if d := sup.devices.find(m.Name); d != nil && d.index == m.Index && m.Op == control.Died {
		d.endedOn(s)
	}
}

// closeDevice closes a device of the process. It returns nil if device or process have ended.
func (s *server) closeDevice(ctx context.Context, name string) error {
	err := s.ask(ctx, control.Message{Op: opClose, Name: name})
	if errors.Is(err, unix.ENODEV) || s.gone() {
		return nil
	}
	return err
}

var getRequest = []byte("get=1\n\n")

// answerOK is the response to a "set" request that was carried out.
const answerOK = "errno=0\n\n"

// exchange sends a UAPI request of a device, and calls read with the response.
func (s *server) exchange(ctx context.Context, d *deviceState, request []byte, read func(io.Reader) error) error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("make a socket pair: %w", err)
	}
	ours := os.NewFile(uintptr(fds[0]), "uapi")
	defer func() { _ = ours.Close() }()
	err = s.ask(ctx, control.Message{Op: opUAPI, Name: d.name}, fds[1])
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

// start lets packets pass: the process begins handshakes with peers that had sessions, and then
// reads the TUN. With the descriptor of a pipe, after that was written to or closed.
func (s *server) start(ctx context.Context, device string, keys []key, after ...int) error {
	for some := range slices.Chunk(keys, control.MaxKeys) {
		m := control.Message{Op: opReconnect, Name: device}
		for _, k := range some {
			m.Keys = append(m.Keys, hex.EncodeToString(k[:]))
		}
		if err := s.ask(ctx, m); err != nil {
			return err
		}
	}
	return s.ask(ctx, control.Message{Op: opStart, Name: device}, after...)
}
