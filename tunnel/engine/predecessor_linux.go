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
	// greetLimit is how long an engine may take to say hello; beyond, it hangs.
	greetLimit = 5 * time.Second
	// standbyPause is how often an engine that stands by looks for another one.
	standbyPause = 100 * time.Millisecond
	// mostPause is how often an engine that can't take over tries it again, at least.
	mostPause = 10 * time.Second
)

// Run serves devices until ctx ends, or a client ends it. Links stay, and with them
// routes to them. The devices of another engine are taken over; when another engine
// takes those of this one, it stands by, because who started it would only start it
// again.
func Run(ctx context.Context, cfg Config) error {
	for {
		taken, err := run(ctx, cfg)
		if err != nil || !taken || cfg.Temporary {
			return err
		}
		if standBy(ctx, cfg.Logger); ctx.Err() != nil {
			return nil
		}
	}
}

// standBy returns when the engine that serves tells this one to take over, or has
// ended.
func standBy(ctx context.Context, log *slog.Logger) {
	log.Info("standing by")
	for ctx.Err() == nil {
		told := make(chan struct{}, 1)
		c, err := control.DialNews(ctx, func(m control.Message) {
			if m.Op == control.TakeOver {
				select {
				case told <- struct{}{}:
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
				case <-told:
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

// begin takes over what another engine serves, if one answers, and returns the control
// socket.
func (k *keeper) begin(ctx context.Context) (*control.Listener, error) {
	for told, pause := false, standbyPause; ; {
		limited, cancel := context.WithTimeout(ctx, greetLimit)
		c, err := control.Dial(limited)
		cancel()
		switch {
		case err == nil && k.cfg.Temporary:
			c.Close()
			return nil, fmt.Errorf("socket %s is %w", control.Path, control.ErrServed)
		case err == nil:
			listener, err := k.takeOver(ctx, c)
			if err == nil {
				return listener, nil
			}
			// The other one goes on. Each attempt costs its peers a handshake.
			k.log.Warn("cannot take over: trying again", "err", err, "pause", pause)
			pause = min(2*pause, mostPause)
		case control.Absent(err):
			listener, err := control.Listen(control.Path)
			if !errors.Is(err, control.ErrServed) {
				return listener, err
			}
		case errors.Is(err, control.ErrProtocol):
			// It can't hand over, and it can't be asked to end.
			if !told {
				k.log.Warn("another engine serves, of another version: waiting until it has ended", "err", err)
			}
			told = true
		case ctx.Err() != nil:
			return nil, ctx.Err()
		default:
			k.log.Warn("another engine doesn't answer: taking its place; links that it still holds can't be served", "err", err)
			return control.Replace(control.Path)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// holdPlace makes sure that the control socket is where clients look for it. Where another
// engine answers, which found this one hanging, that one has the place: this one gives its
// devices up, and stands by.
func (k *keeper) holdPlace() {
	k.mu.Lock()
	lost := k.listener != nil && k.taker == nil && !k.listener.InPlace()
	k.mu.Unlock()
	if !lost {
		return
	}
	fresh, err := control.Listen(control.Path)
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case err == nil && k.ctx.Err() == nil:
		k.log.Warn("restored the control socket, which somebody had removed")
		_ = k.listener.Close()
		k.listener = fresh
		k.wg.Go(func() { k.accept(fresh, k.client) })
	case err == nil:
		_ = fresh.Close()
	case errors.Is(err, control.ErrServed) && k.taker == nil:
		k.log.Warn("another engine has this one's place: giving up what it serves")
		k.taken = true
		k.end()
	default:
		k.log.Warn("cannot restore the control socket", "err", err)
	}
}

// takeOver takes over all devices of another engine, and then its control socket.
func (k *keeper) takeOver(ctx context.Context, c *control.Client) (*control.Listener, error) {
	defer c.Close()
	answer, err := c.Ask(ctx, control.Message{Op: control.Take})
	if err != nil {
		return nil, fmt.Errorf("take over: %w", err)
	}
	var failed []error
	for _, d := range answer.Devices {
		if err := k.adopt(ctx, c, d.Name); err != nil {
			failed = append(failed, fmt.Errorf("take over %s: %w", d.Name, err))
			continue
		}
		k.log.Info("taken over", "device", d.Name)
	}
	switch err := errors.Join(failed...); {
	case err != nil && len(failed) == len(answer.Devices):
		return nil, err // The other engine goes on.
	case err != nil:
		k.log.Warn("devices end with the engine before this one, until they are asked for", "err", err)
	}
	listener, err := control.Replace(control.Path)
	if err != nil {
		return nil, err
	}
	if _, err := c.Ask(ctx, control.Message{Op: control.Took}); err != nil {
		k.log.Warn("the engine before this one has ended", "err", err)
	}
	return listener, nil
}

// adopt takes over a device.
func (k *keeper) adopt(ctx context.Context, c *control.Client, name string) error {
	ctx, cancel := context.WithTimeout(ctx, handLimit)
	defer cancel()
	answer, files, err := c.AskFiles(ctx, control.Message{Op: control.Give, Name: name})
	if err != nil {
		return err
	}
	defer func() { files.Close() }()
	if len(files) < 3 {
		return fmt.Errorf("%d descriptors", len(files))
	}
	config, err := remembered(files[0])
	pair := files[1]
	files = files[2:]
	defer func() { _ = unix.Close(pair) }()
	if err == nil {
		err = checkTUN(files[0], name)
	}
	if err != nil {
		return err
	}
	d := &kept{
		name: name, index: answer.Index, log: k.log.With("device", name),
		model: newModel(), wantUp: true, port: uint16(answer.Port),
	}
	d.tun, d.sockets = files[0], files[1:]
	files = nil
	d.ctx, d.end = context.WithCancel(k.ctx)
	d.configuring.Lock()
	defer d.configuring.Unlock()
	k.mu.Lock()
	k.devices[name] = d
	k.notify()
	k.mu.Unlock()
	if err := k.take(ctx, d, config, pair); err != nil {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.forget(d)
		return err
	}
	if _, err := c.Ask(ctx, control.Message{Op: control.Took, Name: name}); err != nil {
		d.log.Warn("the engine before this one has ended", "err", err)
	}
	return nil
}

// take has the server take a device, and puts the UAPI socket in its place. When it
// returns an error, nothing here holds the device's link. The caller holds d.configuring.
func (k *keeper) take(ctx context.Context, d *kept, config []byte, pair int) (err error) {
	s, err := k.waitServer(ctx)
	if err != nil {
		return err
	}
	duplicates, _, err := k.duplicates(d)
	if err != nil {
		return err
	}
	_, _, err = s.conn.Ask(ctx, control.Message{Op: opOpen, Name: d.name, Index: d.index}, duplicates...)
	duplicates.Close()
	if err != nil {
		return err
	}
	defer func() { //nolint:contextcheck // That of the hand-over may have ended.
		if err != nil {
			err = errors.Join(err, k.letGo(s, d))
		}
	}()
	// The configuration is a request, and perhaps another one for keepalives.
	for request := range bytes.SplitAfterSeq(config, []byte("\n\n")) {
		if len(request) == 0 {
			continue
		}
		answer, err := s.uapi(ctx, d, request)
		if err != nil {
			return err
		}
		if string(answer) != "errno=0\n\n" {
			return fmt.Errorf("configuration isn't understood: %q", answer)
		}
		_, lines, _ := bytes.Cut(request, []byte("\n"))
		if err := d.model.set(bytes.NewReader(lines)); err != nil {
			return err
		}
	}
	if _, _, err := s.conn.Ask(ctx, control.Message{Op: opTake, Name: d.name}, pair); err != nil {
		return err
	}
	d.on = s
	d.answers.Store(s)
	listener, err := control.Replace(control.DevicePath(d.name))
	if err != nil {
		return err
	}
	k.mu.Lock()
	d.listener = listener
	k.mu.Unlock()
	k.acceptUAPI(d, listener) //nolint:contextcheck // What comes there isn't of this hand-over.
	return nil
}
