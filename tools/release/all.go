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
	if err := chart(in.root, *version, *image, *out); err != nil {
		return err
	}
	return checksums(*out)
}

// chart makes the package of deploy/chart, as helm package does, and as helm install and helm push
// take it, with the release's version and image.
func chart(root, version, image, out string) error {
	const name = "kube-semaphore"
	number := strings.TrimPrefix(version, "v")
	edits := map[string][]edit{"Chart.yaml": {{"version: .*", "version: " + number}, {"appVersion: .*", "appVersion: " + version}}}
	if image != "" {
		m := untagged.FindStringSubmatch(image)
		if m == nil {
			return fmt.Errorf("-image %q: expected a name without a tag, @sha256: and 64 hexadecimal digits", image)
		}
		registry, repository, digest := "", m[1], m[2]
		if before, after, has := strings.Cut(repository, "/"); has && strings.ContainsAny(before, ".:") {
			registry, repository = before, after
		}
		edits["values.yaml"] = []edit{
			{"  registry: .*", fmt.Sprintf("  registry: %q", registry)}, {"  repository: .*", "  repository: " + repository}, {"  digest: .*", fmt.Sprintf("  digest: %q", digest)},
		}
	}
	folder := filepath.Join(root, "deploy", "chart")
	var files []archived
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		inside, err := filepath.Rel(folder, path)
		if err != nil {
			return err
		}
		inside = filepath.ToSlash(inside)
		for _, e := range edits[inside] {
			line := regexp.MustCompile("(?m)^" + e.line + "$")
			if found := len(line.FindAll(content, -1)); found != 1 {
				return fmt.Errorf("%s has %d lines %q instead of one", path, found, e.line)
			}
			content = line.ReplaceAllLiteral(content, []byte(e.by))
		}
		files = append(files, archived{name + "/" + inside, content, 0o644})
		return nil
	})
	if err != nil {
		return err
	}
	packed, err := pack(platform{"linux", ""}, files)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, name+"-"+number+".tgz"), packed, 0o644)
}

// edit replaces the one line of a file that matches an expression.
type edit struct{ line, by string }

var untagged = regexp.MustCompile(`^([a-z0-9][a-z0-9._/-]*(?::[0-9]+/[a-z0-9._/-]+)?)@(sha256:[0-9a-f]{64})$`)

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
