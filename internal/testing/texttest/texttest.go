// Package texttest runs tests whose cases are text that operators can read.
//
// A file has cases. A case has a title and steps, with an empty line between two of them; a step
// says what happens, and below "----" what follows:
//
//	-- title --
//	what happens  # a comment, after two spaces
//	----
//	what follows
//
//	what happens then
//	----
//	what follows
package texttest

import (
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write what follows now into the files of cases")

// Run runs the cases of the files that match a pattern. Begin begins a case: it returns a
// function that takes the lines of a step, without comments and empty lines, and returns what
// follows.
func Run(t *testing.T, pattern string, begin func(t *testing.T) func(step []string) string) {
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatal("no cases", err)
	}
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		cases := strings.SplitAfter(string(data), "\n-- ")
		for i, text := range cases[1:] {
			title, _, _ := strings.Cut(text, " --\n")
			t.Run(strings.TrimSuffix(filepath.Base(path), ".txt")+"/"+title, func(t *testing.T) {
				cases[i+1] = run(t, text, begin(t))
				if diff := cmp.Diff(strings.Split(text, "\n"), strings.Split(cases[i+1], "\n")); diff != "" && !*update {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		}
		if *update {
			if err := os.WriteFile(path, []byte(strings.Join(cases, "")), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// run runs a case, and returns it with what follows now.
func run(t *testing.T, text string, follow func(step []string) string) string {
	t.Helper()
	title, rest, _ := strings.Cut(text, "\n")
	out, followed := []string{title}, false
	var step []string
	for line := range strings.SplitSeq(rest, "\n") {
		switch {
		case followed && line != "" && line != "-- ":
			continue // What followed before.
		case line == "----":
			follows := strings.TrimSuffix(follow(step), "\n")
			if follows == "" || strings.Contains("\n"+follows+"\n", "\n\n") {
				t.Errorf("%q: an empty line would end the step", follows)
			}
			out, step, followed = append(out, line, follows), nil, true
			continue
		case !followed:
			if line, _, _ := strings.Cut(line, "  #"); strings.TrimSpace(line) != "" && line != "-- " {
				step = append(step, line)
			}
		}
		out, followed = append(out, line), false
	}
	return strings.Join(out, "\n")
}

// Fields parses pairs "name=value", where a value may be quoted as in Go; one without "=" has an
// empty value.
func Fields(text string) map[string]string {
	quoted := false
	set := map[string]string{}
	for _, field := range strings.FieldsFunc(text, func(r rune) bool {
		quoted = quoted != (r == '"')
		return r == ' ' && !quoted
	}) {
		name, value, _ := strings.Cut(field, "=")
		if plain, err := strconv.Unquote(value); err == nil {
			value = plain
		}
		set[name] = value
	}
	return set
}
