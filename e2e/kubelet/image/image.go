// Package image writes container images without a builder or a registry: archives in
// OCI's layout (image-layout.md of the OCI image specification), which containerd
// imports.
package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"runtime"
	"slices"
)

// Image is one image for this machine's architecture.
type Image struct {
	// Name is the full name, with registry and tag.
	Name string
	// Layers are the folders' content, one above the other: by path in the image,
	// the file of this machine that goes there, with its permissions.
	Layers []map[string]string
	// Entrypoint is the command, with its arguments.
	Entrypoint []string
	// User is a number and a group's, such as "65532:65532". Empty: root.
	User string
}

// descriptor is how OCI refers to content.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

const (
	indexType    = "application/vnd.oci.image.index.v1+json"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar"
)

// archive is a layout that is being written. Content that is in it already isn't
// written again.
type archive struct {
	out     *tar.Writer
	written map[string]bool
}

// Write writes an archive with images to a file.
func Write(file string, images ...Image) (err error) {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() {
		if closed := f.Close(); err == nil {
			err = closed
		}
	}()
	a := &archive{out: tar.NewWriter(f), written: map[string]bool{}}
	var manifests []descriptor
	for _, i := range images {
		manifest, err := a.image(i)
		if err != nil {
			return fmt.Errorf("write image %s: %w", i.Name, err)
		}
		manifests = append(manifests, manifest)
	}
	index := map[string]any{"schemaVersion": 2, "mediaType": indexType, "manifests": manifests}
	if err := a.json("index.json", index); err != nil {
		return err
	}
	if err := a.json("oci-layout", map[string]string{"imageLayoutVersion": "1.0.0"}); err != nil {
		return err
	}
	return a.out.Close()
}

func (a *archive) image(i Image) (descriptor, error) {
	var layers []descriptor
	var digests []string
	for _, files := range i.Layers {
		content, err := layer(files)
		if err != nil {
			return descriptor{}, err
		}
		d, err := a.blob(layerType, content)
		if err != nil {
			return descriptor{}, err
		}
		layers = append(layers, d)
		digests = append(digests, d.Digest)
	}
	config, err := a.jsonBlob(configType, map[string]any{
		"architecture": runtime.GOARCH,
		"os":           runtime.GOOS,
		"config":       map[string]any{"Entrypoint": i.Entrypoint, "User": i.User, "Env": []string{"PATH=/bin"}},
		"rootfs":       map[string]any{"type": "layers", "diff_ids": digests},
	})
	if err != nil {
		return descriptor{}, err
	}
	manifest, err := a.jsonBlob(manifestType, map[string]any{
		"schemaVersion": 2, "mediaType": manifestType, "config": config, "layers": layers,
	})
	manifest.Annotations = map[string]string{"io.containerd.image.name": i.Name}
	return manifest, err
}

func (a *archive) jsonBlob(mediaType string, content any) (descriptor, error) {
	encoded, err := json.Marshal(content)
	if err != nil {
		return descriptor{}, err
	}
	return a.blob(mediaType, encoded)
}

func (a *archive) blob(mediaType string, content []byte) (descriptor, error) {
	sum := sha256.Sum256(content)
	digest := hex.EncodeToString(sum[:])
	d := descriptor{MediaType: mediaType, Digest: "sha256:" + digest, Size: int64(len(content))}
	if a.written[digest] {
		return d, nil
	}
	a.written[digest] = true
	return d, a.file("blobs/sha256/"+digest, content)
}

func (a *archive) json(name string, content any) error {
	encoded, err := json.Marshal(content)
	if err != nil {
		return err
	}
	return a.file(name, encoded)
}

func (a *archive) file(name string, content []byte) error {
	if err := a.out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
		return err
	}
	_, err := a.out.Write(content)
	return err
}

// layer returns the archive of a layer. It has no times in it, so that the same
// content is the same layer.
func layer(files map[string]string) ([]byte, error) {
	var buffer bytes.Buffer
	out := tar.NewWriter(&buffer)
	folders := map[string]bool{"/": true, ".": true}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := addFolders(out, path.Dir(name), folders); err != nil {
			return nil, err
		}
		if err := addFile(out, name, files[name]); err != nil {
			return nil, err
		}
	}
	err := out.Close()
	return buffer.Bytes(), err
}

func addFolders(out *tar.Writer, folder string, have map[string]bool) error {
	if have[folder] {
		return nil
	}
	have[folder] = true
	if err := addFolders(out, path.Dir(folder), have); err != nil {
		return err
	}
	return out.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: folder[1:] + "/", Mode: 0o755})
}

func addFile(out *tar.Writer, name, source string) error {
	f, err := os.Open(source)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // It was only read.
	info, err := f.Stat()
	if err != nil {
		return err
	}
	err = out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name[1:], Mode: int64(info.Mode().Perm()), Size: info.Size()})
	if err != nil {
		return err
	}
	_, err = io.Copy(out, f)
	return err
}
