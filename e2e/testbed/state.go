package testbed

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// statePrefix starts the name of every testbed's folder.
const statePrefix = "kube-semaphore-testbed-"

// state is a testbed's folder. Its process holds a lock on a file in it, which
// the kernel releases when the process dies: a folder with a free lock is unused.
type state struct {
	parent, dir string
	lock        *os.File
}

// newState removes the folders of dead testbeds and creates one.
func newState(parent string, log *slog.Logger) (*state, error) {
	if parent == "" {
		parent = defaultStateParent()
	}
	// Under the common lock, so that a folder that isn't locked yet isn't taken for an
	// unused one.
	common, err := lockCommon(parent)
	if err != nil {
		return nil, err
	}
	defer func() { _ = common.Close() }()
	if err := sweep(parent, log); err != nil {
		log.Warn("can't remove what an earlier testbed left", "err", err)
	}
	dir, err := os.MkdirTemp(parent, statePrefix)
	if err != nil {
		return nil, err
	}
	// Agents of other users read their tokens and configuration here.
	err = errors.Join(os.Chmod(dir, 0o755), os.Mkdir(filepath.Join(dir, "logs"), 0o755))
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	lock, err := lockFile(filepath.Join(dir, "lock"), unix.LOCK_EX|unix.LOCK_NB)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return &state{parent: parent, dir: dir, lock: lock}, nil
}

func defaultStateParent() string {
	var stat unix.Statfs_t
	const shm = "/dev/shm"
	if err := unix.Statfs(shm, &stat); err == nil && stat.Type == unix.TMPFS_MAGIC {
		return shm
	}
	return os.TempDir()
}

// sweep removes the folders of testbeds whose process is dead.
func sweep(parent string, log *slog.Logger) error {
	dirs, err := filepath.Glob(filepath.Join(parent, statePrefix+"*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range dirs {
		lock, err := lockFile(filepath.Join(dir, "lock"), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, fs.ErrNotExist) {
			continue // In use, or already removed by its owner.
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		log.Info("removing what a dead testbed left", "dir", dir)
		errs = append(errs, removeGroups(filepath.Join(dir, groupsFile)), os.RemoveAll(dir), lock.Close())
	}
	return errors.Join(errs...)
}

// remove removes the folder, under the common lock, so that it isn't swept at the same time.
func (s *state) remove() error {
	common, err := lockCommon(s.parent)
	if err != nil {
		return errors.Join(err, s.lock.Close())
	}
	return errors.Join(os.RemoveAll(s.dir), s.lock.Close(), common.Close())
}

// lockCommon takes the lock of all testbeds below one folder, for a moment.
func lockCommon(parent string) (*os.File, error) {
	return lockFile(filepath.Join(parent, "kube-semaphore-testbed.lock"), unix.LOCK_EX)
}

func lockFile(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return f, nil
}
