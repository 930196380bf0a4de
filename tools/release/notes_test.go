package main

import (
	"strings"
	"testing"
)

const changelog = `# Changelog

What changes for users.

## Unreleased

## [1.1.0] - 2026-12-01

### Added

- Second.

## v1.0.0

- First,
  in two lines.
`

func TestSection(t *testing.T) {
	for _, c := range []struct{ name, version, want string }{
		{"between two headings", "v1.1.0", "### Added\n\n- Second.\n"},
		{"without the v", "1.1.0", "### Added\n\n- Second.\n"},
		{"the last one, with a v in the heading only", "1.0.0", "- First,\n  in two lines.\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := section(changelog, c.version)
			if err != nil || got != c.want {
				t.Errorf("got %q and error %v, want %q", got, err, c.want)
			}
		})
	}
}

func TestSectionOfTheNewest(t *testing.T) {
	got, err := section("# Changelog\n\n## v2.0.0\n\n- New.\n\n## v1.0.0\n\n- Old.\n", "")
	if err != nil || got != "- New.\n" {
		t.Errorf("got %q and error %v, want the first section", got, err)
	}
}

func TestSectionRefuses(t *testing.T) {
	for _, c := range []struct{ name, changelog, version, want string }{
		{"an unknown version", changelog, "v1.0", "no version v1.0"},
		{"an empty section", changelog, "unreleased", "nothing about unreleased"},
		{"an empty newest section", changelog, "", "nothing about Unreleased"},
		{"a file without versions", "# Changelog\n", "", "no version"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := section(c.changelog, c.version)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %q and error %v, want an error that says %q", got, err, c.want)
			}
		})
	}
}

// TestNotesOfThisRepository wants a changelog whose newest heading stands over
// something, as docs/releasing.md says.
func TestNotesOfThisRepository(t *testing.T) {
	out, err := call(t, "notes")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out, "- ") || strings.Contains(out, "\n## ") {
		t.Errorf("want the list of one version, got:\n%s", out)
	}
}
