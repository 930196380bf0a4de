// Command release makes and checks the artifacts of a release. It runs anywhere inside the
// repository, and takes the names of files as they are in its uppermost folder.
//
//	go -C tools run ./release sbom [-version v1.2.3] [-o file]   CycloneDX 1.6, of the linked modules
//	go -C tools run ./release licences [-texts] [-o file]        licences of the linked modules
//	go -C tools run ./release notes [version]                    one section of CHANGELOG.md
//	go -C tools run ./release vulnerabilities [-db address]      govulncheck
//	go -C tools run ./release tool [-version v1.2.3] [-image reference] [-url address] [-o folder]   semaphorectl, and its krew manifest
//	go -C tools run ./release all -version v1.2.3 [-image reference] [-url address] [-o folder]   all of these, and the chart
//	go -C tools run ./release pinned -image reference            refuses an image without a digest
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"github.com/kube-semaphore/kube-semaphore/tools"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := inRoot()
	if err == nil {
		err = run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// inRoot changes to the folder of the repository: "go -C tools run" has started this in another.
func inRoot() error {
	root, err := tools.Root()
	if err != nil {
		return err
	}
	return os.Chdir(root)
}

const usage = "usage: release sbom|licences|notes|vulnerabilities|pinned|tool|all [flags]"

// run does what the first of args asks for.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		return errors.New(usage)
	}
	commands := map[string]func(context.Context, invocation) error{
		"sbom":            sbomCommand,
		"licences":        licencesCommand,
		"notes":           notesCommand,
		"vulnerabilities": vulnerabilitiesCommand,
		"pinned":          pinnedCommand,
		"tool":            toolCommand,
		"all":             allCommand,
	}
	command, known := commands[args[0]]
	if !known {
		return fmt.Errorf("unknown command %q\n%s", args[0], usage)
	}
	root, err := tools.Root()
	if err != nil {
		return err
	}
	flags := flag.NewFlagSet("release "+args[0], flag.ContinueOnError)
	flags.SetOutput(stderr)
	err = command(ctx, invocation{
		root: root, flags: flags, args: args[1:], stdout: stdout, stderr: stderr,
	})
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	return err
}

// An invocation is what a command was started with.
type invocation struct {
	root           string // of the repository
	flags          *flag.FlagSet
	args           []string // after the command's name
	stdout, stderr io.Writer
}

// parse reads flags and at most n arguments behind them.
func (in invocation) parse(n int) error {
	if err := in.flags.Parse(in.args); err != nil {
		return err
	}
	if in.flags.NArg() > n {
		return fmt.Errorf("unexpected argument %q", in.flags.Arg(n))
	}
	return nil
}

// emit writes a whole result into the file at path, or to standard output when
// path is empty.
func (in invocation) emit(path string, content []byte) error {
	if path != "" {
		return os.WriteFile(path, content, 0o644)
	}
	_, err := in.stdout.Write(content)
	return err
}

// goOutput runs the go command in dir and returns what it printed.
func goOutput(ctx context.Context, dir string, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), "GOWORK=off"), env...)
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return "", fmt.Errorf("go %s: %w\n%s", args[0], err, strings.TrimSpace(string(exit.Stderr)))
	}
	if err != nil {
		return "", fmt.Errorf("go %s: %w", args[0], err)
	}
	return string(out), nil
}
