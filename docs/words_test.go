package docs

import (
	"fmt"
	"go/scanner"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/docstest"
)

// Wording is what this repository says in banned words, and how often its comments use
// words that plain technical English seldom needs.
type Wording struct {
	Banned       []string // file:line: word, in the order of the files
	CommentLines int      // lines of Go comments
	Counted      int      // words in them that match counted
}

// PerThousand returns counted words per 1,000 comment lines.
func (w Wording) PerThousand() float64 {
	return 1000 * float64(w.Counted) / float64(max(w.CommentLines, 1))
}

var (
	// banned has a plainer word each: "reports", "returns", "users", "no program", "again".
	banned = regexp.MustCompile(`(?i)\b(tells?|telling|told|who(m)?ever|nobody|somebody|troubles?|anew|by and by|(for|of) who|(is|are|was|were) away|comes? late|what is there)\b`)
	// counted is banned's single words and "who", which a person may have.
	counted = regexp.MustCompile(`(?i)\b(tells?|told|trouble|whoever|who|nobody|somebody)\b`)
	// parts are the words of an identifier.
	parts = regexp.MustCompile(`[A-Z]?[a-z]+|[A-Z]+`)
	// worded are files that are read as a whole: in Go, comments, strings and names are.
	worded = regexp.MustCompile(`\.(md|ya?ml|html|sh)$|(^|/)(Makefile|Dockerfile|run|deps)$`)
	// itself lists the words, and CONTRIBUTING.md names them.
	itself = regexp.MustCompile(`^docs/words_test\.go$|^CONTRIBUTING\.md$`)
)

// Words reads what git tracks below root.
func Words(root string) (Wording, error) {
	out, err := exec.Command("git", "-C", root, "ls-files", "-z").Output()
	if err != nil {
		return Wording{}, fmt.Errorf("list files: %w", err)
	}
	var w Wording
	for _, name := range strings.Split(strings.TrimRight(string(out), "\x00"), "\x00") {
		isGo := strings.HasSuffix(name, ".go")
		if itself.MatchString(name) || !isGo && !worded.MatchString(name) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue // Deleted, and not committed yet.
		}
		if err != nil {
			return Wording{}, err
		}
		if isGo {
			w.source(name, text)
		} else {
			w.text(name, 1, string(text))
		}
	}
	return w, nil
}

// source adds a Go file: its comments, strings and names.
func (w *Wording) source(name string, text []byte) {
	names := map[string]bool{} // Each is looked at where it stands first.
	files := token.NewFileSet()
	file := files.AddFile(name, -1, len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, scanner.ScanComments)
	for {
		pos, kind, literal := s.Scan()
		switch line := file.Line(pos); kind {
		case token.EOF:
			return
		case token.COMMENT:
			w.CommentLines += 1 + strings.Count(strings.TrimSuffix(literal, "\n"), "\n")
			w.Counted += len(counted.FindAllString(literal, -1))
			w.text(name, line, literal)
		case token.STRING:
			w.text(name, line, literal)
		case token.IDENT:
			if !names[literal] {
				names[literal] = true
				w.text(name, line, strings.Join(parts.FindAllString(literal, -1), " "))
			}
		}
	}
}

// text adds banned words of text, whose first line is line.
func (w *Wording) text(name string, line int, text string) {
	for _, at := range banned.FindAllStringIndex(text, -1) {
		w.Banned = append(w.Banned, fmt.Sprintf("%s:%d: %s", name, line+strings.Count(text[:at[0]], "\n"), text[at[0]:at[1]]))
	}
}

// perThousand is how many counted words 1,000 comment lines may have: comparable projects
// have 0 to 5.
const perThousand = 5

// TestWords keeps out words that CONTRIBUTING.md bans.
func TestWords(t *testing.T) {
	root, err := docstest.Root()
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
