package join

import (
	"strings"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
)

// TestServicesOfRemotes bounds them by a quarter of the ClusterIPs, unless a setting does.
func TestServicesOfRemotes(t *testing.T) {
	const key = "SEMAPHORE_MIRROR_MAX_SERVICES"
	for name, c := range map[string]struct {
		ranges, have string
		want         string // "": none
		warning      string // "": none
	}{
		"a /22":                      {"10.102.0.0/22", "", "255", ""},
		"a /16":                      {"10.102.0.0/16", "", "16383", ""},
		"two ranges":                 {"10.102.0.0/22,10.103.0.0/24", "", "319", ""},
		"both families":              {"10.102.0.0/16,fd00:102::/118", "", "255", ""},
		"IPv6, of which 65,536":      {"fd00:102::/108", "", "16383", ""},
		"the largest":                {"10.0.0.0/8", "", "4194303", ""},
		"none":                       {"", "", "", ""},
		"too small for a quarter":    {"10.102.0.0/30", "", "", ""},
		"fewer":                      {"10.102.0.0/22", "100", "100", ""},
		"more":                       {"10.102.0.0/22", "2000", "2000", "may make 2000 Services for all remotes together, and a quarter of 10.102.0.0/22 is 255"},
		"more than an unknown range": {"", "2000", "2000", ""},
	} {
		aws, gcp := healthy(t, "aws", "10.2.0.0/16", "10.102.0.0/16", "10.66.1.2"), healthy(t, "gcp", "10.4.0.0/16", "10.104.0.0/16", "10.66.2.2")
		aws.Services = subnets(t, c.ranges)
		if c.have != "" {
			aws.Installed.Settings = inspect.Settings{key: c.have}
		}
		got := settings(aws, []remoteSettings{new(InstallOptions).remoteSettings(gcp)}, nil)
		if got[key] != c.want {
			t.Errorf("%s: %q, want %q", name, got[key], c.want)
		}
		var said []string
		for _, f := range crowded(aws, got) {
			said = append(said, f.what)
		}
		if text := strings.Join(said, "\n"); (text == "") != (c.warning == "") || !strings.Contains(text, c.warning) {
			t.Errorf("%s: %q, want %q", name, text, c.warning)
		}
	}
}
