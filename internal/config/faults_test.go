package config

import (
	"strings"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/texttest"
)

// TestFaults runs the cases of testdata/faults, whose README.md describes their format.
func TestFaults(t *testing.T) {
	texttest.Run(t, "testdata/faults/*.txt", func(t *testing.T) func([]string) string {
		return func(step []string) string { return configure(t, step) }
	})
}

// configure returns what a program says of a configuration.
func configure(t *testing.T, lines []string) string {
	t.Helper()
	command, vars, file := strings.Fields(lines[0]), env(), ""
	for i, line := range lines[1:] {
		name, value, _ := strings.Cut(line, "=")
		if line == "file:" {
			file = writeFile(t, strings.Join(lines[i+2:], "\n"))
			break
		}
		switch unset, is := strings.CutPrefix(line, "unset "); {
		case unset == "all":
			clear(vars)
		case is:
			delete(vars, unset)
		default:
			vars[name] = value
		}
	}
	for name, value := range vars {
		if value == "FILE" {
			vars[name] = file
		}
	}
	setenv(t, vars)
	var warnings []string
	var err error
	switch command[0] {
	case "semaphore-wireguard":
		_, warnings, err = LoadWireguard(command[1:])
	case "semaphore-service-mirror":
		_, warnings, err = LoadMirror(command[1:])
	case "semaphore-policy":
		_, warnings, err = LoadPolicy(command[1:])
	default:
		t.Fatalf("%q: no program", command[0])
	}
	if err != nil && strings.Contains(err.Error(), "secret") {
		t.Errorf("error repeats a secret: %v", err)
	}
	text := "well"
	switch {
	case err != nil:
		text = err.Error()
	case len(warnings) > 0:
		text = "warning: " + strings.Join(warnings, "\nwarning: ")
	}
	if file != "" {
		text = strings.ReplaceAll(text, file, "FILE")
	}
	return text
}
