package engine

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/handover"
)

// side returns the device as one side of a hand-over, over the socket in files.
func (s *deviceServer) side(d *serverDevice, files *control.Files) (handover.Side, error) {
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

// handOver hands over a device and closes it.
func (s *deviceServer) handOver(d *serverDevice, files *control.Files) error {
	d.stopTask() // reconnect, or the end of a takeover by this process
	side, err := s.side(d, files)
	if err != nil {
		return err
	}
	if err := handover.HandOver(background, side, func() {}); err != nil {
		return err
	}
	// The other engine owns the device, even if its serving process has ended.
	s.mu.Lock()
	delete(s.devices, d.name)
	s.mu.Unlock()
	d.closing.Store(true)
	d.dev.Close()
	return nil
}

// takeOver takes over a device, and returns when this process serves it.
func (s *deviceServer) takeOver(d *serverDevice, files *control.Files) error {
	side, err := s.side(d, files)
	if err != nil {
		return err
	}
	owned, ended := make(chan struct{}), make(chan error, 1)
	d.startTask(&s.wg, func(ctx context.Context) { ended <- handover.TakeOver(ctx, side, func() { close(owned) }) })
	select {
	case <-owned:
		return nil
	case err := <-ended:
		if err != nil {
			return fmt.Errorf("device %s: %w", d.name, err)
		}
		return nil
	}
}
