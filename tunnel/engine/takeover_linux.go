package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
)

const (
	// helloTimeout bounds an engine's answer to a hello; beyond it, the engine hangs.
	helloTimeout = 5 * time.Second
	// standbyPause is the interval at which an engine that stands by connects to the engine
	// that serves.
	standbyPause = 100 * time.Millisecond
	// maxTakeoverPause bounds the back-off between attempts to take over.
	maxTakeoverPause = 10 * time.Second
)

// Run serves devices until ctx ends or a client ends the engine. It doesn't delete links,
// whose routes stay, too. Run takes over the devices of an engine that runs already. When
// another engine takes over its devices, Run stands by: if it ended, the container would be
// restarted.
func Run(ctx context.Context, cfg Config) error {
	for {
		takenOver, err := run(ctx, cfg)
		if err != nil || !takenOver || cfg.Temporary {
			return err
		}
		if standBy(ctx, cfg.Logger); ctx.Err() != nil {
			return nil
		}
	}
}

// standBy returns when the engine that serves asks this one to take over, or has ended.
func standBy(ctx context.Context, log *slog.Logger) {
	log.Info("standing by")
	for ctx.Err() == nil {
		takeOver := make(chan struct{}, 1)
		c, err := control.Subscribe(ctx, func(m control.Message) {
			if m.Op == control.RequestTakeover {
				select {
				case takeOver <- struct{}{}:
				default:
				}
			}
		})
		if control.Absent(err) {
			return
		}
		if err == nil {
			_, err = c.Ask(ctx, control.Message{Op: control.Standby})
			if err == nil {
				select {
				case <-takeOver:
					c.Close()
					return
				case <-c.Done():
				case <-ctx.Done():
				}
			}
			c.Close()
		}
		select {
		case <-ctx.Done():
		case <-time.After(standbyPause):
		}
	}
}

// takeOverOrListen takes over the devices of another engine, if one answers, and returns the
// control socket.
func (sup *supervisor) takeOverOrListen(ctx context.Context) (*control.Listener, error) {
	for warned, pause := false, standbyPause; ; {
		limited, cancel := context.WithTimeout(ctx, helloTimeout)
		c, err := control.Dial(limited)
		cancel()
		switch {
		case err == nil && sup.cfg.Temporary:
			c.Close()
			return nil, fmt.Errorf("socket %s is %w", control.Path, control.ErrServed)
		case err == nil:
			listener, err := sup.takeOver(ctx, c)
			if err == nil {
				return listener, nil
			}
			// The other engine continues. Back off: each attempt costs its peers a handshake.
			sup.log.Warn("takeover failed: retrying", "err", err, "pause", pause)
			pause = min(2*pause, maxTakeoverPause)
		case control.Absent(err):
			listener, err := control.Listen(control.Path)
			if !errors.Is(err, control.ErrServed) {
				return listener, err
			}
		case errors.Is(err, control.ErrProtocol):
			// There is no request to hand over or to end that it understands.
			if !warned {
				sup.log.Warn("an engine with another protocol version serves: waiting for its end", "err", err)
			}
			warned = true
		case ctx.Err() != nil:
			return nil, ctx.Err()
		default:
			sup.log.Warn("the running engine doesn't answer: replacing it; links that it has open can't be served", "err", err)
			return control.Replace(control.Path)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// ensureControlSocket restores the control socket if it was removed. If another engine has
// replaced it, because this one didn't answer, this engine drops its devices and stands by.
func (sup *supervisor) ensureControlSocket() {
	sup.mu.Lock()
	lost := sup.listener != nil && !sup.listener.InPlace()
	sup.mu.Unlock()
	if !lost || sup.handovers.mayChange() != nil {
		return
	}
	fresh, err := control.Listen(control.Path)
	switch {
	case err == nil:
		sup.log.Warn("restored the control socket after it was removed")
		sup.serveClients(fresh)
	case errors.Is(err, control.ErrServed) && sup.handovers.replaced():
		sup.log.Warn("another engine has replaced the control socket: dropping all devices")
	default:
		sup.log.Warn("restoring the control socket failed", "err", err)
	}
}

// takeOver takes over all devices of another engine, and then its control socket.
func (sup *supervisor) takeOver(ctx context.Context, c *control.Client) (*control.Listener, error) {
	defer c.Close()
	answer, err := c.Ask(ctx, control.Message{Op: control.BeginTakeover})
	if err != nil {
		return nil, fmt.Errorf("take over: %w", err)
	}
	var failed []error
	for _, d := range answer.Devices {
		if err := sup.takeOverDevice(ctx, c, d.Name); err != nil {
			failed = append(failed, fmt.Errorf("take over %s: %w", d.Name, err))
			continue
		}
		sup.log.Info("taken over", "device", d.Name)
	}
	switch err := errors.Join(failed...); {
	case err != nil && len(failed) == len(answer.Devices):
		return nil, err // The other engine continues.
	case err != nil:
		sup.log.Warn("devices not taken over: the agent creates them again", "err", err)
	}
	listener, err := control.Replace(control.Path)
	if err != nil {
		return nil, err
	}
	if _, err := c.Ask(ctx, control.Message{Op: control.TakenOver}); err != nil {
		sup.log.Warn("the old engine has ended during the takeover", "err", err)
	}
	return listener, nil
}

// takeOverDevice takes over one device.
func (sup *supervisor) takeOverDevice(ctx context.Context, c *control.Client, name string) error {
	ctx, cancel := context.WithTimeout(ctx, handoverTimeout)
	defer cancel()
	answer, files, err := c.AskFiles(ctx, control.Message{Op: control.HandOver, Name: name})
	if err != nil {
		return err
	}
	defer func() { files.Close() }()
	if len(files) < 3 {
		return fmt.Errorf("got %d descriptors, want at least 3", len(files))
	}
	config, err := readMemfd(files[0])
	pair := files[1]
	files = files[2:]
	defer func() { _ = unix.Close(pair) }()
	if err == nil {
		err = checkTUN(files[0], name)
	}
	if err != nil {
		return err
	}
	d := &deviceState{
		name: name, index: answer.Index, tun: files[0], sockets: files[1:], port: uint16(answer.Port), wantUp: true,
	}
	d.configuring.Lock() // A server must not restore it.
	defer d.configuring.Unlock()
	if err := sup.devices.add(d); err != nil {
		return err
	}
	files = nil
	if err := d.takeOver(ctx, config, pair); err != nil {
		d.drop()
		return err
	}
	if _, err := c.Ask(ctx, control.Message{Op: control.TakenOver, Name: name}); err != nil {
		d.log.Warn("the old engine has ended during the takeover", "err", err)
	}
	return nil
}

// takeOver makes the server take over a device, and replaces its UAPI socket. If it returns an
// error, no process of this engine has the device's link open. The caller has locked
// d.configuring.
func (d *deviceState) takeOver(ctx context.Context, config []byte, pair int) (err error) {
	s, err := d.all.waitServer(ctx)
	if err != nil {
		return err
	}
	if _, err := d.open(ctx, s); err != nil {
		return err
	}
	defer func() { //nolint:contextcheck // The takeover's context may have ended.
		if err != nil {
			err = errors.Join(err, d.closeOn(s))
		}
	}()
	// config is one request, or two, see handoverState.
	for request := range bytes.SplitAfterSeq(config, []byte("\n\n")) {
		if len(request) == 0 {
			continue
		}
		answer, err := s.uapi(ctx, d, request)
		if err != nil {
			return err
		}
		if string(answer) != answerOK {
			return fmt.Errorf("apply the other engine's configuration: %q", answer)
		}
		_, lines, _ := bytes.Cut(request, []byte("\n"))
		if err := d.model.set(bytes.NewReader(lines)); err != nil {
			return err
		}
	}
	if err := s.ask(ctx, control.Message{Op: opTakeOver, Name: d.name}, pair); err != nil {
		return err
	}
	d.server = s
	d.ready.Store(s)
	return d.listen(control.Replace) //nolint:contextcheck // Its requests outlive the takeover.
}
