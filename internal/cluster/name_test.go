package cluster

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

func TestParseName(t *testing.T) {
	for text, says := range map[string]string{
		"aws": "", "a": "", "eu-west-1": "", "1aws": "", strings.Repeat("a", MaxName): "",
		"": "lower-case", "Aws": "lower-case", "a_b": "lower-case", "-a": "begin and end", "a.b": "lower-case",
		"..": "lower-case", "../aws": "lower-case", "a/b": "lower-case", "a\nb": `"a\nb"`, "a\x1b[2J": `\x1b`,
		"https://evil.example/x?ref=--upload-pack=id": "lower-case",
		strings.Repeat("a", MaxName+1):                "53 characters", strings.Repeat("b", 5000): "and more",
		"local": "cluster.local", "global": "cluster.global", "gl": "global services",
	} {
		name, err := ParseName(text)
		if says == "" && (err != nil || string(name) != text) || says != "" && (err == nil || name != "" || !strings.Contains(err.Error(), says) || len(err.Error()) > 400) {
			t.Errorf("%q: name %q, error %v, expected %q", text, name, err, says)
		}
	}
}

func TestParsePrefix(t *testing.T) {
	for text, ok := range map[string]bool{
		"aws": true, "a-1": true, strings.Repeat("a", MaxName): true, "local": true,
		"1aws": false, "gl": false, "": false, "a,b=c": false, "a-\n": false, strings.Repeat("a", MaxName+1): false,
	} {
		prefix, err := ParsePrefix(text)
		if (err == nil) != ok || ok && prefix != text || !ok && prefix != "" {
			t.Errorf("%q: prefix %q, error %v", text, prefix, err)
		}
	}
}

// FuzzParseName checks the guarantees of names with independent checks.
func FuzzParseName(f *testing.F) {
	for _, text := range []string{"aws", "..", "a/b", "gl", "a\nb: c", "a?ref=x"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		name, err := ParseName(text)
		if err != nil {
			return
		}
		if string(name) != text || strings.Trim(text, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || text == "" || len(text) > MaxName {
			t.Errorf("%q is a name", text)
		}
		if faults := validation.IsDNS1123Subdomain(name.Zone()); len(faults) > 0 || name.Zone() == "cluster.local" || name.Zone() == "cluster.global" {
			t.Errorf("zone %q: %v", name.Zone(), faults)
		}
	})
}
