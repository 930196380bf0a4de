package atomicfile

import (
	"os"
	"path/filepath"
	"testing"
)

// names returns what is in a directory.
func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	path, victim := filepath.Join(dir, "f"), filepath.Join(t.TempDir(), "victim")
	// Left by an interrupted call, or planted as a symbolic link.
	for name, leave := range map[string]func() error{
		"nothing":                func() error { return nil },
		"half a file, too open":  func() error { return os.WriteFile(path+Unfinished, []byte("half"), 0o644) },
		"a link to another file": func() error { return os.Symlink(victim, path+Unfinished) },
	} {
		if err := leave(); err != nil {
			t.Fatal(err)
		}
		if err := WriteFile(path, []byte(name)); err != nil {
			t.Errorf("after %s: %v", name, err)
		}
		content, err := os.ReadFile(path)
		if err != nil || string(content) != name {
			t.Errorf("after %s: %q, %v", name, content, err)
		}
		if info, err := os.Lstat(path); err != nil || info.Mode() != 0o600 {
			t.Errorf("after %s: %v, %v", name, info, err)
		}
	}
	if all := names(t, dir); len(all) != 1 {
		t.Errorf("left %q", all)
	}
	if _, err := os.Lstat(victim); err == nil {
		t.Error("a link was followed")
	}
}

func TestFailedWriteLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := os.MkdirAll(filepath.Join(path, "occupied"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(path, []byte("x")); err == nil {
		t.Error("no error")
	}
	if all := names(t, dir); len(all) != 1 || all[0] != "f" {
		t.Errorf("left %q", all)
	}
}
