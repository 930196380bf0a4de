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
	client *control.Client
	limit  time.Duration       // for each answer
	index  int                 // of the link that it serves
	died   atomic.Pointer[int] // index of the link whose device has ended by itself; nil: none
	closed atomic.Bool         // by close
	wg     sync.WaitGroup
}

// engineLimit is how long an engine may take for an answer: longer than it waits itself
// for the process that serves. One that hangs goes on serving, and takes no changes.
const engineLimit = 30 * time.Second

// ask asks the engine for something.
func (e *engine) ask(ctx context.Context, m control.Message, files ...int) (control.Message, error) {
	limited, cancel := context.WithTimeout(ctx, e.limit)
	defer cancel()
	answer, err := e.client.Ask(limited, m, files...)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = fmt.Errorf("the engine hangs, end its process or container: %w", err)
	}
	return answer, err
}

// connectEngine connects to the engine, and starts the program when none answers,
// unless that is empty. ended is called when the device of that name ends by itself,
// and when the connection does.
func connectEngine(ctx context.Context, program, name string, ended func()) (*engine, error) {
	e := &engine{limit: engineLimit}
	dial := func() (err error) {
		ctx, cancel := context.WithTimeout(ctx, e.limit)
		defer cancel()
		e.client, err = control.DialNews(ctx, func(m control.Message) {
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
			return nil, fmt.Errorf("no engine answers: %w", err)
		}
		if err = startEngine(ctx, program); err == nil {
			err = dial()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("reach the engine: %w", err)
	}
	e.wg.Go(func() {
		<-e.client.Done()
		if !e.closed.Load() {
			ended()
		}
	})
	return e, nil
}

// startEngine starts an engine that outlives this process, unless there is one.
func startEngine(ctx context.Context, program string) error {
	cmd := exec.CommandContext(ctx, program, "start")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("start %s: %w", program, err)
	}
	return nil
}

// alive reports whether the device is served, as far as we know.
func (e *engine) alive() bool {
	select {
	case <-e.client.Done():
		return false
	default:
		// News of the device of that name before this one may come after this one is served. An
		// engine of an earlier release doesn't say which it was.
		died := e.died.Load()
		return died == nil || *died != 0 && *died != e.index
	}
}

// serves returns the index of the link that the engine serves as the device of that
// name; 0: none.
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

// serve has the engine serve the TUN link that file is attached to.
func (e *engine) serve(ctx context.Context, l link, file *os.File) error {
	raw, err := file.SyscallConn()
	if err := errors.Join(err, ctx.Err()); err != nil {
		return err
	}
	// Who has given the TUN away waits until the engine says that it has it, or hasn't: what
	// is asked next may overtake this, and tell of no device while the TUN is taken.
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

// up opens the device's UDP sockets, if they aren't open, and brings back a UAPI
// socket whose file somebody has removed, which is told by restored.
func (e *engine) up(ctx context.Context, name string) (restored bool, err error) {
	answer, err := e.ask(ctx, control.Message{Op: control.Up, Name: name})
	if err != nil {
		return false, explain(err)
	}
	return answer.Changed, nil
}

// handshake begins handshakes with some of a device's peers, beside the sessions that they
// have.
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

// close ends the connection, and nothing else.
func (e *engine) close() {
	e.closed.Store(true)
	e.client.Close()
	e.wg.Wait()
}

// unserve has the engine end a device, if there is an engine and it has that.
func unserve(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, engineLimit)
	defer cancel()
	client, err := control.Dial(ctx)
	if control.Absent(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reach the engine: %w", err)
	}
	defer client.Close()
	// Who asks waits until that is done, however long it may take itself: it would end the
	// device of this name that is served next.
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), engineLimit)
	defer cancel()
	_, err = client.Ask(ctx, control.Message{Op: control.Remove, Name: name})
	return err
}

// EndEngine ends an engine that was started by a device of ours and serves none any
// more. Others stay.
func EndEngine(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, engineLimit)
	defer cancel()
	client, err := control.Dial(ctx)
	if control.Absent(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reach the engine: %w", err)
	}
	defer client.Close()
	answer, err := client.Ask(ctx, control.Message{Op: control.End})
	// One that ends may be gone before its answer is sent.
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
}
