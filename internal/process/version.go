package process

import (
	"runtime"
	"runtime/debug"
	"strings"
)

// The linker sets these in release builds:
//
//	go build -ldflags "-X github.com/kube-semaphore/kube-semaphore/internal/process.number=v1.2.3
//	  -X github.com/kube-semaphore/kube-semaphore/internal/process.revision=<commit>"
//
// Without them, the build information of the Go tool is used.
var (
	number   string
	revision string
)

// Version returns the release, as in "v1.2.3", or "devel" for a build that has
// no release number.
func Version() string { return stamped().number }

// Revision returns the commit the binary was built from, shortened to twelve
// characters, with "-dirty" behind it when the tree had uncommitted changes;
// "unknown" when the build recorded none.
func Revision() string { return stamped().revision }

// Build returns release, revision and Go version in one line, for -version and
// for the first line of the log.
func Build() string {
	s := stamped()
	return s.number + " (revision " + s.revision + ", " + runtime.Version() + ")"
}

type stamp struct{ number, revision string }

func stamped() stamp {
	info, _ := debug.ReadBuildInfo()
	return resolve(number, revision, info)
}

// resolve prefers what the linker set over what the Go tool recorded.
func resolve(number, revision string, info *debug.BuildInfo) stamp {
	s := stamp{number: number, revision: shorten(revision)}
	if info == nil {
		info = &debug.BuildInfo{}
	}
	if s.number == "" && info.Main.Version != "(devel)" {
		s.number = info.Main.Version
	}
	if s.number == "" {
		s.number = "devel"
	}
	if s.revision == "" {
		dirty := ""
		for _, setting := range info.Settings {
			switch setting.Key {
			case "vcs.revision":
				s.revision = shorten(setting.Value)
			case "vcs.modified":
				if setting.Value == "true" {
					dirty = "-dirty"
				}
			}
		}
		if s.revision != "" {
			s.revision += dirty
		}
	}
	if s.revision == "" {
		s.revision = "unknown"
	}
	return s
}

// shorten cuts the hash and leaves what follows its first dash.
func shorten(revision string) string {
	hash, suffix, found := strings.Cut(revision, "-")
	hash = hash[:min(len(hash), 12)]
	if found {
		return hash + "-" + suffix
	}
	return hash
}
