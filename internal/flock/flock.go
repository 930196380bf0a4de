//go:build unix

// Package flock locks files between processes of one host (flock(2)). The kernel releases
// a lock when the file is closed, also when the process exits.
package flock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Try locks an open file or directory without waiting, and reports whether it did.
func Try(f *os.File) (locked bool, err error) {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, unix.EWOULDBLOCK):
			return false, nil
		case !errors.Is(err, unix.EINTR):
			return false, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
	}
}

// Wait calls Try at intervals of pause until it succeeds or ctx ends.
func Wait(ctx context.Context, f *os.File, pause time.Duration) error {
	for {
		locked, err := Try(f)
		if locked || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("lock %s, which another process holds: %w", f.Name(), context.Cause(ctx))
		case <-time.After(pause):
		}
	}
}
