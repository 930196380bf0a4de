package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/tools"
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
	if program := unpack(t, dir, "semaphorectl_linux_amd64.tar.gz", "semaphorectl"); !strings.Contains(program, image) {
		t.Error("semaphorectl doesn't know the image")
	}
	if values := unpack(t, dir, "kube-semaphore-0.1.0.tgz", "kube-semaphore/values.yaml"); !strings.Contains(values, "  digest: \"sha256:0123456789abcdef") {
		t.Errorf("the values of the chart are\n%s", values)
	}
	if notes, err := os.ReadFile(filepath.Join(dir, "notes.md")); err != nil || !strings.HasSuffix(string(notes), "The image is `"+image+"`.\n") {
		t.Errorf("notes: %v\n%s", err, notes)
	}
	if _, err := call(t, "all", "-version", "v0.1.0", "-o", dir); err == nil || !strings.Contains(err.Error(), "not an empty folder") {
		t.Errorf("over another release: %v", err)
	}
}

// unpack returns a file of an archive.
func unpack(t *testing.T, folder, archive, file string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "tar", "-xzOf", filepath.Join(folder, archive), file).Output()
	if err != nil {
		t.Errorf("%s: %v", archive, err)
	}
	return string(out)
}

// TestChart makes the chart of a release.
func TestChart(t *testing.T) {
	root, err := tools.Root()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	if err := chart(root, "v1.2.3", "registry.example:5000/a/kube-semaphore@"+digest, dir); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"Chart.yaml":  "\nversion: 1.2.3\nappVersion: v1.2.3\n",
		"values.yaml": "\n  registry: \"registry.example:5000\"\n  repository: a/kube-semaphore\n",
	} {
		if text := unpack(t, dir, "kube-semaphore-1.2.3.tgz", "kube-semaphore/"+name); !strings.Contains(text, want) {
			t.Errorf("%s lacks %q:\n%s", name, want, text)
		}
	}
	if values := unpack(t, dir, "kube-semaphore-1.2.3.tgz", "kube-semaphore/values.yaml"); !strings.Contains(values, "\n  digest: \""+digest+"\"\n") {
		t.Errorf("no digest in\n%s", values)
	}
	if err := chart(root, "v1.2.3", "registry.example/kube-semaphore:v1@"+digest, dir); err == nil || !strings.Contains(err.Error(), "expected a name without a tag") {
		t.Errorf("a name with a tag: %v", err)
	}
}
