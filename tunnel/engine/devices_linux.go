package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
)

// devices are the devices of an engine, and the server that has them.
type devices struct {
	log *slog.Logger
	wg  *sync.WaitGroup
	ctx context.Context // of the engine
	// died is called after a device has ended by itself.
	died func(*deviceState)

	mu      sync.Mutex
	byName  map[string]*deviceState
	server  *server       // nil: none runs
	changed chan struct{} // closed and replaced when devices or server change
}

func newDevices(ctx context.Context, log *slog.Logger, wg *sync.WaitGroup, died func(*deviceState)) *devices {
	return &devices{log: log, wg: wg, ctx: ctx, died: died, byName: make(map[string]*deviceState), changed: make(chan struct{})}
}

// notify wakes the goroutines that wait for a change. The caller has locked mu.
func (all *devices) notify() {
	close(all.changed)
	all.changed = make(chan struct{})
}

const maxDevices = 256

// add adds a device with its name, index and descriptors, and without UAPI socket.
func (all *devices) add(d *deviceState) error {
	all.mu.Lock()
	defer all.mu.Unlock()
	switch {
	case all.ctx.Err() != nil:
		return all.ctx.Err()
	case all.byName[d.name] != nil:
		return unix.EEXIST
	case len(all.byName) >= maxDevices:
		return errors.New("too many devices")
	}
	d.all, d.log, d.model = all, all.log.With("device", d.name), newModel()
	d.ctx, d.end = context.WithCancel(all.ctx)
	all.byName[d.name] = d
	all.notify()
	return nil
}

// find returns a device, nil if there is none of that name.
func (all *devices) find(name string) *deviceState {
	all.mu.Lock()
	defer all.mu.Unlock()
	return all.byName[name]
}

// list returns a snapshot of the devices.
func (all *devices) list() []*deviceState {
	all.mu.Lock()
	defer all.mu.Unlock()
	return slices.Collect(maps.Values(all.byName))
}

// ifNone calls f if there are no devices. Meanwhile none is added.
func (all *devices) ifNone(f func()) bool {
	all.mu.Lock()
	defer all.mu.Unlock()
	if len(all.byName) > 0 {
		return false
	}
	f()
	return true
}

// drop releases all devices.
func (all *devices) drop() {
	all.mu.Lock()
	defer all.mu.Unlock()
	for _, d := range all.byName {
		d.release()
	}
}

// wait waits until there are devices. It returns false when the engine ends.
func (all *devices) wait() bool {
	for {
		all.mu.Lock()
		n, changed := len(all.byName), all.changed
		all.mu.Unlock()
		if n > 0 {
			return all.ctx.Err() == nil
		}
		select {
		case <-changed:
		case <-all.ctx.Done():
			return false
		}
	}
}

// setServer sets the server that restores the devices; nil: none runs.
func (all *devices) setServer(s *server) {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.server = s
	all.notify()
}

// waitServer returns the server, as soon as one runs.
func (all *devices) waitServer(ctx context.Context) (*server, error) {
	for {
		all.mu.Lock()
		s, changed := all.server, all.changed
		all.mu.Unlock()
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

// retry calls f with the server, and again with the next one when that ends meanwhile.
func (all *devices) retry(ctx context.Context, f func(*server) error) error {
	for {
		s, err := all.waitServer(ctx)
		if err != nil {
			return err
		}
		if err = f(s); err == nil || ctx.Err() != nil || !s.goneSoon(ctx) {
			return err
		}
	}
}

// restore restores all devices concurrently on a new server.
func (all *devices) restore(ctx context.Context, s *server) {
	failed := make(chan bool)
	devices := all.list()
	for _, d := range devices {
		all.wg.Go(func() {
			limited, cancel := context.WithTimeout(ctx, requestTimeout)
			defer cancel()
			err := d.with(limited, s, noChange)
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

// restoreAll restores all devices on the server that runs, if one does.
func (all *devices) restoreAll() {
	all.mu.Lock()
	s := all.server
	all.mu.Unlock()
	if s != nil {
		all.wg.Go(func() { all.restore(all.ctx, s) })
	}
}

// setSockets replaces the duplicates of a device's UDP sockets, and owns files.
func (all *devices) setSockets(name string, port int, files control.Files) {
	all.mu.Lock()
	defer all.mu.Unlock()
	d := all.byName[name]
	if d == nil {
		files.Close()
		return
	}
	d.sockets.Close()
	d.sockets, d.port = files, uint16(port)
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

// monitor reads endpoints and handshake times into the models, restores devices, and kills a
// server that doesn't answer. It calls first at the start of each round.
func (all *devices) monitor(first func()) {
	for pause := monitorPause; ; {
		select {
		case <-time.After(pause):
		case <-all.ctx.Done():
			return
		}
		began := time.Now()
		first()
		for _, d := range all.list() {
			if err := d.monitor(); err != nil && d.ctx.Err() == nil {
				d.log.Warn("reading the state of peers failed", "err", err)
			}
		}
		pause = pauseAfter(time.Since(began))
	}
}
