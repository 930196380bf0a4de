package docs

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/docstest"
)

// update makes TestSettingsPage write the page: make settings.
var update = flag.Bool("update", false, "write docs/settings.md")

// settingsPreface is what docs/settings.md has before its tables.
const settingsPreface = `# Settings

For administrators: every setting of the programs, with its default and meaning.
[All pages](README.md).

` + "`make settings`" + ` generates this page from ` + "`internal/config`" + `; don't edit it. ` + "`-help`" + ` of each
program prints the same, and the flags that belong to no setting.

Settings are environment variables; a flag wins over its variable. All errors of a
configuration are reported at once, each with its variable, before the program changes
anything. A variable that starts with ` + "`SEMAPHORE_`" + ` and that no program reads is a warning in
the log.

The smallest configuration of an agent of cluster ` + "`aws`" + ` with one remote; only the last line is
optional:

| variable | value |
| --- | --- |
| ` + "`SEMAPHORE_CLUSTER_NAME`" + ` | ` + "`aws`" + ` |
| ` + "`SEMAPHORE_NODE_NAME`" + ` | from ` + "`spec.nodeName`" + ` |
| ` + "`SEMAPHORE_REMOTES`" + ` | ` + "`gcp`" + ` |
| ` + "`SEMAPHORE_REMOTE_GCP_API_URL`" + ` | ` + "`https://api.gcp.example:6443`" + ` |
| ` + "`SEMAPHORE_REMOTE_GCP_CA_FILE`" + ` | ` + "`/etc/semaphore/gcp/ca.crt`" + ` |
| ` + "`SEMAPHORE_REMOTE_GCP_TOKEN_FILE`" + ` | ` + "`/etc/semaphore/gcp/token`" + ` |
| ` + "`SEMAPHORE_REMOTE_GCP_POD_SUBNETS`" + ` | ` + "`10.4.0.0/16,fd00:10:4::/48`" + ` |
| ` + "`SEMAPHORE_REMOTE_GCP_NODE_SUBNETS`" + ` | ` + "`10.66.2.0/24,fd00:66::2:0/112`" + ` |

` + "`SEMAPHORE_CLUSTERS_CONFIG`" + `, or ` + "`-clusters-config`" + `, names a JSON file in the format of the
original tools; "also" in the tables has the section and key there, and the flags.

Agents compare the whole state every 30 s; ` + "`SEMAPHORE_REMOTE_<NAME>_RESYNC_PERIOD`" + ` adds further
comparisons.
`

// subjects are the chapters about what single settings do.
var subjects = map[string]string{
	"SEMAPHORE_LISTEN_ADDRESS":                   "operating.md#access-to-metrics-and-status",
	"SEMAPHORE_LISTEN_AUTH":                      "operating.md#access-to-metrics-and-status",
	"SEMAPHORE_PROBE_ADDRESS":                    "install.md#probes",
	"SEMAPHORE_PROBE_SOCKET":                     "install.md#probes",
	"SEMAPHORE_POD_NAME":                         "operating.md#events",
	"SEMAPHORE_LOCAL_SUBNETS":                    "install.md#endpoints",
	"SEMAPHORE_WG_BACKEND":                       "architecture.md#the-engine",
	"SEMAPHORE_WG_ENGINE":                        "upgrade.md",
	"SEMAPHORE_WG_KEY_PATH":                      "architecture.md#where-state-is-stored",
	"SEMAPHORE_WG_ENDPOINT":                      "install.md#nodes-behind-nat",
	"SEMAPHORE_WG_POD_CIDRS":                     "network-plugins.md",
	"SEMAPHORE_WG_ROUTE_SRC":                     "network-plugins.md",
	"SEMAPHORE_WG_FWMARK":                        "network-plugins.md#nodes-and-pods-in-the-same-subnets",
	"SEMAPHORE_POD_SUBNETS_MAP":                  "overlapping-subnets.md",
	"SEMAPHORE_WG_SOURCE_FILTER":                 "install.md#source-filter",
	"SEMAPHORE_WG_PEER_METRICS":                  "metrics.md",
	"SEMAPHORE_MIRROR_SELECTOR":                  "service-mirror.md",
	"SEMAPHORE_GLOBAL_SELECTOR":                  "service-mirror.md#global-services",
	"SEMAPHORE_GLOBAL_ROUTING_STRATEGY_LABEL":    "service-mirror.md#global-services",
	"SEMAPHORE_MIRROR_MAX_SERVICES":              "operating.md#limits-per-remote",
	"SEMAPHORE_GLOBAL_LOCAL_MINIMUM":             "service-mirror.md#global-services",
	"SEMAPHORE_REMOVAL_GRACE":                    "operating.md#removed-remotes",
	"SEMAPHORE_DEPARTED_REMOTES":                 "operating.md#removed-remotes",
	"SEMAPHORE_POLICY_LABEL_DOMAIN":              "policy.md#another-mark-another-domain",
	"SEMAPHORE_POLICY_MANAGED_BY":                "policy.md#another-mark-another-domain",
	"SEMAPHORE_POLICY_CALICO_API":                "policy.md#calicos-apis",
	"SEMAPHORE_REMOTE_<NAME>_KUBECONFIG":         "operating.md#certificate-authorities",
	"SEMAPHORE_REMOTE_<NAME>_CA_URL":             "operating.md#certificate-authorities",
	"SEMAPHORE_REMOTE_<NAME>_CA_FILE":            "operating.md#certificate-authorities",
	"SEMAPHORE_REMOTE_<NAME>_CA_SHA256":          "operating.md#certificate-authorities",
	"SEMAPHORE_REMOTE_<NAME>_TOKEN_FILE":         "operating.md#tokens",
	"SEMAPHORE_REMOTE_<NAME>_NODE_SUBNETS":       "install.md#endpoints",
	"SEMAPHORE_REMOTE_<NAME>_STALE_AFTER":        "service-mirror.md#paths-that-are-down",
	"SEMAPHORE_REMOTE_<NAME>_MAX_ANSWER":         "operating.md#limits-per-remote",
	"SEMAPHORE_REMOTE_<NAME>_MAX_OBJECTS":        "operating.md#limits-per-remote",
	"SEMAPHORE_REMOTE_<NAME>_MAX_SERVICES":       "operating.md#limits-per-remote",
	"SEMAPHORE_REMOTE_<NAME>_MAX_SLICES":         "operating.md#limits-per-remote",
	"SEMAPHORE_REMOTE_<NAME>_MAX_ADDRESSES":      "operating.md#limits-per-remote",
	"SEMAPHORE_REMOTE_<NAME>_MAX_SETS":           "operating.md#limits-per-remote",
	"SEMAPHORE_REMOTE_<NAME>_IMPORT_NAMESPACES":  "multi-cluster-services.md#namespaces",
	"SEMAPHORE_REMOTE_<NAME>_WG_LISTEN_PORT":     "install.md#listen-ports",
	"SEMAPHORE_REMOTE_<NAME>_WG_MTU":             "install.md#mtu",
	"SEMAPHORE_REMOTE_<NAME>_WG_MAX_PEERS":       "operating.md#limits-per-remote",
	"SEMAPHORE_REMOTE_<NAME>_WG_MAX_PREFIXES":    "operating.md#limits-per-remote",
	"SEMAPHORE_REMOTE_<NAME>_WG_MAX_ALLOWED_IPS": "operating.md#limits-per-remote",
	"SEMAPHORE_REMOTE_<NAME>_BORROWED":           "security.md#a-node-speaks-only-for-itself",
	"SEMAPHORE_REMOTE_<NAME>_SERVICE_PREFIX":     "service-mirror.md#names",
}

// settingsPage returns docs/settings.md.
func settingsPage() string {
	var b strings.Builder
	b.WriteString(settingsPreface)
	programs := config.Programs()
	table := func(title string, settings []config.Description) {
		fmt.Fprintf(&b, "\n## %s\n\n| setting | default | meaning | also |\n| --- | --- | --- | --- |\n", title)
		for i := range settings {
			b.WriteString(settingRow(&settings[i]))
		}
	}
	// A setting of all programs has one meaning in all of them.
	common := func(d config.Description) bool {
		return !slices.ContainsFunc(programs, func(p config.Program) bool {
			return !slices.ContainsFunc(p.Settings, func(o config.Description) bool {
				return o.Variable == d.Variable && o.Meaning == d.Meaning
			})
		})
	}
	var shared []config.Description
	for _, d := range programs[0].Settings {
		if common(d) {
			shared = append(shared, d)
		}
	}
	table("All programs", shared)
	table("Each remote", config.RemoteSettings())
	for _, p := range programs {
		table(p.Name, slices.DeleteFunc(slices.Clone(p.Settings), common))
		if p.Name == "semaphore-policy" {
			table("Flags of the original policy tool", config.TargetFlags())
		}
	}
	return b.String()
}

// settingRow returns the row of a table that describes a setting.
func settingRow(d *config.Description) string {
	name, rest := d.Variable, d.Flags
	if name == "" {
		name, rest = "-"+d.Flags[0], d.Flags[1:]
	}
	var also []string
	for _, f := range rest {
		also = append(also, "`-"+f+"`")
	}
	if d.Key != "" {
		also = append(also, "`"+d.Key+"`")
	}
	meaning := strings.ReplaceAll(strings.ReplaceAll(d.Meaning, "<", `\<`), "|", `\|`)
	if d.Least != "" {
		meaning += fmt.Sprintf("; %s to %s", d.Least, d.Most)
	}
	if subject := subjects[d.Variable]; subject != "" {
		meaning += fmt.Sprintf(" ([more](%s))", subject)
	}
	otherwise := ""
	if d.Default != "" {
		otherwise = "`" + d.Default + "`"
	}
	return "| `" + name + "` | " + otherwise + " | " + meaning + " | " + strings.Join(also, ", ") + " |\n"
}

// TestSettingsPage compares docs/settings.md with the settings of internal/config.
func TestSettingsPage(t *testing.T) {
	root, err := docstest.Root()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(root, "docs", "settings.md")
	want := settingsPage()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil { //nolint:gosec // A page is for everyone.
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("docs/settings.md is out of date, run make settings (-want +got):\n%s", diff)
	}
	for name := range subjects {
		if !strings.Contains(want, "`"+name+"`") {
			t.Errorf("a chapter is linked for %s, which no program reads", name)
		}
	}
}
