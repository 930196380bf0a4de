package engine

import (
	"bytes"
	"io"
	"log/slog"
	"sync/atomic"
	"time"
)

const (
	logQueue = 256         // lines
	logFlush = time.Second // bounds the wait for the log's reader at the end of a process
)

// queuedLog writes lines in the background: goroutines that handle packets log, and must not
// wait for the log's reader. It drops lines when its queue is full.
type queuedLog struct {
	lines   chan []byte // nil: the last one
	written chan struct{}
	dropped atomic.Int64
}

// newQueuedLog returns a queue for w. It logs the number of dropped lines to direct.
func newQueuedLog(w io.Writer, direct *slog.Logger) *queuedLog {
	q := &queuedLog{lines: make(chan []byte, logQueue), written: make(chan struct{})}
	go func() {
		defer close(q.written)
		for line := range q.lines {
			if line != nil {
				_, _ = w.Write(line)
			}
			if n := q.dropped.Load(); n > 0 && (line == nil || len(q.lines) == 0) {
				q.dropped.Add(-n)
				direct.Warn("log messages were dropped: the log's reader was too slow", "count", n)
			}
			if line == nil {
				return
			}
		}
	}()
	return q
}

// Write implements [io.Writer]. It doesn't block.
func (q *queuedLog) Write(line []byte) (int, error) {
	select {
	case q.lines <- bytes.Clone(line):
	default:
		q.dropped.Add(1)
	}
	return len(line), nil
}

// end waits until the lines in the queue are written, for logFlush at most.
func (q *queuedLog) end() {
	limit := time.After(logFlush)
	select {
	case q.lines <- nil:
	case <-limit:
		return
	}
	select {
	case <-q.written:
	case <-limit:
	}
}
