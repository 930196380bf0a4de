package tunnel

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
)

// engine is a connection to the process that serves a userspace device.
type engine struct {
	client  *control.Client
	timeout time.Duration       // for each response
	index   int                 // of the link that it serves
	died    atomic.Pointer[int] // index of the link whose device ended unexpectedly; nil: none
	closed  atomic.Bool         // by close
	wg      sync.WaitGroup
}

// engineTimeout bounds a response of the engine, longer than the engine's own timeout for its
// serving process. An engine that hangs goes on serving, but accepts no changes.
const engineTimeout = 30 * time.Second

// ask sends a request to the engine.
func (e *engine) ask(ctx context.Context, m control.Message, files ...int) (control.Message, error) {
	limited, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	answer, err := e.client.Ask(limited, m, files...)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = fmt.Errorf("the engine hangs, end its process or container: %w", err)
	}
	return answer, err
}

// connectEngine connects to the engine, and starts the program, unless empty, when none
// runs. ended is called when the device of that name ends unexpectedly, and when the
// connection ends.
func connectEngine(ctx context.Context, program, name string, ended func()) (*engine, error) {
	e := &engine{timeout: engineTimeout}
	dial := func() (err error) {
		ctx, cancel := context.WithTimeout(ctx, e.timeout)
		defer cancel()
		e.client, err = control.Subscribe(ctx, func(m control.Message) {
			if m.Op == control.Died && m.Name == name {
				e.died.Store(&m.Index)
				ended()
			}
		})
		return err
	}
	err := dial()
	if control.Absent(err) {
		if program == "" {
			return nil, fmt.Errorf("no engine is running: %w", err)
		}
		if err = startEngine(ctx, program); err == nil {
			err = dial()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("connect to the engine: %w", err)
	}
	e.wg.Go(func() {
		<-e.client.Done()
		if !e.closed.Load() {
			ended()
		}
	})
	return e, nil
}

// startEngine starts an engine that outlives this process, unless one runs already.
func startEngine(ctx context.Context, program string) error {
	cmd := exec.CommandContext(ctx, program, "start")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("start %s: %w", program, err)
	}
	return nil
}

// alive reports whether the device is known to be served.
func (e *engine) alive() bool {
	select {
	case <-e.client.Done():
		return false
	default:
		// A late event may be about an earlier device of the same name. An engine of an
		// earlier release doesn't send the index.
		died := e.died.Load()
		return died == nil || *died != 0 && *died != e.index
	}
}

// serves returns the index of the link that the engine serves under that name; 0: none.
func (e *engine) serves(ctx context.Context, name string) (index int, err error) {
	answer, err := e.ask(ctx, control.Message{Op: control.List})
	if err != nil {
		return 0, err
	}
	for _, d := range answer.Devices {
		if d.Name == name {
			return d.Index, nil
		}
	}
	return 0, nil
}

// serve passes the TUN link that file is attached to to the engine.
func (e *engine) serve(ctx context.Context, l link, file *os.File) error {
	raw, err := file.SyscallConn()
	if err := errors.Join(err, ctx.Err()); err != nil {
		return err
	}
	// Not cancelled: a later request could overtake this one, and find no device while the
	// engine opens the TUN.
	ctx = context.WithoutCancel(ctx)
	var askErr error
	err = raw.Control(func(fd uintptr) {
		_, askErr = e.ask(ctx, control.Message{Op: control.Serve, Name: l.name, Index: l.index}, int(fd))
	})
	err = errors.Join(err, askErr)
	if err != nil {
		return err
	}
	e.index = l.index
	return nil
}

// up opens the device's UDP sockets, unless open, and restores its UAPI socket if the file
// was removed.
func (e *engine) up(ctx context.Context, name string) (restored bool, err error) {
	answer, err := e.ask(ctx, control.Message{Op: control.Up, Name: name})
	if err != nil {
		return false, explain(err)
	}
	return answer.Changed, nil
}

// handshake sends handshakes to some of a device's peers, which keep their sessions.
func (e *engine) handshake(ctx context.Context, name string, peers []Key) error {
	for some := range slices.Chunk(peers, control.MaxKeys) {
		m := control.Message{Op: control.Handshake, Name: name}
		for _, key := range some {
			m.Keys = append(m.Keys, hex.EncodeToString(key[:]))
		}
		if _, err := e.ask(ctx, m); err != nil {
			return explain(err)
		}
	}
	return nil
}

// close ends the connection. The device stays.
func (e *engine) close() {
	e.closed.Store(true)
	e.client.Close()
	e.wg.Wait()
}

// onEngine calls f with a connection to the engine, if one runs. ctx bounds both.
func onEngine(ctx context.Context, f func(context.Context, *control.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	client, err := control.Dial(ctx)
	if control.Absent(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("connect to the engine: %w", err)
	}
	defer client.Close()
	return f(ctx, client)
}

// unserve makes the engine end a device, if an engine runs and has it.
func unserve(ctx context.Context, name string) error {
	return onEngine(ctx, func(ctx context.Context, client *control.Client) error {
		// Not cancelled: a pending request could end the next device of this name.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), engineTimeout)
		defer cancel()
		_, err := client.Ask(ctx, control.Message{Op: control.Remove, Name: name})
		return err
	})
}

// EndEngine ends an engine that was started by one of our devices and no longer serves any.
func EndEngine(ctx context.Context) error {
	return onEngine(ctx, func(ctx context.Context, client *control.Client) error {
		answer, err := client.Ask(ctx, control.Message{Op: control.End})
		// It may end before its response is sent.
		gone := errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE)
		if !gone && (err != nil || !answer.Changed) {
			return err
		}
		select {
		case <-client.Done():
			return nil
		case <-ctx.Done():
			return fmt.Errorf("wait for the engine to end: %w", ctx.Err())
		}
	})
}
