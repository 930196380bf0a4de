package cli

import (
	"fmt"
	"strings"
)

// Kubectl returns a kubectl command for a person to run. Each string from a cluster becomes
// one word, and never an option: of several --kubeconfig kubectl uses the last one, and runs
// its exec plugins.
func Kubectl(context, format string, args ...any) string {
	for i, arg := range args {
		switch word, is := arg.(string); {
		case is && strings.HasPrefix(word, "-"):
			args[i] = "'<a name that begins with a dash>'"
		case is:
			args[i] = Quote(word)
		}
	}
	return "kubectl --context " + Quote(context) + " " + fmt.Sprintf(format, args...)
}

// Quote quotes a word for a shell.
func Quote(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:@", r)
	}
	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
