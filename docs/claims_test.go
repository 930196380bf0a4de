package docs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestEachClaimIsHeldByATest checks that the tests exist that docs/security.md names for
// its statements.
func TestEachClaimIsHeldByATest(t *testing.T) {
	root, err := Root()
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
		"[^keys]: `peers.TestDesired`, `docs.TestParse/a, b/c`,\n  `e2e.TestMesh`\n[^idle]: `make test`\n[^none]: soon\n"
	held, wrong := Claims(text)
	want := []Held{
		{Footnote: "keys", Package: "peers", Test: "TestDesired"},
		{Footnote: "keys", Package: "docs", Test: "TestParse", Subtests: []string{"a, b", "c"}},
		{Footnote: "keys", Package: "e2e", Test: "TestMesh"},
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
	root, err := Root()
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
