package tunnel

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
)

// expect has Ensure asked for as soon as an engine answers: how long Ensure waits
// after a failure is how long nothing goes through the device. The caller holds d.mu.
func (d *Device) expect(ctx context.Context) {
	d.expectNoMore()
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	d.expecting = func() {
		cancel()
		<-done
	}
	go func() {
		defer close(done)
		switch err := awaitEngine(ctx); {
		case err == nil:
			d.wake()
		case ctx.Err() == nil:
			d.log.Debug("not told when an engine comes: it is looked for now and then", "err", err)
		}
	}()
}

// expectNoMore ends what expect began. The caller holds d.mu.
func (d *Device) expectNoMore() {
	if d.expecting != nil {
		d.expecting()
		d.expecting = nil
	}
}

// awaitEngine returns when an engine answers. An engine that starts moves its socket
// to its place, see control.Listen, which inotify(7) tells.
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
		// Which file it was doesn't matter: an engine answers now, or it doesn't.
		if _, err := events.Read(buffer); err != nil {
			return fmt.Errorf("watch %s: %w", control.Dir, err)
		}
	}
}
