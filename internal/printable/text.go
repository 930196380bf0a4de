// Package printable makes text of strangers fit to be shown: on terminals, in
// logs, Events and answers. Much of what the programs say comes from other
// clusters, errors of their API servers and names of their objects above all.
package printable

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
)

// Short is how many characters are shown of one text among others.
const Short = 300

// Text returns text as it may be printed to a terminal: on one line, in printable
// ASCII, and its first most characters only. Control characters could move the
// cursor, change what was printed before or, in some terminals, do worse;
// characters that look like others or change the direction of writing could
// pretend to be another node. All of them are shown as Go writes them in a string
// literal. Lines are joined by semicolons.
func Text(text string, most int) string {
	text = strings.TrimRight(text, "\n")
	var b strings.Builder
	shown := 0
	for i, r := range text {
		if shown++; shown > most {
			fmt.Fprintf(&b, "... (%d bytes)", len(text))
			break
		}
		switch {
		case r == '\n':
			b.WriteString("; ")
		case r >= ' ' && r <= '~':
			b.WriteByte(byte(r))
		case text[i] >= 0x80 && r == '\uFFFD' && !strings.HasPrefix(text[i:], "\uFFFD"):
			fmt.Fprintf(&b, `\x%02x`, text[i])
		default:
			quoted := strconv.QuoteRuneToASCII(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
	}
	return b.String()
}

// JSON returns the same JSON with all characters outside printable ASCII
// escaped, so that it can be printed to a terminal. The encoding of the
// programs escapes the control characters below space only.
func JSON(text []byte) []byte {
	var b bytes.Buffer
	for _, r := range string(text) {
		switch {
		case r < 0x7f:
			b.WriteRune(r)
		case r <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		}
	}
	return b.Bytes()
}

// Error returns an error whose text is that of err, shortened and made printable.
// Nil stays nil.
func Error(err error) error {
	if err == nil {
		return nil
	}
	return &shown{text: Text(err.Error(), Short), err: err}
}

type shown struct {
	text string
	err  error
}

func (e *shown) Error() string { return e.text }

// Unwrap returns the error as it was.
func (e *shown) Unwrap() error { return e.err }
