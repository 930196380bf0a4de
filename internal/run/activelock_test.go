//go:build unix

package run

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
)

// work is a task that notes whether it runs.
type work struct {
	running atomic.Int32
	fail    chan error
	stuck   chan struct{} // not nil: the end of its context doesn't end it
}

func newWork() *work { return &work{fail: make(chan error, 1)} }

func (w *work) String() string { return "work" }

func (w *work) Run(ctx context.Context) error {
	w.running.Add(1)
	defer w.running.Add(-1)
	if w.stuck != nil {
		<-w.stuck
	}
	select {
	case err := <-w.fail:
		return err
	case <-ctx.Done():
		return nil
	}
}

// taking starts a lock, and returns it and what ends it, which returns its error.
func taking(t *testing.T, cfg ActiveLockConfig, tasks ...Task) (lock *ActiveLock, stop func() error) {
	t.Helper()
	cfg.Grace, cfg.Logger = time.Minute, quiet()
	lock = NewActiveLock(cfg)
	lock.Add(tasks...)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- lock.Run(ctx) }()
	stopped := false
	stop = func() error {
		cancel()
		if stopped {
			return nil
		}
		stopped = true
		return <-done
	}
	t.Cleanup(func() { _ = stop() })
	return lock, stop
}

func TestOneProcessActsAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "folder", "lock")
	first, second := newWork(), newWork()
	var ended atomic.Bool
	before, stopBefore := taking(t, ActiveLockConfig{Path: path, Self: "the first\x1b", End: func() error {
		ended.Store(first.running.Load() == 0)
		return nil
	}}, first)
	polltest.Until(t, time.Minute, "the first to act", func() bool { return before.Active() && first.running.Load() == 1 })
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("the lock's file: %v, %v", info, err)
	}

	begun := atomic.Bool{}
	after, stopAfter := taking(t, ActiveLockConfig{Path: path, Self: "the second", Begin: func() { begun.Store(ended.Load()) }}, second)
	polltest.Until(t, time.Minute, "the second to know the first", func() bool { return after.Holder() == `the first\x1b` })
	if after.Active() || !after.StandsBy() || before.StandsBy() || second.running.Load() != 0 {
		t.Error("two act")
	}
	if err := stopBefore(); err != nil {
		t.Error(err)
	}
	polltest.Until(t, time.Minute, "the second to act", func() bool { return after.Active() && second.running.Load() == 1 })
	if !begun.Load() || after.StandsBy() {
		t.Error("the second began before the first had ended")
	}
	if err := stopAfter(); err != nil || second.running.Load() != 0 {
		t.Errorf("%v, %d run", err, second.running.Load())
	}
}

func TestWhoStandsByEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	before, _ := taking(t, ActiveLockConfig{Path: path})
	polltest.Until(t, time.Minute, "the first to act", before.Active)
	idle := newWork()
	after, stop := taking(t, ActiveLockConfig{Path: path}, idle)
	later, stopLater := context.WithCancel(t.Context())
	stopLater()
	if err := after.WhenActive(idle).Run(later); err != nil {
		t.Error(err)
	}
	if err := stop(); err != nil || after.Active() {
		t.Errorf("acting: %v, %v", after.Active(), err)
	}
	if idle.running.Load() != 0 || !before.Active() {
		t.Error("it did something")
	}
}

func TestThenOutlivesTheTurn(t *testing.T) {
	server, failing := newWork(), newWork()
	lock, stop := taking(t, ActiveLockConfig{Path: filepath.Join(t.TempDir(), "lock")}, failing)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- lock.WhenActive(server).Run(ctx) }()
	polltest.Until(t, time.Minute, "what follows", func() bool { return server.running.Load() == 1 })
	failing.fail <- errors.New("no device")
	polltest.Until(t, time.Minute, "the lock to end", func() bool { return !lock.Active() })
	if err := stop(); err == nil || !strings.Contains(err.Error(), "work: no device") {
		t.Errorf("Run() = %v", err)
	}
	cancel()
	if err := <-done; err != nil || server.running.Load() != 0 {
		t.Error(err)
	}
}

// TestStuckWorkKeepsTheLock ends a lock whose task doesn't: another process must wait
// until this one is gone.
func TestStuckWorkKeepsTheLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	stuck := newWork()
	stuck.stuck = make(chan struct{})
	lock := NewActiveLock(ActiveLockConfig{Path: path, Grace: time.Millisecond, Logger: quiet()})
	lock.Add(stuck)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- lock.Run(ctx) }()
	polltest.Until(t, time.Minute, "the work", func() bool { return stuck.running.Load() == 1 })
	cancel()
	if err := <-done; !errors.Is(err, ErrStuck) {
		t.Errorf("Run() = %v", err)
	}
	if lock, _, err := takeLock(path, ""); lock != nil || err != nil {
		t.Errorf("the lock is free: %v", err)
	}
	close(stuck.stuck)
}

func TestWithoutALockThereIsWork(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	busy := newWork()
	lock, stop := taking(t, ActiveLockConfig{Path: filepath.Join(file, "lock")}, busy)
	polltest.Until(t, time.Minute, "work", func() bool { return lock.Active() && busy.running.Load() == 1 })
	if lock.Err() == nil {
		t.Error("the error of the lock is not reported")
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	lock, stop := taking(t, ActiveLockConfig{Path: path, Self: "pod agent-1"})
	polltest.Until(t, time.Minute, "the lock", lock.Active)
	err := Alone(t.Context(), path, "", 0, func() error { t.Error("two act"); return nil })
	if err == nil || !strings.Contains(err.Error(), "pod agent-1") {
		t.Errorf("beside another process: %v", err)
	}
	// It ends while another one waits, which removes the file that a third one waits for.
	waiting := make(chan error, 1)
	var next *ActiveLock
	go func() {
		waiting <- Alone(t.Context(), path, "", time.Minute, func() error {
			next, _ = taking(t, ActiveLockConfig{Path: path})
			return nil
		})
	}()
	if err := errors.Join(stop(), <-waiting); err != nil {
		t.Fatal(err)
	}
	polltest.Until(t, time.Minute, "the next one to act", next.Active)
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
	fails := errors.New("no device")
	other := filepath.Join(t.TempDir(), "lock")
	if err := Alone(t.Context(), other, "", 0, func() error { return fails }); !errors.Is(err, fails) {
		t.Error(err)
	}
	if _, err := os.Stat(other); !os.IsNotExist(err) {
		t.Errorf("the file is left: %v", err)
	}
}

// A pod that is deleted gets SIGTERM: what has begun is finished, the wait for it ends.
func TestAloneIsTerminated(t *testing.T) {
	arrived := make(chan os.Signal, 1) // Alone's own handling ends before the signal may have arrived.
	signal.Notify(arrived, syscall.SIGTERM)
	defer signal.Stop(arrived)
	terminate := func() error {
		err := syscall.Kill(os.Getpid(), syscall.SIGTERM)
		<-arrived
		return err
	}
	path := filepath.Join(t.TempDir(), "lock")
	if err := Alone(t.Context(), path, "", 0, terminate); err != nil {
		t.Error(err)
	}
	lock, stop := taking(t, ActiveLockConfig{Path: path})
	polltest.Until(t, time.Minute, "the lock", lock.Active)
	waiting := make(chan error, 1)
	go func() { waiting <- Alone(t.Context(), path, "", time.Hour, func() error { return nil }) }()
	polltest.Until(t, time.Minute, "the end of the wait", func() bool {
		if err := terminate(); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-waiting:
			return err != nil
		case <-time.After(10 * time.Millisecond):
			return false
		}
	})
	if err := stop(); err != nil {
		t.Error(err)
	}
}
