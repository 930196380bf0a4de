package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Access is how kubectl reaches a cluster.
type Access struct {
	// Context is the name of the cluster's kubeconfig context, and Kubeconfig the file that was
	// given; empty: that of the environment.
	Context    string
	Kubeconfig string
}

// Kubectl returns a kubectl command for a person to run. Each string from a cluster becomes
// one word, and never an option: of several --kubeconfig kubectl uses the last one, and runs
// its exec plugins.
func (a Access) Kubectl(format string, args ...any) string {
	for i, arg := range args {
		switch word, is := arg.(string); {
		case is && strings.HasPrefix(word, "-"):
			args[i] = "'<a name that begins with a dash>'"
		case is:
			args[i] = Quote(word)
		}
	}
	line := "kubectl "
	if a.Kubeconfig != "" {
		line += "--kubeconfig " + Quote(a.Kubeconfig) + " "
	}
	return line + "--context " + Quote(a.Context) + " " + fmt.Sprintf(format, args...)
}

// Quote quotes a word for a shell.
func Quote(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:@=,", r)
	}
	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// Line returns a command of this program for a person to run, with the kubeconfig and the
// contexts of this session for the clusters among the words.
func (s *Session) Line(words ...string) string {
	line := []string{s.program()}
	for _, word := range words {
		line = append(line, Quote(word))
	}
	if s.kubeconfig != "" {
		line = append(line, "--kubeconfig", Quote(s.kubeconfig))
	}
	for _, name := range slices.Sorted(maps.Keys(s.contexts)) {
		if slices.Contains(words, name) {
			line = append(line, "--context", Quote(name+"="+s.contexts[name]))
		}
	}
	return strings.Join(line, " ")
}

func (s *Session) program() string {
	if s.name == "" {
		return "semaphorectl"
	}
	return s.name
}

// Again returns the command line of this run.
func (s *Session) Again() string {
	line := []string{s.program()}
	for _, arg := range s.args {
		line = append(line, Quote(arg))
	}
	return strings.Join(line, " ")
}
