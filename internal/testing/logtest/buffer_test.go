package logtest

import (
	"fmt"
	"strings"
	"sync"
	"testing"
)

func TestBufferIsReadWhileItIsWritten(t *testing.T) {
	const each = 100
	var b Buffer
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			for i := range each {
				fmt.Fprintf(&b, "%d-%d\n", w, i)
			}
		})
	}
	taken := b.Take()
	for i := 1; i < each; i++ {
		taken += b.Take()
	}
	writers.Wait()
	rest := b.String()
	if again := b.Take(); again != rest {
		t.Errorf("took %q, want %q", again, rest)
	}
	if n := strings.Count(taken+rest, "\n"); n != 4*each || b.String() != "" {
		t.Errorf("%d lines and then %q, want %d and nothing", n, b.String(), 4*each)
	}
}
