package cli

import (
	"fmt"
	"strings"
)

// Kubectl returns a command for a context that a person can give: what clusters say is
// one word of it each, and none an option: kubectl takes the last --kubeconfig, and runs
// what that says.
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

// Quote returns a word as a shell takes it, for names that come from elsewhere.
func Quote(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:@", r)
	}
	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
