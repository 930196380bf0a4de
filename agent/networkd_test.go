package agent

import (
	"os"
	"path/filepath"
	"testing"
)

func TestNetworkdRemoves(t *testing.T) {
	shipped, err := os.ReadFile("../deploy/networkd/10-semaphore.conf")
	if err != nil {
		t.Fatal(err)
	}
	const state, dropIns = "run/systemd/netif/state", "etc/systemd/networkd.conf.d/"
	for name, tt := range map[string]struct {
		files map[string]string
		want  bool
	}{
		"not there":                      {nil, false},
		"not there, with the file":       {map[string]string{dropIns + "10-semaphore.conf": string(shipped)}, false},
		"as it is installed":             {map[string]string{state: "ADMIN_STATE=managed\n"}, true},
		"with the file":                  {map[string]string{state: "", dropIns + "10-semaphore.conf": string(shipped)}, false},
		"by files of another's":          {map[string]string{state: "", dropIns + "a.conf": "[Network]\nManageForeignRoutes = No\n", dropIns + "b.conf": "[Network]\nManageForeignRoutingPolicyRules=0\n"}, false},
		"one of the two":                 {map[string]string{state: "", dropIns + "a.conf": "[Network]\nManageForeignRoutes=no\n"}, true},
		"in another section":             {map[string]string{state: "", dropIns + "a.conf": "[DHCPv4]\nManageForeignRoutes=no\nManageForeignRoutingPolicyRules=no\n"}, true},
		"with the file and a later word": {map[string]string{state: "", dropIns + "10-semaphore.conf": string(shipped), dropIns + "90-x.conf": "[Network]\nManageForeignRoutes=yes\n"}, true},
		"in a file that isn't read":      {map[string]string{state: "", dropIns + "10-semaphore.txt": string(shipped)}, true},
		"commented out":                  {map[string]string{state: "", dropIns + "a.conf": "[Network]\n#ManageForeignRoutes=no\n;ManageForeignRoutingPolicyRules=no\n"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for path, content := range tt.files {
				path = filepath.Join(root, path)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if got := networkdRemoves(root); got != tt.want {
				t.Errorf("%t, want %t", got, tt.want)
			}
		})
	}
}
