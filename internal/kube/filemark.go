package kube

import (
	"os"
	"time"
)

// fileMark identifies the version of a file that was read last, so that a file that is
// needed for each request is only read after changes. Reading it each time takes a
// twentieth of a controller's time for a small write.
type fileMark struct {
	of   os.FileInfo // nil: read again
	read time.Time
}

const (
	// fileSettles is the time within which two changes of a file may have the same
	// modification time: the coarsest file systems have a resolution of 2 s.
	fileSettles = 3 * time.Second
	// fileTrusted is the interval at which a file is read without a visible change: it may
	// be written in place with its old modification time, and FUSE file systems may return
	// anything.
	fileTrusted = 10 * time.Second
)

// stays reports whether the file at path is the one that was read last. It must be called
// before the file is read, so that a change in between is noticed the next time.
func (m *fileMark) stays(path string) bool {
	now, err := os.Stat(path)
	if err == nil && m.of != nil && time.Since(m.read) < fileTrusted &&
		os.SameFile(now, m.of) && now.ModTime().Equal(m.of.ModTime()) && now.Size() == m.of.Size() {
		return true
	}
	m.of, m.read = nil, time.Now()
	if err == nil && m.read.Sub(now.ModTime()) > fileSettles {
		m.of = now
	}
	return false
}

// forget makes the next call of stays return false.
func (m *fileMark) forget() { m.of = nil }
