package kube

import (
	"strings"
	"testing"
)

// TestMalformedKubeconfigIsNotQuoted parses kubeconfigs with a misplaced secret.
func TestMalformedKubeconfigIsNotQuoted(t *testing.T) {
	const start = "apiVersion: v1\nkind: Config\nusers:\n- name: u\n  user:\n"
	for content, want := range map[string]string{
		start + "    token: \"secret-words\n":          "line ",
		start + "    token: secret-words: x\n":         "line 6: invalid YAML",
		start + "    token: [secret-words]\n":          "users.user.token can't be of type array",
		start + "    token: 12345678901234567890123\n": "users.user.token can't be of type number",
		start + "    client-key-data: secret-words\n":  "is not base64",
		"users:\n- name: u\n  user: secret-words\n":    "users.user can't be of type string",
		"secret-words":                                   "not valid YAML or JSON of kind Config",
		"apiVersion: v1\nkind: secret-words\n":           "not valid YAML or JSON of kind Config",
		"apiVersion: secret-words\nkind: Config\n":       "not valid YAML or JSON of kind Config",
		"a: *secret-words\n":                             "not valid YAML",
		"a: !!secret-words x\n":                          "",
		"a: &secret-words\n\tb: secret-words\n":          "line 2: invalid YAML",
		`{"apiVersion":"v1","users":["secret-words"`:     "line 1: invalid YAML",
		start + "    secret-words: secret-words\n  x: 1": "",
	} {
		_, err := ParseKubeconfig("/k", []byte(content))
		if want == "" && err == nil {
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "/k") || strings.Contains(err.Error(), "secret-words") {
			t.Errorf("%q: %v", content, err)
		}
	}
}
