package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/handover"
)

// handovers is the old engine's side of a takeover: it decides which devices the new engine
// gets, and when this engine ends.
type handovers struct {
	devices *devices
	log     *slog.Logger
	ctx     context.Context // of this engine
	end     func()          // ends it
	running sync.WaitGroup  // hand-overs of single devices

	mu        sync.Mutex
	newEngine *control.Conn            // takes over now; nil: none
	completed bool                     // it has all devices
	failures  int                      // new engines that ended before
	standby   *control.Conn            // of an engine that stands by; nil: none
	confirmed map[string]chan struct{} // by device; closed when the new engine has it
	changed   chan struct{}            // closed and replaced when newEngine changes
}

func newHandovers(ctx context.Context, d *devices, end func()) *handovers {
	return &handovers{devices: d, log: d.log, ctx: ctx, end: end, confirmed: make(map[string]chan struct{}), changed: make(chan struct{})}
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

var errTakeover = errors.New("another engine is taking over")

// mayChange returns an error during a takeover, in which devices can't be changed.
func (h *handovers) mayChange() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.newEngine != nil {
		return errTakeover
	}
	return nil
}

// standBy registers an engine that stands by.
func (h *handovers) standBy(c *control.Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.standby = c
	h.log.Info("another engine stands by")
}

// begin begins a takeover, which lasts as long as the connection.
func (h *handovers) begin(c *control.Conn) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.newEngine != nil {
		return errTakeover
	}
	h.setNewEngine(c)
	h.log.Info("another engine takes over")
	h.devices.wg.Go(func() {
		<-c.Done()
		h.mu.Lock()
		defer h.mu.Unlock()
		if !h.completed {
			h.failures++
			h.setNewEngine(nil)
			h.log.Warn("takeover failed, because the other engine has ended: still serving")
		}
	})
	return nil
}

// setNewEngine sets newEngine. The caller has locked h.mu.
func (h *handovers) setNewEngine(c *control.Conn) {
	h.newEngine = c
	close(h.changed)
	h.changed = make(chan struct{})
}

// handOver starts the hand-over of a device, and returns the device's handoverState.
func (h *handovers) handOver(c *control.Conn, d *deviceState) (answer control.Message, files control.Files, err error) {
	h.mu.Lock()
	may := h.newEngine == c && !h.completed && d != nil
	if may {
		h.running.Add(1)
	}
	h.mu.Unlock()
	if !may {
		return answer, nil, unix.ENODEV
	}
	ctx, cancel := context.WithTimeout(d.ctx, handoverTimeout)
	began := make(chan error, 1)
	h.devices.wg.Go(func() {
		defer h.running.Done()
		defer cancel()
		err := d.withServer(ctx, func(s *server) error {
			ours, theirs, err := handover.Pair()
			if err != nil {
				return err
			}
			defer func() { _ = ours.Close() }()
			answer, files, err = handoverState(d, theirs)
			if err == nil {
				began <- nil
				h.run(ctx, c, d, s, ours)
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
func handoverState(d *deviceState, pair *os.File) (control.Message, control.Files, error) {
	defer func() { _ = pair.Close() }()
	files, port, err := d.duplicates()
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

// run makes the server hand over a device, and drops the device when the new engine has it.
// The caller has locked d.configuring.
func (h *handovers) run(ctx context.Context, c *control.Conn, d *deviceState, s *server, pair *os.File) {
	confirmed := make(chan struct{})
	h.mu.Lock()
	h.confirmed[d.name] = confirmed
	h.mu.Unlock()
	fd, err := duplicateFile(pair)
	if err == nil {
		_ = pair.Close()
		err = s.ask(ctx, control.Message{Op: opHandOver, Name: d.name}, fd)
		_ = unix.Close(fd)
	}
	if err != nil && s.gone() {
		// The new engine confirms if it could complete the takeover without this server.
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
	if d.drop() {
		d.log.Info("handed over")
	}
}

// confirm handles [control.TakenOver].
func (h *handovers) confirm(c *control.Conn, device string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.newEngine != c {
		return unix.EPERM
	}
	if device != "" {
		h.closeConfirmed(device)
		return nil
	}
	h.completed = true
	for device := range h.confirmed { // not taken over: the device ends with this engine
		h.closeConfirmed(device)
	}
	h.devices.wg.Go(func() {
		h.running.Wait()
		h.end()
	})
	return nil
}

func (h *handovers) closeConfirmed(device string) {
	if confirmed := h.confirmed[device]; confirmed != nil {
		close(confirmed)
		delete(h.confirmed, device)
	}
}

// isComplete reports whether another engine has all devices.
func (h *handovers) isComplete() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.completed
}

// replaced ends this engine after another one has replaced the control socket, as if that had
// taken over all devices. It returns false during a takeover.
func (h *handovers) replaced() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.newEngine != nil {
		return false
	}
	h.completed = true
	h.end()
	return true
}

// await waits for the end of a takeover that is in progress, or asks the engine that stands by
// to take over. It gives up after two failed attempts.
func (h *handovers) await() {
	ctx, cancel := context.WithTimeout(h.ctx, shutdownTimeout)
	defer cancel()
	h.mu.Lock()
	newEngine, standby, failures := h.newEngine, h.standby, h.failures
	h.mu.Unlock()
	if newEngine == nil && (standby == nil || standby.Notify(control.Message{Op: control.RequestTakeover}) != nil) {
		return
	}
	h.log.Info("waiting for the takeover by another engine before ending")
	for waiting := true; waiting; {
		h.mu.Lock()
		newEngine, failed, changed := h.newEngine, h.failures == failures+2, h.changed
		h.mu.Unlock()
		if failed {
			break
		}
		var timeout <-chan time.Time
		if newEngine == nil {
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
	if h.ctx.Err() == nil {
		h.log.Warn("no takeover by the other engine: ending")
	}
}

// writeMemfd returns a memfd with the content, which passes keys to another process without
// writing them to disk.
func writeMemfd(content []byte) (fd int, err error) {
	fd, err = unix.MemfdCreate("configuration", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("make a file in memory: %w", err)
	}
	file := os.NewFile(uintptr(fd), "configuration")
	defer func() { _ = file.Close() }()
	if _, err := file.WriteAt(content, 0); err != nil {
		return -1, fmt.Errorf("write a file in memory: %w", err)
	}
	return duplicate(fd)
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
