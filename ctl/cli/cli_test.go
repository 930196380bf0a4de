package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/kube-semaphore/internal/process"
)

const kubeconfig = `apiVersion: v1
kind: Config
current-context: aws
clusters:
- {name: a, cluster: {server: "https://a.example:6443", insecure-skip-tls-verify: true}}
- {name: g, cluster: {server: "https://g.example:6443"}}
contexts:
- {name: aws, context: {cluster: a, user: u}}
- {name: prod/gcp, context: {cluster: g, user: u}}
users:
- {name: u, user: {token: secret-words}}
`

// run runs a subcommand and returns the exit code and its output.
func run(t *testing.T, do func(*Session, context.Context, []string) error, args ...string) (code int, printed string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	s := NewSession(nil, &out, &out)
	root := &cobra.Command{Use: "semaphorectl", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	s.Flags(root.PersistentFlags())
	root.AddCommand(&cobra.Command{Use: "do", Args: cobra.MinimumNArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
		ctx, cancel := s.Context(cmd.Context())
		defer cancel()
		return do(s, ctx, args)
	}})
	return Run(t.Context(), s, root, append([]string{"--kubeconfig", file}, args...)), out.String()
}

func thousand() []error {
	return slices.Repeat([]error{errors.New("bad")}, 1000)
}

func TestExitCodes(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		err  error
		want int
		says string
	}{
		"done":                {[]string{"do", "x"}, nil, process.ExitWell, ""},
		"failed":              {[]string{"do", "x"}, errors.Join(errors.New("one"), errors.New("two")), process.ExitFaults, "✗ one\n✗ two\n"},
		"foreign lines":       {[]string{"do", "x"}, Hint(errors.Join(fmt.Errorf("one: %w", errors.New("bad\n✓ well")), fmt.Errorf("%s", "two\n")), "again"), process.ExitFaults, "✗ one: bad; \\u2713 well\n✗ two\n✗ again\n"},
		"a line break alone":  {[]string{"do", "x"}, errors.Join(fmt.Errorf("gcp: %w", fmt.Errorf("%s", "\n")), errors.New("aws: down"), errors.New("merit: down")), process.ExitFaults, "✗ aws: down\n✗ merit: down\n"},
		"a line in a name":    {[]string{"do", "x"}, errors.Join(fmt.Errorf("delete %s: %w", "a\nmerit: all is well", errors.New("no"))), process.ExitFaults, "✗ delete a; merit: all is well: no\n"},
		"joined and wrapped":  {[]string{"do", "x"}, Hint(fmt.Errorf("tokens: %w", errors.Join(errors.New("one"), errors.New("two"))), "again"), process.ExitFaults, "✗ tokens: one\n✗ tokens: two\n✗ again\n"},
		"the text of another": {[]string{"do", "x"}, errors.Join(fmt.Errorf("a: %w", errors.Join(errors.New("b"), errors.New("c"))), errors.New("b\nc")), process.ExitFaults, "✗ a: b\n✗ a: c\n✗ b; c\n"},
		"very many lines":     {[]string{"do", "x"}, errors.Join(thousand()...), process.ExitFaults, "✗ bad\n✗ and 800 further lines\n"},
		"unknown":             {[]string{"do", "x"}, Exit(process.ExitUnknown), process.ExitUnknown, ""},
		"wrong use":           {[]string{"do", "x"}, Usage(errors.New("bad")), process.ExitUsage, "✗ bad\nsee semaphorectl do --help\n"},
		"too few":             {[]string{"do"}, nil, process.ExitUsage, "--help"},
		"an unknown flag":     {[]string{"do", "--bad"}, nil, process.ExitUsage, "unknown flag: --bad"},
		"an unknown word":     {[]string{"bad"}, nil, process.ExitUsage, "unknown command"},
		"a bad time":          {[]string{"do", "--timeout", "x", "y"}, nil, process.ExitUsage, "invalid argument"},
		"help is no fault":    {[]string{"do", "--help"}, nil, process.ExitWell, "Usage:"},
	} {
		code, printed := run(t, func(*Session, context.Context, []string) error { return c.err }, c.args...)
		if code != c.want || !strings.Contains(printed, c.says) || c.says == "" && printed != "" {
			t.Errorf("%s: exit code %d, printed %q", name, code, printed)
		}
	}
}

func TestClusters(t *testing.T) {
	clusters := func(s *Session, _ context.Context, args []string) error {
		found, err := s.Clusters(args)
		for _, c := range found {
			s.Say("%s is %s at %s, insecure %v", c.Name, c.Context, c.Server, c.Insecure)
		}
		return err
	}
	for name, c := range map[string]struct {
		args []string
		code int
		says []string
	}{
		"by its context":       {[]string{"aws"}, process.ExitWell, []string{"! aws: the kubeconfig skips verification of the API server's certificate", "aws is aws at https://a.example:6443, insecure true"}},
		"by another one":       {[]string{"--context", "gcp=prod/gcp", "gcp"}, process.ExitWell, []string{"gcp is prod/gcp at https://g.example:6443, insecure false"}},
		"none":                 {[]string{"merit", "aws"}, process.ExitFaults, []string{`merit: the kubeconfig has no context "merit"; it has: aws, prod/gcp; use --context merit=<context>`}},
		"no name":              {[]string{"prod/gcp"}, process.ExitUsage, []string{"--context <name>=prod/gcp"}},
		"twice, and one extra": {[]string{"--context", "gcp=x", "aws", "aws"}, process.ExitUsage, []string{"cluster aws is named twice", "--context gcp=x: cluster gcp isn't among the arguments"}},
	} {
		code, printed := run(t, clusters, append([]string{"do"}, c.args...)...)
		for _, want := range c.says {
			if code != c.code || !strings.Contains(printed, want) {
				t.Errorf("%s: exit code %d, expected %q:\n%s", name, code, want, printed)
			}
		}
		if strings.Contains(printed, "secret-words") {
			t.Errorf("%s: a token is printed", name)
		}
	}
}

// TestNeighbours uses contexts of clusters that the first one names as its neighbours.
func TestNeighbours(t *testing.T) {
	neighbours := func(s *Session, _ context.Context, args []string) error {
		if _, err := s.Cluster(args[0]); err != nil {
			return err
		}
		found, err := s.Clusters(append(args, "gcp"))
		for _, c := range found {
			s.Say("%s is %s", c.Name, c.Context)
		}
		return err
	}
	code, printed := run(t, neighbours, "do", "--context", "gcp=prod/gcp", "aws")
	if code != process.ExitWell || !strings.Contains(printed, "gcp is prod/gcp") || strings.Count(printed, "insecure") != 1 {
		t.Errorf("exit code %d:\n%s", code, printed)
	}
	if code, printed := run(t, neighbours, "do", "prod/gcp"); code != process.ExitUsage {
		t.Errorf("an invalid name: exit code %d:\n%s", code, printed)
	}
}

func TestTimeout(t *testing.T) {
	code, printed := run(t, func(_ *Session, ctx context.Context, _ []string) error {
		<-ctx.Done()
		return fmt.Errorf("%w", context.Cause(ctx))
	}, "do", "--timeout", time.Millisecond.String(), "x")
	if code != process.ExitFaults || !strings.Contains(printed, "timed out after 1ms, see --timeout") {
		t.Errorf("exit code %d, printed %q", code, printed)
	}
}

// TestMalformedKubeconfig reads a kubeconfig with a token where another value is expected.
func TestMalformedKubeconfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(kubeconfig+"- *secret-words\n\t:"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := NewSession(nil, nil, nil)
	s.kubeconfig = file
	_, err := s.Clusters([]string{"aws"})
	if err == nil || !strings.Contains(err.Error(), file+": line 13: invalid YAML") || strings.Contains(err.Error(), "secret-words") {
		t.Error(err)
	}
	s.kubeconfig = file + "-missing"
	if _, err := s.Clusters([]string{"aws"}); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Error(err)
	}
}

// TestControlSequencesAreEscaped prints text from a cluster.
func TestControlSequencesAreEscaped(t *testing.T) {
	var out bytes.Buffer
	NewSession(nil, &out, &out).Fail("it says %s", "\x1b[2Jhello\u009b\u202e")
	if got, want := out.String(), "✗ it says \\x1b[2Jhello\\u009b\\u202e\n"; got != want {
		t.Errorf("printed %q, expected %q", got, want)
	}
}
