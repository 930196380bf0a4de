package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestAll makes a release as make release does, with notes that stay in CHANGELOG.md.
func TestAll(t *testing.T) {
	if testing.Short() {
		t.Skip("builds semaphorectl for six platforms")
	}
	dir := filepath.Join(t.TempDir(), "dist")
	const image = "registry.example/kube-semaphore@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	if _, err := call(t, "all", "-version", "v0.1.0", "-image", image, "-url", "https://example.org/v0.1.0", "-o", dir); err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"notes.md", "sbom.cdx.json", "third-party-licences.txt", "semaphore.yaml", "kube-semaphore-0.1.0.tgz"}
	for _, p := range platforms() {
		names = append(names, p.archive())
	}
	for _, name := range names {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if line := fmt.Sprintf("%x  %s\n", sha256.Sum256(content), name); err != nil || !strings.Contains(string(sums), line) {
			t.Errorf("%s: %v, and SHA256SUMS has %s", name, err, sums)
		}
	}
	if got := strings.Count(string(sums), "\n"); got != len(names) {
		t.Errorf("%d checksums of %d files", got, len(names))
	}
	// The image is the default of semaphorectl and of the chart.
	unpack := func(archive, file string) []byte {
		out, err := exec.CommandContext(t.Context(), "tar", "-xzOf", filepath.Join(dir, archive), file).Output()
		if err != nil {
			t.Errorf("%s: %v", archive, err)
		}
		return out
	}
	if program := unpack("semaphorectl_linux_amd64.tar.gz", "semaphorectl"); !bytes.Contains(program, []byte(image)) {
		t.Error("semaphorectl doesn't know the image")
	}
	if values := unpack("kube-semaphore-0.1.0.tgz", "kube-semaphore/values.yaml"); !bytes.Contains(values, []byte("digest: \"sha256:0123456789abcdef")) {
		t.Errorf("the values of the chart are\n%s", values)
	}
	if notes, err := os.ReadFile(filepath.Join(dir, "notes.md")); err != nil || !strings.HasSuffix(string(notes), "The image is `"+image+"`.\n") {
		t.Errorf("notes: %v\n%s", err, notes)
	}
	if _, err := call(t, "all", "-version", "v0.1.0", "-o", dir); err == nil || !strings.Contains(err.Error(), "not an empty folder") {
		t.Errorf("over another release: %v", err)
	}
}
