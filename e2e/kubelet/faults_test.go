package kubelet_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/kubelet/meter"
	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
)

// faults returns the faults of TestDoctorScore. They are what can go wrong around the product
// on real clusters; none was chosen by looking at doctor's rules.
func (p *patients) faults() []fault {
	var faults []fault
	for _, of := range []func() []fault{
		p.networkFaults, p.kernelFaults, p.proxyFaults, p.nameFaults, p.policyFaults,
		p.credentialFaults, p.clusterFaults, p.programFaults, p.serviceFaults, p.settingFaults, p.nodeFaults,
	} {
		faults = append(faults, of()...)
	}
	return faults
}

// networkFaults are faults between nodes.
func (p *patients) networkFaults() []fault {
	const kind = "network"
	aws1, gcp1, tb := p.nodes[0], p.nodes[1], p.testbed
	return []fault{
		{
			kind: kind, name: "packets between two nodes are dropped", named: "udp-blocked.*(aws-1.*gcp-1|gcp-1.*aws-1)",
			inject: func(t *testing.T) { must(t, tb.Drop(aws1, gcp1)) },
			remove: func(t *testing.T) { must(t, tb.Restore(aws1, gcp1)) },
		},
		{
			kind: kind, name: "packets are dropped in one direction", named: "udp-one-way.*(aws-1.*gcp-1|gcp-1.*aws-1)",
			inject: func(t *testing.T) { must(t, tb.DropOneWay(gcp1, aws1)) },
			remove: func(t *testing.T) { must(t, tb.RestoreOneWay(gcp1, aws1)) },
		},
		{
			kind: kind, name: "large packets are dropped", named: "mtu.*(aws-1.*gcp-1|gcp-1.*aws-1)",
			inject: func(t *testing.T) { must(t, tb.DropLarge(aws1, gcp1)) },
			remove: func(t *testing.T) { must(t, tb.RestoreLarge(aws1, gcp1)) },
		},
		{
			kind: kind, name: "a node's firewall drops incoming WireGuard packets", named: "udp.*gcp-1",
			inject: onNode(gcp1, "nft 'table inet fault { chain in { type filter hook input priority -10; meta l4proto udp udp dport 50000-60000 drop; }; }'"),
			remove: onNode(gcp1, "nft delete table inet fault"),
		},
		{
			kind: kind, name: "a node lost all its links", named: "aws-2",
			delay:  20 * time.Second,
			inject: func(t *testing.T) { p.isolate(t, true) },
			remove: func(t *testing.T) { p.isolate(t, false) },
		},
	}
}

// isolate drops all packets that aws-2 receives and sends on the underlay.
func (p *patients) isolate(t *testing.T, on bool) {
	t.Helper()
	line := "nft delete table inet alone"
	if on {
		line = "nft 'table inet alone { chain i { type filter hook input priority -200; iifname eth0 drop; }; chain f { type filter hook forward priority -200; iifname eth0 drop; oifname eth0 drop; }; chain o { type filter hook output priority -200; oifname eth0 drop; }; }'"
	}
	onNode(p.second, line)(t)
}

// kernelFaults are settings of a node's kernel that other programs change.
func (p *patients) kernelFaults() []fault {
	const kind = "kernel"
	aws1, gcp1 := p.nodes[0], p.nodes[1]
	return []fault{
		{
			kind: kind, name: "a node doesn't forward", named: "forward.*gcp-1|gcp-1.*forward",
			inject: onNode(gcp1, "sysctl -qw net.ipv4.ip_forward=0"),
			remove: onNode(gcp1, "sysctl -qw net.ipv4.ip_forward=1"),
		},
		{
			kind: kind, name: "a node doesn't forward IPv6", named: "forward.*aws-1|aws-1.*forward",
			inject: onNode(aws1, "sysctl -qw net.ipv6.conf.all.forwarding=0"),
			remove: onNode(aws1, "sysctl -qw net.ipv6.conf.all.forwarding=1"),
		},
		{
			kind: kind, name: "the bridge of a node's pods doesn't forward", named: "forward.*aws-1|aws-1.*forward",
			inject: onNode(aws1, "for f in /proc/sys/net/ipv4/conf/*/forwarding; do case $f in */lo/*|*/all/*|*/default/*|*/eth0/*|*/wireguard.*) ;; *) echo 0 >$f;; esac; done"),
			remove: onNode(aws1, "for f in /proc/sys/net/ipv4/conf/*/forwarding; do echo 1 >$f; done"),
		},
		{
			kind: kind, name: "a FORWARD chain drops packets to the tunnel", named: "(pods-dropped|forward).*aws-1",
			inject: onNode(aws1, "nft 'table inet fault { chain f { type filter hook forward priority 0; oifname \"wireguard.*\" drop; }; }'"),
			remove: onNode(aws1, "nft delete table inet fault"),
		},
		{
			kind: kind, name: "a node masquerades pods' packets", named: "masquerade.*aws-1",
			inject: onNode(aws1, "nft 'table ip fault { chain p { type nat hook postrouting priority 90; oifname \"wireguard.*\" masquerade; }; }'"),
			remove: onNode(aws1, "nft delete table ip fault"),
		},
		{
			kind: kind, name: "a foreign rule sends pods' packets elsewhere", named: "foreign.*aws-1|rule.*aws-1",
			inject: onNode(aws1, "ip route add default via "+gcp1.Addresses()[0].String()+" table 11; ip rule add from "+aws1.PodCIDRs[0].String()+" lookup 11 pref 100"),
			remove: onNode(aws1, "ip rule del pref 100; ip route flush table 11"),
		},
		{
			kind: kind, name: "strict reverse path filter on the tunnel, with asymmetric routes", named: "rp_filter|reverse path|pods-dropped.*gcp-1|filter",
			inject: onNode(gcp1, "nft 'table ip fault { chain p { type filter hook prerouting priority -150; iifname \"wireguard.*\" fib saddr . iif oif missing drop; }; chain q { type filter hook prerouting priority -160; iifname \"wireguard.*\" ip daddr "+gcp1.PodCIDRs[0].String()+" drop; }; }'"),
			remove: onNode(gcp1, "nft delete table ip fault"),
		},
	}
}

// proxyFaults are faults of kube-proxy.
func (p *patients) proxyFaults() []fault {
	const kind = "kube-proxy"
	aws1, gcp1 := p.nodes[0], p.nodes[1]
	return []fault{
		{
			kind: kind, name: "kube-proxy has stopped and its rules are gone", named: "kube-proxy.*aws-2|aws-2.*(kube-proxy|ClusterIP)|service.*aws-2",
			inject: onNode(p.second, "pkill -STOP -x kube-proxy; nft delete table ip kube-proxy; nft delete table ip6 kube-proxy"),
			remove: onNode(p.second, "pkill -CONT -x kube-proxy; for f in '' 6; do nft add table ip$f kube-proxy; nft delete table ip$f kube-proxy; done"),
		},
		{
			kind: kind, name: "kube-proxy has stopped before endpoints changed", named: "kube-proxy.*aws-1|aws-1.*(kube-proxy|ClusterIP)|service.*aws-1",
			inject: all(onNode(aws1, "pkill -STOP -x kube-proxy"), p.moveMeter(1)),
			remove: onNode(aws1, "pkill -CONT -x kube-proxy"),
		},
		{
			kind: kind, name: "the rules of ClusterIPs are gone on gcp's node", named: "kube-proxy.*gcp-1|gcp-1.*(kube-proxy|ClusterIP)|service.*gcp-1",
			inject: onNode(gcp1, "pkill -STOP -x kube-proxy; nft flush table ip kube-proxy"),
			remove: onNode(gcp1, "pkill -CONT -x kube-proxy; nft delete table ip kube-proxy"),
		},
	}
}

// moveMeter replaces the pod of a cluster's meter, which gets another address.
func (p *patients) moveMeter(cluster int) func(t *testing.T) {
	return func(t *testing.T) {
		t.Helper()
		old := p.meters[cluster].Status.PodIP
		p.kubectl(t, cluster, "delete", "pod", "meter", "--grace-period=0", "--force")
		var err error
		p.meters[cluster], err = startMeter(t.Context(), p.clusters[cluster])
		must(t, err)
		p.kubectl(t, cluster, "label", "pod", "meter", "app=meter")
		if p.meters[cluster].Status.PodIP == old {
			t.Fatal("the pod has its address again")
		}
	}
}

// nameFaults are faults of DNS.
func (p *patients) nameFaults() []fault {
	const kind = "names"
	var corefile string
	return []fault{
		{
			kind: kind, name: "CoreDNS doesn't run", named: "(coredns|dns|name).*aws",
			inject: p.kubectlIn(0, "-n kube-system scale deployment coredns --replicas=0"),
			remove: p.kubectlIn(0, "-n kube-system scale deployment coredns --replicas=1", "-n kube-system rollout status deployment coredns --timeout=120s"),
		},
		{
			kind: kind, name: "the Corefile was replaced by another tool", named: "(coredns|dns|zone|block).*aws",
			inject: func(t *testing.T) {
				corefile = p.kubectl(t, 0, "-n", "kube-system", "get", "configmap", "coredns", "-o", "jsonpath={.data.Corefile}")
				p.corefile(t, ".:53 {\n    errors\n    kubernetes cluster.local in-addr.arpa ip6.arpa\n    cache 5\n}\n")
			},
			remove: func(t *testing.T) { p.corefile(t, corefile) },
		},
		{
			kind: kind, name: "the Service of CoreDNS selects nothing", named: "(coredns|dns|name).*aws",
			inject: p.kubectlIn(0, `-n kube-system patch service kube-dns --type merge -p {"spec":{"selector":{"k8s-app":"dns"}}}`),
			remove: p.kubectlIn(0, `-n kube-system patch service kube-dns --type merge -p {"spec":{"selector":{"k8s-app":"kube-dns"}}}`),
		},
		{
			kind: kind, name: "CoreDNS may not read Services any more", named: "(coredns|dns|name).*gcp",
			inject: p.kubectlIn(1, "delete clusterrolebinding system:coredns", "-n kube-system rollout restart deployment coredns"),
			remove: p.kubectlIn(1, "create clusterrolebinding system:coredns --clusterrole=system:coredns --serviceaccount=kube-system:coredns",
				"-n kube-system rollout restart deployment coredns", "-n kube-system rollout status deployment coredns --timeout=120s"),
		},
	}
}

// corefile replaces the configuration of CoreDNS of aws, and restarts it.
func (p *patients) corefile(t *testing.T, text string) {
	t.Helper()
	patch := fmt.Sprintf(`{"data":{"Corefile":%q}}`, text)
	p.kubectl(t, 0, "-n", "kube-system", "patch", "configmap", "coredns", "--type", "merge", "-p", patch)
	p.kubectl(t, 0, "-n", "kube-system", "rollout", "restart", "deployment", "coredns")
	p.kubectl(t, 0, "-n", "kube-system", "rollout", "status", "deployment", "coredns", "--timeout=120s")
}

// policyFaults are rules that deny: of networks, of admission, of quotas.
func (p *patients) policyFaults() []fault {
	const kind = "policy"
	aws1, gcp1 := p.nodes[0], p.nodes[1]
	http := fmt.Sprint(meter.HTTPPort)
	deny, allow := p.manifest(0, `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: fault}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules: [{apiGroups: ["", discovery.k8s.io], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [services, endpointslices]}]
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: sys-semaphore}}
  validations: [{expression: "false", message: "services of this namespace are frozen"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: fault}
spec: {policyName: fault, validationActions: [Deny]}
`)
	denyProbes, allowProbes := p.manifest(1, `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: fault-pods}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}
  validations: [{expression: "false", message: "no pods here"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: fault-pods}
spec: {policyName: fault-pods, validationActions: [Deny]}
`)
	return []fault{
		{
			kind: kind, name: "requests from other clusters to a service's pod are denied", named: "meter",
			inject: onNode(gcp1, "nft 'table inet fault { chain f { type filter hook forward priority 0; iifname \"wireguard.*\" tcp dport "+http+" drop; }; }'"),
			remove: onNode(gcp1, "nft delete table inet fault"),
		},
		{
			kind: kind, name: "pods of a node may not ask CoreDNS", named: "(dns|name).*aws-1|aws-1.*(dns|name)",
			inject: onNode(aws1, "nft 'table inet fault { chain f { type filter hook forward priority 0; udp dport 53 drop; tcp dport 53 drop; }; chain o { type filter hook input priority 0; iifname != lo udp dport 53 drop; }; }'"),
			remove: onNode(aws1, "nft delete table inet fault"),
		},
		{
			kind: kind, name: "an admission policy refuses changes of mirrored services", named: "(service|mirror).*(frozen|refus|den|admission)|frozen",
			inject: all(deny, p.frozen, p.relabel(1, "fault-policy")),
			remove: all(p.unlabel(1, "fault-policy"), allow),
		},
		{
			kind: kind, name: "a quota leaves no room for mirrored services", named: "quota|(service|mirror).*(exceeded|refus)",
			inject: all(p.kubectlIn(0, "-n sys-semaphore create quota fault --hard=count/services=1"), p.relabel(1, "fault-quota")),
			remove: all(p.unlabel(1, "fault-quota"), p.kubectlIn(0, "-n sys-semaphore delete quota fault")),
		},
		{
			kind: kind, name: "doctor's own pods aren't admitted", named: "pod",
			inject: denyProbes, remove: allowProbes,
		},
	}
}

// frozen waits until aws refuses Services in our namespace: a policy takes effect a moment after
// it is created.
func (p *patients) frozen(t *testing.T) {
	t.Helper()
	must(t, testbed.Wait(within(t, time.Minute), "the policy to take effect", func(ctx context.Context) error {
		_, err := p.clusters[0].Kubectl(ctx, "-n", programs.Namespace, "create", "service", "clusterip", "trial", "--tcp=80", "--dry-run=server")
		if err == nil {
			return errors.New("a Service is admitted")
		}
		return nil
	}))
}

// relabel creates a further service of a cluster's meter that other clusters mirror.
func (p *patients) relabel(cluster int, name string) func(t *testing.T) {
	return p.kubectlIn(cluster, "create service clusterip "+name+" --tcp=80:"+fmt.Sprint(meter.HTTPPort),
		`patch service `+name+` --type merge -p {"spec":{"selector":{"app":"meter"}}}`,
		"label service "+name+" mirror.semaphore.uw.io/mirror-service=true")
}

func (p *patients) unlabel(cluster int, name string) func(t *testing.T) {
	return p.kubectlIn(cluster, "delete service "+name)
}

// credentialFaults are faults of the accounts that clusters have for each other.
func (p *patients) credentialFaults() []fault {
	const kind, ns = "credentials", programs.Namespace
	var backup map[string]string
	const remoteBindings = "semaphore-wireguard-remote-aws semaphore-service-mirror-remote-aws semaphore-policy-remote-aws"
	var bindings string
	return []fault{
		{
			kind: kind, name: "tokens were replaced by wrong ones, watches stay open", named: "token|credential",
			delay:  90 * time.Second, // Kubelets update files of Secrets once a minute.
			inject: func(t *testing.T) { backup = p.secrets(t, 0, ".token", "bm9uc2Vuc2U=") },
			remove: func(t *testing.T) { p.restore(t, 0, backup) },
		},
		{
			kind: kind, name: "the accounts of a neighbour lost their rights", named: "rights.*(aws|gcp)",
			inject: func(t *testing.T) {
				bindings = p.kubectl(t, 1, append([]string{"get", "clusterrolebinding", "-o", "json"}, strings.Fields(remoteBindings)...)...)
				p.kubectl(t, 1, append([]string{"delete", "clusterrolebinding"}, strings.Fields(remoteBindings)...)...)
			},
			remove: func(t *testing.T) {
				inject, _ := p.manifest(1, withoutVersion(t, bindings))
				inject(t)
			},
		},
		{
			kind: kind, name: "the CA that a cluster has of the other one is wrong", named: "CA|certificate",
			delay: 90 * time.Second,
			inject: func(t *testing.T) {
				ca, err := os.ReadFile(p.clusters[0].CAFile())
				must(t, err)
				backup = p.secrets(t, 0, ".ca.crt", base64.StdEncoding.EncodeToString(ca))
			},
			remove: func(t *testing.T) { p.restore(t, 0, backup) },
		},
		{
			kind: kind, name: "the Secrets with tokens were deleted", named: "token|credential|secret",
			delay: 20 * time.Second,
			inject: func(t *testing.T) {
				backup = p.secrets(t, 0, ".token", "")
				for name := range backup {
					p.kubectl(t, 0, "-n", ns, "delete", "secret", name)
				}
			},
			remove: func(t *testing.T) { p.restore(t, 0, backup) },
		},
	}
}

// secrets replaces the values of keys with a suffix in the Secrets of a cluster, unless value
// is empty, and returns these Secrets as they were.
func (p *patients) secrets(t *testing.T, cluster int, suffix, value string) (before map[string]string) {
	t.Helper()
	before = map[string]string{}
	names := p.kubectl(t, cluster, "-n", programs.Namespace, "get", "secrets", "-o", "jsonpath={.items[*].metadata.name}")
	for _, name := range strings.Fields(names) {
		text := p.kubectl(t, cluster, "-n", programs.Namespace, "get", "secret", name, "-o", "json")
		var s struct {
			Type string
			Data map[string]string
		}
		decode(t, text, &s)
		for key := range s.Data {
			if !strings.HasSuffix(key, suffix) || s.Type == "kubernetes.io/service-account-token" {
				continue
			}
			before[name] = text
			if value != "" {
				p.kubectl(t, cluster, "-n", programs.Namespace, "patch", "secret", name, "--type", "merge", "-p", fmt.Sprintf(`{"data":{%q:%q}}`, key, value))
			}
		}
	}
	if len(before) == 0 {
		t.Fatalf("no Secret has a key with %s", suffix)
	}
	return before
}

// restore restores Secrets.
func (p *patients) restore(t *testing.T, cluster int, before map[string]string) {
	t.Helper()
	for name, text := range before {
		var s struct{ Data map[string]string }
		decode(t, text, &s)
		if _, err := p.clusters[cluster].Kubectl(t.Context(), "-n", programs.Namespace, "get", "secret", name); err != nil {
			inject, _ := p.manifest(cluster, withoutVersion(t, text))
			inject(t)
			continue
		}
		for key, value := range s.Data {
			p.kubectl(t, cluster, "-n", programs.Namespace, "patch", "secret", name, "--type", "merge", "-p", fmt.Sprintf(`{"data":{%q:%q}}`, key, value))
		}
	}
}

// clusterFaults are faults of a cluster as a whole.
func (p *patients) clusterFaults() []fault {
	const kind = "cluster"
	gcp, gcp1 := p.clusters[1], p.nodes[1]
	hidden := "nft 'table inet fault { chain o { type filter hook output priority 0; ip daddr " + apiAddress(gcp.APIURL()) + " tcp dport 6443 drop; }; }'"
	return []fault{
		{
			kind: kind, name: "an API server doesn't run", named: "api-away.*gcp|gcp.*api",
			delay:  15 * time.Second,
			inject: func(*testing.T) { gcp.StopAPI() },
			remove: func(t *testing.T) { must(t, gcp.StartAPI(within(t, 3*time.Minute))) },
		},
		{
			kind: kind, name: "a cluster is gone, after 25 s", named: "gcp",
			delay: 25 * time.Second,
			inject: func(t *testing.T) {
				gcp.StopAPI()
				must(t, p.testbed.Drop(p.nodes[0], gcp1))
				must(t, p.testbed.Drop(p.second, gcp1))
			},
			remove: func(t *testing.T) {
				must(t, p.testbed.Restore(p.nodes[0], gcp1))
				must(t, p.testbed.Restore(p.second, gcp1))
				must(t, gcp.StartAPI(within(t, 3*time.Minute)))
			},
		},
		{
			kind: kind, name: "an API server hangs", named: "api-away.*gcp|gcp.*api",
			delay:  40 * time.Second,
			inject: func(t *testing.T) { must(t, gcp.PauseAPI()) },
			remove: func(t *testing.T) { must(t, gcp.ResumeAPI()) },
		},
		{
			kind: kind, name: "a firewall hides the other API server from one node", named: "api.*(aws|gcp)",
			delay:  60 * time.Second,
			inject: onNode(p.nodes[0], hidden),
			remove: onNode(p.nodes[0], "nft delete table inet fault"),
		},
	}
}

// programFaults are faults of our programs.
func (p *patients) programFaults() []fault {
	const kind = "programs"
	const mirror, policy, agent = "deployment/" + programs.ServiceMirror, "deployment/" + programs.Policy, "daemonset/" + programs.WireGuard
	ns := "-n " + programs.Namespace + " "
	rollout := func(workload string) string { return ns + "rollout status --timeout=150s " + workload }
	var binding string
	return []fault{
		{
			kind: kind, name: "the mirror doesn't run", named: "mirror.*aws|aws.*mirror",
			inject: p.kubectlIn(0, ns+"scale "+mirror+" --replicas=0"),
			remove: p.kubectlIn(0, ns+"scale "+mirror+" --replicas=2", rollout(mirror)),
		},
		{
			kind: kind, name: "the policy controller doesn't run", named: "policy.*gcp|gcp.*policy",
			inject: p.kubectlIn(1, ns+"scale "+policy+" --replicas=0"),
			remove: p.kubectlIn(1, ns+"scale "+policy+" --replicas=2", rollout(policy)),
		},
		{
			kind: kind, name: "no agent on a node", named: "agent.*aws-2",
			inject: p.kubectlIn(0, "label node aws-2 fault=true", ns+`patch `+agent+` --type merge -p {"spec":{"template":{"spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"fault","operator":"DoesNotExist"}]}]}}}}}}}`, rollout(agent)),
			remove: p.kubectlIn(0, "label node aws-2 fault-", ns+`patch `+agent+` --type json -p [{"op":"remove","path":"/spec/template/spec/affinity"}]`, rollout(agent)),
		},
		{
			kind: kind, name: "an image doesn't exist", named: "(mirror|image|pull).*aws|aws.*(mirror|image)",
			delay:  20 * time.Second,
			inject: p.kubectlIn(0, ns+"set image "+mirror+" controller=docker.io/library/kube-semaphore:none"),
			remove: p.kubectlIn(0, ns+"rollout undo "+mirror, rollout(mirror)),
		},
		{
			kind: kind, name: "agents refuse their configuration", named: "crash|configuration|agent.*aws",
			delay:  30 * time.Second,
			inject: p.setting("daemonset", programs.WireGuard, "SEMAPHORE_REMOTE_GCP_WG_LISTEN_PORT=none", false),
			remove: p.setting("daemonset", programs.WireGuard, "SEMAPHORE_REMOTE_GCP_WG_LISTEN_PORT-", true),
		},
		{
			kind: kind, name: "the mirror may not write any more", named: "(mirror|service|rights).*aws|aws.*(mirror|rights)",
			inject: all(func(t *testing.T) {
				binding = withoutVersion(t, p.kubectl(t, 0, "-n", programs.Namespace, "get", "rolebinding", "semaphore-service-mirror", "-o", "json"))
				p.kubectl(t, 0, "-n", programs.Namespace, "delete", "rolebinding", "semaphore-service-mirror")
			}, p.relabel(1, "fault-rights")),
			remove: all(p.unlabel(1, "fault-rights"), func(t *testing.T) {
				inject, _ := p.manifest(0, binding)
				inject(t)
			}),
		},
	}
}

// serviceFaults are faults of the services that clusters offer each other.
func (p *patients) serviceFaults() []fault {
	const kind = "services"
	const mirrored = "gcp-default-73736d-meter"
	return []fault{
		{
			kind: kind, name: "the origin has no pods", named: "meter.*(endpoint|ready)",
			inject: p.kubectlIn(1, "label pod meter app=other --overwrite"),
			remove: p.kubectlIn(1, "label pod meter app=meter --overwrite"),
		},
		{
			kind: kind, name: "nothing listens on the origin's port", named: "meter",
			inject: p.kubectlIn(1, `patch service meter --type json -p [{"op":"replace","path":"/spec/ports/0/targetPort","value":4}]`),
			remove: p.kubectlIn(1, `patch service meter --type json -p [{"op":"replace","path":"/spec/ports/0/targetPort","value":`+fmt.Sprint(meter.HTTPPort)+`}]`),
		},
		{
			kind: kind, name: "a mirror's name is taken by a foreign service", named: "meter|name",
			inject: all(
				p.kubectlIn(0, "-n sys-semaphore scale deployment semaphore-service-mirror --replicas=0", "-n sys-semaphore wait --for=delete pod -l app.kubernetes.io/name=semaphore-service-mirror --timeout=90s",
					"-n sys-semaphore delete service "+mirrored, "-n sys-semaphore create service clusterip "+mirrored+" --tcp=80:80",
					"-n sys-semaphore scale deployment semaphore-service-mirror --replicas=2", "-n sys-semaphore rollout status deployment semaphore-service-mirror --timeout=150s")),
			remove: p.kubectlIn(0, "-n sys-semaphore delete service "+mirrored, "-n sys-semaphore rollout restart deployment semaphore-service-mirror", "-n sys-semaphore rollout status deployment semaphore-service-mirror --timeout=150s"),
		},
		{
			kind: kind, name: "the mirrored slice was emptied by another controller while the mirror is stopped", named: "mirror|meter",
			inject: p.kubectlIn(0, "-n sys-semaphore scale deployment semaphore-service-mirror --replicas=0", "-n sys-semaphore wait --for=delete pod -l app.kubernetes.io/name=semaphore-service-mirror --timeout=90s",
				"-n sys-semaphore delete endpointslices -l kubernetes.io/service-name="+mirrored),
			remove: p.kubectlIn(0, "-n sys-semaphore scale deployment semaphore-service-mirror --replicas=2", "-n sys-semaphore rollout status deployment semaphore-service-mirror --timeout=150s"),
		},
	}
}

// settingFaults are wrong settings of aws.
func (p *patients) settingFaults() []fault {
	const kind = "settings"
	setting := func(name, value string) (inject, remove func(t *testing.T)) {
		return p.setting("daemonset", programs.WireGuard, "SEMAPHORE_REMOTE_GCP_"+name+"="+value, false),
			p.setting("daemonset", programs.WireGuard, "SEMAPHORE_REMOTE_GCP_"+name+"-", true)
	}
	of := func(name, setTo, value, named string, delay time.Duration) fault {
		inject, remove := setting(setTo, value)
		return fault{kind: kind, name: name, named: named, delay: delay, inject: inject, remove: remove}
	}
	return []fault{
		of("pod subnets of the remote don't contain its pods", "POD_SUBNETS", "10.250.0.0/16", "pod-subnets|subnet", 45*time.Second),
		of("pod subnets of the remote overlap own ones", "POD_SUBNETS", p.clusters[0].PodSubnets[0].String()+","+p.clusters[1].PodSubnets[0].String(), "overlap|subnet", 45*time.Second),
		of("the URL of the remote is that of the own cluster", "API_URL", p.clusters[0].APIURL(), "aws|CA|certificate|token|itself", 45*time.Second),
		of("the port of the remote's URL is wrong", "API_URL", strings.Replace(p.clusters[1].APIURL(), "6443", "6444", 1), "api-away|refused|gcp", 45*time.Second),
	}
}

// nodeFaults are faults of a node.
func (p *patients) nodeFaults() []fault {
	const kind = "node"
	aws1, gcp1 := p.nodes[0], p.nodes[1]
	var flusher *sandbox.Process
	return []fault{
		{
			kind: kind, name: "another link has the device's name", named: "device.*gcp-1|gcp-1.*device",
			delay:  20 * time.Second,
			inject: onNode(gcp1, "for i in 1 2 3 4 5 6 7 8 9 10; do ip link delete wireguard.aws 2>/dev/null; ip link add wireguard.aws type bridge 2>/dev/null && break; done"),
			remove: onNode(gcp1, "ip link delete wireguard.aws"),
		},
		{
			kind: kind, name: "a foreign route in the agent's table", named: "foreign.*aws-1|route.*aws-1",
			inject: onNode(aws1, "ip route replace "+gcp1.PodCIDRs[0].String()+" dev eth0 proto static table 115115"),
			remove: onNode(aws1, "ip route delete "+gcp1.PodCIDRs[0].String()+" dev eth0 proto static table 115115"),
		},
		{
			kind: kind, name: "a kubelet has stopped", named: "node.*gcp-1",
			delay:  60 * time.Second,
			inject: onNode(gcp1, "pkill -STOP -x kubelet"),
			remove: onNode(gcp1, "pkill -CONT -x kubelet"),
		},
		{
			kind: kind, name: "another program flushes nftables again and again", named: "nftables|filter|flush|rules.*aws-1|aws-1.*(filter|guard)",
			inject: func(t *testing.T) {
				var err error
				flusher, err = aws1.Start(sandbox.Command{Name: "flusher", Path: "/bin/sh", Args: []string{"-c", "while :; do for t in $(nft list tables | grep semaphore | cut -d' ' -f2,3 | tr ' ' ,); do nft delete table ${t%,*} ${t#*,}; done; sleep 0.2; done"}})
				must(t, err)
			},
			remove: func(*testing.T) { flusher.Kill() },
		},
	}
}
