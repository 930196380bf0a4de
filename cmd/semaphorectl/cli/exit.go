package cli

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// Exit codes; the help of the root command tells users.
const (
	ExitOK      = 0
	ExitFailed  = 1
	ExitUnknown = 2
	ExitUsage   = 64
)

// exit is an error with a code.
type exit struct {
	error
	code int
}

func (e exit) Unwrap() error { return e.error }

// Usage marks an error as one of the arguments.
func Usage(err error) error { return exit{err, ExitUsage} }

// Exit ends the command with a code, when all that there is to say has been printed.
func Exit(code int) error { return exit{code: code, error: errors.New("")} }

// Judged ends a command that has printed what it found. What is wrong counts more than
// what isn't known.
func Judged(wrong, unknown bool) error {
	switch {
	case wrong:
		return Exit(ExitFailed)
	case unknown:
		return Exit(ExitUnknown)
	}
	return nil
}

// Run runs a command and returns the exit code. Errors are printed line by line: each
// says what is wrong and what would be right.
func Run(ctx context.Context, s *Session, root *cobra.Command, args []string) int {
	root.SetArgs(args)
	root.SetIn(s.In)
	root.SetOut(s.Out)
	root.SetErr(s.Err)
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return Usage(err) })
	usage(root)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return ExitOK
	}
	code := ExitFailed
	var with exit
	switch {
	case errors.As(err, &with):
		code = with.code
	case !cmd.HasParent() || strings.HasPrefix(err.Error(), "unknown command"):
		code = ExitUsage
	}
	text := err.Error()
	if code != ExitUsage {
		text = joined(err)
	}
	lines := slices.Collect(strings.Lines(text))
	for _, line := range lines[:min(len(lines), mostLines)] {
		s.Fail("%s", line)
	}
	if more := len(lines) - mostLines; more > 0 {
		s.Fail("and %d lines more", more)
	}
	if code == ExitUsage {
		s.Say("%s --help says more", cmd.CommandPath())
	}
	return code
}

// mostLines is how many lines of an error are printed.
const mostLines = 200

// joined returns an error's text with the lines that this program has made of it, by joining
// errors: what is in one error alone is on one line, since a cluster may have said it.
func joined(err error) string {
	text := err.Error()
	var within func(error)
	within = func(err error) {
		switch e := err.(type) { //nolint:errorlint // It walks what is wrapped.
		case interface{ Unwrap() []error }:
			for _, one := range e.Unwrap() {
				within(one)
			}
			return
		case interface{ Unwrap() error }:
			if one := e.Unwrap(); one != nil {
				within(one)
				return
			}
		}
		if one := err.Error(); strings.Contains(one, "\n") {
			text = strings.ReplaceAll(text, one, strings.ReplaceAll(strings.TrimRight(one, "\n"), "\n", "; "))
		}
	}
	within(err)
	return text
}

// usage has wrong arguments of all commands exit as such.
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
