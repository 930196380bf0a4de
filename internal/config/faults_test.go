package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func lines(err error) []string {
	if err == nil {
		return nil
	}
	return strings.Split(err.Error(), "\n")
}

func wireguardError(args ...string) error { _, _, err := LoadWireguard(args); return err }
func mirrorError(args ...string) error    { _, _, err := LoadMirror(args); return err }
func policyError(args ...string) error    { _, _, err := LoadPolicy(args); return err }

func TestFaultsNameTheirVariable(t *testing.T) {
	const gcp, onPrem = "SEMAPHORE_REMOTE_GCP_", "SEMAPHORE_REMOTE_ON_PREM_"
	tests := map[string]struct {
		load   func(args ...string) error
		change []string
		args   []string
		want   []string
	}{
		"cluster name missing": {
			wireguardError, []string{"SEMAPHORE_CLUSTER_NAME", "-"}, nil,
			[]string{"SEMAPHORE_CLUSTER_NAME: required: the name of this cluster; alternatively set SEMAPHORE_CLUSTERS_CONFIG"},
		},
		"cluster name not a DNS label": {
			wireguardError, []string{"SEMAPHORE_CLUSTER_NAME", "AWS_1"}, nil,
			[]string{`SEMAPHORE_CLUSTER_NAME: "AWS_1" is not a valid cluster name: it must consist of lower-case letters`},
		},
		"name of the pod without its UID": {
			wireguardError, []string{"SEMAPHORE_POD_NAME", "agent-x"}, nil,
			[]string{"SEMAPHORE_POD_UID: required with SEMAPHORE_POD_NAME: from metadata.uid"},
		},
		"UID of the pod without its name": {
			policyError, []string{"SEMAPHORE_POD_UID", "u-1"}, nil,
			[]string{"SEMAPHORE_POD_NAME: required with SEMAPHORE_POD_UID: from metadata.name"},
		},
		"name of the pod and namespace that can't be any": {
			wireguardError, []string{"SEMAPHORE_POD_NAME", "Agent", "SEMAPHORE_POD_UID", "u-1", "SEMAPHORE_NAMESPACE", "a.b"}, nil,
			[]string{`SEMAPHORE_NAMESPACE: "a.b": must not contain dots`, `SEMAPHORE_POD_NAME: "Agent": a lowercase RFC 1123 subdomain must`},
		},
		"firewall mark that isn't a number": {
			wireguardError, []string{"SEMAPHORE_WG_FWMARK", "auto"}, nil,
			[]string{`SEMAPHORE_WG_FWMARK: "auto" is not a firewall mark such as 0x1073, or 0`},
		},
		"firewall mark of more than 32 bits": {
			wireguardError, []string{"SEMAPHORE_WG_FWMARK", "0x100000000"}, nil,
			[]string{`SEMAPHORE_WG_FWMARK: "0x100000000" is not a firewall mark`},
		},
		"firewall mark with a bit of kube-proxy": {
			wireguardError, []string{"SEMAPHORE_WG_FWMARK", "51820"}, nil,
			[]string{`SEMAPHORE_WG_FWMARK: 0xca6c has a bit by which kube-proxy masquerades or drops packets`},
		},
		"remotes missing": {
			wireguardError, []string{"SEMAPHORE_REMOTES", "-"}, nil,
			[]string{"SEMAPHORE_REMOTES: required: the names of the remote clusters, such as gcp,merit; alternatively set SEMAPHORE_CLUSTERS_CONFIG"},
		},
		"remote named like the local cluster": {
			wireguardError, []string{"SEMAPHORE_CLUSTER_NAME", "gcp"}, nil,
			[]string{`SEMAPHORE_REMOTES: remote "gcp" has the name of this cluster`},
		},
		"remote listed twice": {
			wireguardError, []string{"SEMAPHORE_REMOTES", "gcp,on-prem,gcp"}, nil,
			[]string{`SEMAPHORE_REMOTES: remote "gcp" is listed twice`},
		},
		"remote not a DNS label, and so without settings": {
			wireguardError, []string{"SEMAPHORE_REMOTES", "gcp,on_prem"}, nil,
			[]string{`SEMAPHORE_REMOTES: "on_prem" is not a valid cluster name: it must consist of lower-case letters`},
		},
		"cluster name that begins those of global services": {
			wireguardError, []string{"SEMAPHORE_CLUSTER_NAME", "gl"}, nil,
			[]string{`SEMAPHORE_CLUSTER_NAME: "gl" can't be the name of a cluster: the names of global services begin with it`},
		},
		"remotes that are reserved or too long, and so without settings": {
			wireguardError, []string{"SEMAPHORE_REMOTES", "local,global," + strings.Repeat("a", 59)}, nil,
			[]string{
				`SEMAPHORE_REMOTES: "local" can't be the name of a cluster: the zone cluster.local is that of a cluster's own services`,
				`SEMAPHORE_REMOTES: "global" can't be the name of a cluster: the zone cluster.global is that of global services`,
				`SEMAPHORE_REMOTES: "` + strings.Repeat("a", 59) + `" is not a valid cluster name: it has 59 characters`,
			},
		},
		"trailing comma in the list": {
			wireguardError, []string{"SEMAPHORE_REMOTES", "gcp,"}, nil,
			[]string{
				"SEMAPHORE_REMOTE__KUBECONFIG: required: a kubeconfig for ; alternatively set",
				"SEMAPHORE_REMOTE__POD_SUBNETS: required",
				`SEMAPHORE_REMOTES: "" is not a valid cluster name: `,
			},
		},
		"fingerprints that are none, and of no URL": {
			wireguardError, []string{gcp + "CA_SHA256", "ab:cd," + strings.Repeat("0g", 32), gcp + "KUBECONFIG", "-", gcp + "API_URL", "https://a", gcp + "CA_FILE", "/ca", gcp + "TOKEN_FILE", "/t"}, nil,
			[]string{
				gcp + "CA_SHA256: has no effect without " + gcp + "CA_URL",
				gcp + `CA_SHA256: "ab:cd" is not a SHA-256 fingerprint in hexadecimal, which has 64 digits`,
				gcp + `CA_SHA256: "` + strings.Repeat("0g", 32) + `" is not a SHA-256 fingerprint`,
			},
		},
		"bounds that are none": {
			mirrorError, []string{gcp + "MAX_ANSWER", "lots", gcp + "MAX_OBJECTS", "0", onPrem + "MAX_ANSWER", "1Mi"}, nil,
			[]string{
				gcp + `MAX_ANSWER: "lots" is not a number of bytes such as 64Mi, from 4Mi to 64Gi`,
				gcp + `MAX_OBJECTS: "0" is not a number from 1 to 10000000`,
				onPrem + `MAX_ANSWER: "1Mi" is not a number of bytes such as 64Mi, from 4Mi to 64Gi`,
			},
		},
		"bounds of what is made for a remote": {
			policyError, []string{
				gcp + "MAX_SERVICES", "0", gcp + "MAX_SLICES", "-1", gcp + "MAX_ADDRESSES", "1e5", gcp + "MAX_SETS", "none", "SEMAPHORE_REMOVAL_GRACE", "later",
			}, nil,
			[]string{
				gcp + `MAX_SERVICES: "0" is not a number from 1 to 10000000`,
				gcp + `MAX_SLICES: "-1" is not a number from 1 to 10000000`,
				gcp + `MAX_ADDRESSES: "1e5" is not a number from 1 to 10000000`,
				gcp + `MAX_SETS: "none" is not a number from 1 to 10000000`,
				`SEMAPHORE_REMOVAL_GRACE: "later" is not a duration such as 30s, 10m or 1h, or 0`,
			},
		},
		"departed remotes that are no names": {
			mirrorError, []string{"SEMAPHORE_DEPARTED_REMOTES", "gcp,,No_Name"}, nil,
			[]string{
				`SEMAPHORE_DEPARTED_REMOTES: "" is not a valid cluster name: `,
				`SEMAPHORE_DEPARTED_REMOTES: "No_Name" is not a valid cluster name: `,
			},
		},
		"pod subnets missing": {
			wireguardError, []string{gcp + "POD_SUBNETS", "-"}, nil,
			[]string{gcp + "POD_SUBNETS: required: the pod subnets of gcp, such as 10.4.0.0/16"},
		},
		"pod subnet without a length": {
			wireguardError, []string{gcp + "POD_SUBNETS", "10.4.0.0"}, nil,
			[]string{gcp + `POD_SUBNETS: "10.4.0.0" is not a subnet such as 10.4.0.0/16 or fd00:4::/48`},
		},
		"pod subnets that would take the host's traffic along": {
			wireguardError, []string{gcp + "POD_SUBNETS", "0.0.0.0/0,::/0,127.1.0.0/16,169.254.0.0/16,224.0.0.0/4,fe80::/64,ff00::/8,::1/128,::ffff:10.0.0.0/112,0.0.0.0/4"}, nil,
			[]string{
				gcp + "POD_SUBNETS: 0.0.0.0/0 can't be a subnet of pods: it is the default route",
				gcp + "POD_SUBNETS: ::/0 can't be a subnet of pods: it is the default route",
				gcp + "POD_SUBNETS: 127.1.0.0/16 can't be a subnet of pods: it overlaps the loopback",
				gcp + "POD_SUBNETS: 169.254.0.0/16 can't be a subnet of pods: it overlaps link-local addresses",
				gcp + "POD_SUBNETS: 224.0.0.0/4 can't be a subnet of pods: it overlaps multicast and reserved addresses",
				gcp + "POD_SUBNETS: fe80::/64 can't be a subnet of pods: it overlaps link-local addresses",
				gcp + "POD_SUBNETS: ff00::/8 can't be a subnet of pods: it overlaps multicast",
				gcp + "POD_SUBNETS: ::1/128 can't be a subnet of pods: it overlaps the unspecified address and the loopback",
				gcp + "POD_SUBNETS: ::ffff:10.0.0.0/112 can't be a subnet of pods: it is an IPv4 subnet written as IPv6",
				gcp + "POD_SUBNETS: 0.0.0.0/4 can't be a subnet of pods: it overlaps the unspecified addresses",
			},
		},
		"pod subnets of two remotes overlap": {
			wireguardError, []string{onPrem + "POD_SUBNETS", "10.4.128.0/17"}, nil,
			[]string{onPrem + "POD_SUBNETS: 10.4.128.0/17 overlaps 10.4.0.0/16 of gcp (" + gcp + "POD_SUBNETS)"},
		},
		"pod subnets of one remote overlap": {
			wireguardError, []string{gcp + "POD_SUBNETS", "10.4.0.0/16,10.4.3.0/24"}, nil,
			[]string{gcp + "POD_SUBNETS: 10.4.3.0/24 overlaps 10.4.0.0/16 of the same list"},
		},
		"node subnets, local subnets and metrics of peers": {
			wireguardError, []string{
				gcp + "NODE_SUBNETS", "10.66.0.0,0.0.0.0/0,10.66.0.0/16", onPrem + "NODE_SUBNETS", "fe80::/64",
				"SEMAPHORE_LOCAL_SUBNETS", "x,::/0", "SEMAPHORE_WG_PEER_METRICS", "-1",
			}, nil,
			[]string{
				gcp + `NODE_SUBNETS: "10.66.0.0" is not a subnet such as 10.4.0.0/16 or fd00:4::/48`,
				gcp + "NODE_SUBNETS: 0.0.0.0/0 can't be a subnet of nodes: it is the default route",
				onPrem + "NODE_SUBNETS: fe80::/64 can't be a subnet of nodes: it overlaps link-local addresses",
				`SEMAPHORE_WG_PEER_METRICS: "-1" is not a number from 0 to 1000000`,
				`SEMAPHORE_LOCAL_SUBNETS: "x" is not a subnet`,
				"SEMAPHORE_LOCAL_SUBNETS: ::/0 can't be a subnet of a cluster: it is the default route",
			},
		},
		"listen port that is another's default": {
			wireguardError, []string{gcp + "WG_LISTEN_PORT", "51821"}, nil,
			[]string{onPrem + "WG_LISTEN_PORT: port 51821 of on-prem is also that of gcp (" + gcp + "WG_LISTEN_PORT)"},
		},
		"listen port out of range": {
			wireguardError, []string{gcp + "WG_LISTEN_PORT", "65536"}, nil,
			[]string{gcp + `WG_LISTEN_PORT: "65536" is not a number from 1 to 65535`},
		},
		"MTU out of range": {
			wireguardError, []string{onPrem + "WG_MTU", "500"}, nil,
			[]string{onPrem + `WG_MTU: "500" is not a number from 576 to 65455`},
		},
		"MTU too small for IPv6": {
			wireguardError, []string{gcp + "WG_MTU", "1279"}, nil,
			[]string{gcp + "WG_MTU: 1279 is less than 1280, which IPv6 needs for fd00:4::/48"},
		},
		"numbers in other forms": {
			wireguardError, []string{gcp + "WG_LISTEN_PORT", "010", onPrem + "WG_LISTEN_PORT", "0x1000", gcp + "WG_MTU", "0", "SEMAPHORE_WG_PEER_METRICS", "1e3"}, nil,
			[]string{
				gcp + `WG_LISTEN_PORT: "010" is not a number from 1 to 65535`,
				onPrem + `WG_LISTEN_PORT: "0x1000" is not a number from 1 to 65535`,
				gcp + `WG_MTU: "0" is not a number from 576 to 65455`,
				`SEMAPHORE_WG_PEER_METRICS: "1e3" is not a number from 0 to 1000000`,
			},
		},
		"durations": {
			wireguardError, []string{gcp + "RESYNC_PERIOD", "10", gcp + "STALE_AFTER", "-1s"}, nil,
			[]string{
				gcp + `RESYNC_PERIOD: "10" is not a duration such as 30s, 10m or 1h, or 0`,
				gcp + `STALE_AFTER: "-1s" is not a duration such as 30s, 10m or 1h, or 0`,
			},
		},
		"no access to a remote": {
			wireguardError, []string{gcp + "KUBECONFIG", "-"}, nil,
			[]string{gcp + "KUBECONFIG: required: a kubeconfig for gcp; alternatively set " + gcp + "API_URL, " + gcp + "CA_URL or " + gcp + "CA_FILE, and " + gcp + "TOKEN_FILE"},
		},
		"two ways to a remote": {
			wireguardError, []string{onPrem + "KUBECONFIG", "/k"}, nil,
			[]string{onPrem + "KUBECONFIG: set together with " + onPrem + "API_URL; access to on-prem needs only one of them"},
		},
		"half a way to a remote": {
			wireguardError, []string{onPrem + "API_URL", "-", onPrem + "CA_URL", "-", onPrem + "CA_SHA256", "-"}, nil,
			[]string{
				onPrem + "API_URL: required with " + onPrem + "TOKEN_FILE: the https URL of the API server",
				onPrem + "CA_URL: required, or " + onPrem + "CA_FILE: the CA certificates of the API server",
			},
		},
		"token missing": {
			wireguardError, []string{onPrem + "TOKEN_FILE", "-"}, nil,
			[]string{onPrem + "TOKEN_FILE: required with " + onPrem + "API_URL: the path of a token"},
		},
		"two certificate authorities": {
			wireguardError, []string{onPrem + "CA_FILE", "/ca"}, nil,
			[]string{onPrem + "CA_URL: set together with " + onPrem + "CA_FILE; use one of them"},
		},
		"addresses without TLS or with a password, which isn't repeated": {
			wireguardError, []string{onPrem + "API_URL", "http://secret@api", onPrem + "CA_URL", "https://user:secret@ca"}, nil,
			[]string{
				onPrem + "API_URL: not a URL that begins with https:// and a host",
				onPrem + "CA_URL: user and password are not supported in the URL",
			},
		},
		"settings of the program itself": {
			wireguardError, []string{
				"SEMAPHORE_NODE_NAME", "Node!", "SEMAPHORE_WG_BACKEND", "fast", "SEMAPHORE_WG_KEY_PATH", "keys", "SEMAPHORE_WG_ROUTE_SRC", "127.0.0.1", "SEMAPHORE_WG_ENDPOINT", "gateway.example.com",
				"SEMAPHORE_LOG_LEVEL", "loud", "SEMAPHORE_LOG_FORMAT", "xml", "SEMAPHORE_LISTEN_ADDRESS", "8080",
			}, nil,
			[]string{
				`SEMAPHORE_LISTEN_ADDRESS: "8080" is not an address and port such as :8080 or 127.0.0.1:8080`,
				`SEMAPHORE_LOG_LEVEL: "loud" is not one of debug, info, warn, error`,
				`SEMAPHORE_LOG_FORMAT: "xml" is not one of json, text`,
				`SEMAPHORE_NODE_NAME: "Node!": a lowercase RFC 1123 subdomain must consist of`,
				`SEMAPHORE_WG_BACKEND: "fast" is not one of auto, kernel, userspace`,
				`SEMAPHORE_WG_KEY_PATH: "keys" is not an absolute path`,
				`SEMAPHORE_WG_ENDPOINT: "gateway.example.com": expected InternalIP, ExternalIP, none, an address, or an address and a port like 192.0.2.1:51820`,
				`SEMAPHORE_WG_ROUTE_SRC: "127.0.0.1" is neither auto, nor none, nor an address of this node`,
			},
		},
		"who may read what is served where": {
			wireguardError, []string{"SEMAPHORE_HOST_IP", "node-1", "SEMAPHORE_LISTEN_AUTH", "basic", "SEMAPHORE_PROBE_ADDRESS", "7774"}, nil,
			[]string{
				`SEMAPHORE_HOST_IP: "node-1" is not an IP address of this node`,
				`SEMAPHORE_LISTEN_AUTH: "basic" is not one of none, token`,
				`SEMAPHORE_PROBE_ADDRESS: "7774" is not an address and port such as :8080 or 127.0.0.1:8080`,
			},
		},
		"probes on the port of metrics and status": {
			wireguardError, []string{"SEMAPHORE_LISTEN_ADDRESS", ":7774"}, nil,
			[]string{`SEMAPHORE_PROBE_ADDRESS: "127.0.0.1:7774" and SEMAPHORE_LISTEN_ADDRESS ":7774" are the same port of the same address`},
		},
		"a flag is named as such": {
			wireguardError, nil, []string{"-log-level=loud", "stray"},
			[]string{"stray: unexpected argument: only flags are allowed", `-log-level: "loud" is not one of debug, info, warn, error`},
		},
		"unknown flag": {
			wireguardError, nil, []string{"-lgo-level=info"},
			[]string{"flag provided but not defined: -lgo-level (semaphore-wireguard -help lists the settings)"},
		},
		"mirror: prefixes": {
			mirrorError, []string{gcp + "SERVICE_PREFIX", "on-prem", "SEMAPHORE_REMOTES", "gcp,on-prem,merit", "SEMAPHORE_REMOTE_MERIT_KUBECONFIG", "/m", "SEMAPHORE_REMOTE_MERIT_SERVICE_PREFIX", "gl"}, nil,
			[]string{
				`SEMAPHORE_REMOTE_MERIT_SERVICE_PREFIX: "gl" can't begin the names of services: those of global services do`,
				onPrem + `SERVICE_PREFIX: prefix "on-prem" of on-prem is also that of gcp (` + gcp + "SERVICE_PREFIX)",
			},
		},
		"mirror: a prefix that can't start a Service's name": {
			mirrorError, []string{gcp + "SERVICE_PREFIX", "1g"}, nil,
			[]string{gcp + `SERVICE_PREFIX: "1g" can't begin the names of services: `},
		},
		"mirror: selectors": {
			mirrorError, []string{"SEMAPHORE_MIRROR_SELECTOR", "a in", "SEMAPHORE_LEADER_ELECTION", "maybe", "SEMAPHORE_REMOVAL_GRACE", "-1m"}, nil,
			[]string{
				`SEMAPHORE_LEADER_ELECTION: "maybe" is neither true nor false`,
				`SEMAPHORE_MIRROR_SELECTOR: "a in" is not a label selector: `,
				`SEMAPHORE_REMOVAL_GRACE: "-1m" is not a duration`,
			},
		},
		"mirror: all parts off": {
			mirrorError, []string{"SEMAPHORE_MIRROR_SELECTOR", "", "SEMAPHORE_GLOBAL_SELECTOR", "", "SEMAPHORE_MCS", "off"}, nil,
			[]string{"SEMAPHORE_MIRROR_SELECTOR: empty, as is SEMAPHORE_GLOBAL_SELECTOR: nothing is left to do"},
		},
		"policy: its own settings": {
			policyError, []string{"SEMAPHORE_POLICY_LABEL_DOMAIN", "a/b", "SEMAPHORE_POLICY_MANAGED_BY", "a b", "SEMAPHORE_POLICY_CALICO_API", "v2", "SEMAPHORE_POLICY_FULL_RESYNC_PERIOD", "often"}, nil,
			[]string{
				`SEMAPHORE_POLICY_LABEL_DOMAIN: "a/b": a lowercase RFC 1123 subdomain must consist of`,
				`SEMAPHORE_POLICY_MANAGED_BY: "a b": a valid label must be`,
				`SEMAPHORE_POLICY_CALICO_API: "v2" is not one of auto, v3, v1`,
				`SEMAPHORE_POLICY_FULL_RESYNC_PERIOD: "often" is not a duration`,
			},
		},
		"policy: the flags for one remote beside a list": {
			policyError, nil, []string{"-target-cluster-name=gcp", "-target-kube-config=/k"},
			[]string{"SEMAPHORE_REMOTES: set together with -target-cluster-name, which defines the only remote"},
		},
		"policy: the flags for one remote without its name": {
			policyError, []string{"SEMAPHORE_REMOTES", "-"}, []string{"-target-kube-config=/k"},
			[]string{"-target-cluster-name: required with -target-kube-config: the name of the remote cluster"},
		},
		"policy: two ways to the only remote": {
			policyError, []string{"SEMAPHORE_REMOTES", "-"}, []string{"-target-cluster-name=merit", "-target-kube-config=/k", "-remote-api-url=https://a"},
			[]string{"-target-kube-config: set together with -remote-api-url; access to merit needs only one of them"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			setenv(t, env(tt.change...))
			err := tt.load(tt.args...)
			if err == nil {
				t.Fatal("no error")
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("error repeats a secret: %v", err)
			}
			got := lines(err)
			var missing []string
			for _, want := range tt.want {
				if !slices.ContainsFunc(got, func(line string) bool { return strings.HasPrefix(line, want) }) {
					missing = append(missing, want)
				}
			}
			// There are no other errors, except about a remote with an invalid name.
			if len(missing) > 0 || len(got) != len(tt.want) && !strings.Contains(name, "without settings") {
				t.Errorf("missing %q\ngot:\n%s", missing, strings.Join(got, "\n"))
			}
		})
	}
}

func TestFaultsOfAllPartsComeTogether(t *testing.T) {
	setenv(t, map[string]string{"SEMAPHORE_REMOTES": "gcp"})
	var got []string
	for _, line := range lines(wireguardError("-log-level=x")) {
		name, _, _ := strings.Cut(line, ":")
		got = append(got, name)
	}
	want := []string{
		"SEMAPHORE_CLUSTER_NAME", "SEMAPHORE_REMOTE_GCP_KUBECONFIG", "SEMAPHORE_REMOTE_GCP_POD_SUBNETS", "-log-level", "SEMAPHORE_NODE_NAME",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("settings complained about (-want +got):\n%s", diff)
	}
}

// Of a mirror or policy, ports may coincide and subnets be absent.
func TestOnlyWireguardNeedsSubnetsAndPorts(t *testing.T) {
	setenv(t, env("SEMAPHORE_REMOTE_GCP_POD_SUBNETS", "-", "SEMAPHORE_REMOTE_GCP_WG_LISTEN_PORT", "51821"))
	if err := mirrorError(); err != nil {
		t.Errorf("mirror: %v", err)
	}
	if err := policyError(); err != nil {
		t.Errorf("policy: %v", err)
	}
}
