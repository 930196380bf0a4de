package process

import (
	"os"
	"os/exec"
	"runtime/debug"
	"testing"
	"time"
)

// thrownAway is the last garbage of TestGarbage.
var thrownAway []byte

// TestGarbage checks that reclaimable memory is measured, and zero after it was returned,
// in a process of its own, with a heap of its own.
func TestGarbage(t *testing.T) {
	const alone = "KUBE_SEMAPHORE_TEST_GARBAGE"
	if os.Getenv(alone) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestGarbage$", "-test.v")
		cmd.Env = append(os.Environ(), alone+"=yes")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v:\n%s", err, out)
		}
		return
	}
	const thrown = 64 << 20
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	debug.FreeOSMemory()
	spent := collecting()
	for range thrown / (64 << 10) {
		thrownAway = make([]byte, 64<<10)
	}
	if found := garbage(); found < thrown/2 {
		t.Errorf("%d bytes could be given back of %d that were thrown away", found, thrown)
	}
	debug.FreeOSMemory()
	if left := garbage(); left >= worthwhile {
		t.Errorf("%d bytes could be given back after all of it was", left)
	}
	if collecting() <= spent {
		t.Error("it took no time")
	}
}

// TestAllowance takes more of a processor than there is at once.
func TestAllowance(t *testing.T) {
	now := time.Now()
	a := allowance{left: giveBurst, at: now}
	a.left -= giveBurst + 50*time.Millisecond
	for _, c := range []struct {
		after time.Duration
		want  bool
	}{{0, false}, {5 * time.Second, false}, {time.Second, true}, {time.Hour, true}} {
		now = now.Add(c.after)
		if a.any(now) != c.want {
			t.Errorf("%v later there is %v", c.after, a.left)
		}
	}
	if a.left != giveBurst {
		t.Errorf("after an hour there is %v, want %v", a.left, giveBurst)
	}
}
