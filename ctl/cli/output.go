package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

// maxMessage bounds a printed message, in characters: it may contain text from clusters.
const maxMessage = 4000

// Say prints a line about progress.
func (s *Session) Say(format string, args ...any) { s.line("", format, args...) }

// Done prints a line about something that succeeded.
func (s *Session) Done(format string, args ...any) { s.line("✓ ", format, args...) }

// Warn prints a line that the user should read.
func (s *Session) Warn(format string, args ...any) { s.line("! ", format, args...) }

// Fail prints a line about an error.
func (s *Session) Fail(format string, args ...any) { s.line("✗ ", format, args...) }

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
