package config

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kelseyhightower/envconfig"
)

// TestEverySettingIsComplete checks the tags of each field: a new one that lacks some
// would be read in part, or not at all.
func TestEverySettingIsComplete(t *testing.T) {
	remote := groupPrefix("gcp")
	groups := []struct {
		name, prefix string
		vars         any
	}{
		{"remote", remote, new(Remote)}, {"remote", remote, new(Access)}, {"target", "", new(targetVars)},
		{"sources", prefix, new(sources)}, {"agent", prefix, new(agentSources)},
		{"wireguard", prefix, new(Wireguard)}, {"mirror", prefix, new(Mirror)}, {"policy", prefix, new(Policy)}, {"tokens", prefix, new(Tokens)},
	}
	files := map[string]string{}
	for _, g := range groups {
		group, settings := g.name, inspect(g.prefix, g.vars)
		for _, s := range settings {
			if s.tag.Get("desc") == "" {
				t.Errorf("%s has no meaning", s.variable)
			}
			bounds := 0
			switch s.field.(type) {
			case *int, *MTU, *Bytes:
				bounds = 2
			case *Subnets:
				if s.tag.Get("holds") == "" {
					t.Errorf("%s doesn't say what it holds", s.variable)
				}
			case *string, *bool, *uint32, *time.Duration, *Names, *Namespaces, *SubnetMap:
			case *[]Remote: // its names are read by readClusters
			default:
				t.Errorf("%s is a %T, which nothing decodes", s.variable, s.field)
			}
			if got := len(s.list("range")); got != bounds {
				t.Errorf("%s has %d bounds, want %d", s.variable, got, bounds)
			}
			if words := s.list("oneof"); words != nil && !slices.Contains(words, s.tag.Get("default")) {
				t.Errorf("the default of %s is not one of %s", s.variable, words)
			}
			if kinds := []string{"", "label", "cluster", "subdomain", "label value", "selector", "https", "proxy", "host:port", "ip", "endpoint", "source", "pod prefixes", "path"}; !slices.Contains(kinds, s.tag.Get("is")) {
				t.Errorf("%s must be a %s, which nothing checks", s.variable, s.tag.Get("is"))
			}
			file := s.tag.Get("file")
			if group == "remote" && !strings.HasPrefix(file, "remote.") {
				t.Errorf("%s isn't in the file", s.variable)
			}
			if other := files[file]; file != "" && other != "" && other != s.variable {
				t.Errorf("%s and %s share the key %s", s.variable, other, file)
			}
			files[file] = s.variable
		}
		var f faults
		if fill(&f, g.prefix, slices.DeleteFunc(settings, func(s *setting) bool { return s.tag.Get("required") != "" }), g.vars); f.all != nil {
			t.Errorf("defaults of %s: %v", group, f.all)
		}
	}
}

// TestNamesAreThoseOfEnvconfig asks envconfig for the variables of each struct.
func TestNamesAreThoseOfEnvconfig(t *testing.T) {
	for _, vars := range []any{new(sources), new(agentSources), new(Wireguard), new(Mirror), new(Policy), new(Tokens), new(Remote), new(Access), new(targetVars)} {
		for _, prefix := range []string{prefix, groupPrefix("on-prem"), groupPrefix("<name>"), ""} {
			var want strings.Builder
			if err := envconfig.Usagef(prefix, vars, &want, "{{range .}}{{usage_key .}}\n{{end}}"); err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			for _, s := range inspect(prefix, vars) {
				got.WriteString(s.variable + "\n")
			}
			if diff := cmp.Diff(want.String(), got.String()); diff != "" {
				t.Errorf("variables of %T (-want +got):\n%s", vars, diff)
			}
		}
	}
}
