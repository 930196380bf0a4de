//go:build unix

package flock

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"
)

// open opens a folder, as a process of its own would.
func open(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func TestOneHasTheLock(t *testing.T) {
	path := t.TempDir()
	first, second := open(t, path), open(t, path)
	if locked, err := Try(first); !locked || err != nil {
		t.Fatalf("the first: %v, %v", locked, err)
	}
	if locked, err := Try(second); locked || err != nil {
		t.Fatalf("the second: %v, %v; want neither a lock nor an error", locked, err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("cancelled by the test")
	time.AfterFunc(10*time.Millisecond, func() { cancel(why) })
	if err := Wait(ctx, second, time.Millisecond); !errors.Is(err, why) {
		t.Errorf("waiting for a lock that isn't let go: %v, want %v", err, why)
	}
	waited := make(chan error, 1)
	go func() { waited <- Wait(context.Background(), second, time.Millisecond) }()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
	if locked, err := Try(open(t, path)); locked || err != nil {
		t.Errorf("a third beside the second: %v, %v", locked, err)
	}
}

func TestAClosedFileIsAnError(t *testing.T) {
	f := open(t, t.TempDir())
	_ = f.Close()
	if locked, err := Try(f); locked || err == nil {
		t.Errorf("a closed file: %v, %v; want an error", locked, err)
	}
	if err := Wait(context.Background(), f, time.Millisecond); err == nil {
		t.Error("waiting for a closed file's lock succeeds")
	}
}
