package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// platform is what semaphorectl is built for.
type platform struct{ system, arch string }

func (p platform) String() string { return p.system + "_" + p.arch }

// archive is the name of the platform's archive. Windows unpacks zip by itself.
func (p platform) archive() string {
	if p.system == "windows" {
		return "semaphorectl_" + p.String() + ".zip"
	}
	return "semaphorectl_" + p.String() + ".tar.gz"
}

func (p platform) binary() string {
	if p.system == "windows" {
		return "semaphorectl.exe"
	}
	return "semaphorectl"
}

// platforms are those of administrators.
func platforms() []platform {
	var all []platform
	for _, system := range []string{"linux", "darwin", "windows"} {
		for _, arch := range architectures() {
			all = append(all, platform{system, arch})
		}
	}
	return all
}

// completion is how kubectl completes what comes behind "kubectl semaphore": it looks
// for a program of this name.
const completion = "#!/bin/sh\nexec kubectl semaphore __complete \"$@\"\n"

// archived is a file of an archive.
type archived struct {
	name    string
	content []byte
	mode    int64
}

// toolCommand makes the archives of semaphorectl, their checksums, and the manifest of
// the kubectl plugin for krew (https://krew.sigs.k8s.io).
func toolCommand(ctx context.Context, in invocation) error {
	version := in.flags.String("version", "devel", "the release's `version`")
	out := in.flags.String("o", "dist", "`folder` of the results")
	url := in.flags.String("url", "", "`address` of the folder that users get the archives from; without it there is no manifest")
	image := in.flags.String("image", "", "`reference` of the release's image by its digest, the default of join --image")
	if err := in.parse(0); err != nil {
		return err
	}
	if *image != "" && !pinnedReference.MatchString(*image) {
		return notPinned(*image)
	}
	if strings.ContainsAny(*version, " '\"") {
		return fmt.Errorf("-version %q: expected one such as v1.2.3", *version)
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		return err
	}
	found, err := takeInventory(ctx, in.root)
	if err != nil {
		return err
	}
	licences, err := licenceTexts(found.modules)
	if err != nil {
		return err
	}
	own, err := os.ReadFile(filepath.Join(in.root, "LICENSE"))
	if err != nil {
		return err
	}
	var sums bytes.Buffer
	plugin := newPlugin(*version)
	for _, p := range platforms() {
		program, err := buildTool(ctx, in.root, p, *version, *image)
		if err != nil {
			return err
		}
		archive, err := pack(p, []archived{
			{p.binary(), program, 0o755}, {"kubectl_complete-semaphore", []byte(completion), 0o755},
			{"LICENSE", own, 0o644}, {"third-party-licences.txt", licences, 0o644},
		})
		if err != nil {
			return err
		}
		sum := sha256.Sum256(archive)
		fmt.Fprintf(&sums, "%x  %s\n", sum, p.archive())
		plugin.add(p, *url, hex.EncodeToString(sum[:]))
		if err := os.WriteFile(filepath.Join(*out, p.archive()), archive, 0o644); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(*out, "SHA256SUMS"), sums.Bytes(), 0o644); err != nil {
		return err
	}
	if *url == "" {
		return nil
	}
	text, err := yaml.Marshal(plugin)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(*out, "semaphore.yaml"), text, 0o644)
}

// buildTool builds semaphorectl for a platform and returns the program.
func buildTool(ctx context.Context, root string, p platform, version, image string) (program []byte, err error) {
	dir, err := os.MkdirTemp("", "semaphorectl-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	file := filepath.Join(dir, p.binary())
	const module = "github.com/kube-semaphore/kube-semaphore/"
	_, err = goOutput(ctx, root, []string{"GOOS=" + p.system, "GOARCH=" + p.arch, "CGO_ENABLED=0"},
		"build", "-trimpath", "-ldflags", "-s -w -X "+module+"internal/process.number="+version+" -X "+module+"ctl/join.released="+image, "-o", file, "./cmd/semaphorectl")
	if err != nil {
		return nil, fmt.Errorf("build semaphorectl for %s: %w", p, err)
	}
	return os.ReadFile(file)
}

// pack makes an archive without times, so that the same content is the same archive.
func pack(p platform, members []archived) ([]byte, error) {
	var out bytes.Buffer
	if p.system == "windows" {
		files := zip.NewWriter(&out)
		for _, m := range members {
			w, err := files.CreateHeader(&zip.FileHeader{Name: m.name, Method: zip.Deflate})
			if err != nil {
				return nil, err
			}
			if _, err := w.Write(m.content); err != nil {
				return nil, err
			}
		}
		err := files.Close()
		return out.Bytes(), err
	}
	packed := gzip.NewWriter(&out)
	files := tar.NewWriter(packed)
	for _, m := range members {
		if err := files.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: m.name, Mode: m.mode, Size: int64(len(m.content))}); err != nil {
			return nil, err
		}
		if _, err := io.Copy(files, bytes.NewReader(m.content)); err != nil {
			return nil, err
		}
	}
	err := errors.Join(files.Close(), packed.Close())
	return out.Bytes(), err
}

// plugin is the manifest of krew.
type plugin struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Version          string           `json:"version"`
		Homepage         string           `json:"homepage"`
		ShortDescription string           `json:"shortDescription"`
		Description      string           `json:"description"`
		Platforms        []pluginPlatform `json:"platforms"`
	} `json:"spec"`
}

type pluginPlatform struct {
	Selector struct {
		MatchLabels map[string]string `json:"matchLabels"`
	} `json:"selector"`
	URI    string `json:"uri"`
	SHA256 string `json:"sha256"`
	Bin    string `json:"bin"`
}

func newPlugin(version string) *plugin {
	p := &plugin{APIVersion: "krew.googlecontainertools.github.com/v1alpha2", Kind: "Plugin"}
	p.Metadata.Name = "semaphore"
	p.Spec.Version = version
	p.Spec.Homepage = "https://github.com/kube-semaphore/kube-semaphore"
	p.Spec.ShortDescription = "Join clusters, encrypted and by name"
	p.Spec.Description = "Joins Kubernetes clusters, so that their pods reach each other: encrypted, by name and\nsubject to network policies. Reports all faults at once, and removes everything\nagain.\n"
	return p
}

func (p *plugin) add(on platform, url, sum string) {
	found := pluginPlatform{URI: strings.TrimSuffix(url, "/") + "/" + on.archive(), SHA256: sum, Bin: on.binary()}
	found.Selector.MatchLabels = map[string]string{"os": on.system, "arch": on.arch}
	p.Spec.Platforms = append(p.Spec.Platforms, found)
}
