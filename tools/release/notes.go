package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// notesCommand prints what CHANGELOG.md says of a version, or of the newest.
func notesCommand(_ context.Context, in invocation) error {
	if err := in.parse(1); err != nil {
		return err
	}
	changelog, err := os.ReadFile(filepath.Join(in.root, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	notes, err := section(string(changelog), in.flags.Arg(0))
	if err != nil {
		return fmt.Errorf("CHANGELOG.md: %w", err)
	}
	return in.emit("", []byte(notes))
}

// section returns what stands under the heading of a version, or under the
// first one when version is empty. Headings are as https://keepachangelog.com
// has them, "## [1.2.3] - 2026-11-20", brackets, date and the version's v being
// optional.
func section(changelog, version string) (string, error) {
	var body strings.Builder
	inside := false
	for line := range strings.Lines(changelog) {
		if title, heading := strings.CutPrefix(line, "## "); heading {
			if inside {
				break
			}
			name, _, _ := strings.Cut(strings.TrimSpace(title), " ")
			name = strings.Trim(name, "[]")
			if version == "" {
				version = name
			}
			inside = strings.EqualFold(strings.TrimPrefix(name, "v"), strings.TrimPrefix(version, "v"))
			continue
		}
		if inside {
			body.WriteString(line)
		}
	}
	notes := strings.TrimSpace(body.String())
	switch {
	case version == "":
		return "", errors.New("no version")
	case !inside:
		return "", fmt.Errorf("no version %s", version)
	case notes == "":
		return "", fmt.Errorf("nothing about %s", version)
	}
	return notes + "\n", nil
}
