package agent

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The runtime state and the configuration drop-ins of systemd-networkd
// (networkd.conf(5)). deploy/networkd mounts those of the host.
const (
	networkdState   = "run/systemd/netif/state"
	networkdDropIns = "etc/systemd/networkd.conf.d/*.conf"
)

// networkdRemoves reports whether systemd-networkd has run since boot and is not
// configured to keep foreign routes and rules. It is false when the files can't be read.
func networkdRemoves(root string) bool {
	if _, err := os.Stat(filepath.Join(root, networkdState)); err != nil {
		return false
	}
	// Glob sorts; the last file with a setting wins.
	files, err := filepath.Glob(filepath.Join(root, networkdDropIns))
	if err != nil {
		return false
	}
	manages := map[string]bool{"ManageForeignRoutes": true, "ManageForeignRoutingPolicyRules": true}
	for _, name := range files {
		content, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		section := ""
		for line := range strings.Lines(string(content)) {
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, "[") {
				section = line
			}
			key, value, _ := strings.Cut(line, "=")
			key = strings.TrimSpace(key)
			if _, counts := manages[key]; counts && section == "[Network]" {
				off := []string{"no", "n", "false", "f", "0", "off"}
				manages[key] = !slices.Contains(off, strings.ToLower(strings.TrimSpace(value)))
			}
		}
	}
	return manages["ManageForeignRoutes"] || manages["ManageForeignRoutingPolicyRules"]
}
