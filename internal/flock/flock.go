//go:build unix

// Package flock locks files for processes of one host (flock(2)). The kernel lets a lock
// go when the file is closed, also by the end of its process.
package flock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Try locks an open file or directory, unless it is locked, and returns whether it did.
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

// Wait is Try, again and again after a pause, until it succeeds or ctx ends.
func Wait(ctx context.Context, f *os.File, pause time.Duration) error {
	for {
		locked, err := Try(f)
		if locked || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("lock %s, which another process has: %w", f.Name(), context.Cause(ctx))
		case <-time.After(pause):
		}
	}
}
