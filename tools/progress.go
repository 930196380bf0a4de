package tools

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"time"
)

// between is how often a build says how far it is.
const between = 15 * time.Second

// progress says how far a build is. It takes what the go command prints on its
// standard error, a line for each module that it downloads and, with -v, for each
// package that it compiles.
type progress struct {
	out   io.Writer
	what  string
	start time.Time
	quit  chan struct{}
	ended sync.WaitGroup

	writing sync.Mutex // of out

	mu       sync.Mutex
	rest     []byte // of a line that isn't whole
	modules  int    // downloaded
	packages int    // compiled
	of       int    // packages in all, those in Go's build cache too; 0: not known yet
}

func startProgress(cfg Config, what string) *progress {
	p := &progress{out: cfg.Progress, what: what, start: time.Now(), quit: make(chan struct{})}
	p.say("building %s (minutes when Go's build cache is empty)", what)
	p.ended.Go(func() {
		ticker := time.NewTicker(between)
		defer ticker.Stop()
		for {
			select {
			case <-p.quit:
				return
			case <-ticker.C:
				p.say("%s", p)
			}
		}
	})
	return p
}

// say prints a line. A reader that has gone away is no reason to stop building.
func (p *progress) say(format string, args ...any) {
	text := fmt.Sprintf(format+"\n", args...)
	p.writing.Lock()
	defer p.writing.Unlock()
	_, _ = io.WriteString(p.out, text)
}

// Write implements io.Writer for lines of the go command.
func (p *progress) Write(data []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rest = append(p.rest, data...)
	for {
		line, rest, whole := bytes.Cut(p.rest, []byte("\n"))
		if !whole {
			return len(data), nil
		}
		p.rest = rest
		switch {
		case bytes.HasPrefix(line, []byte("go: downloading ")):
			p.modules++
		case p.of > 0 && !bytes.HasPrefix(line, []byte("#")) && !bytes.ContainsAny(line, " \t"):
			p.packages++
		}
	}
}

// building notes that modules are there, and of how many packages the programs are
// made.
func (p *progress) building(packages int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of = packages
}

func (p *progress) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	passed := time.Since(p.start).Round(time.Second)
	if p.of == 0 {
		return fmt.Sprintf("  %v: %d modules downloaded", passed, p.modules)
	}
	return fmt.Sprintf("  %v: %d of %d packages compiled, those in the cache not counted", passed, p.packages, p.of)
}

// done says that the build has succeeded.
func (p *progress) done() {
	p.say("built %s in %s", p.what, time.Since(p.start).Round(time.Second))
}

// stop ends the reports.
func (p *progress) stop() {
	close(p.quit)
	p.ended.Wait()
}
