package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"golang.org/x/term"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

// Terminal says whether output is coloured.
type Terminal struct {
	plain bool // not a terminal with colours
	off   bool // --no-color
}

// terminal finds out whether a file is a terminal. NO_COLOR is https://no-color.org.
func terminal(file io.Writer, lookup func(string) (string, bool)) Terminal {
	noColour, _ := lookup("NO_COLOR")
	kind, _ := lookup("TERM")
	f, isFile := file.(*os.File)
	return Terminal{plain: noColour != "" || kind == "dumb" || !isFile || !term.IsTerminal(int(f.Fd()))}
}

// A Colour is an ANSI colour (ECMA-48, SGR).
type Colour string

// The colours of text.
const (
	Red    Colour = "31"
	Green  Colour = "32"
	Yellow Colour = "33"
	Faint  Colour = "2"
)

// Paint returns text in a colour, where the terminal has colours.
func (t Terminal) Paint(colour Colour, text string) string {
	if t.plain || t.off {
		return text
	}
	return "\x1b[" + string(colour) + "m" + text + "\x1b[0m"
}

// maxMessage bounds a printed message, in characters: it may contain text from clusters.
const maxMessage = 4000

// Say prints a line about progress.
func (s *Session) Say(format string, args ...any) { s.line("", format, args...) }

// Done prints a line about something that succeeded.
func (s *Session) Done(format string, args ...any) {
	s.line(s.Terminal.Paint(Green, "✓ "), format, args...)
}

// Warn prints a line that the user should read.
func (s *Session) Warn(format string, args ...any) {
	s.line(s.Terminal.Paint(Yellow, "! "), format, args...)
}

// Fail prints a line about an error.
func (s *Session) Fail(format string, args ...any) {
	s.line(s.Terminal.Paint(Red, "✗ "), format, args...)
}

func (s *Session) line(mark, format string, args ...any) {
	s.printing.Lock()
	defer s.printing.Unlock()
	fmt.Fprintln(s.Err, mark+printable.Text(fmt.Sprintf(format, args...), maxMessage))
}

// JSON writes a value as indented JSON, without control characters that clusters have chosen.
func JSON(to io.Writer, value any) error {
	body, err := json.MarshalIndent(value, "", "  ")
	if err == nil {
		_, err = to.Write(append(printable.JSON(body), '\n'))
	}
	return err
}

// ignore drops warnings of API servers, which are for developers.
type ignore struct{}

func (ignore) HandleWarningHeaderWithContext(context.Context, int, string, string) {}

var noWarnings rest.WarningHandlerWithContext = ignore{}
