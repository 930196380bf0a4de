// Package logtest lets tests read what a program logs while it runs.
package logtest

import (
	"strings"
	"sync"
)

// Buffer collects a log that several goroutines write: slog locks writes, but not
// the test's read. The zero value is empty and ready.
type Buffer struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// String returns what was written until now, since the last Take.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// Take returns what was written since the last call, and forgets it.
func (b *Buffer) Take() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.text.Reset()
	return b.text.String()
}
