package tunnel

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
)

// awaitEngineStart requests Ensure as soon as an engine starts, since no packets pass until
// the next Ensure after a failure. The caller holds d.mu.
func (d *Device) awaitEngineStart(ctx context.Context) {
	d.stopAwaitingEngine()
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	d.stopAwaiting = func() {
		cancel()
		<-done
	}
	go func() {
		defer close(done)
		switch err := awaitEngine(ctx); {
		case err == nil:
			d.wake()
		case ctx.Err() == nil:
			d.log.Debug("watching for the start of an engine failed: retrying at intervals", "err", err)
		}
	}()
}

// stopAwaitingEngine stops awaitEngineStart. The caller holds d.mu.
func (d *Device) stopAwaitingEngine() {
	if d.stopAwaiting != nil {
		d.stopAwaiting()
		d.stopAwaiting = nil
	}
}

// awaitEngine returns when an engine runs. An engine that starts renames its socket into
// place, see control.Listen, which inotify(7) reports.
func awaitEngine(ctx context.Context) error {
	if err := os.MkdirAll(control.Dir, 0o700); err != nil {
		return err
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("watch %s: %w", control.Dir, err)
	}
	events := os.NewFile(uintptr(fd), "inotify")
	defer func() { _ = events.Close() }()
	if _, err := unix.InotifyAddWatch(fd, control.Dir, unix.IN_MOVED_TO); err != nil {
		return fmt.Errorf("watch %s: %w", control.Dir, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = events.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buffer := make([]byte, 64<<10)
	for {
		if client, err := control.Dial(ctx); err == nil {
			client.Close()
			return nil
		}
		// The file's name doesn't matter: dial again.
		if _, err := events.Read(buffer); err != nil {
			return fmt.Errorf("watch %s: %w", control.Dir, err)
		}
	}
}
