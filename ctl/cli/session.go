// Package cli is shared by the commands of semaphorectl: access to clusters by kubeconfig
// contexts, output, and exit codes.
package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/term"
)

// Namespace is the namespace of the manifests.
const Namespace = "sys-semaphore"

// Session is one run of the tool: its standard files and the flags of all commands.
type Session struct {
	In       io.Reader
	Out, Err io.Writer // Out is for results, which other programs may read.
	// Interactive is whether In is a terminal.
	Interactive bool
	// Timeout bounds the whole command; 0 leaves it to the command.
	Timeout time.Duration

	printing   sync.Mutex // lines come from several goroutines
	kubeconfig string
	contexts   map[string]string // by cluster, where the names differ
	name       string            // of the program, as the user calls it
	args       []string          // of this run
}

// NewSession takes the standard files.
func NewSession(in io.Reader, out, errs io.Writer) *Session {
	file, is := in.(*os.File)
	return &Session{In: in, Out: out, Err: errs, Interactive: is && term.IsTerminal(int(file.Fd()))}
}

// Flags adds the flags that all commands have.
func (s *Session) Flags(flags *pflag.FlagSet) {
	flags.StringVar(&s.kubeconfig, "kubeconfig", "", "path of the kubeconfig (default: KUBECONFIG, or ~/.kube/config)")
	flags.StringToStringVar(&s.contexts, "context", nil, "kubeconfig context of a cluster, where it differs from the cluster's name, as in aws=prod-eu")
	flags.DurationVar(&s.Timeout, "timeout", 5*time.Minute, "maximum duration of the command")
}

// Context returns a context with the command's timeout.
func (s *Session) Context(parent context.Context) (context.Context, context.CancelFunc) {
	if s.Timeout <= 0 {
		return context.WithCancel(parent)
	}
	return context.WithTimeoutCause(parent, s.Timeout, fmt.Errorf("timed out after %s, see --timeout", s.Timeout))
}
