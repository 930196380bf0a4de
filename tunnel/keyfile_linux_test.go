package tunnel

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// recorder is a logger with its output.
func recorder() (*slog.Logger, *bytes.Buffer) {
	var out bytes.Buffer
	return slog.New(slog.NewTextHandler(&out, nil)), &out
}

func TestLoadKeyCreatesItOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	first, err := loadKey(dir, "wireguard.gcp", quiet())
	if err != nil {
		t.Fatal(err)
	}
	log, out := recorder()
	second, err := loadKey(dir, "wireguard.gcp", log)
	if err != nil {
		t.Fatal(err)
	}
	if first.Public() != second.Public() {
		t.Error("the second call has another key")
	}
	if out.Len() > 0 {
		t.Errorf("reading a key is logged: %s", out)
	}
	checkMode(t, dir, 0o700)
	checkMode(t, filepath.Join(dir, "wireguard.gcp.key"), 0o600)
	checkNames(t, dir, "wireguard.gcp.key")
}

func TestLoadKeyReadsWhatTheOriginalToolWrote(t *testing.T) {
	dir := t.TempDir()
	want := newPrivateKey()
	writeTestFile(t, filepath.Join(dir, "wireguard.aws.key"), strings.TrimSpace(string(want.text())), 0o600)
	got, err := loadKey(dir, "wireguard.aws", quiet())
	if err != nil {
		t.Fatal(err)
	}
	if got.Public() != want.Public() {
		t.Error("got another key")
	}
}

// Going back to the original tool keeps the key: it reads the whole file by this function.
func TestTheOriginalToolReadsWhatLoadKeyWrote(t *testing.T) {
	dir := t.TempDir()
	want, err := loadKey(dir, "wireguard.aws", quiet())
	if err != nil {
		t.Fatal(err)
	}
	contents, err := os.ReadFile(filepath.Join(dir, "wireguard.aws.key"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := wgtypes.ParseKey(string(contents))
	if err != nil || Key(got.PublicKey()) != want.Public() {
		t.Errorf("got another key, error %v", err)
	}
}

func TestLoadKeyReplacesADamagedFileAndKeepsItAside(t *testing.T) {
	for name, contents := range map[string]string{
		"empty":        "",
		"half written": "xTIBA5rboUvnH4htod",
		"zeros":        strings.Repeat("\x00", 45),
		"a megabyte":   strings.Repeat("x", 1<<20),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "d.key")
			writeTestFile(t, path, contents, 0o600)
			log, out := recorder()
			key, err := loadKey(dir, "d", log)
			if err != nil {
				t.Fatal(err)
			}
			aside, _ := filepath.Glob(path + ".bad-*")
			if len(aside) != 1 {
				t.Fatalf("files kept aside: %v", aside)
			}
			if kept := readTestFile(t, aside[0]); kept != contents {
				t.Errorf("the file kept aside has %d bytes, want %d", len(kept), len(contents))
			}
			if !strings.Contains(out.String(), path) || !strings.Contains(out.String(), aside[0]) {
				t.Errorf("the log doesn't name %s and %s: %s", path, aside[0], out)
			}
			again, err := loadKey(dir, "d", quiet())
			if err != nil || again.Public() != key.Public() {
				t.Errorf("the new key doesn't last: %v", err)
			}
		})
	}
}

func TestLoadKeyIgnoresWhatAnInterruptedRunLeft(t *testing.T) {
	dir := t.TempDir()
	writeTestFile(t, filepath.Join(dir, "d.key.new"), "xTIBA5", 0o644)
	if _, err := loadKey(dir, "d", quiet()); err != nil {
		t.Fatal(err)
	}
	checkNames(t, dir, "d.key")
	checkMode(t, filepath.Join(dir, "d.key"), 0o600)
}

func TestLoadKeyRestrictsPermissions(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "d.key")
	want := newPrivateKey()
	writeTestFile(t, path, string(want.text()), 0o644)
	log, out := recorder()
	got, err := loadKey(dir, "d", log)
	if err != nil {
		t.Fatal(err)
	}
	if got.Public() != want.Public() {
		t.Error("the key changed")
	}
	checkMode(t, path, 0o600)
	if !strings.Contains(out.String(), "level=WARN") || !strings.Contains(out.String(), path) {
		t.Errorf("no warning that names the file: %s", out)
	}
}

func TestLoadKeyKeepsStricterPermissions(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "d.key")
	writeTestFile(t, path, string(newPrivateKey().text()), 0o400)
	log, out := recorder()
	if _, err := loadKey(dir, "d", log); err != nil {
		t.Fatal(err)
	}
	checkMode(t, path, 0o400)
	if out.Len() > 0 {
		t.Errorf("logged: %s", out)
	}
}

func TestLoadKeyRefusesWhatIsNotAPlainFile(t *testing.T) {
	tests := map[string]func(path string) error{
		"symbolic link": func(path string) error { return os.Symlink("/etc/hostname", path) },
		"FIFO":          func(path string) error { return unix.Mkfifo(path, 0o600) },
		"directory":     func(path string) error { return os.Mkdir(path, 0o700) },
	}
	for name, create := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "d.key")
			if err := create(path); err != nil {
				t.Fatal(err)
			}
			_, err := loadKey(dir, "d", quiet())
			if err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("got %v, want an error that names %s", err, path)
			}
		})
	}
}

func writeTestFile(t *testing.T, path, contents string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(contents), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func readTestFile(t *testing.T, path string) string {
	t.Helper()
	contents, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(contents)
}

func checkMode(t *testing.T, path string, want os.FileMode) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != want {
		t.Errorf("%s has mode %v, want %v", path, got, want)
	}
}

func checkNames(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, entry := range entries {
		got = append(got, entry.Name())
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("%s holds %v, want %v", dir, got, want)
	}
}

func TestAKeyFileThatBecomesUsableIsTaken(t *testing.T) {
	eachBackend(t, func(t *testing.T, backend string) {
		cfg := config(t, "gcp", backend)
		path := filepath.Join(cfg.KeyPath, cfg.Name+".key")
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		d := open(t, cfg)
		for range 2 {
			if _, err := d.Ensure(t.Context()); err == nil || !strings.Contains(err.Error(), path) {
				t.Fatalf("got %v, want an error that names %s", err, path)
			}
		}
		if _, err := findLink(cfg.Name); !errors.Is(err, os.ErrNotExist) || !d.PublicKey().IsZero() {
			t.Errorf("without a key: key %s, link %v", d.PublicKey(), err)
		}
		key := newPrivateKey()
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		writeTestFile(t, path, string(key.text()), 0o600)
		d.ensure(t)
		d.check(t)
		if d.PublicKey() != key.Public() {
			t.Error("the device has another key")
		}
	})
}

func TestADeviceWithoutAKeyIsRemoved(t *testing.T) {
	eachBackend(t, func(t *testing.T, backend string) {
		cfg := config(t, "gcp", backend)
		first := open(t, cfg)
		first.ensure(t)
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(cfg.KeyPath, cfg.Name+".key")
		if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
			t.Fatal(err)
		}
		if err := open(t, cfg).Remove(t.Context()); err != nil {
			t.Error(err)
		}
		checkGone(t, cfg.Name)
	})
}
