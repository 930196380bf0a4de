package config

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// setenv makes the given variables the only ones of ours.
func setenv(t *testing.T, vars map[string]string) {
	t.Helper()
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); strings.HasPrefix(name, prefix) {
			t.Setenv(name, "") // puts it back at the end
			if err := os.Unsetenv(name); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, value := range vars {
		t.Setenv(name, value)
	}
}

// env is a complete configuration with two remotes, changed by pairs of a name
// and a value; the value "-" removes.
func env(changes ...string) map[string]string {
	vars := map[string]string{
		"SEMAPHORE_CLUSTER_NAME":                     "aws",
		"SEMAPHORE_REMOTES":                          "gcp, on-prem",
		"SEMAPHORE_REMOTE_GCP_KUBECONFIG":            "/etc/gcp",
		"SEMAPHORE_REMOTE_GCP_POD_SUBNETS":           "10.4.0.0/16,fd00:4::/48",
		"SEMAPHORE_REMOTE_ON_PREM_API_URL":           "https://api.on-prem.example",
		"SEMAPHORE_REMOTE_ON_PREM_CA_URL":            "https://ca.on-prem.example",
		"SEMAPHORE_REMOTE_ON_PREM_CA_SHA256":         strings.Repeat("AB:", 31) + "AB, " + strings.Repeat("0c", 32),
		"SEMAPHORE_REMOTE_ON_PREM_MAX_OBJECTS":       "700",
		"SEMAPHORE_REMOTE_ON_PREM_WG_MAX_PEERS":      "700",
		"SEMAPHORE_REMOTE_ON_PREM_MAX_SERVICES":      "30",
		"SEMAPHORE_REMOTE_ON_PREM_MAX_SLICES":        "300",
		"SEMAPHORE_REMOTE_ON_PREM_MAX_ADDRESSES":     "3000",
		"SEMAPHORE_REMOTE_ON_PREM_MAX_SETS":          "40",
		"SEMAPHORE_REMOTE_GCP_MAX_ANSWER":            "64Mi",
		"SEMAPHORE_REMOTE_ON_PREM_IMPORT_NAMESPACES": "shop, team-*",
		"SEMAPHORE_REMOTE_ON_PREM_TOKEN_FILE":        "/etc/on-prem/token",
		"SEMAPHORE_REMOTE_ON_PREM_POD_SUBNETS":       "10.6.1.2/16",
		"SEMAPHORE_REMOTE_ON_PREM_STALE_AFTER":       "10m",
		"SEMAPHORE_REMOTE_ON_PREM_WG_MTU":            "1380",
		"SEMAPHORE_NODE_NAME":                        "worker-1.c.example.internal",
		"SEMAPHORE_NAMESPACE":                        "sys-semaphore",
		"SEMAPHORE_REMOTE_GCP_SERVICE_PREFIX":        "g",
		"SEMAPHORE_REMOTE_ON_PREM_RESYNC_PERIOD":     "1h",
	}
	for i := 0; i < len(changes); i += 2 {
		if changes[i+1] == "-" {
			delete(vars, changes[i])
		} else {
			vars[changes[i]] = changes[i+1]
		}
	}
	return vars
}

func base(listen, probe string) Base {
	return Base{
		ClusterName: "aws",
		Remotes: []Remote{{
			Name:           "gcp",
			Access:         Access{Kubeconfig: "/etc/gcp"},
			PodSubnets:     prefixes("10.4.0.0/16", "fd00:4::/48"),
			PodSubnetsFrom: "SEMAPHORE_REMOTE_GCP_POD_SUBNETS",
			ListenPort:     51820,
			MaxPeers:       2000,
			MaxPrefixes:    1024,
			MaxAllowedIPs:  100000,
			Borrowed:       true,
			MaxAnswer:      64 << 20,
			ServicePrefix:  "g",

			MaxServices: 2000, MaxSlices: 10_000, MaxAddresses: 100_000, MaxSets: 2000, Tier: 1, Imports: Namespaces{"*"},
		}, {
			Name: "on-prem",
			Access: Access{
				APIURL:    "https://api.on-prem.example",
				CAURL:     "https://ca.on-prem.example",
				CASHA256:  strings.Repeat("ab", 32) + "," + strings.Repeat("0c", 32),
				TokenFile: "/etc/on-prem/token",
			},
			PodSubnets:     prefixes("10.6.0.0/16"),
			PodSubnetsFrom: "SEMAPHORE_REMOTE_ON_PREM_POD_SUBNETS",
			ResyncPeriod:   time.Hour,
			StaleAfter:     10 * time.Minute,
			ListenPort:     51821,
			MTU:            1380,
			MaxPeers:       700,
			MaxPrefixes:    1024,
			MaxAllowedIPs:  100000,
			Borrowed:       true,
			MaxAnswer:      256 << 20,
			MaxObjects:     700,
			ServicePrefix:  "on-prem",

			MaxServices: 30, MaxSlices: 300, MaxAddresses: 3000, MaxSets: 40, Tier: 1, Imports: Namespaces{"shop", "team-*"},
		}},
		ListenAddress: listen,
		ListenAuth:    ListenAuthNone,
		ProbeAddress:  probe,
		LogLevel:      "info",
		LogFormat:     "json",
	}
}

func prefixes(texts ...string) Subnets {
	var all Subnets
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

func comparePrefixes() cmp.Option {
	return cmpopts.EquateComparable(netip.Prefix{})
}

func TestWireguardFromEnvironment(t *testing.T) {
	setenv(t, env())
	got, warnings, err := LoadWireguard(nil)
	if err != nil || len(warnings) > 0 {
		t.Fatalf("warnings %q, error %v", warnings, err)
	}
	want := Wireguard{
		Base:        base("127.0.0.1:7773", "127.0.0.1:7774"),
		NodeName:    "worker-1.c.example.internal",
		RemotesFrom: RemotesFromAPI, Backend: BackendAuto,
		Engine:   EngineStart,
		KeyPath:  "/var/lib/semaphore-wireguard",
		Endpoint: "InternalIP", RouteSrc: RouteSrcAuto, PodCIDRs: "auto", SourceFilter: true, Mark: 0x1073, RemovalGrace: 10 * time.Minute,

		PeerMetrics: 1000,
	}
	if diff := cmp.Diff(want, got, comparePrefixes()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestWhereEndpointsMayBe(t *testing.T) {
	setenv(t, env("SEMAPHORE_REMOTE_ON_PREM_NODE_SUBNETS", "fd66::/64, 10.66.1.2/16", "SEMAPHORE_LOCAL_SUBNETS", "172.16.0.0/12,10.96.0.0/12",
		"SEMAPHORE_WG_PEER_METRICS", "0"))
	got, warnings, err := LoadWireguard(nil)
	if err != nil || len(warnings) > 0 {
		t.Fatalf("warnings %q, error %v", warnings, err)
	}
	if diff := cmp.Diff(prefixes("10.66.0.0/16", "fd66::/64"), got.Remotes[1].NodeSubnets, comparePrefixes()); diff != "" {
		t.Errorf("node subnets (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(prefixes("10.96.0.0/12", "172.16.0.0/12"), got.LocalSubnets, comparePrefixes()); diff != "" {
		t.Errorf("local subnets (-want +got):\n%s", diff)
	}
	if got.PeerMetrics != 0 || got.Remotes[0].NodeSubnets != nil {
		t.Errorf("got %+v", got)
	}
}

func TestListenAddressOfANode(t *testing.T) {
	for _, c := range []struct{ host, listen, want string }{
		{"", "", "127.0.0.1:7773"},
		{"192.0.2.7", "", "192.0.2.7:7773"},
		{"fd00::7", "", "[fd00::7]:7773"},
		{"192.0.2.7", ":9000", ":9000"},
	} {
		setenv(t, env("SEMAPHORE_HOST_IP", c.host, "SEMAPHORE_LISTEN_ADDRESS", c.listen))
		got, _, err := LoadWireguard(nil)
		if err != nil || got.ListenAddress != c.want || got.ProbeAddress != "127.0.0.1:7774" {
			t.Errorf("host %q, listen %q: metrics at %q, probes at %q, %v; want metrics at %q", c.host, c.listen, got.ListenAddress, got.ProbeAddress, err, c.want)
		}
	}
}

func TestMirrorFromEnvironment(t *testing.T) {
	setenv(t, env("SEMAPHORE_GLOBAL_SELECTOR", "", "SEMAPHORE_MIRROR_NAMESPACE", "mirrors"))
	got, warnings, err := LoadMirror(nil)
	if err != nil || len(warnings) > 0 {
		t.Fatalf("warnings %q, error %v", warnings, err)
	}
	want := Mirror{
		Base:                 base(":8080", ":8081"),
		LeaderElection:       true,
		Namespace:            "sys-semaphore",
		MirrorNamespace:      "mirrors",
		MirrorSelector:       "mirror.semaphore.uw.io/mirror-service=true",
		RoutingStrategyLabel: "mirror.semaphore.uw.io/global-service-routing-strategy=local-first",
		LocalMinimum:         1,
		MultiCluster:         MultiClusterAuto,
		Removal:              Removal{RemovalGrace: 10 * time.Minute},
	}
	if diff := cmp.Diff(want, got, comparePrefixes()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestPolicyFromEnvironment(t *testing.T) {
	setenv(t, env("SEMAPHORE_POLICY_CALICO_API", "V3", "SEMAPHORE_POLICY_FULL_RESYNC_PERIOD", "0",
		"SEMAPHORE_REMOVAL_GRACE", "1h", "SEMAPHORE_DEPARTED_REMOTES", "merit, gcp"))
	got, warnings, err := LoadPolicy(nil)
	if err != nil || len(warnings) > 0 {
		t.Fatalf("warnings %q, error %v", warnings, err)
	}
	want := Policy{
		Base:           base(":8080", ":8081"),
		LeaderElection: true,
		Namespace:      "sys-semaphore",
		LabelDomain:    "policy.semaphore.uw.io",
		ManagedBy:      "semaphore-policy",
		CalicoAPI:      CalicoAPIV3,
		Removal:        Removal{time.Hour, []string{"merit", "gcp"}},
	}
	if diff := cmp.Diff(want, got, comparePrefixes()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestMTUThatIsLeftToTheAgent(t *testing.T) {
	for text, want := range map[string]MTU{"auto": 0, "AUTO": 0, "1280": 1280} {
		setenv(t, env("SEMAPHORE_REMOTE_GCP_WG_MTU", text))
		got, _, err := LoadWireguard(nil)
		if err != nil {
			t.Fatal(err)
		}
		if got.Remotes[0].MTU != want {
			t.Errorf("%s: MTU %d, want %d", text, got.Remotes[0].MTU, want)
		}
	}
}

func TestEmptyVariableIsLikeNone(t *testing.T) {
	setenv(t, env("SEMAPHORE_LOG_LEVEL", "", "SEMAPHORE_WG_BACKEND", "", "SEMAPHORE_REMOTE_GCP_WG_MTU", ""))
	got, _, err := LoadWireguard(nil)
	if err != nil {
		t.Fatal(err)
	}
	if got.LogLevel != "info" || got.Backend != BackendAuto || got.Remotes[0].MTU != 0 {
		t.Errorf("log level %q, backend %q, MTU %d: want the defaults", got.LogLevel, got.Backend, got.Remotes[0].MTU)
	}
}

// envconfig falls back on names without their prefix where a field's name is
// given as a tag; a KUBECONFIG in a shell must not become ours.
func TestVariablesWithoutPrefixAreNotRead(t *testing.T) {
	setenv(t, env("SEMAPHORE_NODE_NAME", "-"))
	for _, name := range []string{"KUBECONFIG", "NODE_NAME", "LOG_LEVEL", "LISTEN_ADDRESS", "API_URL", "URL", "TOKEN_FILE", "MTU"} {
		t.Setenv(name, "surprise")
	}
	_, _, err := LoadWireguard(nil)
	if err == nil || strings.Contains(err.Error(), "surprise") || !strings.HasPrefix(err.Error(), "SEMAPHORE_NODE_NAME: required") {
		t.Errorf("error = %v, want nothing but the missing node name", err)
	}
}

func TestFlagsWinOverEnvironment(t *testing.T) {
	setenv(t, env("SEMAPHORE_LOG_LEVEL", "error"))
	got, _, err := LoadWireguard([]string{"-node-name=other", "--log-level", "debug", "-listen-address=127.0.0.1:1", "-wg-key-path", "/keys/", "-cleanup"})
	if err != nil {
		t.Fatal(err)
	}
	want := Wireguard{Base: base("127.0.0.1:1", "127.0.0.1:7774"), NodeName: "other", RemotesFrom: RemotesFromAPI, Backend: BackendAuto, Engine: EngineStart, KeyPath: "/keys", Endpoint: "InternalIP", RouteSrc: RouteSrcAuto, PodCIDRs: "auto", SourceFilter: true, Mark: 0x1073, RemovalGrace: 10 * time.Minute, PeerMetrics: 1000, Cleanup: true}
	want.LogLevel = "debug"
	if diff := cmp.Diff(want, got, comparePrefixes()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestMirrorFlags(t *testing.T) {
	setenv(t, env())
	got, _, err := LoadMirror([]string{"-kube-config=/k", "-mirror-ns=m", "-mirror-svc-label-selector=a=b", "-global-svc-label-selector=c", "-global-svc-routing-strategy-label=d"})
	if err != nil {
		t.Fatal(err)
	}
	if got.Local.Kubeconfig != "/k" || got.MirrorNamespace != "m" || got.MirrorSelector != "a=b" || got.GlobalSelector != "c" || got.RoutingStrategyLabel != "d" {
		t.Errorf("got %+v", got)
	}
}

func TestPolicyFlagsOfTheOriginal(t *testing.T) {
	setenv(t, map[string]string{"SEMAPHORE_NAMESPACE": "sys-semaphore", "SEMAPHORE_REMOTE_GCP_POD_SUBNETS": "10.4.0.0/16"})
	got, warnings, err := LoadPolicy([]string{
		"-target-cluster-name=gcp", "-remote-api-url=https://api.example", "-remote-ca-url=https://ca.example",
		"-remote-sa-token-path=/token", "-pod-resync-period=5m", "-full-store-resync-period=30m", "-local-kube-config=/local", "-log-level=debug",
	})
	if err != nil || len(warnings) > 0 {
		t.Fatalf("warnings %q, error %v", warnings, err)
	}
	want := Policy{
		Base: Base{
			Remotes: []Remote{{
				Name:           "gcp",
				Access:         Access{APIURL: "https://api.example", CAURL: "https://ca.example", TokenFile: "/token"},
				PodSubnets:     prefixes("10.4.0.0/16"),
				PodSubnetsFrom: "SEMAPHORE_REMOTE_GCP_POD_SUBNETS",
				ResyncPeriod:   5 * time.Minute,
				ListenPort:     51820,
				MaxPeers:       2000,
				MaxPrefixes:    1024,
				MaxAllowedIPs:  100000,
				Borrowed:       true,
				MaxAnswer:      256 << 20,
				ServicePrefix:  "gcp",

				MaxServices: 2000, MaxSlices: 10_000, MaxAddresses: 100_000, MaxSets: 2000, Tier: 1, Imports: Namespaces{"*"},
			}},
			Local:         Access{Kubeconfig: "/local"},
			ListenAddress: ":8080",
			ListenAuth:    ListenAuthNone,
			ProbeAddress:  ":8081",
			LogLevel:      "debug",
			LogFormat:     "json",
		},
		LeaderElection:   true,
		Namespace:        "sys-semaphore",
		LabelDomain:      "policy.semaphore.uw.io",
		ManagedBy:        "semaphore-policy",
		CalicoAPI:        CalicoAPIAuto,
		FullResyncPeriod: 30 * time.Minute,
		Removal:          Removal{RemovalGrace: 10 * time.Minute},
	}
	if diff := cmp.Diff(want, got, comparePrefixes()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestNamespaceIsThePodsByDefault(t *testing.T) {
	setenv(t, env("SEMAPHORE_NAMESPACE", "-"))
	file := filepath.Join(t.TempDir(), "namespace")
	if err := os.WriteFile(file, []byte("kube-system\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	mirror, _, err := loadMirror(nil, io.Discard, file)
	if err != nil || mirror.Namespace != "kube-system" || mirror.MirrorNamespace != "kube-system" {
		t.Errorf("mirror: namespaces %q and %q, error %v", mirror.Namespace, mirror.MirrorNamespace, err)
	}
	policy, _, err := loadPolicy(nil, io.Discard, file)
	if err != nil || policy.Namespace != "kube-system" {
		t.Errorf("policy: namespace %q, error %v", policy.Namespace, err)
	}
	relay, _, err := loadRelay(nil, io.Discard, file)
	if err != nil || relay.Namespace != "kube-system" || !relay.LeaderElection {
		t.Errorf("relay: %+v, error %v", relay, err)
	}
	if _, _, err = loadPolicy(nil, io.Discard, file+".missing"); err == nil || !strings.HasPrefix(err.Error(), "SEMAPHORE_NAMESPACE: required") {
		t.Errorf("outside of a pod: %v, want it to ask for SEMAPHORE_NAMESPACE", err)
	}
}

// TestRemotesFromTheRelayNeedNoAccess: an access that is configured is still checked.
func TestRemotesFromTheRelayNeedNoAccess(t *testing.T) {
	file := filepath.Join(t.TempDir(), "namespace")
	if err := os.WriteFile(file, []byte("kube-system\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	setenv(t, map[string]string{
		"SEMAPHORE_CLUSTER_NAME": "aws", "SEMAPHORE_REMOTES": "gcp", "SEMAPHORE_REMOTE_GCP_POD_SUBNETS": "10.4.0.0/16",
		"SEMAPHORE_NODE_NAME": "aws-1", "SEMAPHORE_REMOTES_FROM": "Relay",
	})
	cfg, _, err := loadWireguard(nil, io.Discard, file)
	if err != nil || cfg.Namespace != "kube-system" || cfg.RemotesFrom != RemotesFromRelay {
		t.Errorf("%+v, %v", cfg, err)
	}
	for what, c := range map[string]struct {
		name, value, file, want string
	}{
		"directly":            {"SEMAPHORE_REMOTES_FROM", "api", file, "SEMAPHORE_REMOTE_GCP_KUBECONFIG: required"},
		"outside of a pod":    {"SEMAPHORE_REMOTES_FROM", "relay", file + ".missing", "SEMAPHORE_NAMESPACE: required"},
		"an access in part":   {"SEMAPHORE_REMOTE_GCP_TOKEN_FILE", "/token", file, "SEMAPHORE_REMOTE_GCP_API_URL: required"},
		"from somewhere else": {"SEMAPHORE_REMOTES_FROM", "etcd", file, "SEMAPHORE_REMOTES_FROM"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Setenv(c.name, c.value)
			if _, _, err := loadWireguard(nil, io.Discard, c.file); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestPodIsKnownByAllThatItTakes(t *testing.T) {
	const name, uid = "SEMAPHORE_POD_NAME", "SEMAPHORE_POD_UID"
	file := filepath.Join(t.TempDir(), "namespace")
	if err := os.WriteFile(file, []byte("kube-system\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		change []string
		file   string
		want   Pod
		known  bool
	}{
		{"in a pod", []string{name, "agent-x", uid, "u-1", "SEMAPHORE_NAMESPACE", "-"}, file, Pod{"kube-system", "agent-x", "u-1"}, true},
		{"in a pod with a configured namespace", []string{name, "agent-x", uid, "u-1"}, file, Pod{"sys-semaphore", "agent-x", "u-1"}, true},
		{"namespace unknown", []string{name, "agent-x", uid, "u-1", "SEMAPHORE_NAMESPACE", "-", "SEMAPHORE_LEADER_ELECTION", "false"}, "", Pod{"", "agent-x", "u-1"}, false},
		{"outside of a pod", nil, "", Pod{}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			setenv(t, env(c.change...))
			agent, _, err := loadWireguard(nil, io.Discard, c.file)
			if err != nil || agent.Pod != c.want || agent.Pod.Known() != c.known {
				t.Errorf("wireguard: %+v, known %t, error %v", agent.Pod, agent.Pod.Known(), err)
			}
			policy, _, err := loadPolicy(nil, io.Discard, c.file)
			if err != nil || policy.Pod != c.want {
				t.Errorf("policy: %+v, error %v", policy.Pod, err)
			}
		})
	}
}

func TestVersionAndHelpEndTheProgram(t *testing.T) {
	setenv(t, nil)
	for arg, want := range map[string]string{"-version": "semaphore-wireguard devel", "-help": "Settings are environment variables", "-h": "SEMAPHORE_"} {
		var out strings.Builder
		_, _, err := loadWireguard([]string{arg}, &out, "")
		if !errors.Is(err, flag.ErrHelp) || !strings.Contains(out.String(), want) {
			t.Errorf("%s: error %v and output %q, want %q in it", arg, err, out.String(), want)
		}
	}
}

// TestTokensRun loads the settings of the other programs for semaphore-tokens.
func TestTokensRun(t *testing.T) {
	setenv(t, map[string]string{
		"SEMAPHORE_CLUSTER_NAME": "aws", "SEMAPHORE_REMOTES": "gcp", "SEMAPHORE_NAMESPACE": "sys-semaphore",
		"SEMAPHORE_REMOTE_GCP_API_URL": "https://api.gcp.example:6443", "SEMAPHORE_REMOTE_GCP_CA_FILE": "/ca",
		"SEMAPHORE_REMOTE_GCP_TOKEN_FILE": "/token",
	})
	cfg, warnings, err := LoadTokens([]string{"-all"})
	if err != nil || len(warnings) > 0 || !cfg.All || cfg.Namespace != "sys-semaphore" || cfg.Remotes[0].Access.APIURL == "" {
		t.Errorf("%+v, %q, %v", cfg, warnings, err)
	}
	if diff := cmp.Diff(map[string]string{"gcp": "/token"}, cfg.TokenFiles()); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if _, _, err := LoadTokens([]string{"status"}); err == nil {
		t.Error("it has a status")
	}
	setenv(t, nil)
	if _, _, err := loadTokens(nil, io.Discard, ""); err == nil || !strings.Contains(err.Error(), "SEMAPHORE_NAMESPACE: required") {
		t.Errorf("without settings: %v", err)
	}
}

func TestHelpNamesEverySetting(t *testing.T) {
	setenv(t, nil)
	loaders := map[string]func(out io.Writer) error{
		"wireguard": func(out io.Writer) error { _, _, err := loadWireguard([]string{"-help"}, out, ""); return err },
		"mirror":    func(out io.Writer) error { _, _, err := loadMirror([]string{"-help"}, out, ""); return err },
		"policy":    func(out io.Writer) error { _, _, err := loadPolicy([]string{"-help"}, out, ""); return err },
		"relay":     func(out io.Writer) error { _, _, err := loadRelay([]string{"-help"}, out, ""); return err },
		"tokens":    func(out io.Writer) error { _, _, err := loadTokens([]string{"-help"}, out, ""); return err },
	}
	common := []string{
		"SEMAPHORE_CLUSTER_NAME", "SEMAPHORE_REMOTES", "SEMAPHORE_CLUSTERS_CONFIG, -clusters-config", "SEMAPHORE_KUBECONFIG",
		"SEMAPHORE_LISTEN_ADDRESS, -listen-address", "SEMAPHORE_LISTEN_AUTH", "SEMAPHORE_PROBE_ADDRESS", "SEMAPHORE_PROBE_SOCKET", "SEMAPHORE_LOG_LEVEL, -log-level", "SEMAPHORE_LOG_FORMAT",
		"SEMAPHORE_REMOTE_<NAME>_KUBECONFIG", "SEMAPHORE_REMOTE_<NAME>_API_URL", "SEMAPHORE_REMOTE_<NAME>_CA_URL",
		"SEMAPHORE_REMOTE_<NAME>_CA_FILE", "SEMAPHORE_REMOTE_<NAME>_TOKEN_FILE", "SEMAPHORE_REMOTE_<NAME>_POD_SUBNETS",
		"SEMAPHORE_REMOTE_<NAME>_NODE_SUBNETS", "SEMAPHORE_REMOTE_<NAME>_RESYNC_PERIOD", "SEMAPHORE_REMOTE_<NAME>_STALE_AFTER", "SEMAPHORE_REMOTE_<NAME>_WG_LISTEN_PORT",
		"SEMAPHORE_REMOTE_<NAME>_MAX_SERVICES", "SEMAPHORE_REMOTE_<NAME>_MAX_SLICES", "SEMAPHORE_REMOTE_<NAME>_MAX_ADDRESSES", "SEMAPHORE_REMOTE_<NAME>_MAX_SETS",
		"SEMAPHORE_REMOTE_<NAME>_WG_MTU", "SEMAPHORE_REMOTE_<NAME>_SERVICE_PREFIX", "SEMAPHORE_REMOTE_<NAME>_IMPORT_NAMESPACES", "-help", "-version",
	}
	own := map[string][]string{
		"wireguard": {
			"SEMAPHORE_NODE_NAME, -node-name", "SEMAPHORE_WG_BACKEND", "SEMAPHORE_WG_KEY_PATH, -wg-key-path", "SEMAPHORE_WG_ROUTE_SRC",
			"SEMAPHORE_NAMESPACE", "SEMAPHORE_POD_NAME", "SEMAPHORE_POD_UID", "SEMAPHORE_HOST_IP", "SEMAPHORE_LOCAL_SUBNETS", "SEMAPHORE_WG_PEER_METRICS", "-cleanup",
		},
		"mirror": {
			"SEMAPHORE_LEADER_ELECTION", "SEMAPHORE_NAMESPACE", "SEMAPHORE_REMOVAL_GRACE", "SEMAPHORE_MIRROR_NAMESPACE", "SEMAPHORE_MIRROR_SELECTOR",
			"SEMAPHORE_GLOBAL_SELECTOR", "SEMAPHORE_GLOBAL_ROUTING_STRATEGY_LABEL", "-config",
		},
		"tokens": {"SEMAPHORE_NAMESPACE", "-all"},
		"relay":  {"SEMAPHORE_LEADER_ELECTION", "SEMAPHORE_NAMESPACE"},
		"policy": {
			"SEMAPHORE_LEADER_ELECTION", "SEMAPHORE_NAMESPACE", "SEMAPHORE_REMOVAL_GRACE", "SEMAPHORE_POD_NAME", "SEMAPHORE_POD_UID", "SEMAPHORE_POLICY_LABEL_DOMAIN", "SEMAPHORE_POLICY_MANAGED_BY",
			"SEMAPHORE_POLICY_CALICO_API", "SEMAPHORE_POLICY_INCLUDE_HOST_NETWORK", "SEMAPHORE_POLICY_FULL_RESYNC_PERIOD, -full-store-resync-period",
			"-target-cluster-name", "-target-kube-config", "-remote-api-url", "-remote-ca-url", "-remote-sa-token-path", "-pod-resync-period",
		},
	}
	for program, load := range loaders {
		t.Run(program, func(t *testing.T) {
			var out strings.Builder
			if err := load(&out); !errors.Is(err, flag.ErrHelp) {
				t.Fatal(err)
			}
			commands := []string{" status\n        print the status", "with -o json as its full report", " probe /readyz\n        request /readyz"}
			for _, part := range commands {
				if has := strings.Contains(out.String(), part); has != (program != "tokens") {
					t.Errorf("-help contains %q: %t:\n%s", part, has, &out)
				}
			}
			if cleans := strings.Contains(out.String(), "\n  semaphore-wireguard -cleanup\n"); cleans != (program == "wireguard") {
				t.Errorf("-help contains -cleanup: %v\n%s", cleans, &out)
			}
			for _, name := range slices.Concat(common, own[program]) {
				if !strings.Contains(out.String(), "\n  "+name) {
					t.Errorf("-help lacks %s:\n%s", name, &out)
				}
			}
		})
	}
}

// TestPodSubnetsMap checks the map of this cluster against its other settings.
func TestPodSubnetsMap(t *testing.T) {
	const name = "SEMAPHORE_POD_SUBNETS_MAP"
	for what, c := range map[string]struct {
		settings []string
		want     string // part of the error; empty: none
	}{
		"of both families":          {[]string{name, "10.2.0.0/16=100.64.0.0/16,fd00:2::/48=fd00:c9::/48"}, ""},
		"without a source filter":   {[]string{name, "10.2.0.0/16=100.64.0.0/16", "SEMAPHORE_WG_SOURCE_FILTER", "false"}, ""},
		"none":                      {nil, ""},
		"bad and worse":             {[]string{name, "10.2.0.0/16,10.3.0.0/16=10.9.0.0/17"}, name + `: "10.2.0.0/16" is not a pair`},
		"worse":                     {[]string{name, "10.2.0.0/16,10.3.0.0/16=10.9.0.0/17"}, name + ": 10.3.0.0/16=10.9.0.0/17 maps between subnets of different lengths"},
		"too long":                  {[]string{name, manyMappings(17)}, name + ": more than 16 mappings"},
		"as long as possible":       {[]string{name, manyMappings(16)}, ""},
		"in another order":          {[]string{name, "10.2.0.0/16=100.64.0.0/16, 10.1.0.0/16=100.65.0.0/16"}, `must be written as "10.1.0.0/16=100.65.0.0/16,10.2.0.0/16=100.64.0.0/16"`},
		"with host bits":            {[]string{name, "10.2.0.0/16=100.64.0.1/16"}, `must be written as "10.2.0.0/16=100.64.0.0/16"`},
		"to pods of a remote":       {[]string{name, "10.2.0.0/16=10.4.0.0/16"}, "10.4.0.0/16 overlaps 10.4.0.0/16 of gcp (SEMAPHORE_REMOTE_GCP_POD_SUBNETS)"},
		"of what a remote has, too": {[]string{name, "10.4.0.0/16=100.64.0.0/16"}, "10.4.0.0/16 of gcp (SEMAPHORE_REMOTE_GCP_POD_SUBNETS): gcp needs a map as well"},
		"to nodes of a remote":      {[]string{name, "10.2.0.0/16=100.64.0.0/16", "SEMAPHORE_REMOTE_GCP_NODE_SUBNETS", "100.64.7.0/24"}, "100.64.7.0/24, which has nodes of gcp"},
		"to addresses of its own":   {[]string{name, "10.2.0.0/16=100.64.0.0/16", "SEMAPHORE_LOCAL_SUBNETS", "100.64.0.0/10"}, "100.64.0.0/10 of SEMAPHORE_LOCAL_SUBNETS"},
		"of its own addresses":      {[]string{name, "10.2.0.0/16=100.64.0.0/16", "SEMAPHORE_LOCAL_SUBNETS", "10.2.0.0/15"}, ""},
	} {
		t.Run(what, func(t *testing.T) {
			setenv(t, env(c.settings...))
			got, _, err := LoadWireguard(nil)
			switch {
			case c.want == "" && err != nil:
				t.Errorf("error %v, want none", err)
			case c.want == "" && len(c.settings) > 0 && got.PodSubnetsMap.String() != c.settings[1]:
				t.Errorf("map %s, want %s", got.PodSubnetsMap, c.settings[1])
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

// TestPodSubnetsMapOfARemote checks the map of a remote against its pod subnets, in all programs.
func TestPodSubnetsMapOfARemote(t *testing.T) {
	const name, subnets = "SEMAPHORE_REMOTE_ON_PREM_POD_SUBNETS_MAP", "SEMAPHORE_REMOTE_ON_PREM_POD_SUBNETS"
	const both = "10.4.0.0/16=100.64.0.0/16,10.5.0.0/16=100.65.0.0/16"
	for what, c := range map[string]struct {
		subnets, subnetMap string
		want               string // part of the error; empty: none
	}{
		"none":                            {"10.6.0.0/16", "", ""},
		"of one subnet":                   {"100.64.0.0/16", "10.4.0.0/16=100.64.0.0/16", ""},
		"of several and both families":    {"100.64.0.0/16,100.65.0.0/16,fd00:c9::/48,10.9.0.0/16", both + ",fd00:4::/48=fd00:c9::/48", ""},
		"of which a part is accepted":     {"100.64.0.0/18,100.64.128.0/18", "10.4.0.0/16=100.64.0.0/16", ""},
		"of merged virtual subnets":       {"100.64.0.0/15", both, name + ": 100.64.0.0/15 of " + subnets + " has more than the virtual subnet 100.64.0.0/16: list each"},
		"of real subnets":                 {"10.4.0.0/15", "10.5.0.0/16=100.65.0.0/16", name + ": 10.4.0.0/15 of " + subnets + " overlaps 10.5.0.0/16, which is known here as 100.65.0.0/16"},
		"of subnets that aren't accepted": {"100.64.0.0/16", both, name + ": the virtual subnet 100.65.0.0/16 is not in " + subnets},
		"of two subnets to one":           {"100.64.0.0/16", "10.4.0.0/16=100.64.0.0/16,10.5.0.0/16=100.64.0.0/16", name + ": 100.64.0.0/16 of 10.5.0.0/16=100.64.0.0/16 overlaps"},
		"that isn't one":                  {"100.64.0.0/16", "10.4.0.0/16", name + `: "10.4.0.0/16" is not a pair`},
	} {
		t.Run(what, func(t *testing.T) {
			if c.subnetMap == "" {
				c.subnetMap = "-"
			}
			setenv(t, env(subnets, c.subnets, name, c.subnetMap))
			wireguard, _, errWireguard := LoadWireguard(nil)
			mirror, _, errMirror := LoadMirror([]string{"-mirror-ns", "sys"})
			policy, _, errPolicy := LoadPolicy(nil)
			for _, cfg := range []Base{wireguard.Base, mirror.Base, policy.Base} {
				if c.want == "" && (len(cfg.Remotes) != 2 || cfg.Remotes[1].PodSubnetsMap.String() != strings.TrimPrefix(c.subnetMap, "-")) {
					t.Errorf("remotes %+v, want the map %s", cfg.Remotes, c.subnetMap)
				}
			}
			for program, err := range map[string]error{"wireguard": errWireguard, "mirror": errMirror, "policy": errPolicy} {
				if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
					t.Errorf("%s: error %v, want %q", program, err, c.want)
				}
			}
		})
	}
}

// TestServicesOfARemote shares what all remotes may have among two of them.
func TestServicesOfARemote(t *testing.T) {
	for total, want := range map[string][2]int{
		"unset": {2000, 30}, "10000000": {2000, 30}, "255": {127, 30}, "41": {20, 20}, "1": {1, 1},
	} {
		setenv(t, env())
		if total != "unset" {
			t.Setenv("SEMAPHORE_MIRROR_MAX_SERVICES", total)
		}
		cfg, _, err := LoadMirror([]string{"-mirror-ns", "sys"})
		if err != nil {
			t.Fatal(err)
		}
		if got := [2]int{cfg.ServicesOf(&cfg.Remotes[0]), cfg.ServicesOf(&cfg.Remotes[1])}; got != want {
			t.Errorf("of %s: %v, want %v", total, got, want)
		}
	}
}

func TestImportNamespaces(t *testing.T) {
	const variable = "SEMAPHORE_REMOTE_GCP_IMPORT_NAMESPACES"
	for text, c := range map[string]struct{ in, out string }{
		"unset":          {"shop team-a default kubernetes", "kube-system kube-public"},
		"*":              {"shop team-a default kubernetes", "kube-system kube-public"},
		"":               {"", "shop team-a kube-system"},
		"shop":           {"shop", "shop-2 team-a kube-system"},
		"shop,team-*":    {"shop team-a team-", "team default kube-system"},
		"k*":             {"k kubernetes", "kube-system shop"},
		"kube-*":         {"kube-system kube-public", "kubernetes shop"},
		"kube-system":    {"kube-system", "kube-public shop"},
		"*,kube-public":  {"shop kube-public", "kube-system"},
		"shop , team-a*": {"shop team-a team-ab", "team-b"},
	} {
		t.Run(text, func(t *testing.T) {
			setenv(t, env())
			if text != "unset" {
				t.Setenv(variable, text)
			}
			cfg, _, err := LoadMirror([]string{"-mirror-ns", "sys"})
			if err != nil {
				t.Fatal(err)
			}
			for _, namespace := range strings.Fields(c.in) {
				if !cfg.Remotes[0].Imports.Contains(namespace) {
					t.Errorf("%s isn't meant", namespace)
				}
			}
			for _, namespace := range strings.Fields(c.out) {
				if cfg.Remotes[0].Imports.Contains(namespace) {
					t.Errorf("%s is meant", namespace)
				}
			}
		})
	}
}

// manyMappings returns a map of so many subnets.
func manyMappings(n int) string {
	texts := make([]string, n)
	for i := range texts {
		texts[i] = fmt.Sprintf("10.100.%d.0/24=100.64.%d.0/24", i, i)
	}
	return strings.Join(texts, ",")
}
