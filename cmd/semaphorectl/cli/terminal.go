package cli

import (
	"context"
	"fmt"
	"io"
	"os"

	"golang.org/x/term"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

// Terminal says how text for people is printed.
type Terminal struct {
	plain bool // it has no colours
	off   bool // nobody wants them
}

// terminal looks at what a file is. NO_COLOR is https://no-color.org.
func terminal(file io.Writer, lookup func(string) (string, bool)) Terminal {
	noColour, _ := lookup("NO_COLOR")
	kind, _ := lookup("TERM")
	f, isFile := file.(*os.File)
	return Terminal{plain: noColour != "" || kind == "dumb" || !isFile || !term.IsTerminal(int(f.Fd()))}
}

// A Colour is an ANSI colour (ECMA-48, SGR).
type Colour string

// The colours that text may have.
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

// most is how many characters of one message are printed: what clusters say is in it.
const most = 4000

// Say prints a line about progress.
func (s *Session) Say(format string, args ...any) { s.line("", format, args...) }

// Done prints a line about something that is as it should be.
func (s *Session) Done(format string, args ...any) {
	s.line(s.Terminal.Paint(Green, "✓ "), format, args...)
}

// Warn prints a line that the user should read.
func (s *Session) Warn(format string, args ...any) {
	s.line(s.Terminal.Paint(Yellow, "! "), format, args...)
}

// Fail prints a line about what is wrong.
func (s *Session) Fail(format string, args ...any) {
	s.line(s.Terminal.Paint(Red, "✗ "), format, args...)
}

func (s *Session) line(mark, format string, args ...any) {
	s.printing.Lock()
	defer s.printing.Unlock()
	fmt.Fprintln(s.Err, mark+printable.Text(fmt.Sprintf(format, args...), most))
}

// ignore leaves out warnings of API servers, which are for developers.
type ignore struct{}

func (ignore) HandleWarningHeaderWithContext(context.Context, int, string, string) {}

var noWarnings rest.WarningHandlerWithContext = ignore{}
