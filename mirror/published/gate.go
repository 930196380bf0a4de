package published

import (
	"context"
	"sync"

	"github.com/kube-semaphore/kube-semaphore/internal/run"
)

// Gate lets tasks wait, until it is opened for good.
type Gate struct {
	once   sync.Once
	opened chan struct{}
}

// NewGate returns a closed gate.
func NewGate() *Gate { return &Gate{opened: make(chan struct{})} }

// Open opens the gate.
func (g *Gate) Open() { g.once.Do(func() { close(g.opened) }) }

// IsOpen reports whether the gate is open.
func (g *Gate) IsOpen() bool {
	select {
	case <-g.opened:
		return true
	default:
		return false
	}
}

// Behind is a task that begins when a gate is open.
type Behind struct {
	run.Task
	Gate *Gate
}

// Run implements run.Task.
func (b Behind) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-b.Gate.opened:
		return b.Task.Run(ctx)
	}
}
