package kube

import (
	"os"
	"time"
)

// fileMark tells which file was read last, so that one that is asked for at each request
// is read only when there is another one: to read it each time takes a twentieth of what
// a controller does for a small write.
type fileMark struct{ of os.FileInfo } // nil: nothing counts as read

// fileSettles is how long after its last change a file may change again and show the
// same time: file systems keep it in ticks of a clock, the coarsest of them in 2 s.
const fileSettles = 3 * time.Second

// stays reports whether what is at a path is what was there at the last call. It is
// called before the file is read: what replaces it meanwhile is another one next time.
func (m *fileMark) stays(path string) bool {
	now, err := os.Stat(path)
	same := err == nil && m.of != nil && os.SameFile(now, m.of) && now.ModTime().Equal(m.of.ModTime()) && now.Size() == m.of.Size()
	m.of = nil
	if err == nil && time.Since(now.ModTime()) > fileSettles {
		m.of = now
	}
	return same
}

// forget has the file read again next time.
func (m *fileMark) forget() { m.of = nil }
