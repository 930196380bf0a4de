package judge

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestReasons checks reasons.yaml: each reason has a rule, and those that explain it stand further up.
func TestReasons(t *testing.T) {
	all, err := reasons()
	if err != nil {
		t.Fatal(err)
	}
	rules, above := rules(), map[string]bool{}
	if got := slices.Collect(maps.Keys(rules)); len(got) != len(all) {
		t.Errorf("%d reasons, and rules for %d", len(all), len(got))
	}
	for _, r := range all {
		switch {
		case rules[r.ID] == nil || above[r.ID]:
			t.Errorf("%s has no rule, or stands there twice", r.ID)
		case r.Text == "" || r.Remedy == "":
			t.Errorf("%s has no text or no remedy", r.ID)
		}
		explained := slices.Concat(r.ExplainedBy, r.EitherSide)
		for name, c := range r.Cases {
			explained = append(explained, c.ExplainedBy...)
			if c.Text+c.Remedy == "" && len(c.ExplainedBy) == 0 {
				t.Errorf("the case %s of %s says nothing", name, r.ID)
			}
		}
		for _, id := range explained {
			if !above[id] {
				t.Errorf("%s, which explains %s, isn't above it", id, r.ID)
			}
		}
		above[r.ID] = true
	}
}

// TestReasonsAreDocumented looks for each reason in the table of docs/operating.md.
func TestReasonsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	for id := range rules() {
		if !strings.Contains(string(page), "`"+id+"`") {
			t.Errorf("docs/operating.md doesn't name %s", id)
		}
	}
}

// unfilled is a word of a text that no rule has filled in.
var unfilled = regexp.MustCompile(`\{[a-z]+\}`)

// TestHostileWords fills in values that look like words of a text.
func TestHostileWords(t *testing.T) {
	f := &Finding{Scope: Scope{Cluster: "{node}", Node: "n"}, With: []string{"{what}", "{cluster} {node}"}}
	if got, want := f.fill("{cluster}: {what} on {node}"), "{node}: {cluster} {node} on n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
