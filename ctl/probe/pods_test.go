package probe

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestResultsAreBounded decodes termination messages, which a hostile cluster can forge.
func TestResultsAreBounded(t *testing.T) {
	for name, c := range map[string]struct {
		message, want string
	}{
		"a result":     {`{}`, ""},
		"words":        {"no \x1b[2Jsuch file\nhere", `no \x1b[2Jsuch file; here`},
		"nothing":      {"", ""},
		"a long one":   {`{"tried":[` + strings.Repeat("{},", 1<<20) + `{}]}`, `{"tried":[{},{},`},
		"a long error": {strings.Repeat("x", 1<<20), "... (1048576 bytes)"},
	} {
		_, err := resultOf(&corev1.ContainerStateTerminated{Message: c.message})
		if (err == nil) != (name == "a result") || err != nil && (!strings.Contains(err.Error(), c.want) || len(err.Error()) > 400) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
