//go:build unix

package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/kube-semaphore/internal/errlog"
	"github.com/kube-semaphore/kube-semaphore/internal/flock"
	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

const (
	// turnSpacing is the interval at which a process on standby tries the lock.
	turnSpacing = 50 * time.Millisecond
	// maxHolder is the maximum length of the lock holder's description in bytes.
	maxHolder = 400
)

// ActiveLockConfig describes an ActiveLock. Begin and End may be nil; the other fields are required.
type ActiveLockConfig struct {
	// Path is the lock file, of mode 0600. Its directory is created.
	Path string
	// Self describes this process in the lock file: one line.
	Self string
	// Begin is called before the tasks start.
	Begin func()
	// End is called when all tasks have ended, before the lock is released.
	End func() error
	// Grace is the maximum time for the tasks to end.
	Grace  time.Duration
	Logger *slog.Logger
}

// ActiveLock lets one of several processes of a host act, such as the old and the new one in a
// rollout: the one that holds a lock. It is a lock of flock(2), which the kernel releases
// with the process.
//
//	process   old    |--- acts ----------| SIGTERM, tasks end, End, releases
//	          new         |-- standby ----| Begin, acts -----------------------
//
// If locking fails, the process runs without the lock: the error is logged and returned by
// Err.
type ActiveLock struct {
	cfg    ActiveLockConfig
	tasks  []Task
	begun  chan struct{}
	active atomic.Bool
	waits  atomic.Bool
	faults errlog.Log

	mu     sync.Mutex
	holder string
}

// NewActiveLock returns a lock that Run takes.
func NewActiveLock(cfg ActiveLockConfig) *ActiveLock {
	return &ActiveLock{cfg: cfg, begun: make(chan struct{}), faults: errlog.Log{
		Logger: cfg.Logger, Level: slog.LevelWarn, Failing: "locking failed: running without the lock",
	}}
}

// Add adds tasks that run while this process is active. It is called before Run.
func (l *ActiveLock) Add(tasks ...Task) { l.tasks = append(l.tasks, tasks...) }

// String is its name as a task.
func (l *ActiveLock) String() string { return "active lock" }

// Active reports whether this process is active.
func (l *ActiveLock) Active() bool { return l.active.Load() }

// StandsBy reports whether this process waits for another one that is active.
func (l *ActiveLock) StandsBy() bool { return l.waits.Load() }

// Holder returns the ActiveLockConfig.Self of the last observed active process; empty without
// one.
func (l *ActiveLock) Holder() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.holder
}

// Err returns the error of locking, after which this process runs without the lock.
func (l *ActiveLock) Err() error { return l.faults.Err() }

// Since returns since when Err returns an error.
func (l *ActiveLock) Since() time.Time { return l.faults.Since() }

// Collector returns a gauge named <prefix>_acting: 1 in the active process.
func (l *ActiveLock) Collector(prefix string) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: prefix + "_acting", Help: "Whether this process acts; 0: another one of this host does, and this one stands by.",
	}, func() float64 {
		if l.Active() {
			return 1
		}
		return 0
	})
}

// WhenActive returns a task that starts when this process begins to act, and doesn't end with it.
func (l *ActiveLock) WhenActive(task Task) Task { return &whenActive{Task: task, begun: l.begun} }

type whenActive struct {
	Task
	begun <-chan struct{}
}

// Run waits until this process is active, then runs the task.
func (l *whenActive) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-l.begun:
		return l.Task.Run(ctx)
	}
}

// Run waits for the lock, then runs the tasks until one of them or ctx ends. If they don't
// end in time, it returns ErrStuck and keeps the lock: only the end of the process stops
// them then.
func (l *ActiveLock) Run(ctx context.Context) error {
	lock := l.wait(ctx)
	defer l.waits.Store(false)
	if ctx.Err() != nil {
		return lock.release()
	}
	if l.cfg.Begin != nil {
		l.cfg.Begin()
	}
	l.active.Store(true)
	l.waits.Store(false)
	close(l.begun)
	err := together(ctx, l.cfg.Grace, l.tasks, func(error) {})
	if errors.Is(err, ErrStuck) {
		return err
	}
	if l.cfg.End != nil {
		err = errors.Join(err, l.cfg.End())
	}
	l.active.Store(false)
	return errors.Join(err, lock.release())
}

// wait returns when this process holds the lock, locking fails, or ctx ends.
func (l *ActiveLock) wait(ctx context.Context) *hostLock {
	for {
		lock, holder, err := takeLock(l.cfg.Path, l.cfg.Self)
		if err != nil {
			l.faults.Note(ctx, err)
			return nil
		}
		if lock != nil {
			if l.waits.Load() {
				l.cfg.Logger.InfoContext(ctx, "active: the previous process has ended")
			}
			return lock
		}
		if waited := l.waits.Swap(true); l.note(holder) || !waited {
			l.cfg.Logger.InfoContext(ctx, "standing by: another process is active", "holder", holder)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(turnSpacing):
		}
	}
}

// note records the active process, and reports whether it has changed.
func (l *ActiveLock) note(holder string) (changed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	changed = l.holder != holder
	l.holder = holder
	return changed
}

// Alone runs f while this process holds the lock of an ActiveLock, and removes the lock file
// afterwards. It waits for patience until an active process has ended. SIGTERM ends the wait, but
// not f: otherwise a pod that is deleted leaves the file.
func Alone(ctx context.Context, path, self string, patience time.Duration, f func() error) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	deadline := time.Now().Add(patience)
	for {
		lock, holder, err := takeLock(path, self)
		switch {
		case err != nil:
			return err
		case lock != nil:
			return errors.Join(f(), os.Remove(path), lock.release())
		case time.Now().After(deadline):
			return fmt.Errorf("another process is active and must be stopped first: %s", holder)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(turnSpacing):
		}
	}
}

// hostLock is an acquired lock; nil: none.
type hostLock struct{ file *os.File }

// takeLock acquires the lock, or returns nil and the description of its holder.
func takeLock(path, self string) (lock *hostLock, holder string, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, "", fmt.Errorf("lock: %w", err)
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, "", fmt.Errorf("lock: %w", err)
	}
	locked, err := flock.Try(file)
	if err != nil {
		return nil, "", errors.Join(err, file.Close())
	}
	if !locked {
		said, _ := io.ReadAll(io.LimitReader(file, maxHolder))
		return nil, printable.Text(string(said), maxHolder), file.Close()
	}
	lock = &hostLock{file}
	// The previous holder may have removed the file, and another process created a new one.
	current, err := inPlace(file, path)
	if err != nil || !current {
		return nil, "", errors.Join(err, lock.release())
	}
	// The description is informational: errors are ignored.
	_, _ = file.WriteAt([]byte(self), 0)
	_ = file.Truncate(int64(len(self)))
	return lock, "", nil
}

// inPlace reports whether an open file is the one at a path.
func inPlace(file *os.File, path string) (bool, error) {
	opened, err := file.Stat()
	if err != nil {
		return false, fmt.Errorf("lock: %w", err)
	}
	found, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("lock: %w", err)
	}
	return os.SameFile(opened, found), nil
}

func (l *hostLock) release() error {
	if l == nil {
		return nil
	}
	if err := l.file.Close(); err != nil {
		return fmt.Errorf("release the lock: %w", err)
	}
	return nil
}
