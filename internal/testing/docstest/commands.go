// Package docstest finds the documented commands and, for each command, the test that runs it:
// tests get their commands from this package. Every documented command is run by a test unless
// the document says that it needs a real cluster. The package also finds documented metrics.
package docstest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Runner is the test that runs a command, or as much of it as can be run.
type Runner string

// The runners.
const (
	// Here is the test of docs: make with -n, our tools with -h. TestKubelet in
	// e2e/kubelet tests semaphorectl itself.
	Here Runner = "docs"
	// Example is TestExample: kubectl and semaphorectl tokens, against two API servers with
	// deploy/example in them.
	Example Runner = "e2e/scenarios: TestExample"
	// Imports is TestImports: commands for exports, imports and their CRDs, in three joined
	// clusters.
	Imports Runner = "e2e/scenarios: TestImports"
	// Operator is TestOperatorsView: commands on a node.
	Operator Runner = "e2e/scenarios: TestOperatorsView"
	// RealCluster is no test: the command needs kubelets, a registry, or a network. The
	// document must say so.
	RealCluster Runner = "a real cluster"
)

// Command is one command of a document.
type Command struct {
	// File is the document, from the root of the repository.
	File string
	Line int
	// Chapter is the last heading before it, without its mark.
	Chapter string
	// Text is the command, without the indentation; a command of several lines
	// has line breaks.
	Text string
	// Marked is whether its chapter, or the text before the first chapter of its
	// document, says that it needs a real cluster or a registry.
	Marked bool
}

func (c Command) String() string { return fmt.Sprintf("%s:%d: %s", c.File, c.Line, c.Text) }

// runners are matched in this order, against the beginning of a command.
var runners = []struct {
	pattern *regexp.Regexp
	by      Runner
}{
	{regexp.MustCompile(`^(sudo )?make `), Here},
	{regexp.MustCompile(`^(\w+=\S*(\$\([^)]*\))? )?go -C tools run \./release `), Here},
	{regexp.MustCompile(`^go run \./e2e/kernel `), Here},
	{regexp.MustCompile(`^(umask 077; )?(ip|wg|nft|iptables|ip6tables) `), Operator},
	{regexp.MustCompile(`^curl -s http://127\.0\.0\.1:7774/`), Operator},
	{regexp.MustCompile(`^semaphorectl tokens `), Example},
	{regexp.MustCompile(`^(semaphorectl|kubectl semaphore) `), Here},
	{regexp.MustCompile(`^kubectl( -\S+( [^-]\S*)?)* (exec|logs|run|rollout) `), RealCluster},
	{regexp.MustCompile(`^kubectl .*(serviceexport|serviceimport| shop( |$))`), Imports},
	{regexp.MustCompile(`^kubectl `), Example},
	{regexp.MustCompile(`^(docker|cosign|helm|tcpdump|ping|curl|oc) `), RealCluster},
}

// By returns the runner of the command, "" if it has none.
func (c Command) By() Runner {
	text := strings.ReplaceAll(c.Text, "\n", " ")
	for _, r := range runners {
		if r.pattern.MatchString(text) {
			return r.by
		}
	}
	return ""
}

// Root is the folder of the repository, for a process that runs in it, as tests do.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		above := filepath.Dir(dir)
		if above == dir {
			return "", errors.New("find go.mod: not in the repository")
		}
		dir = above
	}
}

// Commands returns the commands of all documents that one of the runners runs,
// all commands when none is given.
func Commands(by ...Runner) ([]Command, error) {
	root, err := Root()
	if err != nil {
		return nil, err
	}
	files, err := Documents(root)
	if err != nil {
		return nil, err
	}
	var found []Command
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			return nil, err
		}
		for _, c := range parse(file, string(text)) {
			wanted := len(by) == 0
			for _, r := range by {
				wanted = wanted || c.By() == r
			}
			if wanted {
				found = append(found, c)
			}
		}
	}
	return found, nil
}

// Documents returns the documents of the repository, from its root.
func Documents(root string) ([]string, error) {
	var files []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return nil, err
		}
		for _, path := range found {
			file, err := filepath.Rel(root, path)
			if err != nil {
				return nil, err
			}
			files = append(files, file)
		}
	}
	return files, nil
}

// In our documents commands are indented by four spaces more than the text around
// them. Fenced blocks are files and pictures.
var (
	item = regexp.MustCompile(`^( *)(- |\d+\. )`)
	// data matches other indented lines: settings, labels, output of commands.
	data = regexp.MustCompile(`^([A-Z_]+=\S*|[a-z0-9./-]+: "?\w+"?|\d+: .*)$`)
)

// needs matches the text by which a document says that a command can't be tested.
var needs = regexp.MustCompile(`real cluster|needs a registry`)

func parse(file, text string) []Command {
	var (
		found          []Command
		lines          = strings.Split(text, "\n")
		fenced, inCode bool
		list           int  // how far the text of the list item is indented
		shown          bool // the block shows a session, commands behind "$ "
		chapter        int  // index of its first command
		heading        string
		marks          = markings(lines)
	)
	for i, line := range lines {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
		}
		indent := len(line) - len(strings.TrimLeft(line, " "))
		begin := item.FindStringSubmatchIndex(line) // where its parts begin and end
		switch {
		case fenced || strings.TrimSpace(line) == "":
			if strings.TrimSpace(line) != "" {
				inCode = false
			}
			continue
		case len(begin) > 0 && begin[3] < list+4:
			list, inCode = begin[1], false
			continue
		case indent < list && indent == 0:
			list = 0
		}
		if indent < list+4 {
			inCode = false
			if strings.HasPrefix(line, "#") {
				chapter, heading = len(found), strings.TrimLeft(line, "# ")
			}
			continue
		}
		command := line[list+4:]
		if !inCode {
			inCode, shown = true, strings.HasPrefix(command, "$ ")
		}
		switch {
		case shown && !strings.HasPrefix(command, "$ "), data.MatchString(command):
		case strings.HasPrefix(command, "  ") && len(found) > chapter:
			found[len(found)-1].Text += "\n" + command
		default:
			found = append(found, Command{File: file, Line: i + 1, Chapter: heading, Text: strings.TrimPrefix(command, "$ "), Marked: marks[i]})
		}
	}
	return found
}

// markings returns for each line whether its chapter, of the second level, or the
// beginning of the document matches needs.
func markings(lines []string) []bool {
	marks := make([]bool, len(lines))
	preface, begin := false, 0
	end := func(i int) {
		text := strings.Join(lines[begin:i], " ")
		marked := preface || needs.MatchString(text)
		if begin == 0 {
			preface = marked
		}
		for j := begin; j < i; j++ {
			marks[j] = marked
		}
		begin = i
	}
	for i, line := range lines {
		if strings.HasPrefix(line, "## ") {
			end(i)
		}
	}
	end(len(lines))
	return marks
}
