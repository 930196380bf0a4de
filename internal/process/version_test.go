package process

import (
	"runtime/debug"
	"strings"
	"testing"
)

func TestVersionResolves(t *testing.T) {
	const commit = "0123456789abcdef0123456789abcdef01234567"
	vcs := func(version, modified string) *debug.BuildInfo {
		return &debug.BuildInfo{
			Main: debug.Module{Version: version},
			Settings: []debug.BuildSetting{
				{Key: "vcs.modified", Value: modified},
				{Key: "vcs.revision", Value: commit},
			},
		}
	}
	tests := map[string]struct {
		number, revision string
		info             *debug.BuildInfo
		want             stamp
	}{
		"linker flags win":                     {"v1.2.3", commit, vcs("v9.9.9", "true"), stamp{"v1.2.3", "0123456789ab"}},
		"a dirty revision from the linker":     {"v1.2.3", commit + "-dirty", nil, stamp{"v1.2.3", "0123456789ab-dirty"}},
		"the Go tool's stamp otherwise":        {"", "", vcs("v1.0.0", "false"), stamp{"v1.0.0", "0123456789ab"}},
		"uncommitted changes show":             {"", "", vcs("(devel)", "true"), stamp{"devel", "0123456789ab-dirty"}},
		"no information at all":                {"", "", nil, stamp{"devel", "unknown"}},
		"built without version control":        {"", "", &debug.BuildInfo{}, stamp{"devel", "unknown"}},
		"a short revision is taken as it is":   {"v1", "abc", nil, stamp{"v1", "abc"}},
		"a modified tree without any revision": {"", "", &debug.BuildInfo{Settings: []debug.BuildSetting{{Key: "vcs.modified", Value: "true"}}}, stamp{"devel", "unknown"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := resolve(tt.number, tt.revision, tt.info); got != tt.want {
				t.Errorf("resolve() = %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestBuildNamesNumberAndRevision(t *testing.T) {
	got := Build()
	for _, part := range []string{Version(), Revision(), "go1."} {
		if !strings.Contains(got, part) {
			t.Errorf("Build() = %q, lacks %q", got, part)
		}
	}
}
