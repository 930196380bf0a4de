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
	// turnSpacing is how often a process that waits for its turn tries the lock.
	turnSpacing = 50 * time.Millisecond
	// maxHolder is how many bytes are read of what the holder of a lock says of itself.
	maxHolder = 400
)

// TurnConfig describes a Turn. Begin and End may be nil; the other fields are required.
type TurnConfig struct {
	// Path is the lock file, which only root can open. Its folder is made, too.
	Path string
	// Self says who holds the lock, for people: one line.
	Self string
	// Begin is called before the tasks start.
	Begin func()
	// End is called when all tasks have ended, before the lock is let go.
	End func() error
	// Grace is how long the tasks may take to end.
	Grace  time.Duration
	Logger *slog.Logger
}

// Turn has several processes of one host take turns, as they do when one follows on
// another in a rollout: only the one that holds a lock does what they are for. The
// lock is that of flock(2), which the kernel lets go with the process.
//
//	process   old    |--- acts ----------| SIGTERM, tasks end, End, lets go
//	          new         |-- standby ----| Begin, acts -----------------------
//
// A folder in which no lock can be had keeps nobody from acting: it is logged, Err
// tells it, and nothing is waited for.
type Turn struct {
	cfg    TurnConfig
	tasks  []Task
	begun  chan struct{}
	acting atomic.Bool
	waits  atomic.Bool
	faults errlog.Log

	mu     sync.Mutex
	holder string
}

// NewTurn returns a turn that Run waits for.
func NewTurn(cfg TurnConfig) *Turn {
	return &Turn{cfg: cfg, begun: make(chan struct{}), faults: errlog.Log{
		Logger: cfg.Logger, Level: slog.LevelWarn, Failing: "no lock can be had: acting without it",
	}}
}

// Add adds tasks that run while it is this process's turn. It is called before Run.
func (t *Turn) Add(tasks ...Task) { t.tasks = append(t.tasks, tasks...) }

// String names the turn as a task.
func (t *Turn) String() string { return "turn" }

// Acting reports whether it is this process's turn.
func (t *Turn) Acting() bool { return t.acting.Load() }

// StandsBy reports whether another process was found to act, which this one waits for.
func (t *Turn) StandsBy() bool { return t.waits.Load() }

// Holder returns what the process that acts says of itself, as it was last seen; empty
// while nobody was.
func (t *Turn) Holder() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.holder
}

// Err returns why there is no lock, without which this process acts nevertheless.
func (t *Turn) Err() error { return t.faults.Err() }

// Collector returns a gauge named <prefix>_acting: 1 in the process that acts.
func (t *Turn) Collector(prefix string) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: prefix + "_acting", Help: "Whether this process acts; 0: another one of this host does, and this one stands by.",
	}, func() float64 {
		if t.Acting() {
			return 1
		}
		return 0
	})
}

// Then returns a task that does nothing until the turn begins, and may go on for longer
// than it.
func (t *Turn) Then(task Task) Task { return &then{Task: task, begun: t.begun} }

type then struct {
	Task
	begun <-chan struct{}
}

// Run waits for the turn, then runs the task.
func (t *then) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-t.begun:
		return t.Task.Run(ctx)
	}
}

// Run waits for the turn, then runs the tasks until one of them ends or ctx does. The
// lock is kept when they don't end in time, which is ErrStuck: only the end of the
// process stops them then.
func (t *Turn) Run(ctx context.Context) error {
	lock := t.wait(ctx)
	defer t.waits.Store(false)
	if ctx.Err() != nil {
		return lock.release()
	}
	if t.cfg.Begin != nil {
		t.cfg.Begin()
	}
	t.acting.Store(true)
	t.waits.Store(false)
	close(t.begun)
	err := together(ctx, t.cfg.Grace, t.tasks, func(error) {})
	if errors.Is(err, ErrStuck) {
		return err
	}
	if t.cfg.End != nil {
		err = errors.Join(err, t.cfg.End())
	}
	t.acting.Store(false)
	return errors.Join(err, lock.release())
}

// wait returns when the lock is held, none can be had, or ctx ends.
func (t *Turn) wait(ctx context.Context) *hostLock {
	for {
		lock, holder, err := takeLock(t.cfg.Path, t.cfg.Self)
		if err != nil {
			t.faults.Note(ctx, err)
			return nil
		}
		if lock != nil {
			if t.waits.Load() {
				t.cfg.Logger.InfoContext(ctx, "acting: the process before has ended")
			}
			return lock
		}
		if waited := t.waits.Swap(true); t.note(holder) || !waited {
			t.cfg.Logger.InfoContext(ctx, "standing by: another process acts", "holder", holder)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(turnSpacing):
		}
	}
}

// note notes who acts, and returns whether that is another one than before.
func (t *Turn) note(holder string) (changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	changed = t.holder != holder
	t.holder = holder
	return changed
}

// Alone runs f while this process holds the lock of a Turn, and removes the lock's file
// afterwards. A process that acts has patience to end.
func Alone(ctx context.Context, path, self string, patience time.Duration, f func() error) error {
	deadline := time.Now().Add(patience)
	for {
		lock, holder, err := takeLock(path, self)
		switch {
		case err != nil:
			return err
		case lock != nil:
			return errors.Join(f(), os.Remove(path), lock.release())
		case time.Now().After(deadline):
			return fmt.Errorf("another process acts and has to be stopped before: %s", holder)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(turnSpacing):
		}
	}
}

// hostLock is a lock that is held. Nil: none is.
type hostLock struct{ file *os.File }

// takeLock takes the lock, or returns nil and what its holder says of itself.
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
	// Whoever held it may have removed the file, and somebody else made another one.
	current, err := inPlace(file, path)
	if err != nil || !current {
		return nil, "", errors.Join(err, lock.release())
	}
	// What it says is for people; the lock is good without.
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
		return fmt.Errorf("let the lock go: %w", err)
	}
	return nil
}
