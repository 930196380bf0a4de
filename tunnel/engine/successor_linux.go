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

// handing is what a keeper knows of others. It is guarded by the keeper's mu.
type handing struct {
	taker   *control.Conn // another engine that takes the devices
	taken   bool          // it has them all
	failed  int           // of those who took, before they had all
	standby *control.Conn // another engine that would
	giving  sync.WaitGroup
}

const (
	// handLimit bounds how long a device takes, with all that its peers may take.
	handLimit = 90 * time.Second
	// leaveLimit bounds how long an engine that is to end waits for another one that
	// takes over. The agent's pod has 20 s.
	leaveLimit = 15 * time.Second
	// takerLimit is how long an engine that was told to take over may take to begin.
	takerLimit = greetLimit
)

var (
	errOther  = errors.New("that isn't about a hand-over")
	errTaking = errors.New("another engine is taking over")
)

// mayChange refuses changes while another engine takes the devices.
func (k *keeper) mayChange() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.taker != nil {
		return errTaking
	}
	return nil
}

// hand does what another engine asks for, and returns errOther for anything else.
func (k *keeper) hand(c *control.Conn, m control.Message) (control.Message, control.Files, error) {
	switch m.Op {
	case control.Take:
		if err := k.takenBy(c); err != nil {
			return control.Message{}, nil, err
		}
		ctx, cancel := context.WithTimeout(k.ctx, askLimit)
		defer cancel()
		answer, err := k.answer(control.Message{Op: control.List}, new(control.Files))
		return answer, nil, errors.Join(err, ctx.Err())
	case control.Give:
		return k.give(c, k.device(m.Name))
	case control.Took:
		return control.Message{}, nil, k.took(c, m.Name)
	case control.Standby:
		k.mu.Lock()
		defer k.mu.Unlock()
		k.standby = c
		k.log.Info("another engine stands by")
		return control.Message{}, nil, nil
	}
	return control.Message{}, nil, errOther
}

// takenBy begins a hand-over that lasts as long as a connection.
func (k *keeper) takenBy(c *control.Conn) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.taker != nil {
		return errTaking
	}
	k.taker = c
	k.notify()
	k.log.Info("another engine takes over")
	k.wg.Go(func() {
		<-c.Done()
		k.mu.Lock()
		defer k.mu.Unlock()
		if !k.taken {
			k.taker = nil
			k.failed++
			k.notify()
			k.log.Warn("the engine that was taking over has ended: going on")
		}
	})
	return nil
}

// give hands a device over. It returns what the other engine needs for it at once.
func (k *keeper) give(c *control.Conn, d *kept) (answer control.Message, files control.Files, err error) {
	k.mu.Lock()
	may := k.taker == c
	k.mu.Unlock()
	if !may || d == nil {
		return answer, nil, unix.ENODEV
	}
	ctx, cancel := context.WithTimeout(d.ctx, handLimit)
	began := make(chan error, 1)
	k.mu.Lock()
	k.giving.Add(1)
	k.mu.Unlock()
	k.wg.Go(func() {
		defer k.giving.Done()
		defer cancel()
		err := k.withServer(ctx, d, func(s *server) error {
			giver, taker, err := handover.Pair()
			if err != nil {
				return err
			}
			defer func() { _ = giver.Close() }()
			answer, files, err = k.estate(d, taker)
			if err == nil {
				began <- nil
				k.handOver(ctx, c, d, s, giver)
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

// estate returns what an engine needs to take a device. The caller holds
// d.configuring.
func (k *keeper) estate(d *kept, taker *os.File) (control.Message, control.Files, error) {
	defer func() { _ = taker.Close() }()
	files, port, err := k.duplicates(d)
	if err != nil {
		return control.Message{}, nil, err
	}
	keys, _ := d.model.recent(time.Now())
	config, err := memory(append(d.model.request(port), d.model.keepalives(keys)...))
	if err != nil {
		files.Close()
		return control.Message{}, nil, err
	}
	end, err := duplicateFile(taker)
	if err != nil {
		files.Close()
		return control.Message{}, nil, errors.Join(err, unix.Close(config))
	}
	m := control.Message{Name: d.name, Index: d.index, Port: int(port)}
	return m, append(control.Files{config, end}, files...), nil
}

// handOver has a server hand a device over, and gives it up when the other engine has
// it. The caller holds d.configuring.
func (k *keeper) handOver(ctx context.Context, c *control.Conn, d *kept, s *server, giver *os.File) {
	given := make(chan struct{})
	k.mu.Lock()
	d.given = given
	k.mu.Unlock()
	fd, err := duplicateFile(giver)
	if err == nil {
		_ = giver.Close()
		_, _, err = s.conn.Ask(ctx, control.Message{Op: opGive, Name: d.name}, fd)
		_ = unix.Close(fd)
	}
	if err != nil && s.gone() {
		// The other engine has gone on alone, or it says so in a moment.
		select {
		case <-given:
			err = nil
		case <-c.Done():
		case <-ctx.Done():
		}
	}
	if err != nil {
		d.log.Warn("still serving: the hand-over failed", "err", err)
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.devices[d.name] == d {
		k.forget(d)
		d.log.Info("handed over")
	}
}

// took takes notice of what the other engine has.
func (k *keeper) took(c *control.Conn, name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.taker != c {
		return unix.EPERM
	}
	if name != "" {
		if d := k.devices[name]; d != nil && d.given != nil {
			close(d.given)
			d.given = nil
		}
		return nil
	}
	k.taken = true
	for _, d := range k.devices {
		if d.given != nil { // and not taken: it ends with this engine
			close(d.given)
			d.given = nil
		}
	}
	k.wg.Go(func() {
		k.giving.Wait()
		k.end()
	})
	return nil
}

// leave waits until another engine has taken over, if one is about to, or has the one
// that stands by do so. That tries it a second time when it fails.
func (k *keeper) leave() {
	ctx, cancel := context.WithTimeout(k.ctx, leaveLimit)
	defer cancel()
	k.mu.Lock()
	taker, standby, failed := k.taker, k.standby, k.failed
	k.mu.Unlock()
	if taker == nil && (standby == nil || standby.Tell(control.Message{Op: control.TakeOver}) != nil) {
		return
	}
	k.log.Info("ending when another engine has taken over")
	for waiting := true; waiting; {
		k.mu.Lock()
		taker, vain, changed := k.taker, k.failed == failed+2, k.changed
		k.mu.Unlock()
		if vain {
			break
		}
		var late <-chan time.Time
		if taker == nil {
			late = time.After(takerLimit)
		}
		select {
		case <-changed:
		case <-late:
			waiting = false
		case <-ctx.Done():
			waiting = false
		}
	}
	if k.ctx.Err() == nil {
		k.log.Warn("the other engine doesn't take over")
	}
}

// memory returns a file in memory with some content: other processes get keys that way.
func memory(content []byte) (fd int, err error) {
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

// maxConfiguration bounds what is read of such a file, in bytes.
const maxConfiguration = 64 << 20

// remembered reads a file of memory, and closes it.
func remembered(fd int) ([]byte, error) {
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
