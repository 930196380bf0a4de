package tunnel

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// errSilent is returned about a device that accepts requests and doesn't answer.
var errSilent = errors.New("the device doesn't answer")

// answerLimit is how long a device may take for an answer. One with thousands of
// peers on a busy machine needs seconds.
const answerLimit = 30 * time.Second

// silentCalls is how many calls to silent devices may be on their way.
const silentCalls = 8

// patient is a controller whose calls end, whatever the device does: a request on a
// UAPI socket has no deadline in wgctrl, and can't be broken off. A call that was
// given up goes on by itself, with a goroutine and a connection; there are at most
// silentCalls of them, and further ones wait for their turn as long as they would
// for an answer.
type patient struct {
	inner controller
	limit time.Duration
	turns chan struct{}
}

func newPatient(inner controller, limit time.Duration) *patient {
	return &patient{inner: inner, limit: limit, turns: make(chan struct{}, silentCalls)}
}

// Device implements controller.
func (p *patient) Device(name string) (*wgtypes.Device, error) { return p.device(name, nil) }

// read is Device for callers that may have less time.
func (p *patient) read(ctx context.Context, name string) (*wgtypes.Device, error) {
	found, err := p.device(name, ctx.Done())
	if errors.Is(err, errSilent) && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", err, ctx.Err())
	}
	return found, err
}

func (p *patient) device(name string, stop <-chan struct{}) (*wgtypes.Device, error) {
	type answer struct {
		device *wgtypes.Device
		err    error
	}
	answers := make(chan answer, 1)
	err := p.call(stop, func() error {
		device, err := p.inner.Device(name)
		answers <- answer{device, err}
		return nil
	})
	if err != nil {
		return nil, err
	}
	a := <-answers
	return a.device, a.err
}

// ConfigureDevice implements controller. A request that was given up may still be
// carried out: the device has to be read before anything is taken for granted.
func (p *patient) ConfigureDevice(name string, cfg wgtypes.Config) error {
	return p.call(nil, func() error { return p.inner.ConfigureDevice(name, cfg) })
}

// call waits for f until it has taken too long, or stop is closed.
func (p *patient) call(stop <-chan struct{}, f func() error) error {
	limit := time.NewTimer(p.limit)
	defer limit.Stop()
	select {
	case p.turns <- struct{}{}:
	case <-limit.C:
		return errSilent
	case <-stop:
		return errSilent
	}
	done := make(chan error, 1)
	go func() {
		defer func() { <-p.turns }()
		done <- f()
	}()
	select {
	case err := <-done:
		return err
	case <-limit.C:
		return errSilent
	case <-stop:
		return errSilent
	}
}
