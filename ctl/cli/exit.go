package cli

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/kube-semaphore/internal/process"
)

// exit is an error with a code.
type exit struct {
	error
	code int
}

func (e exit) Unwrap() error { return e.error }

// Usage marks an error as caused by the arguments.
func Usage(err error) error { return exit{err, process.ExitUsage} }

// Exit ends the command with a code and no further message.
func Exit(code int) error { return exit{code: code, error: errors.New("")} }

// Judged returns the exit code of a command that has printed its findings. A fault takes
// precedence over an unknown.
func Judged(wrong, unknown bool) error {
	switch {
	case wrong:
		return Exit(process.ExitFaults)
	case unknown:
		return Exit(process.ExitUnknown)
	}
	return nil
}

// Run runs a command and returns the exit code. Errors are printed line by line.
func Run(ctx context.Context, s *Session, root *cobra.Command, args []string) int {
	s.name, s.args = root.DisplayName(), args
	root.SetArgs(args)
	root.SetIn(s.In)
	root.SetOut(s.Out)
	root.SetErr(s.Err)
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return Usage(err) })
	usage(root)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return process.ExitWell
	}
	code := process.ExitFaults
	var with exit
	switch {
	case errors.As(err, &with):
		code = with.code
	case !cmd.HasParent() || strings.HasPrefix(err.Error(), "unknown command"):
		code = process.ExitUsage
	}
	lines := texts(err)
	if ctx.Err() != nil {
		// A signal has ended the requests under way, each with an error of its own.
		lines = []string{"interrupted"}
		if h, has := errors.AsType[hinted](err); has {
			lines[0] += ": " + single(h.hint)
		}
	}
	for _, line := range lines[:min(len(lines), maxLines)] {
		s.Fail("%s", line)
	}
	if more := len(lines) - maxLines; more > 0 {
		s.Fail("and %s", Count(more, "further line"))
	}
	if code == process.ExitUsage {
		s.Say("see %s --help", cmd.CommandPath())
	}
	return code
}

// maxLines is how many lines of an error are printed.
const maxLines = 200

// hinted is an error with a separate line that says what to do.
type hinted struct {
	error
	hint string
}

// Hint appends a line to an error that says what to do.
func Hint(err error, hint string) error { return hinted{err, hint} }

// Error returns both.
func (h hinted) Error() string { return h.error.Error() + "\n" + h.hint }

// Unwrap returns the error.
func (h hinted) Unwrap() error { return h.error }

// texts returns the lines of an error: one for each error that this program has joined, and
// their hints. Any other line break comes from outside, such as from a cluster that chose the
// name of an object, and starts no line.
func texts(err error) []string {
	switch e := err.(type) { //nolint:errorlint // It walks what is wrapped.
	case hinted:
		return append(texts(e.error), single(e.hint))
	case exit:
		return texts(e.error)
	case interface{ Unwrap() []error }:
		var all, plain []string
		for _, one := range e.Unwrap() {
			all, plain = append(all, texts(one)...), append(plain, one.Error())
		}
		if err.Error() == strings.Join(plain, "\n") { // Of errors.Join.
			return all
		}
	case interface{ Unwrap() error }:
		within := e.Unwrap()
		if within == nil {
			break
		}
		lines := texts(within)
		before, after, found := strings.Cut(err.Error(), within.Error())
		if len(lines) < 2 || !found {
			break
		}
		for i := range lines {
			lines[i] = single(before) + lines[i] // Each line begins with its cluster.
		}
		lines[len(lines)-1] += single(after)
		return lines
	}
	if text := single(err.Error()); text != "" {
		return []string{text}
	}
	return nil
}

// single returns a text as one line.
func single(text string) string {
	return strings.ReplaceAll(strings.Trim(text, "\n"), "\n", "; ")
}

// usage marks the errors of all commands' argument checks with Usage.
func usage(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return Usage(err)
			}
			return nil
		}
	}
	for _, sub := range cmd.Commands() {
		usage(sub)
	}
}
