package docs

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/docstest"
)

// Held is a reference of a document to a test that shows one of its statements. In a
// document the statement ends with ✓ and the name of a footnote, as in "✓[^keys]", and the
// footnote lists tests in backquotes, as in
// "[^keys]: `peers.TestDesired`, `e2e/scenarios.TestHostileNodes/a subtest`". A target of
// make may take the place of a test, as in "`make image-check`".
type Held struct {
	// Footnote is the name of the footnote.
	Footnote string
	// Target is a target of the Makefile; if it is set the other fields are empty.
	Target string
	// Package is the folder of a test, from the root of the repository.
	Package string
	// Test is the test's function, Subtests are the names of the subtest, outermost first.
	Test     string
	Subtests []string
}

func (h Held) String() string {
	if h.Target != "" {
		return fmt.Sprintf("[^%s]: make %s", h.Footnote, h.Target)
	}
	return fmt.Sprintf("[^%s]: %s.%s", h.Footnote, h.Package, path.Join(append([]string{h.Test}, h.Subtests...)...))
}

var (
	mark     = regexp.MustCompile(`✓(\[\^[a-z0-9-]+\])?`)
	footnote = regexp.MustCompile(`(?m)^\[\^([a-z0-9-]+)\]:((?:.*\n)(?: +.*\n)*)`)
	target   = regexp.MustCompile("`make ([a-z0-9-]+)`")
	testName = regexp.MustCompile("`([a-z0-9/_-]+)\\.((?:Test|Fuzz)[A-Za-z0-9]*)((?:/[^`/]+)*)`")

	testFunction = regexp.MustCompile(`(?m)^func (Test|Benchmark)\w+`)
	selected     = regexp.MustCompile(`(?:-run|-bench|promises=|longest=|\./[a-z/]+:)[ ']*\^?\(?([A-Z]\w+(?:\|\w+)*)`)
)

// Claims returns the tests that a document names for its marked statements, and the
// faults of these references: a mark without a footnote, a footnote that is missing,
// names no test, or belongs to no mark.
func Claims(text string) (held []Held, wrong []error) {
	preface, _, _ := strings.Cut(text, "\n## ")
	body := strings.TrimPrefix(text, preface) // Before it, ✓ is explained.
	used := map[string]bool{}
	for _, m := range mark.FindAllStringSubmatchIndex(body, -1) {
		if m[2] < 0 {
			line := strings.Count(preface+body[:m[0]], "\n") + 1
			wrong = append(wrong, fmt.Errorf("line %d: ✓ without a footnote", line))
			continue
		}
		used[strings.Trim(body[m[2]:m[3]], "[^]")] = true
	}
	defined := map[string]bool{}
	for _, m := range footnote.FindAllStringSubmatch(body, -1) {
		name, before := m[1], len(held)
		defined[name] = true
		if !used[name] {
			wrong = append(wrong, fmt.Errorf("footnote %s belongs to no ✓", name))
		}
		for _, found := range target.FindAllStringSubmatch(m[2], -1) {
			held = append(held, Held{Footnote: name, Target: found[1]})
		}
		for _, found := range testName.FindAllStringSubmatch(m[2], -1) {
			h := Held{Footnote: name, Package: found[1], Test: found[2]}
			if found[3] != "" {
				h.Subtests = strings.Split(found[3][1:], "/")
			}
			held = append(held, h)
		}
		if len(held) == before {
			wrong = append(wrong, fmt.Errorf("footnote %s names no test", name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(used)) {
		if !defined[name] {
			wrong = append(wrong, fmt.Errorf("footnote %s is missing", name))
		}
	}
	return held, wrong
}

// Tests are the tests of the repository, from its sources. Each package is parsed once.
type Tests struct {
	root     string
	packages map[string]tests // by folder
}

// tests are the names of a package's functions and the texts in its test files.
type tests struct{ functions, texts map[string]bool }

// NewTests returns the tests below root.
func NewTests(root string) *Tests { return &Tests{root: root, packages: map[string]tests{}} }

// of parses the test files of a folder.
func (t *Tests) of(folder string) (tests, error) {
	if found, ok := t.packages[folder]; ok {
		return found, nil
	}
	packages, err := parser.ParseDir(token.NewFileSet(), filepath.Join(t.root, filepath.FromSlash(folder)), //nolint:staticcheck // Build tags don't matter here.
		func(f fs.FileInfo) bool { return strings.HasSuffix(f.Name(), "_test.go") }, parser.SkipObjectResolution)
	if err != nil {
		return tests{}, err
	}
	found := tests{functions: map[string]bool{}, texts: map[string]bool{}}
	for _, p := range packages {
		for _, f := range p.Files {
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.FuncDecl:
					found.functions[n.Name.Name] = true
				case *ast.BasicLit:
					if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
						found.texts[text] = true
					}
				}
				return true
			})
		}
	}
	t.packages[folder] = found
	return found, nil
}

// Missing returns an error if the repository lacks the test. A subtest exists if the
// package's test files contain its name as a string.
func (t *Tests) Missing(h Held) error {
	if h.Target != "" {
		makefile, err := os.ReadFile(filepath.Join(t.root, "Makefile"))
		if err == nil && !strings.Contains(string(makefile), "\n"+h.Target+":") {
			err = errors.New("no such target")
		}
		if err != nil {
			return fmt.Errorf("%v: %w", h, err)
		}
		return nil
	}
	found, err := t.of(h.Package)
	if err != nil {
		return fmt.Errorf("%v: %w", h, err)
	}
	if !found.functions[h.Test] {
		return fmt.Errorf("%v: no such test", h)
	}
	for _, name := range h.Subtests {
		if !found.texts[name] {
			return fmt.Errorf("%v: no such subtest as %q", h, name)
		}
	}
	return nil
}

// TestEachClaimIsHeldByATest checks that the tests exist that docs/security.md names for
// its statements.
func TestEachClaimIsHeldByATest(t *testing.T) {
	root, err := docstest.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	held, wrong := Claims(string(text))
	for _, err := range wrong {
		t.Error(err)
	}
	if len(held) == 0 {
		t.Error("no claim found")
	}
	tests := NewTests(root)
	for _, h := range held {
		if err := tests.Missing(h); err != nil {
			t.Error(err)
		}
	}
}

func TestClaims(t *testing.T) {
	const text = "# Safety\n\nShown by a test: ✓.\n\n## Keys\n\nThey stay ✓[^keys], and ✓[^gone].\nUnproven ✓.\n\n" +
		"[^keys]: `peers.TestDesired`, `docs.TestParse/a, b/c`,\n  `peers.FuzzNode`\n[^idle]: `make test`\n[^none]: soon\n"
	held, wrong := Claims(text)
	want := []Held{
		{Footnote: "keys", Package: "peers", Test: "TestDesired"},
		{Footnote: "keys", Package: "docs", Test: "TestParse", Subtests: []string{"a, b", "c"}},
		{Footnote: "keys", Package: "peers", Test: "FuzzNode"},
		{Footnote: "idle", Target: "test"},
	}
	if diff := cmp.Diff(want, held); diff != "" {
		t.Errorf("claims (-want +got):\n%s", diff)
	}
	const complaints = "line 8: ✓ without a footnote\nfootnote idle belongs to no ✓\n" +
		"footnote none belongs to no ✓\nfootnote none names no test\nfootnote gone is missing"
	if got := errors.Join(wrong...); got == nil || got.Error() != complaints {
		t.Errorf("wrong: %v\nwant: %s", got, complaints)
	}
}

func TestMissing(t *testing.T) {
	root, err := docstest.Root()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		held Held
		want string
	}{
		{"a test", Held{Package: "docs", Test: "TestMissing"}, ""},
		{"a subtest", Held{Package: "docs", Test: "TestMissing", Subtests: []string{"a subtest"}}, ""},
		{"a test that was renamed", Held{Package: "docs", Test: "TestMiss" + "ed"}, "no such test"},
		{"a subtest that was renamed", Held{Package: "docs", Test: "TestMissing", Subtests: []string{"a sub" + "set"}}, "no such subtest"},
		{"a target", Held{Target: "test"}, ""},
		{"a target that was renamed", Held{Target: "tests"}, "no such target"},
		{"a folder that was moved", Held{Package: "docss", Test: "TestMissing"}, "no such file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := NewTests(root).Missing(c.held)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// TestSelectedTestsExist checks that each name by which the Makefile and .ci/run select tests
// is that of a test or benchmark: go test passes when one of several selects none.
func TestSelectedTestsExist(t *testing.T) {
	root, err := docstest.Root()
	if err != nil {
		t.Fatal(err)
	}
	var tests []byte
	err = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), ".") && name != root {
			return fs.SkipDir
		}
		if err != nil || !strings.HasSuffix(name, "_test.go") {
			return err
		}
		text, err := os.ReadFile(name)
		for _, function := range testFunction.FindAll(text, -1) {
			tests = append(tests, function...)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"Makefile", ".ci/run"} {
		text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
		if err != nil {
			t.Fatal(err)
		}
		found := selected.FindAllSubmatch(text, -1)
		if len(found) == 0 {
			t.Errorf("%s selects no tests", file)
		}
		for _, m := range found {
			for name := range strings.SplitSeq(string(m[1]), "|") {
				if !bytes.Contains(tests, []byte(name)) {
					t.Errorf("%s selects %s: no such test", file, name)
				}
			}
		}
	}
}
