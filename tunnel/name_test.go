package tunnel

import (
	"strings"
	"testing"
)

func TestDeviceName(t *testing.T) {
	tests := map[string]struct{ remote, want string }{
		"short names are those of the original tool":    {"gcp", "wireguard.gcp"},
		"five characters still fit":                     {"merit", "wireguard.merit"},
		"six characters do not":                         {"merits", "wg.merit.7bce65"},
		"a long name keeps its beginning":               {"exp-1-aws-eu-west-1", "wg.exp-1.dff6e7"},
		"the longest name that DNS labels allow":        {strings.Repeat("a", 63), "wg.aaaaa.7d3e74"},
		"names that differ late get different devices":  {"exp-1-aws-eu-west-2", "wg.exp-1.32f4a2"},
		"the hash is that of the whole name, not a cut": {"merits-2", "wg.merit.6ebec0"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := DeviceName(tt.remote)
			if got != tt.want {
				t.Errorf("DeviceName(%q) = %q, want %q", tt.remote, got, tt.want)
			}
			// dev_valid_name in net/core/dev.c; names are also parts of file names.
			if len(got) > maxLinkName || strings.ContainsAny(got, " /:") {
				t.Errorf("%q isn't a link's name", got)
			}
		})
	}
}

func TestAliasNamesTheRemote(t *testing.T) {
	remote, ours := remoteOf(Alias("exp-1-aws"))
	if remote != "exp-1-aws" || !ours {
		t.Errorf("remoteOf(Alias) = %q, %v", remote, ours)
	}
	if remote, ours := remoteOf("uplink"); ours {
		t.Errorf("alias uplink is taken for ours, remote %q", remote)
	}
}

func TestCheckNames(t *testing.T) {
	if err := CheckNames([]string{"gcp", "merit", "exp-1-aws", "exp-1-gcp"}); err != nil {
		t.Errorf("different names: %v", err)
	}
	// Both hash to the same six digits, see collision.
	a, b := collision(t)
	err := CheckNames([]string{"gcp", a, b})
	if err == nil || !strings.Contains(err.Error(), a) || !strings.Contains(err.Error(), b) {
		t.Errorf("got %v, want an error that names %s and %s", err, a, b)
	}
}

// collision searches for two remotes with the same device name.
func collision(t *testing.T) (a, b string) {
	t.Helper()
	seen := make(map[string]string)
	letters := "abcdefghijklmnopqrstuvwxyz"
	for n := range 1 << 16 {
		remote := "prod-" + string([]byte{letters[n%26], letters[n/26%26], letters[n/676%26], letters[n/17576%26]})
		name := DeviceName(remote)
		if other, found := seen[name]; found && other != remote {
			return other, remote
		}
		seen[name] = remote
	}
	t.Fatal("no two of 65,536 names collide")
	return "", ""
}
