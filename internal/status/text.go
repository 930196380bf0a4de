package status

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
)

// maxText is how many characters of one text are shown. Remote clusters decide
// how long some are.
const maxText = 300

// Clean returns text as it may be printed to a terminal: on one line and in
// printable ASCII. Much of what a report says comes from other clusters, and
// control characters could move the cursor, change what was printed before or,
// in some terminals, do worse; characters that look like others or change the
// direction of writing could pretend to be another node. All of them are shown
// as Go writes them in a string literal. Lines are joined by semicolons.
func Clean(text string) string {
	text = strings.TrimRight(text, "\n")
	var b strings.Builder
	shown := 0
	for i, r := range text {
		if shown++; shown > maxText {
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

// cleanJSON returns the same JSON with all characters outside printable ASCII
// escaped, so that it can be printed to a terminal. The encoding of the
// programs escapes the control characters below space only.
func cleanJSON(text []byte) []byte {
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

// Bytes writes a number of bytes for people: "999 B", "1.5 KiB".
func Bytes(n int64) string {
	const step = 1024
	if n < step {
		return strconv.FormatInt(n, 10) + " B"
	}
	value, unit := float64(n)/step, 0
	const units = "KMGTPE"
	// What would be printed as 1024.0 has the next unit.
	for value >= step-0.05 && unit < len(units)-1 {
		value /= step
		unit++
	}
	return fmt.Sprintf("%.1f %ciB", value, units[unit])
}

// Age writes how long ago something was for people, in the two largest units
// that count: "3s ago", "4m10s ago", "2d5h ago". Nil is "never".
func Age(now time.Time, at *time.Time) string {
	if at == nil {
		return "never"
	}
	const day = 24 * time.Hour
	// Clocks that were set, and a report that is newer than now.
	age := max(now.Sub(*at), 0)
	var text string
	switch {
	case age >= day:
		text = fmt.Sprintf("%dd%dh", age/day, age%day/time.Hour)
	case age >= time.Hour:
		text = fmt.Sprintf("%dh%dm", age/time.Hour, age%time.Hour/time.Minute)
	case age >= time.Minute:
		text = fmt.Sprintf("%dm%ds", age/time.Minute, age%time.Minute/time.Second)
	default:
		text = fmt.Sprintf("%ds", age/time.Second)
	}
	return text + " ago"
}

// Some joins the first few of many names.
func Some(names []string) string {
	const few = 5
	if len(names) <= few {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
}
