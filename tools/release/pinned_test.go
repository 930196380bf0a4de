package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

func TestOnlyPinnedImagesPass(t *testing.T) {
	digest := "@sha256:" + strings.Repeat("0af", 21) + "9"
	for _, c := range []struct {
		name, image string
		passes      bool
	}{
		{"tag and digest", "golang:1.26" + digest, true},
		{"digest alone", "golang" + digest, true},
		{"somewhere else", "images.example:5000/a/golang:1.26.8-trixie" + digest, true},
		{"tag alone", "golang:1.26", false},
		{"nothing", "", false},
		{"digest of nothing", digest, false},
		{"a short digest", "golang@sha256:0af", false},
		{"a long digest", "golang" + digest + "0", false},
		{"capitals in the digest", "golang" + strings.ToUpper(digest), false},
		{"more behind it", "golang" + digest + " --network=host", false},
		{"a line more", "golang" + digest + "\n", false},
		{"a flag", "--network=host" + digest, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := call(t, "pinned", "-image", c.image)
			if c.passes && (err != nil || out != c.image+"\n") {
				t.Errorf("printed %q, %v", out, err)
			}
			if !c.passes && (err == nil || out != "") {
				t.Errorf("printed %q and passed", out)
			}
		})
	}
}

// TestEveryBaseImageIsAnArgument makes sure that a release can name by its digest
// whatever it builds upon.
func TestEveryBaseImageIsAnArgument(t *testing.T) {
	dockerfile, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	stages := regexp.MustCompile(`(?m)^FROM (?:--\S+ )?(\S+)(?: AS (\S+))?$`).FindAllStringSubmatch(string(dockerfile), -1)
	if len(stages) < 2 {
		t.Fatalf("found %q", stages)
	}
	built := map[string]bool{}
	for _, stage := range stages {
		built[stage[2]] = true
		if stage[1] != "scratch" && stage[1] != "$GO_IMAGE" {
			t.Errorf("builds upon %s whatever a release says", stage[1])
		}
	}
	for _, from := range regexp.MustCompile(`--from=(\S+)`).FindAllStringSubmatch(string(dockerfile), -1) {
		if !built[from[1]] {
			t.Errorf("copies from %s, which isn't built here", from[1])
		}
	}
}
