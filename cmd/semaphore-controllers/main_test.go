package main

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/internal/process"
)

func TestNameSaysWhichProgramRuns(t *testing.T) {
	for name, want := range map[string]int{
		"semaphore-tokens": process.ExitWell, "/bin/semaphore-policy": process.ExitWell, "./semaphore-relay": process.ExitWell,
		"/bin/semaphore-service-mirror": process.ExitWell,
		"/bin/semaphore-controllers":    process.ExitUsage, "semaphore-wireguard": process.ExitUsage, "": process.ExitUsage,
	} {
		if code := call([]string{name, "-version"}); code != want {
			t.Errorf("%q -version: exit code %d, want %d", name, code, want)
		}
	}
	if code := call(nil); code != process.ExitUsage {
		t.Errorf("without a name: exit code %d", code)
	}
}

// TestLinksAreThoseOfThePrograms holds the links of the image and of "make build" against the
// programs.
func TestLinksAreThoseOfThePrograms(t *testing.T) {
	for _, file := range []string{"Dockerfile", "Makefile"} {
		content, err := os.ReadFile(filepath.Join("..", "..", file))
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(`for name in ([a-z -]+); do\s*(?:\\\s*)?ln -sf semaphore-controllers`).FindStringSubmatch(string(content))
		if found == nil {
			t.Errorf("%s has no links", file)
			continue
		}
		if got, want := strings.Fields(found[1]), slices.Sorted(maps.Keys(programs())); !slices.Equal(got, want) {
			t.Errorf("%s has the links %q, want %q", file, got, want)
		}
	}
}
