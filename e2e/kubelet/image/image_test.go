package image

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// entries reads an archive: the content of each file, and "" for a folder.
func entries(t *testing.T, r io.Reader) map[string]string {
	t.Helper()
	all := map[string]string{}
	for in := tar.NewReader(r); ; {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := all[header.Name]; twice {
			t.Errorf("%s is there twice", header.Name)
		}
		all[header.Name] = string(content)
	}
}

func TestArchiveLeadsToFiles(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("content"), 0o755); err != nil {
		t.Fatal(err)
	}
	layers := []map[string]string{{"/bin/program": program, "/bin/again": program}}
	file := filepath.Join(dir, "images.tar")
	err := Write(file,
		Image{Name: "example.org/a:1", Layers: layers, Entrypoint: []string{"/bin/program"}, User: "1:2"},
		Image{Name: "example.org/b:1", Layers: layers, Entrypoint: []string{"/bin/again"}})
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	all := entries(t, f)
	blob := func(d descriptor, into any) {
		t.Helper()
		content := all["blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:")]
		if int64(len(content)) != d.Size {
			t.Errorf("%s has %d bytes, its descriptor says %d", d.Digest, len(content), d.Size)
		}
		if err := json.Unmarshal([]byte(content), into); err != nil {
			t.Fatal(err)
		}
	}
	var index struct{ Manifests []descriptor }
	if err := json.Unmarshal([]byte(all["index.json"]), &index); err != nil {
		t.Fatal(err)
	}
	var names, commands []string
	for _, m := range index.Manifests {
		names = append(names, m.Annotations["io.containerd.image.name"])
		var manifest struct {
			Config descriptor
			Layers []descriptor
		}
		blob(m, &manifest)
		var config struct {
			Config struct {
				Entrypoint []string
				User       string
			}
			RootFS struct {
				DiffIDs []string `json:"diff_ids"`
			}
		}
		blob(manifest.Config, &config)
		commands = append(commands, strings.Join(config.Config.Entrypoint, " ")+" "+config.Config.User)
		if len(manifest.Layers) != 1 || cmp.Diff([]string{manifest.Layers[0].Digest}, config.RootFS.DiffIDs) != "" {
			t.Fatalf("layers %v, and %q in the configuration", manifest.Layers, config.RootFS.DiffIDs)
		}
		layer := all["blobs/sha256/"+strings.TrimPrefix(manifest.Layers[0].Digest, "sha256:")]
		want := map[string]string{"bin/": "", "bin/program": "content", "bin/again": "content"}
		if diff := cmp.Diff(want, entries(t, strings.NewReader(layer))); diff != "" {
			t.Errorf("content (-want +got):\n%s", diff)
		}
	}
	if diff := cmp.Diff([]string{"example.org/a:1", "example.org/b:1"}, names); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"/bin/program 1:2", "/bin/again "}, commands); diff != "" {
		t.Errorf("commands (-want +got):\n%s", diff)
	}
}
