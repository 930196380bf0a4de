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

// patient is a control whose calls end, whatever the device does: a request on a
// UAPI socket has no deadline in wgctrl, and can't be broken off. A call that was
// given up goes on by itself, with a goroutine and a connection; there are at most
// silentCalls of them, and further ones wait for their turn as long as they would
// for an answer.
type patient struct {
	inner control
	limit time.Duration
	turns chan struct{}
}

func newPatient(inner control, limit time.Duration) *patient {
	return &patient{inner: inner, limit: limit, turns: make(chan struct{}, silentCalls)}
}

// Device implements control.
func (p *patient) Device(name string) (*wgtypes.Device, error) {
	return p.read(context.Background(), name)
}

// read is Device for callers that may have less time.
func (p *patient) read(ctx context.Context, name string) (*wgtypes.Device, error) {
	type answer struct {
		device *wgtypes.Device
		err    error
	}
	answers := make(chan answer, 1)
	err := p.call(ctx, func() error {
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

// ConfigureDevice implements control. A request that was given up may still be
// carried out: the device has to be read before anything is taken for granted.
func (p *patient) ConfigureDevice(name string, cfg wgtypes.Config) error {
	return p.call(context.Background(), func() error { return p.inner.ConfigureDevice(name, cfg) })
}

func (p *patient) call(ctx context.Context, f func() error) error {
	started := time.Now()
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	silent := func() error {
		return fmt.Errorf("%w for %v: %w", errSilent, time.Since(started).Round(time.Second), ctx.Err())
	}
	select {
	case p.turns <- struct{}{}:
	case <-ctx.Done():
		return silent()
	}
	done := make(chan error, 1)
	go func() {
		defer func() { <-p.turns }()
		done <- f()
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return silent()
	}
}
