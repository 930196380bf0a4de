package printable

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestText(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"plain text stays", `gcp-1: endpoint "10.0.0.1:51820" \ x~`, `gcp-1: endpoint "10.0.0.1:51820" \ x~`},
		{"escape sequences don't reach the terminal", "\x1b[2Jgone\x07", `\x1b[2Jgone\a`},
		{"nor do those of one byte", "\u009b2J\x7f", `\u009b2J\x7f`},
		{"carriage return doesn't overwrite", "bad\rgood", `bad\rgood`},
		{"one line stays one", "first\nsecond\n", "first; second"},
		{"direction of writing can't be changed", "a\u202eb\u2066", `a\u202eb\u2066`},
		{"characters that look like others are seen", "g\u0441p", `g\u0441p`},
		{"beyond the basic plane", "\U0001f600", `\U0001f600`},
		{"what isn't UTF-8", "a\xffb", `a\xffb`},
		{"a replacement character that was there", "a\ufffdb", `a\ufffdb`},
		{"quotes stay as they are", `it's "so"`, `it's "so"`},
		{"length is bounded", strings.Repeat("x", 1000), strings.Repeat("x", Short) + "... (1000 bytes)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Text(c.text, Short); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func FuzzText(f *testing.F) {
	f.Add("\x1b]0;title\x07 \xff \u202e \n")
	f.Fuzz(func(t *testing.T, text string) {
		got := Text(text, Short)
		if i := strings.IndexFunc(got, func(r rune) bool { return r < ' ' || r > '~' }); i >= 0 {
			t.Errorf("%q contains %q", got, got[i:])
		}
		if len(got) > 10*Short+50 {
			t.Errorf("%d bytes", len(got))
		}
	})
}

func FuzzJSON(f *testing.F) {
	f.Add("\u009b \x7f \U0001f600 \u2028")
	f.Fuzz(func(t *testing.T, text string) {
		body, err := json.MarshalIndent(map[string]string{text: text}, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		got := JSON(body)
		for _, b := range got {
			if b != '\n' && (b < ' ' || b > '~') {
				t.Fatalf("%q contains %q", got, b)
			}
		}
		var before, after map[string]string
		if err := json.Unmarshal(body, &before); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(got, &after); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("it means something else (-before +after):\n%s", diff)
		}
	})
}

func TestError(t *testing.T) {
	if Error(nil) != nil {
		t.Error("an error out of nothing")
	}
	inner := errors.New("\x1b[2J" + strings.Repeat("x", 10*Short))
	got := Error(inner)
	if !errors.Is(got, inner) || len(got.Error()) > 2*Short || strings.Contains(got.Error(), "\x1b") {
		t.Errorf("got %q", got)
	}
}
