// Package printable sanitizes untrusted text for terminals, logs, Events and HTTP responses,
// such as errors of API servers and names of objects of other clusters.
package printable

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
)

// Short is the default maximum number of characters of a text.
const Short = 300

// Text returns the first most characters of text on one line and in printable ASCII.
// Control characters could move the cursor or change earlier output; homoglyphs and
// bidirectional characters could imitate another name. They are escaped as in Go string
// literals. Lines are joined by semicolons.
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

// JSON returns JSON with all characters outside printable ASCII escaped, of which
// encoding/json escapes only the control characters below space.
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

// Error returns an error with the text of err truncated and made printable; nil for nil.
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

// Unwrap returns the original error.
func (e *shown) Unwrap() error { return e.err }
