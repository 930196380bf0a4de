// Package docs compares the documents of the repository with the code.
package docs

import (
	"errors"
	"flag"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/docstest"
)

func commands(t *testing.T, by ...docstest.Runner) []docstest.Command {
	t.Helper()
	found, err := docstest.Commands(by...)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestEveryCommandIsRunOrNeedsARealCluster is the reason for this package.
func TestEveryCommandIsRunOrNeedsARealCluster(t *testing.T) {
	count := map[docstest.Runner]int{}
	for _, c := range commands(t) {
		by := c.By()
		count[by]++
		switch {
		case by == "":
			t.Errorf("no test runs it:\n%s", c)
		case by == docstest.RealCluster && !c.Marked:
			t.Errorf("nothing runs it, and its chapter doesn't say that it needs a real cluster:\n%s", c)
		}
	}
	for _, r := range []docstest.Runner{docstest.Here, docstest.Example, docstest.Imports, docstest.Operator, docstest.RealCluster} {
		t.Logf("%s: %d commands", r, count[r])
		if count[r] == 0 {
			t.Errorf("found no command for %s: are they written in another way than before?", r)
		}
	}
}

// shell runs a command in the root of the repository.
func shell(t *testing.T, command string) string {
	t.Helper()
	root, err := docstest.Root()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", command)
	cmd.Dir = root
	// Not those of a make that runs this test.
	cmd.Env = append(os.Environ(), "MAKEFLAGS=", "MAKELEVEL=")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s", command, err, out)
	}
	return string(out)
}

// program builds a program of the repository, and returns where it is.
func program(t *testing.T, pkg string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), filepath.Base(pkg))
	shell(t, "go -C "+filepath.Dir(pkg)+" build -o "+path+" ./"+filepath.Base(pkg))
	return path
}

func TestCommandsOfTheRepository(t *testing.T) {
	tool, releaser, kernel := program(t, "./cmd/semaphorectl"), program(t, "./tools/release"), program(t, "./e2e/kernel")
	semaphorectl := regexp.MustCompile(`^(semaphorectl|kubectl semaphore) `)
	release := regexp.MustCompile(`go -C tools run \./release (\w+)([^>]*)`)
	for _, c := range commands(t, docstest.Here) {
		switch {
		case strings.Contains(c.Text, "make "):
			shell(t, strings.TrimPrefix(c.Text, "sudo ")+" -n")
		case semaphorectl.MatchString(c.Text):
			// With --help the flags are parsed, and nothing else happens. The output file is
			// not written.
			command, _, _ := strings.Cut(c.Text, " > ")
			shell(t, semaphorectl.ReplaceAllString(command, tool+" ")+" --help")
		case strings.Contains(c.Text, "./e2e/kernel "):
			// Its package is the last argument.
			flags := c.Text[:strings.LastIndexByte(c.Text, ' ')]
			shell(t, strings.Replace(flags, "go run ./e2e/kernel", kernel, 1)+" -h")
		default:
			// With -h at the end the flags are parsed, and nothing else happens.
			m := release.FindStringSubmatch(c.Text)
			if m == nil {
				t.Errorf("not understood: %s", c)
				continue
			}
			arguments := m[2]
			if m[1] == "notes" {
				arguments = "" // A version: flags after it aren't parsed.
			}
			shell(t, releaser+" "+m[1]+" "+arguments+" -h")
		}
	}
}

// TestSettingsExist checks that the settings and flags of the documents exist.
// TestSettingsPage checks that all settings are documented.
func TestSettingsExist(t *testing.T) {
	_, documents := texts(t)
	// Not a setting, but how those of remotes begin.
	known := map[string]bool{"SEMAPHORE_REMOTE": true}
	for _, d := range config.RemoteSettings() {
		known[d.Variable] = true
	}
	for _, p := range config.Programs() {
		for _, d := range p.Settings {
			known[d.Variable] = true
		}
	}
	all := help(t)
	var (
		variable = regexp.MustCompile(`SEMAPHORE_[A-Z0-9_<>]*[A-Z0-9]`)
		remote   = regexp.MustCompile(`^SEMAPHORE_REMOTE_(GCP|AWS)_`)
		// Suffixes of a remote's settings, as in _POD_SUBNETS.
		suffix  = regexp.MustCompile("`(_[A-Z0-9_]+)[`=]")
		command = regexp.MustCompile("`semaphore-(?:wireguard|service-mirror|policy) (-[a-z-]+)")
	)
	for name, text := range documents {
		for _, found := range variable.FindAllString(text, -1) {
			found = remote.ReplaceAllString(found, "SEMAPHORE_REMOTE_<NAME>_")
			if !known[found] {
				t.Errorf("%s names %s, which no program reads", name, found)
			}
		}
		for _, m := range suffix.FindAllStringSubmatch(text, -1) {
			if !known["SEMAPHORE_REMOTE_<NAME>"+m[1]] {
				t.Errorf("%s names %s, which is no setting of a remote", name, m[1])
			}
		}
		for _, m := range command.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(all, "  "+m[1]+"\n") && !strings.Contains(all, ", "+m[1]+"\n") {
				t.Errorf("%s names the flag %s, which no program has", name, m[1])
			}
		}
	}
}

// help returns what the programs print with -help.
func help(t *testing.T) string {
	t.Helper()
	stdout := os.Stdout
	t.Cleanup(func() { os.Stdout = stdout })
	file, err := os.CreateTemp(t.TempDir(), "help")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	os.Stdout = file
	arguments := []string{"-help"}
	_, _, wireguard := config.LoadWireguard(arguments)
	_, _, mirror := config.LoadMirror(arguments)
	_, _, policy := config.LoadPolicy(arguments)
	_, _, tokens := config.LoadTokens(arguments)
	os.Stdout = stdout
	for _, err := range []error{wireguard, mirror, policy, tokens} {
		if !errors.Is(err, flag.ErrHelp) {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestMetricsExist checks that docs/metrics.md has the metrics of other documents. The
// tests of the programs compare docs/metrics.md with their registries.
func TestMetricsExist(t *testing.T) {
	metrics, err := docstest.Metrics()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, m := range metrics {
		known[m.Name] = true
	}
	// Of the original tool; moving-from-the-original.md says that it was removed.
	known["semaphore_wg_sync_queue_full_failures_total"] = true
	_, documents := texts(t)
	found := 0
	for name, text := range documents {
		for _, m := range regexp.MustCompile("`((?:kube_policy_)?semaphore_[a-z_]*[a-z])[`{]").FindAllStringSubmatch(text, -1) {
			found++
			if !known[m[1]] {
				t.Errorf("%s names the metric %s, which docs/metrics.md doesn't", name, m[1])
			}
		}
	}
	if found <= len(metrics) {
		t.Errorf("found %d names, want more than the %d of docs/metrics.md", found, len(metrics))
	}
}

// TestArgumentsOfTheImage checks that the Dockerfile has the documented build arguments.
func TestArgumentsOfTheImage(t *testing.T) {
	root, documents := texts(t)
	dockerfile, err := os.ReadFile(filepath.Join(root, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for name, text := range documents {
		for _, m := range regexp.MustCompile(`--build-arg (\w+)=`).FindAllStringSubmatch(text, -1) {
			found++
			if !strings.Contains(string(dockerfile), "\nARG "+m[1]+"=") {
				t.Errorf("%s: the Dockerfile has no argument %s", name, m[1])
			}
		}
	}
	if found == 0 {
		t.Error("found none")
	}
}

// texts returns all documents by their names.
func texts(t *testing.T) (root string, byName map[string]string) {
	t.Helper()
	root, err := docstest.Root()
	if err != nil {
		t.Fatal(err)
	}
	files, err := docstest.Documents(root)
	if err != nil || len(files) == 0 {
		t.Fatalf("%d documents, %v", len(files), err)
	}
	found := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		found[file] = string(text)
	}
	return root, found
}

// TestTargetsOfMake checks that the targets in texts and tables exist.
func TestTargetsOfMake(t *testing.T) {
	named := map[string]bool{}
	_, documents := texts(t)
	for _, text := range documents {
		for _, m := range regexp.MustCompile("`(make [^`]+)`").FindAllStringSubmatch(text, -1) {
			named[m[1]] = true
		}
	}
	if len(named) == 0 {
		t.Error("found none")
	}
	for command := range named {
		shell(t, command+" -n")
	}
}

// headings returns the headings of a document.
func headings(text string) []string {
	var all []string
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	return all
}

// anchor returns the anchor that GitHub makes of a heading.
func anchor(heading string) string {
	dropped := regexp.MustCompile(`[^a-z0-9 _-]`)
	return strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
}

// TestLinksLeadSomewhere checks the links between documents, to files, folders and
// chapters.
func TestLinksLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#\s]*)(?:#([^)\s]*))?\)`)
	root, documents := texts(t)
	for name, text := range documents {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			target := filepath.Join(filepath.Dir(name), m[1])
			if m[1] == "" {
				target = name
			}
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			anchors := []string{""}
			for _, h := range headings(documents[target]) {
				anchors = append(anchors, anchor(h))
			}
			if !slices.Contains(anchors, m[2]) {
				t.Errorf("%s: %s has no chapter %q", name, target, m[2])
			}
		}
	}
}

// TestReferencesOfCode checks that the documents and chapters exist that code, manifests
// and tests name, as in: docs/operating.md, "Tokens".
func TestReferencesOfCode(t *testing.T) {
	root, documents := texts(t)
	reference := regexp.MustCompile(`\bdocs/([a-z0-9/-]+)\.md(?:, (?:\\?["'])([A-Z][^"\\]+)\\?")?`)
	ours := regexp.MustCompile(`(^|[^a-z/.])$`) // Not a part of an address.
	found := 0
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (entry.Name() == ".git" || entry.Name() == "bin" || entry.Name() == "dist") {
			return filepath.SkipDir
		}
		switch filepath.Ext(path) {
		case ".go", ".yaml", ".json", ".conf", "":
		default:
			return nil
		}
		if !entry.Type().IsRegular() || entry.Name() == "docs_test.go" {
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		text := string(content)
		for _, m := range reference.FindAllStringSubmatchIndex(text, -1) {
			if !ours.MatchString(text[max(0, m[0]-1):m[0]]) {
				continue
			}
			found++
			name := "docs/" + text[m[2]:m[3]] + ".md"
			document, exists := documents[name]
			switch {
			case !exists:
				t.Errorf("%s names %s, which doesn't exist", path, name)
			case m[4] >= 0 && !slices.Contains(headings(document), text[m[4]:m[5]]):
				t.Errorf("%s: %s has no chapter %q", path, name, text[m[4]:m[5]])
			}
		}
		return nil
	}))
	if found < 20 {
		t.Errorf("found %d references: are they written in another way than before?", found)
	}
}

// TestPagesSayForWhom checks the beginning of each page of docs: its readers, and a link to
// the index.
func TestPagesSayForWhom(t *testing.T) {
	_, documents := texts(t)
	for name, text := range documents {
		if filepath.Dir(name) != "docs" || name == "docs/README.md" {
			continue
		}
		preface, _, _ := strings.Cut(text, "\n## ")
		saysFor := strings.Contains(preface, "\nFor ")
		preface = strings.Join(strings.Fields(preface), " ")
		if !saysFor || !strings.Contains(preface, "[All pages](README.md)") {
			t.Errorf("%s: its beginning doesn't say for whom it is, or doesn't link to README.md", name)
		}
		if !strings.Contains(documents["docs/README.md"], "]("+filepath.Base(name)+")") {
			t.Errorf("docs/README.md doesn't link to %s", name)
		}
	}
}
