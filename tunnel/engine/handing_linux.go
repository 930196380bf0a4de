package engine

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/handover"
)

// side is the device as one side of a hand-over over the socket in files.
func (s *serving) side(d *served, files *control.Files) (handover.Side, error) {
	if len(*files) != 1 {
		return handover.Side{}, errors.New("no socket")
	}
	file := os.NewFile(uintptr((*files)[0]), "pair")
	*files = nil
	pair, err := handover.Conn(file)
	return handover.Side{
		Device: d.dev, Bind: d.bind, Tun: d.tun, Pair: pair,
		Limits: handover.DefaultLimits, Log: s.log.With("device", d.name),
	}, err
}

// give hands a device over, and returns when it is closed here.
func (s *serving) give(d *served, files *control.Files) error {
	d.rest() // It may be settling what it took itself, or meeting its peers.
	side, err := s.side(d, files)
	if err != nil {
		return err
	}
	err = handover.Give(background, side, func() {})
	if err != nil && !errors.Is(err, handover.ErrTakerEnded) {
		return err
	}
	// Who took it has it, also when another process has to serve it there.
	s.mu.Lock()
	delete(s.devices, d.name)
	s.mu.Unlock()
	d.closing.Store(true)
	d.dev.Close()
	return nil
}

// take takes a device over, and returns when it is served here.
func (s *serving) take(d *served, files *control.Files) error {
	side, err := s.side(d, files)
	if err != nil {
		return err
	}
	here, ended := make(chan struct{}), make(chan error, 1)
	d.work(&s.wg, func(ctx context.Context) { ended <- handover.Take(ctx, side, func() { close(here) }) })
	select {
	case <-here:
		return nil
	case err := <-ended:
		if err != nil {
			return fmt.Errorf("device %s: %w", d.name, err)
		}
		return nil
	}
}
