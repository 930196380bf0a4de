package control_test

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/internal/flock"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
)

// TestOneListensAtAPath calls Listen for one path concurrently, as several engines do that
// stood by when the engine that served has ended.
func TestOneListensAtAPath(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	for range 50 {
		stale, err := control.Listen(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := stale.UnixListener.Close(); err != nil { // The file stays.
			t.Fatal(err)
		}
		got := make([]*control.Listener, 8)
		var all sync.WaitGroup
		for i := range got {
			all.Go(func() {
				var err error
				if got[i], err = control.Listen(path); err != nil && !errors.Is(err, control.ErrServed) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		n := 0
		for _, l := range got {
			if l == nil {
				continue
			}
			n++
			if !l.InPlace() {
				t.Error("a listener was replaced")
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		}
		if n != 1 {
			t.Fatalf("%d listen", n)
		}
	}
}

// Any user can lock a directory that they can read.
func TestALockedDirectoryIsIgnored(t *testing.T) {
	dir := t.TempDir()
	other, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	if locked, err := flock.Try(other); !locked || err != nil {
		t.Fatalf("locked: %v, %v", locked, err)
	}
	path := filepath.Join(dir, "socket")
	l, err := control.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); len(left) > 0 || err != nil {
		t.Errorf("left in the directory: %v, %v", left, err)
	}
}
