package engine

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// A log's reader that hangs blocks no writer, and the process's end for logFlush at most.
func TestALogThatIsNotRead(t *testing.T) {
	reader, writer := io.Pipe()
	q := newQueuedLog(writer, slog.New(slog.NewTextHandler(writer, nil)))
	log := slog.New(slog.NewTextHandler(q, nil))
	const sent = 2 * logQueue
	for n := range sent {
		log.Info("line", "n", n)
	}
	began := time.Now()
	q.end()
	if took := time.Since(began); took < logFlush {
		t.Errorf("ended after %v without a reader", took)
	}
	read := make(chan []string)
	go func() {
		var lines []string
		for s := bufio.NewScanner(reader); s.Scan(); {
			lines = append(lines, s.Text())
		}
		read <- lines
	}()
	q.end() // Now it is read.
	_ = writer.Close()
	lines := <-read
	last := lines[len(lines)-1]
	if dropped := sent + 1 - len(lines); dropped < logQueue-1 || !strings.HasSuffix(last, fmt.Sprint("count=", dropped)) {
		t.Errorf("%d lines, the last one is %q", len(lines), last)
	}
}
