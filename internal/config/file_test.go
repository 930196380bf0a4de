package config

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/util/validation"
)

// The example of semaphore-wireguard's documentation.
const wireguardFile = `{
  "local": {
    "name": "cluster1"
  },
  "remotes": [
    {
      "name": "cluster2",
      "remoteAPIURL": "https://lb.cluster2.k8s.uw.systems",
      "remoteCAURL": "https://kube-ca-cert.cluster2.uw.systems",
      "remoteSATokenPath": "/etc/semaphore-wireguard/tokens/cluster2/token",
      "podSubnet": "10.4.0.0/16",
      "wgDeviceMTU": 1380,
      "wgListenPort": 51821
    }
  ]
}`

func writeFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFileOfTheOriginalWireguard(t *testing.T) {
	path := writeFile(t, wireguardFile)
	setenv(t, map[string]string{"SEMAPHORE_NODE_NAME": "worker"})
	got, warnings, err := LoadWireguard([]string{"-clusters-config", path})
	if err != nil || len(warnings) > 0 {
		t.Fatalf("warnings %q, error %v", warnings, err)
	}
	want := Base{
		ClusterName: "cluster1",
		Remotes: []Remote{{
			Name: "cluster2",
			Access: Access{
				APIURL:    "https://lb.cluster2.k8s.uw.systems",
				CAURL:     "https://kube-ca-cert.cluster2.uw.systems",
				TokenFile: "/etc/semaphore-wireguard/tokens/cluster2/token",
			},
			PodSubnets:     prefixes("10.4.0.0/16"),
			PodSubnetsFrom: "remotes[0].podSubnet in " + path,
			ListenPort:     51821,
			MTU:            1380,
			MaxPeers:       2000,
			MaxPrefixes:    1024,
			MaxAllowedIPs:  100000,
			Borrowed:       true,
			MaxAnswer:      256 << 20,
			ServicePrefix:  "cluster2",

			MaxServices: 2000, MaxSlices: 10_000, MaxAddresses: 100_000, MaxSets: 2000, Tier: 1, Imports: Namespaces{"*"},
		}},
		ListenAddress: "127.0.0.1:7773",
		ListenAuth:    ListenAuthNone,
		ProbeAddress:  "127.0.0.1:7774",
		LogLevel:      "info",
		LogFormat:     "json",
	}
	if diff := cmp.Diff(want, got.Base, comparePrefixes()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestFileKeysAndForms(t *testing.T) {
	path := writeFile(t, `{
		"local": {"name": "aws", "kubeConfigPath": "/local"},
		"remotes": [
			{"name": "gcp", "kubeConfigPath": "/gcp", "podSubnet": "10.4.0.0/16", "resyncPeriod": "10s", "wgListenPort": 0, "wgDeviceMTU": null},
			{"name": "merit", "remoteapiurl": "https://api", "remoteCAPath": "/ca", "remoteSATokenPath": "/token",
			 "podSubnet": "10.6.0.0/16,fd00:6::/48", "nodeSubnets": "10.66.6.0/24", "resyncPeriod": 60000000000, "staleAfter": "5m", "wgMaxPeers": 300, "wgMaxPrefixes": 500, "wgMaxAllowedIPs": 5000, "borrowed": false, "maxServices": 1, "maxSlices": 2, "maxAddresses": 3, "maxSets": 4, "importNamespaces": "shop, team-*", "wgListenPort": 7000}
		]}`)
	setenv(t, map[string]string{"SEMAPHORE_NODE_NAME": "worker", "SEMAPHORE_CLUSTERS_CONFIG": path})
	got, warnings, err := LoadWireguard(nil)
	if err != nil || len(warnings) > 0 {
		t.Fatalf("warnings %q, error %v", warnings, err)
	}
	want := []Remote{{
		Name:           "gcp",
		Access:         Access{Kubeconfig: "/gcp"},
		PodSubnets:     prefixes("10.4.0.0/16"),
		PodSubnetsFrom: "remotes[0].podSubnet in " + path,
		ResyncPeriod:   10 * time.Second,
		ListenPort:     51820,
		MaxPeers:       2000,
		MaxPrefixes:    1024,
		MaxAllowedIPs:  100000,
		Borrowed:       true,
		MaxAnswer:      256 << 20,
		ServicePrefix:  "gcp",

		MaxServices: 2000, MaxSlices: 10_000, MaxAddresses: 100_000, MaxSets: 2000, Tier: 1, Imports: Namespaces{"*"},
	}, {
		Name:           "merit",
		Access:         Access{APIURL: "https://api", CAFile: "/ca", TokenFile: "/token"},
		PodSubnets:     prefixes("10.6.0.0/16", "fd00:6::/48"),
		PodSubnetsFrom: "remotes[1].podSubnet in " + path,
		NodeSubnets:    prefixes("10.66.6.0/24"),
		ResyncPeriod:   time.Minute,
		StaleAfter:     5 * time.Minute,
		ListenPort:     7000,
		MaxPeers:       300,
		MaxPrefixes:    500,
		MaxAllowedIPs:  5000,
		MaxAnswer:      256 << 20,
		ServicePrefix:  "merit",

		MaxServices: 1, MaxSlices: 2, MaxAddresses: 3, MaxSets: 4, Tier: 1, Imports: Namespaces{"shop", "team-*"},
	}}
	if diff := cmp.Diff(want, got.Remotes, comparePrefixes()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got.Local.Kubeconfig != "/local" {
		t.Errorf("local kubeconfig %q, want that of the file", got.Local.Kubeconfig)
	}
}

func TestVariablesWinOverWhatTheFileSaysOfThisProgram(t *testing.T) {
	path := writeFile(t, `{
		"global": {"mirrorSvcLabelSelector": "from=file", "globalSvcLabelSelector": "global=file", "globalSvcRoutingStrategyLabel": "strategy=file",
		           "mirrorNamespace": "file", "serviceSync": true, "endpointSliceSync": false},
		"localCluster": {"name": "aws", "kubeConfigPath": "/file"},
		"remoteClusters": [{"name": "gcp", "kubeConfigPath": "/gcp", "servicePrefix": "g", "resyncPeriod": "0s"}]}`)
	setenv(t, map[string]string{"SEMAPHORE_KUBECONFIG": "/variable", "SEMAPHORE_MIRROR_NAMESPACE": "variable", "SEMAPHORE_NAMESPACE": "n"})
	got, warnings, err := LoadMirror([]string{"-config", path, "-mirror-svc-label-selector=from=flag"})
	if err != nil || len(warnings) > 0 {
		t.Fatalf("warnings %q, error %v", warnings, err)
	}
	if got.Local.Kubeconfig != "/variable" || got.MirrorNamespace != "variable" || got.MirrorSelector != "from=flag" {
		t.Errorf("kubeconfig %q, namespace %q, selector %q", got.Local.Kubeconfig, got.MirrorNamespace, got.MirrorSelector)
	}
	if got.GlobalSelector != "global=file" || got.RoutingStrategyLabel != "strategy=file" || got.Remotes[0].ServicePrefix != "g" {
		t.Errorf("selector %q, strategy %q, prefix %q: want those of the file", got.GlobalSelector, got.RoutingStrategyLabel, got.Remotes[0].ServicePrefix)
	}
}

// TestEnvironmentIsLeftAlone loads a file and flags, which envconfig reads as variables.
func TestEnvironmentIsLeftAlone(t *testing.T) {
	setenv(t, map[string]string{"SEMAPHORE_NODE_NAME": "worker", "SEMAPHORE_LOG_LEVEL": "", "KUBECONFIG": "/k"})
	before := os.Environ()
	if _, _, err := LoadWireguard([]string{"-clusters-config", writeFile(t, wireguardFile), "-node-name=other", "-wg-key-path=x"}); err == nil {
		t.Fatal("no error")
	}
	sorted := cmpopts.SortSlices(strings.Compare)
	if diff := cmp.Diff(before, os.Environ(), sorted); diff != "" {
		t.Errorf("environment (-before +after):\n%s", diff)
	}
}

// FuzzClustersFile checks that a file is either refused with errors or yields a valid
// configuration.
func FuzzClustersFile(f *testing.F) {
	f.Add([]byte(wireguardFile))
	f.Add([]byte(`{"local":{"name":"a"},"remotes":[{"name":"b","kubeConfigPath":"/b","podSubnet":"10.0.0.0/8,fd00::/8","resyncPeriod":1e9,"staleAfter":"1h"}]}`))
	f.Add([]byte(`{"localCluster":{"name":"a"},"remoteClusters":[{"name":"b"},{"name":"b"},null],"global":{"serviceSync":1}}`))
	f.Add([]byte(`{"LOCAL":null,"remotes":[{"NAME":"x","wgListenPort":-1,"wgDeviceMTU":99999999999999999999}]}`))
	f.Fuzz(func(t *testing.T, content []byte) {
		var cfg Mirror
		l := newLoader("fuzz", "", &cfg.Base, &cfg)
		l.parseFile("file", content)
		l.decode(needs{wireguard: true, servicePrefix: true})
		base, _, err := finish(l, cfg.Base)
		if err != nil {
			return
		}
		var subnets []netip.Prefix
		seen := map[any]bool{base.ClusterName: true}
		for _, r := range base.Remotes {
			for _, unique := range []any{r.Name, r.ListenPort, "prefix " + r.ServicePrefix} {
				if seen[unique] {
					t.Errorf("%v twice", unique)
				}
				seen[unique] = true
			}
			if len(validation.IsDNS1123Label(r.Name)) > 0 || r.ListenPort < 1 || r.ListenPort > 65535 || r.MTU != 0 && r.MTU < 576 || r.MTU > 65455 ||
				r.ResyncPeriod < 0 || r.StaleAfter < 0 || len(r.PodSubnets) == 0 || r.Access.InCluster() {
				t.Errorf("accepted %+v", r)
			}
			for _, p := range r.PodSubnets {
				for _, other := range subnets {
					if p.Overlaps(other) {
						t.Errorf("%v overlaps %v", p, other)
					}
				}
				if p != p.Masked() || p.Bits() == 0 || p.Addr().Is4In6() {
					t.Errorf("accepted %v", p)
				}
				subnets = append(subnets, p)
			}
		}
	})
}
