package tunnel

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// errTimeout is the error of a device that accepts requests and doesn't respond.
var errTimeout = errors.New("the device doesn't answer")

// requestTimeout is the timeout of requests. With thousands of peers on a busy machine a
// response may take seconds.
const requestTimeout = 30 * time.Second

// maxPendingCalls bounds the pending calls to devices that don't respond.
const maxPendingCalls = 8

// timeoutController is a controller with a timeout: wgctrl has no deadline for a request on a UAPI
// socket, which can't be cancelled either. A call that timed out goes on in the background,
// with a goroutine and a connection. There are at most maxPendingCalls of them; others wait for
// a slot, within the same timeout.
type timeoutController struct {
	inner controller
	limit time.Duration
	slots chan struct{}
}

func newTimeoutController(inner controller, limit time.Duration) *timeoutController {
	return &timeoutController{inner: inner, limit: limit, slots: make(chan struct{}, maxPendingCalls)}
}

// Device implements controller.
func (p *timeoutController) Device(name string) (*wgtypes.Device, error) { return p.device(name, nil) }

// read is Device with a context.
func (p *timeoutController) read(ctx context.Context, name string) (*wgtypes.Device, error) {
	found, err := p.device(name, ctx.Done())
	if errors.Is(err, errTimeout) && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", err, ctx.Err())
	}
	return found, err
}

func (p *timeoutController) device(name string, stop <-chan struct{}) (*wgtypes.Device, error) {
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

// ConfigureDevice implements controller. A request that timed out may still be carried out:
// the device has to be read afterwards.
func (p *timeoutController) ConfigureDevice(name string, cfg wgtypes.Config) error {
	return p.call(nil, func() error { return p.inner.ConfigureDevice(name, cfg) })
}

// call runs f, and returns at the timeout or when stop is closed.
func (p *timeoutController) call(stop <-chan struct{}, f func() error) error {
	limit := time.NewTimer(p.limit)
	defer limit.Stop()
	select {
	case p.slots <- struct{}{}:
	case <-limit.C:
		return errTimeout
	case <-stop:
		return errTimeout
	}
	done := make(chan error, 1)
	go func() {
		defer func() { <-p.slots }()
		done <- f()
	}()
	select {
	case err := <-done:
		return err
	case <-limit.C:
		return errTimeout
	case <-stop:
		return errTimeout
	}
}
