package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// index is an image index (github.com/opencontainers/image-spec, image-index.md).
type index struct {
	Manifests []struct {
		MediaType string `json:"mediaType"`
		Digest    string `json:"digest"`
		Platform  struct {
			Architecture string `json:"architecture"`
			OS           string `json:"os"`
		} `json:"platform"`
	} `json:"manifests"`
}

// layout writes the images of architectures as one image into an OCI layout, as a release
// pushes it, and returns its digest.
func (b *builder) layout(ctx context.Context, archs []string, folder string) (digest string, err error) {
	const name = "localhost/kube-semaphore:all"
	if _, err := b.buildah(ctx, "manifest", "create", name); err != nil {
		return "", err
	}
	for _, arch := range archs {
		if _, err := b.buildah(ctx, "manifest", "add", name, "localhost/kube-semaphore:"+arch); err != nil {
			return "", err
		}
	}
	if _, err := b.buildah(ctx, "manifest", "push", "--all", "--format", "oci", name, "oci:"+folder); err != nil {
		return "", err
	}
	var top, image index
	if err := readJSON(filepath.Join(folder, "index.json"), &top); err != nil {
		return "", err
	}
	if len(top.Manifests) != 1 {
		return "", fmt.Errorf("the layout has %d images", len(top.Manifests))
	}
	digest = top.Manifests[0].Digest
	if err := readJSON(filepath.Join(folder, "blobs", "sha256", digest[len("sha256:"):]), &image); err != nil {
		return "", err
	}
	var found []string
	for _, m := range image.Manifests {
		found = append(found, m.Platform.OS+"/"+m.Platform.Architecture)
	}
	for _, arch := range archs {
		if !slices.Contains(found, "linux/"+arch) || len(found) != len(archs) {
			return "", fmt.Errorf("the image is for %q, expected %q", found, archs)
		}
	}
	return digest, nil
}

func readJSON(path string, into any) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(content, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
