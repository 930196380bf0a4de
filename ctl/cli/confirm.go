package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"
)

// ErrNoTerminal is the error of a question when standard input isn't a terminal.
var ErrNoTerminal = errors.New("standard input is not a terminal")

// Confirm asks a question and returns whether the answer is yes. Without a terminal the
// error is ErrNoTerminal; it ends with ctx.
func (s *Session) Confirm(ctx context.Context, question string) (bool, error) {
	if !s.Interactive {
		return false, ErrNoTerminal
	}
	s.printing.Lock()
	fmt.Fprint(s.Err, question+" [y/N] ")
	s.printing.Unlock()
	// A read of standard input can't be interrupted: it ends with the process.
	answered := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(s.In).ReadString('\n') // No answer is no.
		answered <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case answer := <-answered:
		return answer == "y" || answer == "yes", nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}
