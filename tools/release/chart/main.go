// Command chart writes the Helm chart, deploy/chart, from the kustomize bases and components
// of deploy/ and from the settings of internal/config, so that there is one source of both.
//
//	go -C tools run ./release/chart [-version v1.2.3] [-image name@sha256:...] [-o folder]
package main

import (
	"embed"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"github.com/kube-semaphore/kube-semaphore/tools"
)

// static are the files of the chart that aren't generated, by name.
//
//go:embed static
var static embed.FS

// options are those of a release; the zero value is the committed chart.
type options struct{ version, repository, digest string }

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	var o options
	flags := flag.NewFlagSet("chart", flag.ContinueOnError)
	flags.StringVar(&o.version, "version", "", "the release's `version`, as in v1.2.3")
	image := flags.String("image", "", "`reference` of the release's image by its digest")
	out := flags.String("o", "", "`folder` of the chart (default deploy/chart)")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return err
	}
	if o.version != "" && !release.MatchString(o.version) {
		return fmt.Errorf("-version %q: expected one such as v1.2.3", o.version)
	}
	if *image != "" {
		m := pinned.FindStringSubmatch(*image)
		if m == nil {
			return fmt.Errorf("-image %q: expected a name without a tag, @sha256: and 64 hexadecimal digits", *image)
		}
		o.repository, o.digest = m[1], m[2]
	}
	root, err := tools.Root()
	if err != nil {
		return err
	}
	files, err := chart(root, o)
	if err != nil {
		return err
	}
	if *out != "" {
		return write(*out, files)
	}
	rules, err := prometheusRule(root)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, "deploy", "observability", rule), rules, 0o644); err != nil {
		return err
	}
	return write(filepath.Join(root, "deploy", "chart"), files)
}

var (
	release = regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$`)
	pinned  = regexp.MustCompile(`^([a-z0-9][a-z0-9._/-]*(?::[0-9]+/[a-z0-9._/-]+)?)@(sha256:[0-9a-f]{64})$`)
)

// write replaces the files of a folder by those of the chart. It removes only a folder that
// is a chart.
func write(folder string, files map[string][]byte) error {
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if _, err := os.Stat(filepath.Join(folder, "Chart.yaml")); err != nil && len(entries) > 0 {
		return fmt.Errorf("%s has files, and isn't a chart", folder)
	}
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	for name, content := range files {
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
