package polltest

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/synctest"
)

// fatal records the message of a failing test.
type fatal struct {
	testing.TB
	said string
}

// Helper implements testing.TB.
func (*fatal) Helper() {}

// Fatalf implements testing.TB.
func (f *fatal) Fatalf(format string, args ...any) {
	f.said = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestUntil(t *testing.T) {
	for name, c := range map[string]struct {
		holdsAt int // which call; 0: never
		want    string
	}{
		"at once":        {holdsAt: 1},
		"after a while":  {holdsAt: 100},
		"never in time":  {want: "not within 1m0s: the end"},
		"after the time": {holdsAt: 100_000, want: "not within 1m0s: the end"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls := 0
				f := &fatal{TB: t}
				done := make(chan struct{})
				go func() {
					defer close(done)
					Until(f, time.Minute, "the end", func() bool {
						calls++
						return calls == c.holdsAt
					})
				}()
				<-done
				if f.said != c.want || c.want == "" && calls != c.holdsAt {
					t.Errorf("said %q after %d calls, want %q", f.said, calls, c.want)
				}
			})
		})
	}
}
