package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPack(t *testing.T) {
	members := []archived{{"semaphorectl", []byte("program"), 0o755}, {"LICENSE", []byte("text"), 0o644}}
	want := []string{"semaphorectl program 755", "LICENSE text 644"}
	linux, err := pack(platform{"linux", "arm64"}, members)
	if err != nil {
		t.Fatal(err)
	}
	again, err := pack(platform{"linux", "arm64"}, members)
	if err != nil || !bytes.Equal(linux, again) {
		t.Errorf("the same content is another archive, error %v", err)
	}
	unpacked, err := gzip.NewReader(bytes.NewReader(linux))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for files := tar.NewReader(unpacked); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(files)
		if err != nil {
			t.Fatal(err)
		}
		mode := "644"
		if header.Mode == 0o755 {
			mode = "755"
		}
		got = append(got, header.Name+" "+string(content)+" "+mode)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("tar (-want +got):\n%s", diff)
	}
	windows, err := pack(platform{"windows", "amd64"}, members)
	if err != nil {
		t.Fatal(err)
	}
	files, err := zip.NewReader(bytes.NewReader(windows), int64(len(windows)))
	if err != nil || len(files.File) != 2 || files.File[0].Name != "semaphorectl" {
		t.Errorf("zip: %v, %v", files, err)
	}
}

func TestPlugin(t *testing.T) {
	p := newPlugin("v1.2.3")
	for _, on := range platforms() {
		p.add(on, "https://example.org/v1.2.3/", "00")
	}
	var got []string
	for _, entry := range p.Spec.Platforms {
		got = append(got, entry.Selector.MatchLabels["os"]+" "+entry.Selector.MatchLabels["arch"]+" "+entry.URI+" "+entry.Bin)
	}
	want := []string{
		"linux amd64 https://example.org/v1.2.3/semaphorectl_linux_amd64.tar.gz semaphorectl",
		"linux arm64 https://example.org/v1.2.3/semaphorectl_linux_arm64.tar.gz semaphorectl",
		"darwin amd64 https://example.org/v1.2.3/semaphorectl_darwin_amd64.tar.gz semaphorectl",
		"darwin arm64 https://example.org/v1.2.3/semaphorectl_darwin_arm64.tar.gz semaphorectl",
		"windows amd64 https://example.org/v1.2.3/semaphorectl_windows_amd64.zip semaphorectl.exe",
		"windows arm64 https://example.org/v1.2.3/semaphorectl_windows_arm64.zip semaphorectl.exe",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("platforms (-want +got):\n%s", diff)
	}
}
