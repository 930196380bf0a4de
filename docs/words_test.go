package docs

import (
	"slices"
	"testing"
)

// perThousand is how many counted words 1,000 comment lines may have: comparable projects
// have 0 to 5.
const perThousand = 5

// TestWords keeps out words that CONTRIBUTING.md bans.
func TestWords(t *testing.T) {
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	w, err := Words(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range w.Banned {
		t.Errorf("%s is a banned word, see CONTRIBUTING.md", b)
	}
	t.Logf("%.1f counted words per 1,000 of %d comment lines", w.PerThousand(), w.CommentLines)
	if w.PerThousand() > perThousand {
		t.Errorf("more than %d", perThousand)
	}
}

func TestWordsOfAFile(t *testing.T) {
	var w Wording
	w.source("a.go", []byte("package a\n\n// f tells an operator, who reads it,\n// what is there.\nfunc f() {\n\ttoldOnce := `news\nby and by`\n\t_ = toldOnce // retells, and each name counts once\n}\n"))
	w.text("b.md", 1, "# Troubleshooting\n\nThe remote is away.\n")
	want := []string{"a.go:3: tells", "a.go:4: what is there", "a.go:6: told", "a.go:7: by and by", "b.md:3: is away"}
	slices.Sort(w.Banned)
	slices.Sort(want)
	if !slices.Equal(w.Banned, want) {
		t.Errorf("banned %q, want %q", w.Banned, want)
	}
	if w.CommentLines != 3 || w.Counted != 2 {
		t.Errorf("%d counted words in %d comment lines, want 2 in 3", w.Counted, w.CommentLines)
	}
}
