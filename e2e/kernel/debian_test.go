package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestKernelPackageIsReadFromApt(t *testing.T) {
	got, err := parseDepends("linux-image-amd64\n  Depends: linux-image-6.1.0-56-amd64\n")
	if err != nil || got != "linux-image-6.1.0-56-amd64" {
		t.Errorf("%q, %v", got, err)
	}
	// Alternatives are printed with a bar; the first one is what apt installs.
	got, err = parseDepends("x\n |Depends: linux-image-6.12-amd64\n  Depends: linux-image-6.12-amd64-unsigned\n")
	if err != nil || got != "linux-image-6.12-amd64" {
		t.Errorf("%q, %v", got, err)
	}
	for _, out := range []string{"", "linux-image-amd64\n", "x\n  Depends: initramfs-tools\n"} {
		if got, err := parseDepends(out); err == nil {
			t.Errorf("%q depends on %q", out, got)
		}
	}
}

// unpacked makes what dpkg-deb leaves of a kernel package.
func unpacked(t *testing.T, dir, lib string, built time.Time) {
	t.Helper()
	write(t, filepath.Join(dir, "boot", "vmlinuz-6.1"), nil)
	write(t, filepath.Join(dir, lib, "modules", "6.1", "modules.builtin"), nil)
	if err := os.Chtimes(dir, built, built); err != nil {
		t.Fatal(err)
	}
}

func TestCacheGivesItsNewestCompleteKernel(t *testing.T) {
	cache := t.TempDir()
	d := debian{cache: cache, log: &bytes.Buffer{}}
	now := time.Now()
	unpacked(t, filepath.Join(cache, "kernel_1"), "lib", now.Add(-2*time.Hour))
	unpacked(t, filepath.Join(cache, "kernel_2"), "usr/lib", now.Add(-time.Hour))
	unpacked(t, filepath.Join(cache, ".new-3"), "lib", now)
	write(t, filepath.Join(cache, "kernel_4", "boot", "vmlinuz-6.1"), nil)
	write(t, filepath.Join(cache, "file"), nil)

	got, err := d.kernel(context.Background(), false)
	if err != nil {
		t.Fatal(err)
	}
	if got.version != "kernel_2" || got.modules != filepath.Join(cache, "kernel_2", "usr", "lib", "modules", "6.1") {
		t.Errorf("kernel %+v", got)
	}
	if _, err := os.Stat(got.image); err != nil {
		t.Error(err)
	}
	if _, ok := newestKernel(filepath.Join(cache, "gone")); ok {
		t.Error("a cache that doesn't exist has a kernel")
	}
}

// apt is stood in for by scripts, because the real one changes the machine.
func fakeCommands(t *testing.T, scripts map[string]string) (log func() string) {
	t.Helper()
	dir := t.TempDir()
	record := filepath.Join(dir, "record")
	for name, script := range scripts {
		content := "#!/bin/sh\necho \"" + name + " $*\" >>" + record + "\n" + script + "\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return func() string {
		content, err := os.ReadFile(record)
		if err != nil {
			return ""
		}
		return string(content)
	}
}

const unpack = `mkdir -p $3/boot $3/lib/modules/6.1 && : >$3/boot/vmlinuz-6.1`

func TestKernelIsDownloadedOnce(t *testing.T) {
	log := fakeCommands(t, map[string]string{
		"apt-cache": "echo ' Depends: linux-image-6.1'",
		"apt-get":   ": >linux-image-6.1_9_amd64.deb",
		"dpkg-deb":  unpack,
	})
	d := debian{cache: filepath.Join(t.TempDir(), "cache"), log: &bytes.Buffer{}}
	for range 2 {
		got, err := d.kernel(context.Background(), false)
		if err != nil {
			t.Fatal(err)
		}
		if got.version != "linux-image-6.1_9_amd64" {
			t.Errorf("version %q", got.version)
		}
	}
	if got := strings.Count(log(), "apt-get download"); got != 1 {
		t.Errorf("%d downloads:\n%s", got, log())
	}
	// The same version again, as when two runs download side by side.
	if _, err := d.kernel(context.Background(), true); err != nil {
		t.Error(err)
	}
	entries, err := os.ReadDir(d.cache)
	if err != nil || len(entries) != 1 {
		t.Errorf("the cache holds %v, %v", entries, err)
	}
}

func TestPackageListsAreUpdatedOnceWhenAptKnowsNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root updates package lists; the test as root runs in CI")
	}
	fresh := filepath.Join(t.TempDir(), "fresh")
	log := fakeCommands(t, map[string]string{
		"apt-cache": "test -e " + fresh + " && echo ' Depends: linux-image-6.1'",
		"apt-get":   `case $1 in update) : >` + fresh + `;; download) : >k_1.deb;; esac`,
		"dpkg-deb":  unpack,
	})
	d := debian{cache: t.TempDir(), log: &bytes.Buffer{}}
	if _, err := d.kernel(context.Background(), false); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(log(), "apt-get update"); got != 1 {
		t.Errorf("%d updates:\n%s", got, log())
	}
}

func TestPackageThatDoesNotArriveIsAnError(t *testing.T) {
	fakeCommands(t, map[string]string{
		"apt-cache": "echo ' Depends: linux-image-6.1'",
		"apt-get":   "echo no network >&2; exit 100",
	})
	d := debian{cache: t.TempDir(), log: &bytes.Buffer{}}
	if k, err := d.kernel(context.Background(), false); err == nil || !strings.Contains(err.Error(), "no network") {
		t.Errorf("kernel %+v, error %v", k, err)
	}
	if entries, err := os.ReadDir(d.cache); err != nil || len(entries) != 0 {
		t.Errorf("the cache holds %v, %v", entries, err)
	}
}

func TestOnlyMissingProgramsAreInstalled(t *testing.T) {
	log := fakeCommands(t, map[string]string{"there": "", "apt-get": ""})
	d := debian{log: &bytes.Buffer{}}
	if err := d.install(context.Background(), map[string]string{"there": "p1"}); err != nil || log() != "" {
		t.Errorf("error %v, ran %q", err, log())
	}
	err := d.install(context.Background(), map[string]string{"there": "p1", "gone-b": "p2", "gone-a": "p2"})
	if os.Geteuid() != 0 {
		if err == nil || !strings.Contains(err.Error(), "apt-get install p2") {
			t.Errorf("error %v, want one that says what root would do", err)
		}
		return
	}
	if want := "apt-get install -y -q --no-install-recommends p2\n"; err != nil || log() != want {
		t.Errorf("error %v, ran %q, want %q", err, log(), want)
	}
}
