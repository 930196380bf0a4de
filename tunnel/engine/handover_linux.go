package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/handover"
)

// takeovers is the state of takeovers by other engines. It is guarded by the supervisor's mu.
type takeovers struct {
	successor *control.Conn // engine that takes over now; nil: none
	takenOver bool          // the successor has all devices
	failures  int           // successors that ended before they had all devices
	standby   *control.Conn // engine that stands by
	handovers sync.WaitGroup
}

const (
	// handoverTimeout bounds the hand-over of one device, with the handshakes of its peers.
	handoverTimeout = 90 * time.Second
	// shutdownTimeout bounds how long an engine that ends waits for a takeover. The agent's
	// pod has 20 s.
	shutdownTimeout = 15 * time.Second
	// takeoverStartTimeout bounds how long an engine that stands by takes to begin.
	takeoverStartTimeout = helloTimeout
)

var (
	errNotTakeover = errors.New("request isn't part of a takeover")
	errTakeover    = errors.New("another engine is taking over")
)

// mayChange returns an error during a takeover, in which devices can't be changed.
func (sup *supervisor) mayChange() error {
	sup.mu.Lock()
	defer sup.mu.Unlock()
	if sup.successor != nil {
		return errTakeover
	}
	return nil
}

// handleTakeover carries out requests of another engine. It returns errNotTakeover for other
// requests.
func (sup *supervisor) handleTakeover(c *control.Conn, m control.Message) (control.Message, control.Files, error) {
	switch m.Op {
	case control.BeginTakeover:
		if err := sup.beginTakeover(c); err != nil {
			return control.Message{}, nil, err
		}
		ctx, cancel := context.WithTimeout(sup.ctx, requestTimeout)
		defer cancel()
		answer, err := sup.answer(control.Message{Op: control.List}, new(control.Files))
		return answer, nil, errors.Join(err, ctx.Err())
	case control.HandOver:
		return sup.handOverDevice(c, sup.device(m.Name))
	case control.TakenOver:
		return control.Message{}, nil, sup.confirmTakeover(c, m.Name)
	case control.Standby:
		sup.mu.Lock()
		defer sup.mu.Unlock()
		sup.standby = c
		sup.log.Info("another engine stands by")
		return control.Message{}, nil, nil
	}
	return control.Message{}, nil, errNotTakeover
}

// beginTakeover begins a takeover, which lasts as long as the connection.
func (sup *supervisor) beginTakeover(c *control.Conn) error {
	sup.mu.Lock()
	defer sup.mu.Unlock()
	if sup.successor != nil {
		return errTakeover
	}
	sup.successor = c
	sup.notify()
	sup.log.Info("another engine takes over")
	sup.wg.Go(func() {
		<-c.Done()
		sup.mu.Lock()
		defer sup.mu.Unlock()
		if !sup.takenOver {
			sup.successor = nil
			sup.failures++
			sup.notify()
			sup.log.Warn("takeover failed, because the other engine has ended: still serving")
		}
	})
	return nil
}

// handOverDevice starts the hand-over of a device, and returns the device's handoverState.
func (sup *supervisor) handOverDevice(c *control.Conn, d *deviceState) (answer control.Message, files control.Files, err error) {
	sup.mu.Lock()
	may := sup.successor == c
	sup.mu.Unlock()
	if !may || d == nil {
		return answer, nil, unix.ENODEV
	}
	ctx, cancel := context.WithTimeout(d.ctx, handoverTimeout)
	began := make(chan error, 1)
	sup.mu.Lock()
	sup.handovers.Add(1)
	sup.mu.Unlock()
	sup.wg.Go(func() {
		defer sup.handovers.Done()
		defer cancel()
		err := sup.withServer(ctx, d, func(s *server) error {
			ours, theirs, err := handover.Pair()
			if err != nil {
				return err
			}
			defer func() { _ = ours.Close() }()
			answer, files, err = sup.handoverState(d, theirs)
			if err == nil {
				began <- nil
				sup.runHandover(ctx, c, d, s, ours)
			}
			return err
		})
		if err != nil {
			began <- err
		}
	})
	err = <-began
	return answer, files, err
}

// handoverState returns the answer to [control.HandOver]: configuration, sockets and TUN of a
// device, and an end of the pair. The caller has locked d.configuring.
func (sup *supervisor) handoverState(d *deviceState, pair *os.File) (control.Message, control.Files, error) {
	defer func() { _ = pair.Close() }()
	files, port, err := sup.duplicates(d)
	if err != nil {
		return control.Message{}, nil, err
	}
	keys, _ := d.model.recent(time.Now())
	config, err := writeMemfd(append(d.model.request(port), d.model.keepalives(keys)...))
	if err != nil {
		files.Close()
		return control.Message{}, nil, err
	}
	end, err := duplicateFile(pair)
	if err != nil {
		files.Close()
		return control.Message{}, nil, errors.Join(err, unix.Close(config))
	}
	m := control.Message{Name: d.name, Index: d.index, Port: int(port)}
	return m, append(control.Files{config, end}, files...), nil
}

// runHandover makes the server hand over a device, and drops the device when the other engine
// has it. The caller has locked d.configuring.
func (sup *supervisor) runHandover(ctx context.Context, c *control.Conn, d *deviceState, s *server, pair *os.File) {
	confirmed := make(chan struct{})
	sup.mu.Lock()
	d.confirmed = confirmed
	sup.mu.Unlock()
	fd, err := duplicateFile(pair)
	if err == nil {
		_ = pair.Close()
		_, _, err = s.conn.Ask(ctx, control.Message{Op: opHandOver, Name: d.name}, fd)
		_ = unix.Close(fd)
	}
	if err != nil && s.gone() {
		// The other engine confirms if it could complete the takeover without this server.
		select {
		case <-confirmed:
			err = nil
		case <-c.Done():
		case <-ctx.Done():
		}
	}
	if err != nil {
		d.log.Warn("still serving: the hand-over failed", "err", err)
		return
	}
	sup.mu.Lock()
	defer sup.mu.Unlock()
	if sup.devices[d.name] == d {
		sup.dropDevice(d)
		d.log.Info("handed over")
	}
}

// confirmTakeover handles [control.TakenOver].
func (sup *supervisor) confirmTakeover(c *control.Conn, name string) error {
	sup.mu.Lock()
	defer sup.mu.Unlock()
	if sup.successor != c {
		return unix.EPERM
	}
	if name != "" {
		if d := sup.devices[name]; d != nil && d.confirmed != nil {
			close(d.confirmed)
			d.confirmed = nil
		}
		return nil
	}
	sup.takenOver = true
	for _, d := range sup.devices {
		if d.confirmed != nil { // not taken over: the device ends with this engine
			close(d.confirmed)
			d.confirmed = nil
		}
	}
	sup.wg.Go(func() {
		sup.handovers.Wait()
		sup.end()
	})
	return nil
}

// awaitTakeover waits for the end of a takeover that is in progress, or asks the engine that
// stands by to take over. It gives up after two failed attempts.
func (sup *supervisor) awaitTakeover() {
	ctx, cancel := context.WithTimeout(sup.ctx, shutdownTimeout)
	defer cancel()
	sup.mu.Lock()
	successor, standby, failures := sup.successor, sup.standby, sup.failures
	sup.mu.Unlock()
	if successor == nil && (standby == nil || standby.Notify(control.Message{Op: control.RequestTakeover}) != nil) {
		return
	}
	sup.log.Info("waiting for the takeover by another engine before ending")
	for waiting := true; waiting; {
		sup.mu.Lock()
		successor, failed, changed := sup.successor, sup.failures == failures+2, sup.changed
		sup.mu.Unlock()
		if failed {
			break
		}
		var timeout <-chan time.Time
		if successor == nil {
			timeout = time.After(takeoverStartTimeout)
		}
		select {
		case <-changed:
		case <-timeout:
			waiting = false
		case <-ctx.Done():
			waiting = false
		}
	}
	if sup.ctx.Err() == nil {
		sup.log.Warn("no takeover by the other engine: ending")
	}
}

// writeMemfd returns a memfd with the content, which passes keys to another process without
// writing them to disk.
func writeMemfd(content []byte) (fd int, err error) {
	fd, err = unix.MemfdCreate("configuration", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("make a file in memory: %w", err)
	}
	for written := 0; written < len(content); {
		n, err := unix.Pwrite(fd, content[written:], int64(written))
		if err != nil {
			return -1, errors.Join(fmt.Errorf("write a file in memory: %w", err), unix.Close(fd))
		}
		written += n
	}
	return fd, nil
}

// maxConfiguration bounds the content that readMemfd returns, in bytes.
const maxConfiguration = 64 << 20

// readMemfd reads a memfd and closes it.
func readMemfd(fd int) ([]byte, error) {
	file := os.NewFile(uintptr(fd), "configuration")
	defer func() { _ = file.Close() }()
	var content bytes.Buffer
	_, err := content.ReadFrom(io.NewSectionReader(file, 0, maxConfiguration))
	return content.Bytes(), err
}

func duplicateFile(f *os.File) (fd int, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	var dupErr error
	err = raw.Control(func(of uintptr) { fd, dupErr = duplicate(int(of)) })
	return fd, errors.Join(err, dupErr)
}
