package synctest

import (
	"runtime"
	"sync"
	"testing"
	"time"
)

// The race detector ends this program within a second where two threads run timers of a
// bubble.
func TestManyTimersAreDue(t *testing.T) {
	processors := runtime.GOMAXPROCS(0)
	Test(t, func(*testing.T) {
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 20_000 {
					<-time.NewTimer(0).C
				}
			})
		}
		all.Wait()
	})
	if got := runtime.GOMAXPROCS(0); got != processors {
		t.Errorf("%d processors after the bubble, want %d as before", got, processors)
	}
}
