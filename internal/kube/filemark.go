package kube

import (
	"os"
	"time"
)

// fileMark tells which file was read last, so that one that is asked for at each request
// is read only when there may be another one: to read it each time takes a twentieth of
// what a controller does for a small write.
type fileMark struct {
	of   os.FileInfo // nil: nothing counts as read
	read time.Time
}

const (
	// fileSettles is how long after its last change a file may change again and show the
	// same time: file systems keep it in ticks of a clock, the coarsest of them in 2 s.
	fileSettles = 3 * time.Second
	// fileTrusted is how long a file that shows no change counts as the same one: it may be
	// written in place and given its old time, and file systems that are programs say what
	// they like.
	fileTrusted = 10 * time.Second
)

// stays reports whether what is at a path is what was read last. It is called before the
// file is read: what replaces it meanwhile is another one next time.
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

// forget has the file read again next time.
func (m *fileMark) forget() { m.of = nil }
