package main

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// entry is what a reader sees of one file in an archive.
type entry struct {
	Name    string
	Mode    uint64
	Content string
}

// readArchive parses an archive by the format's description, independently of
// the writer.
func readArchive(t *testing.T, data []byte) []entry {
	t.Helper()
	var found []entry
	for at := 0; ; {
		if at%4 != 0 {
			t.Fatalf("header at %d isn't aligned", at)
		}
		if len(data) < at+110 || string(data[at:at+6]) != "070701" {
			t.Fatalf("no header at %d of %d", at, len(data))
		}
		field := func(n int) int {
			value, err := strconv.ParseUint(string(data[at+6+8*n:at+14+8*n]), 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			return int(value)
		}
		mode, size, nameSize := field(1), field(6), field(11)
		name := string(data[at+110 : at+110+nameSize])
		if !strings.HasSuffix(name, "\x00") {
			t.Fatalf("name %q doesn't end with a zero byte", name)
		}
		content := (at + 110 + nameSize + 3) / 4 * 4
		next := (content + size + 3) / 4 * 4
		if name == "TRAILER!!!\x00" {
			if next != len(data) {
				t.Errorf("%d bytes after the end", len(data)-next)
			}
			return found
		}
		found = append(found, entry{name[:nameSize-1], uint64(mode), string(data[content : content+size])})
		at = next
	}
}

func TestArchiveHoldsWhatWasAdded(t *testing.T) {
	var out bytes.Buffer
	a := newArchive(&out)
	steps := []error{
		a.dir("/proc"),
		a.dir("proc/"),
		a.file("/a/b/program", 0o755, 5, strings.NewReader("\x7fELF!")),
		a.file("a/empty", 0o644, 0, strings.NewReader("")),
		a.symlink("var/run", "/run"),
		a.end(),
	}
	for i, err := range steps {
		if err != nil {
			t.Errorf("step %d: %v", i, err)
		}
	}
	want := []entry{
		{"proc", 0o040755, ""},
		{"a", 0o040755, ""},
		{"a/b", 0o040755, ""},
		{"a/b/program", 0o100755, "\x7fELF!"},
		{"a/empty", 0o100644, ""},
		{"var", 0o040755, ""},
		{"var/run", 0o120777, "/run"},
	}
	if diff := cmp.Diff(want, readArchive(t, out.Bytes())); diff != "" {
		t.Errorf("archive differs (-want +got):\n%s", diff)
	}
}

func TestArchiveIsAlignedForEverySize(t *testing.T) {
	for size := range 9 {
		var out bytes.Buffer
		a := newArchive(&out)
		name := strings.Repeat("n", size+1)
		if err := a.file(name, 0o644, int64(size), strings.NewReader(strings.Repeat("c", size))); err != nil {
			t.Fatal(err)
		}
		if err := a.end(); err != nil {
			t.Fatal(err)
		}
		want := []entry{{name, 0o100644, strings.Repeat("c", size)}}
		if diff := cmp.Diff(want, readArchive(t, out.Bytes())); diff != "" {
			t.Errorf("size %d (-want +got):\n%s", size, diff)
		}
	}
}

// A file that changes while it is copied would shift all that follows.
func TestArchiveRefusesAWrongSize(t *testing.T) {
	for _, announced := range []int64{2, 4} {
		t.Run(fmt.Sprint(announced), func(t *testing.T) {
			err := newArchive(io.Discard).file("f", 0o644, announced, strings.NewReader("abc"))
			if err == nil {
				t.Errorf("3 bytes were taken for %d", announced)
			}
		})
	}
}
