package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

var releaseVersion = regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$`)

// allCommand makes everything of a release that needs no registry, and the checksums of all
// files.
func allCommand(ctx context.Context, in invocation) error {
	version := in.flags.String("version", "", "the release's `version`, as in v1.2.3")
	image := in.flags.String("image", "", "`reference` of the release's image by its digest")
	url := in.flags.String("url", "", "`address` of the folder that users get the archives from, for the krew manifest")
	notes := in.flags.String("notes", "", "`version` of the section of CHANGELOG.md (default: that of -version)")
	out := in.flags.String("o", "dist", "`folder` of the results, which must be empty or missing")
	if err := in.parse(0); err != nil {
		return err
	}
	if !releaseVersion.MatchString(*version) {
		return fmt.Errorf("-version %q: expected one such as v1.2.3", *version)
	}
	if *image != "" && !pinnedReference.MatchString(*image) {
		return notPinned(*image)
	}
	if entries, err := os.ReadDir(*out); err != nil && !errors.Is(err, os.ErrNotExist) || len(entries) > 0 {
		return errors.Join(fmt.Errorf("-o %s: not an empty folder", *out), err)
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		return err
	}
	if *notes == "" {
		*notes = *version
	}
	file := func(name string) string { return filepath.Join(*out, name) }
	var text bytes.Buffer
	if err := run(ctx, []string{"notes", *notes}, &text, in.stderr); err != nil {
		return err
	}
	if *image != "" {
		fmt.Fprintf(&text, "\nThe image is `%s`.\n", *image)
	}
	if err := os.WriteFile(file("notes.md"), text.Bytes(), 0o644); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"sbom", "-version", *version, "-o", file("sbom.cdx.json")},
		{"licences", "-texts", "-o", file("third-party-licences.txt")},
		{"tool", "-version", *version, "-image", *image, "-url", *url, "-o", *out},
	} {
		if err := run(ctx, args, in.stdout, in.stderr); err != nil {
			return err
		}
	}
	if err := chart(ctx, in.root, *version, *image, *out); err != nil {
		return err
	}
	return checksums(*out)
}

// chart makes the package of the chart, as helm package does, and as helm install and helm push
// take it.
func chart(ctx context.Context, root, version, image, out string) (err error) {
	const name = "kube-semaphore"
	dir, err := os.MkdirTemp("", "chart-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	folder := filepath.Join(dir, name)
	args := []string{"-C", "tools", "run", "./release/chart", "-version", version, "-o", folder}
	if image != "" {
		args = append(args, "-image", image)
	}
	if _, err := goOutput(ctx, root, nil, args...); err != nil {
		return err
	}
	var files []archived
	err = filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		inside, err := filepath.Rel(dir, path)
		files = append(files, archived{filepath.ToSlash(inside), content, 0o644})
		return err
	})
	if err != nil {
		return err
	}
	packed, err := pack(platform{"linux", ""}, files)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, name+"-"+strings.TrimPrefix(version, "v")+".tgz"), packed, 0o644)
}

// checksums writes SHA256SUMS of all files of a folder.
func checksums(folder string) error {
	const name = "SHA256SUMS"
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	var sums bytes.Buffer
	for _, e := range entries {
		if e.Name() == name || e.IsDir() {
			continue
		}
		content, err := os.ReadFile(filepath.Join(folder, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(content), e.Name())
	}
	return os.WriteFile(filepath.Join(folder, name), sums.Bytes(), 0o644)
}
