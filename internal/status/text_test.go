package status

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestClean(t *testing.T) {
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
		{"length is bounded", strings.Repeat("x", 1000), strings.Repeat("x", maxText) + "... (1000 bytes)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Clean(c.text); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func FuzzClean(f *testing.F) {
	f.Add("\x1b]0;title\x07 \xff \u202e \n")
	f.Fuzz(func(t *testing.T, text string) {
		got := Clean(text)
		if i := strings.IndexFunc(got, func(r rune) bool { return r < ' ' || r > '~' }); i >= 0 {
			t.Errorf("%q contains %q", got, got[i:])
		}
		if len(got) > 10*maxText+50 {
			t.Errorf("%d bytes", len(got))
		}
	})
}

func FuzzCleanJSON(f *testing.F) {
	f.Add("\u009b \x7f \U0001f600 \u2028")
	f.Fuzz(func(t *testing.T, text string) {
		body, err := json.MarshalIndent(map[string]string{text: text}, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		got := cleanJSON(body)
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

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 1<<20 - 1: "1.0 MiB", 5 << 30: "5.0 GiB", 1<<63 - 1: "8.0 EiB",
	} {
		if got := Bytes(n); got != want {
			t.Errorf("%d: got %q, want %q", n, got, want)
		}
	}
}

func TestAge(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for age, want := range map[time.Duration]string{
		-time.Hour: "0s ago", 999 * time.Millisecond: "0s ago", 59 * time.Second: "59s ago",
		250 * time.Second: "4m10s ago", 3 * time.Hour: "3h0m ago", 53 * time.Hour: "2d5h ago",
	} {
		at := now.Add(-age)
		if got := Age(now, &at); got != want {
			t.Errorf("%v: got %q, want %q", age, got, want)
		}
	}
	if got := Age(now, nil); got != "never" {
		t.Errorf("nil: got %q, want never", got)
	}
}

func TestSome(t *testing.T) {
	if got, want := Some([]string{"a", "b"}), "a, b"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := Some(strings.Split("a b c d e f g", " ")), "a, b, c, d, e and 2 more"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
