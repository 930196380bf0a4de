package doctor

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kube-semaphore/kube-semaphore/internal/ctl/coredns"
	"github.com/kube-semaphore/kube-semaphore/internal/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/ctl/inspect/inspecttest"
	"github.com/kube-semaphore/kube-semaphore/internal/ctl/probe"
	"github.com/kube-semaphore/kube-semaphore/internal/status"
)

// patient is a survey to which tests add faults.
type patient struct{ aws, gcp *inspect.Cluster }

func (p *patient) agent(node int) *status.Agent { return p.aws.Agents[node].Value }

func (p *patient) remote(node int) *status.Remote { return &p.agent(node).Remotes[0] }

// path is the path from a node of aws to a node of gcp, back the reverse one.
func (p *patient) path(node, peer int) *status.Peer { return &p.remote(node).Peers[peer] }

func (p *patient) back(node, peer int) *status.Peer {
	return &p.gcp.Agents[peer].Value.Remotes[0].Peers[node]
}

func down(p *status.Peer, sign string, rx int64) {
	p.Path.State, p.Path.Sign, p.RxBytes, p.Health = "down", sign, rx, "down"
}

func (p *patient) install(program string, ready int32) {
	p.aws.Workloads.Value = append(p.aws.Workloads.Value, inspect.Workload{Kind: "Deployment", Name: program, Wanted: 2, Ready: ready})
	if program == inspect.ServiceMirror && ready > 0 {
		p.aws.Mirrors = []inspect.Reported[status.Mirror]{{Fact: inspect.Fact[*status.Mirror]{Value: &status.Mirror{Leading: true}}}}
	}
}

// corefile makes CoreDNS of aws one with this configuration.
func (p *patient) corefile(text string) { p.aws.DNS.Value = setupOf(text) }

func setupOf(corefile string) *coredns.Setup {
	s, _ := coredns.Read(context.Background(), fake.NewClientset(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "coredns", Namespace: "kube-system"}, Data: map[string]string{"Corefile": corefile},
	}))
	return s
}

// services installs the mirror in aws, with a mirror of a service of gcp that has so many ready
// endpoints.
func (p *patient) services(origin string, ready int) {
	p.install(inspect.ServiceMirror, 2)
	p.corefile("cluster.gcp:53 {\n}\n")
	p.aws.Settings.Value = map[string]string{"SEMAPHORE_REMOTES": "gcp"}
	of := inspect.Endpoints{Ready: ready, All: 2, Digest: "now", Changed: inspecttest.Now.Add(-time.Hour)}
	web := inspect.KubeService{Namespace: "shop", Name: "web", Port: 80, Created: inspecttest.Now.Add(-time.Hour), Endpoints: of}
	p.gcp.Exports.Value = []inspect.KubeService{web}
	web.Object, web.Origin = origin+"-shop-73736d-web", origin
	p.aws.Imports.Value = []inspect.KubeService{web}
}

// imports installs the mirror and CoreDNS in aws, with an import that the caller changes.
func (p *patient) imports(corefile string, change func(*status.MultiCluster)) {
	p.install(inspect.ServiceMirror, 2)
	p.corefile("cluster.gcp:53 {\n}\n" + corefile)
	report := &status.MultiCluster{Imports: []status.Import{{Name: "shop/web", Type: "ClusterSetIP", Ports: []string{"http 80/TCP"}, Exports: []string{"gcp"}}}}
	change(report)
	p.aws.Mirrors[0].Value.MultiCluster = report
}

const clusterSet = "clusterset.local:53 {\n}\n"

func (p *patient) unpublish(node int, key string) {
	p.aws.Nodes.Value[node].Annotations["gcp."+inspect.AnnotationGroup+"/pubKey"] = key
}

func (p *patient) policy() *status.Policy {
	report := &status.Policy{Leading: true, Remotes: []status.PolicyRemote{{Name: "gcp"}}}
	p.aws.Policies = append(p.aws.Policies, inspect.Reported[status.Policy]{Fact: inspect.Fact[*status.Policy]{Value: report}})
	return report
}

func diagnose(t *testing.T, clusters []*inspect.Cluster, tried *probe.Tried, pods bool) *Diagnosis {
	t.Helper()
	d, err := Diagnose(t.Context(), clusters, tried, pods)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// outdated returns the findings of oldAgents.
func outdated(clusters []*inspect.Cluster) []Finding {
	var all []Finding
	oldAgents(&Facts{Clusters: clusters}, func(f Finding) { all = append(all, f) })
	return all
}

func TestCauses(t *testing.T) {
	const unpublished = `patch nodes "aws-1" is forbidden`
	api := func(err string) func(p *patient) {
		return func(p *patient) { p.remote(0).API.Error, p.remote(1).API.Error = err, err }
	}
	for name, tt := range map[string]struct {
		change func(p *patient)
		want   string // causes
		where  Scope
	}{
		"all is well": {change: func(*patient) {}},
		"an import":   {change: func(p *patient) { p.imports(clusterSet, func(*status.MultiCluster) {}) }},
		"nothing is exported, without CRDs": {change: func(p *patient) {
			p.imports("", func(r *status.MultiCluster) { r.Imports, r.Error = nil, "the CRDs are not installed" })
		}},
		"a namespace that an import lacks": {change: func(p *patient) { p.imports(clusterSet, func(r *status.MultiCluster) { r.Imports[0].Missing = true }) }},
		"the CRDs are missing where others export": {func(p *patient) {
			p.imports("", func(r *status.MultiCluster) { r.Imports, r.Error = nil, "the CRDs are not installed" })
			p.gcp.Mirrors = []inspect.Reported[status.Mirror]{{Fact: inspect.Fact[*status.Mirror]{Value: &status.Mirror{Leading: true, MultiCluster: &status.MultiCluster{Imports: []status.Import{{Name: "shop/web"}}}}}}}
		}, "imports-not-served", Scope{Cluster: "aws"}},
		"a cluster with another name": {func(p *patient) {
			p.imports(clusterSet, func(r *status.MultiCluster) {
				r.Imports[0].Faults = map[string]string{"gcp": "the cluster calls itself google, and is configured here as gcp"}
			})
		}, "cluster-id-mismatch", Scope{Cluster: "aws", Remote: "gcp"}},
		"an export without a Service": {func(p *patient) {
			p.imports(clusterSet, func(r *status.MultiCluster) { r.Imports[0].Faults = map[string]string{"aws": "no Service"} })
		}, "export-not-imported", Scope{Cluster: "aws"}},
		"exports that differ": {func(p *patient) {
			p.imports(clusterSet, func(r *status.MultiCluster) {
				r.Imports[0].Conflicts = append(r.Imports[0].Conflicts, status.Conflict{Cluster: "gcp", What: "port http is 8080"})
			})
		}, "export-conflict", Scope{Cluster: "aws", Remote: "gcp"}},
		"an import that waits": {func(p *patient) {
			p.imports(clusterSet, func(r *status.MultiCluster) { r.Imports[0].Held = "gcp, which has not synced since start" })
		}, "import-held", Scope{Cluster: "aws"}},
		"clusters that disagree about an import": {func(p *patient) {
			p.imports(clusterSet, func(*status.MultiCluster) {})
			p.gcp.Mirrors = []inspect.Reported[status.Mirror]{{Fact: inspect.Fact[*status.Mirror]{Value: &status.Mirror{Leading: true, MultiCluster: &status.MultiCluster{Imports: []status.Import{{Name: "shop/web", Type: "Headless"}}}}}}}
		}, "imports-differ", Scope{Cluster: "aws", Remote: "gcp"}},
		"CoreDNS without the zone of imports": {func(p *patient) { p.imports("", func(*status.MultiCluster) {}) }, "clusterset-zone-missing", Scope{Cluster: "aws"}},
		"a node that initiates handshakes": {change: func(p *patient) {
			p.aws.Nodes.Value[0].Annotations["gcp."+inspect.AnnotationGroup+"/endpoint"] = ""
		}},
		"UDP dropped in one direction": {func(p *patient) {
			down(p.path(0, 0), "one_way", 9)
			down(p.back(0, 0), "no_answer", 9)
		}, "udp-one-way", Scope{"aws", "aws-1", "gcp", "gcp-1"}},
		"UDP dropped in one direction, seen from the other side": {func(p *patient) {
			down(p.path(0, 0), "no_answer", 9)
			down(p.back(0, 0), "one_way", 9)
		}, "udp-one-way", Scope{"gcp", "gcp-1", "aws", "aws-1"}},
		"UDP dropped in one direction from the beginning": {func(p *patient) {
			down(p.path(0, 0), "no_handshake", 148)
			down(p.back(0, 0), "no_handshake", 0)
		}, "udp-one-way", Scope{"aws", "aws-1", "gcp", "gcp-1"}},
		"UDP dropped in both directions": {func(p *patient) {
			for n := range 2 {
				down(p.path(n, n), "no_answer", 0)
				down(p.back(n, n), "no_answer", 0)
			}
		}, "udp-blocked", Scope{Cluster: "aws", Remote: "gcp"}},
		"a path that is down for one side only": {func(p *patient) { down(p.path(0, 0), "no_answer", 0) }, "path-down", Scope{"aws", "aws-1", "gcp", "gcp-1"}},
		"small packets only":                    {func(p *patient) { p.path(0, 0).Path.SmallOnly = true }, "mtu-too-large", Scope{"aws", "aws-1", "gcp", "gcp-1"}},
		"an MTU that is too large": {func(p *patient) { p.remote(1).Device.LargestMTU = 1320 }, "mtu-too-large",
			Scope{Cluster: "aws", Node: "aws-2", Remote: "gcp"}},
		"wrong CA": {api("Get \"https://10.66.0.2\": tls: failed to verify certificate: x509: certificate signed by unknown authority"),
			"wrong-ca", Scope{Cluster: "aws", Remote: "gcp"}},
		"expired token":    {api("list nodes: Unauthorized"), "token-refused", Scope{Cluster: "aws", Remote: "gcp"}},
		"too few rights":   {api(`nodes is forbidden: User "x" cannot list resource`), "rights-missing", Scope{Cluster: "aws", Remote: "gcp"}},
		"API server down":  {api("dial tcp 10.66.0.2:6443: connect: connection refused"), "api-away", Scope{Cluster: "aws", Remote: "gcp"}},
		"no token":         {api("open /etc/semaphore/remotes/gcp.token: no such file or directory"), "credentials-missing", Scope{Cluster: "aws", Remote: "gcp"}},
		"broken token":     {api(`net/http: invalid header field value for "Authorization"`), "credentials-missing", Scope{Cluster: "aws", Remote: "gcp"}},
		"an unknown error": {api("teapot"), "api-failing", Scope{Cluster: "aws", Remote: "gcp"}},
		"pod subnet configured wrong": {func(p *patient) {
			for n := range 2 {
				r := p.remote(n)
				r.Peers, r.Rejected = r.Peers[:1], []status.Rejection{{Node: "gcp-2", Reason: "pod_cidr", Detail: "10.5.2.0/24 is outside"}}
				down(p.back(n, 1), "no_handshake", 0)
			}
		}, "pod-subnets-wrong", Scope{Cluster: "aws", Remote: "gcp", Peer: "gcp-2"}},
		"overlapping subnets": {func(p *patient) {
			for n := range 2 {
				p.remote(n).Refused, p.remote(n).Peers = "10.2.0.0/16 overlaps the pods of this node", nil
				for peer := range 2 {
					down(p.back(n, peer), "no_handshake", 0)
				}
			}
		}, "subnets-overlap", Scope{Cluster: "aws", Remote: "gcp"}},
		"overlapping subnets in a rollout, where the agent before goes on": {func(p *patient) {
			next := inspecttest.Pair(2)[0].Agents[0]
			next.Value.Standby = &status.Standby{Holder: "the agent before"}
			next.Value.Remotes[0].Refused, next.Value.Exit.State = "10.2.0.0/16 overlaps the pods of this node", "not enforced"
			p.aws.Agents = append(p.aws.Agents, next)
		}, "subnets-overlap", Scope{Cluster: "aws", Node: "aws-1", Remote: "gcp"}},
		"key changed on one side": {func(p *patient) {
			p.remote(0).Device.PublicKey, p.agent(0).Failing["publish"] = "another", unpublished
			for peer := range 2 {
				down(p.path(0, peer), "no_handshake", 0)
				down(p.back(0, peer), "no_answer", 0)
			}
		}, "key-changed", Scope{Cluster: "aws", Node: "aws-1", Remote: "gcp"}},
		"annotations gone": {func(p *patient) {
			p.unpublish(0, "")
			p.agent(0).Failing["publish"] = unpublished
			for peer := range 2 {
				r := &p.gcp.Agents[peer].Value.Remotes[0]
				r.Peers, r.Rejected = r.Peers[1:], []status.Rejection{{Node: "aws-1", Reason: "public_key", Detail: "missing"}}
				down(p.path(0, peer), "no_answer", 0)
			}
		}, "annotations-gone", Scope{Cluster: "aws", Node: "aws-1", Remote: "gcp"}},
		"two nodes with one key": {func(p *patient) {
			for n := range 2 {
				r := p.remote(n)
				r.Peers, r.Rejected = r.Peers[:1], []status.Rejection{{Node: "gcp-2", Reason: "duplicate_key", Detail: "gcp-1 has it"}}
				down(p.back(n, 1), "no_handshake", 0)
			}
		}, "duplicate-key", Scope{Cluster: "aws", Remote: "gcp", Peer: "gcp-2"}},
		"device taken by a foreign link": {func(p *patient) {
			p.remote(0).Device.Error, p.remote(0).Peers = "link wireguard.gcp isn't ours", nil
			p.agent(0).Failing["device gcp"], p.agent(0).Failing["routes"] = "link wireguard.gcp isn't ours", "no device"
			p.agent(0).Failing["handshakes gcp"], p.agent(0).Failing["signs of life gcp"] = "file does not exist", "file does not exist"
			for peer := range 2 {
				down(p.back(0, peer), "no_answer", 0)
			}
		}, "device-missing", Scope{Cluster: "aws", Node: "aws-1", Remote: "gcp"}},
		"foreign route": {func(p *patient) {
			p.agent(0).Failing["routes"] = "10.4.0.0/16 dev eth0 protocol static table 115115 is in the way"
		},
			"foreign-route", Scope{Cluster: "aws", Node: "aws-1", Remote: "gcp"}},
		"another program flushes nftables": {func(p *patient) {
			p.agent(0).Failing["packet filter"] = "another program removes or changes them again and again: 6 repairs or more within 5m0s"
			p.agent(0).Filter.State, p.agent(0).Exit.State = "not enforced", "not enforced"
		}, "repairs-undone", Scope{Cluster: "aws", Node: "aws-1"}},
		"another program takes down the device": {func(p *patient) {
			p.agent(0).Failing["device gcp"] = "another program removes or changes them again and again: 6 repairs or more within 5m0s"
		}, "repairs-undone", Scope{Cluster: "aws", Node: "aws-1"}},
		"a foreign policy rule comes first": {func(p *patient) {
			p.remote(0).Rules = []status.ForeignRule{{Rule: "10: from all iif cni0 lookup 11"}}
		}, "foreign-rule", Scope{Cluster: "aws", Node: "aws-1", Remote: "gcp"}},
		"packets with a mark are stopped": {func(p *patient) {
			p.remote(0).Rules, p.remote(0).Stopping = []status.ForeignRule{{Rule: "10: from all fwmark 0x7 lookup 11", Marked: true}}, true
		}, "foreign-rule", Scope{Cluster: "aws", Node: "aws-1", Remote: "gcp"}},
		"packets are stopped for an unknown reason": {func(p *patient) { p.remote(0).Stopping, p.remote(0).Stopped = true, new(uint64(9)) },
			"foreign-rule", Scope{Cluster: "aws", Node: "aws-1", Remote: "gcp"}},
		"the exit filter is missing": {func(p *patient) { p.agent(0).Exit.State = "not enforced" },
			"agent-failing", Scope{Cluster: "aws", Node: "aws-1"}},
		"forwarding is off": {func(p *patient) { p.agent(0).Forwarding.Off = []string{"net.ipv4.ip_forward=0"} },
			"forwarding-off", Scope{Cluster: "aws", Node: "aws-1"}},
		"a FORWARD chain that drops all": {func(p *patient) { p.agent(0).Forwarding.Denying = []string{"nft chain ip filter FORWARD"} },
			"forwarding-off", Scope{Cluster: "aws", Node: "aws-1"}},
		"listen port taken": {func(p *patient) { p.agent(0).Failing["device gcp"] = "listen port is taken: 51820 by pid 7" },
			"port-taken", Scope{Cluster: "aws", Node: "aws-1", Remote: "gcp"}},
		"agent in a crash loop": {func(p *patient) {
			a := &p.aws.Agents[0]
			a.Value, a.Err, p.aws.Pods.Value[0].Waiting = nil, "the container doesn't run", "CrashLoopBackOff"
			p.aws.Workloads.Value[0].Ready--
			down(p.back(0, 0), "no_answer", 0)
			down(p.back(0, 1), "no_answer", 0)
		}, "agent-crash-loop", Scope{Cluster: "aws", Node: "aws-1"}},
		"a node without agent": {func(p *patient) {
			p.aws.Pods.Value, p.aws.Agents = p.aws.Pods.Value[1:], p.aws.Agents[1:]
			down(p.back(0, 0), "no_answer", 0)
		}, "agent-missing", Scope{Cluster: "aws", Node: "aws-1"}},
		"one old agent": {func(p *patient) {
			p.agent(0).Version = "v0"
			p.path(0, 0).Path, p.path(0, 1).Path = nil, nil
		}, "old-agent", Scope{Cluster: "aws", Node: "aws-1"}},
		"CoreDNS block missing": {func(p *patient) {
			p.install(inspect.ServiceMirror, 2)
			p.corefile(".:53 {\n}\n# cluster.gcp:53 {\n# }\ncluster.global:53 {\n}\n")
		}, "coredns-block-missing", Scope{Cluster: "aws", Remote: "gcp"}},
		"CoreDNS block there": {func(p *patient) {
			p.install(inspect.ServiceMirror, 2)
			p.corefile(".:53 {\n}\ncluster.gcp:53 {\n}\n")
		}, "", Scope{}},
		"one zone twice": {func(p *patient) {
			p.install(inspect.ServiceMirror, 2)
			p.corefile("cluster.gcp:53 {\n}\ncluster.GCP. {\n}\n")
		}, "coredns-config-invalid", Scope{Cluster: "aws"}},
		"mirror not running": {func(p *patient) {
			p.install(inspect.ServiceMirror, 0)
			p.corefile("cluster.gcp:53 {\n}\n")
		}, "mirror-not-running", Scope{Cluster: "aws"}},
		"Calico's pools missing, by policy's word": {func(p *patient) { p.policy().Pools.Faults = map[string][]string{"gcp": {"none holds 10.4.0.0/16"}} },
			"calico-pools-missing", Scope{Cluster: "aws", Remote: "gcp"}},
		"Calico's pools missing, by the pools": {func(p *patient) { p.aws.Pools.Value = []inspect.Pool{{Name: "own", CIDR: "10.2.0.0/16"}} },
			"calico-pools-missing", Scope{Cluster: "aws", Remote: "gcp"}},
		"a pool that is there": {func(p *patient) {
			p.aws.Pools.Value = []inspect.Pool{{Name: "own", CIDR: "10.2.0.0/16"}, {Name: "gcp", CIDR: "10.4.0.0/15", Disabled: true, NoExport: true}}
		}, "", Scope{}},
		"a network set's name taken": {func(p *patient) {
			p.policy().Remotes[0].Sets = []status.NetworkSet{{Object: "gcp-shop-db-1f2e3d", Namespace: "shop", Name: "db"}}
			p.aws.Warnings.Value = []inspect.Event{{Reason: "NameTaken", Message: "the network set of gcp/shop/db is gcp-shop-db-1f2e3d: gcp-shop-db is taken"}}
		}, "set-name-taken", Scope{Cluster: "aws", Remote: "gcp"}},
		"clocks of the clusters apart": {func(p *patient) {
			p.gcp.Clock.Value = 3 * time.Hour
			for n := range 2 {
				p.gcp.Nodes.Value[n].Renewed = inspecttest.Now.Add(3 * time.Hour)
			}
		}, "clocks-apart", Scope{Cluster: "gcp", Remote: "aws"}},
		"clock of a node wrong": {func(p *patient) {
			p.aws.Nodes.Value[0].Renewed = inspecttest.Now.Add(-3 * time.Hour)
			down(p.path(0, 0), "no_handshake", 0)
			down(p.back(0, 0), "no_handshake", 0)
		}, "clocks-apart", Scope{Cluster: "aws", Node: "aws-1"}},
		"nothing installed":        {func(p *patient) { p.aws.Workloads.Value = nil }, "not-installed", Scope{Cluster: "aws"}},
		"a failure without a rule": {func(p *patient) { p.agent(0).Failing["orphans"] = "no" }, "agent-failing", Scope{Cluster: "aws", Node: "aws-1"}},
		"nothing installed in either": {func(p *patient) {
			for _, c := range []*inspect.Cluster{p.aws, p.gcp} {
				c.Workloads.Value, c.Pods.Value, c.Agents = nil, nil, nil
				for n := range c.Nodes.Value {
					c.Nodes.Value[n].Annotations = map[string]string{}
				}
			}
		}, "not-installed not-installed", Scope{Cluster: "aws"}},
		"a join that was interrupted": {func(p *patient) {
			p.gcp.Workloads.Value, p.gcp.Pods.Value, p.gcp.Agents = nil, nil, nil
			api("open /etc/semaphore/remotes/gcp.token: no such file or directory")(p)
			for n := range 2 {
				p.gcp.Nodes.Value[n].Annotations = map[string]string{}
				p.remote(n).Peers = nil
			}
		}, "not-installed", Scope{Cluster: "gcp"}},
		"a DaemonSet that was deleted": {func(p *patient) {
			p.install(inspect.ServiceMirror, 2)
			p.aws.Workloads.Value, p.aws.Pods.Value, p.aws.Agents = p.aws.Workloads.Value[1:], nil, nil
			p.corefile("cluster.gcp:53 {\n}\n")
			for n := range 2 {
				for peer := range 2 {
					down(p.back(n, peer), "no_answer", 9)
				}
			}
		}, "not-installed", Scope{Cluster: "aws"}},
		"a cluster that is dead": {func(p *patient) {
			*p.gcp = inspect.Cluster{Name: "gcp", Kubernetes: inspect.Fact[string]{Err: "refused"}}
			for n := range 2 {
				for peer := range 2 {
					down(p.path(n, peer), "no_answer", 9)
				}
			}
			api("dial tcp 10.66.0.2:6443: connect: connection refused")(p)
		}, "cluster-away", Scope{Cluster: "gcp"}},
		"an API server that is down, with a path that is too": {func(p *patient) {
			*p.gcp = inspect.Cluster{Name: "gcp", Kubernetes: inspect.Fact[string]{Err: "refused"}}
			down(p.path(0, 1), "no_answer", 9)
			api("dial tcp 10.66.0.2:6443: connect: connection refused")(p)
		}, "api-away path-down", Scope{Cluster: "aws", Remote: "gcp"}},
		"one node with a small MTU": {func(p *patient) {
			for n := range 2 {
				p.path(n, 0).Path.SmallOnly, p.back(n, 0).Path.SmallOnly = true, true
			}
			p.gcp.Agents[0].Value.Remotes[0].Device.LargestMTU = 1320
		}, "mtu-too-large", Scope{Cluster: "gcp", Node: "gcp-1", Remote: "aws"}},
		"one blocked port": {func(p *patient) {
			for n := range 2 {
				down(p.path(n, 0), "no_answer", 9)
				down(p.back(n, 0), "no_answer", 9)
			}
		}, "path-down", Scope{Cluster: "gcp", Node: "gcp-1", Remote: "aws"}},
		"an admission policy that refuses annotations": {func(p *patient) {
			p.unpublish(0, "")
			p.agent(0).Failing["publish"] = `nodes "aws-1" is forbidden: ValidatingAdmissionPolicy 'no' with binding 'no' denied request: no`
		}, "admission-refuses", Scope{Cluster: "aws", Node: "aws-1"}},
		"a webhook that refuses, and a failure without a rule": {func(p *patient) {
			p.agent(0).Failing["publish"], p.agent(0).Failing["orphans"] = `admission webhook "x" denied the request: no`, "no"
		}, "admission-refuses agent-failing", Scope{Cluster: "aws", Node: "aws-1"}},
		"a mirror that may not write": {func(p *patient) {
			p.services("gcp", 2)
			p.aws.Imports.Value, p.aws.Workloads.Value[1].Ready = nil, 1
			p.aws.Mirrors[0].Value.Election = &status.Election{Error: `leases.coordination.k8s.io "semaphore-service-mirror" is forbidden: User "x" cannot update resource "leases"`}
			p.aws.Mirrors[0].Value.Services = []status.Service{{Name: "gcp-shop-73736d-web", Error: `services is forbidden: User "x" cannot create resource "services"`}}
		}, "own-api-failing", Scope{Cluster: "aws"}},
		"a mirror that may not write and doesn't lead any more": {func(p *patient) {
			p.install(inspect.ServiceMirror, 0)
			p.corefile("cluster.gcp:53 {\n}\n")
			p.aws.Mirrors = []inspect.Reported[status.Mirror]{{Fact: inspect.Fact[*status.Mirror]{Value: &status.Mirror{}}}}
			p.aws.Mirrors[0].Value.Election = &status.Election{Error: `leases.coordination.k8s.io "semaphore-service-mirror" is forbidden: User "x" cannot get resource "leases"`}
		}, "own-api-failing", Scope{Cluster: "aws"}},
		"a mirror whose lease is refused by an admission policy": {func(p *patient) {
			p.services("gcp", 2)
			p.aws.Mirrors[0].Value.Election = &status.Election{Error: `leases.coordination.k8s.io "semaphore-service-mirror" is forbidden: ValidatingAdmissionPolicy 'no' with binding 'no' denied request: no`}
		}, "admission-refuses", Scope{Cluster: "aws"}},
		"a policy controller that may not write": {func(p *patient) {
			r := p.policy()
			r.ElectionError = `leases "semaphore-policy" is forbidden: User "x" cannot update resource "leases"`
			r.Remotes[0].Failing = map[string]string{"gcp-shop-db": `globalnetworksets is forbidden: User "x" cannot create resource`}
		}, "own-api-failing", Scope{Cluster: "aws"}},
		"nodes that aren't ready, with all that runs there": {func(p *patient) {
			p.services("gcp", 0)
			p.gcp.Workloads.Value = append(p.gcp.Workloads.Value, p.aws.Workloads.Value[1], inspect.Workload{Kind: "Deployment", Name: "semaphore-tokens", Wanted: 1})
			p.gcp.Workloads.Value[1].Ready = 0
			p.corefile("cluster.gcp:53 {\n}\n")
			p.gcp.DNS.Value = setupOf("cluster.aws:53 {\n}\n")
			p.gcp.Exports.Value[0].Unready = map[string]bool{"gcp-1": true}
			for n := range 2 {
				p.gcp.Nodes.Value[n].Ready = "Unknown"
				p.gcp.Pods.Value = append(p.gcp.Pods.Value, inspect.Pod{Name: "mirror", Node: p.gcp.Nodes.Value[n].Name, Program: inspect.ServiceMirror})
			}
			p.gcp.Pods.Value = append(p.gcp.Pods.Value, inspect.Pod{Name: "tokens", Program: "semaphore-tokens", Phase: "Pending"})
		}, "node-not-ready", Scope{Cluster: "gcp"}},
		"a node that isn't ready, with one pod of two": {func(p *patient) {
			p.services("gcp", 2)
			p.aws.Nodes.Value[1].Ready, p.aws.Workloads.Value[1].Ready = "Unknown", 1
			p.aws.Pods.Value = append(p.aws.Pods.Value, inspect.Pod{Name: "mirror-1", Node: "aws-1", Program: inspect.ServiceMirror, Ready: true}, inspect.Pod{Name: "mirror-2", Node: "aws-2", Program: inspect.ServiceMirror})
		}, "node-not-ready", Scope{Cluster: "aws", Node: "aws-2"}},
		"a node that isn't ready, and a pod that isn't on another one": {func(p *patient) {
			p.services("gcp", 2)
			p.aws.Nodes.Value[1].Ready, p.aws.Workloads.Value[1].Ready = "Unknown", 1
			p.aws.Pods.Value = append(p.aws.Pods.Value, inspect.Pod{Name: "mirror-1", Node: "aws-1", Program: inspect.ServiceMirror}, inspect.Pod{Name: "mirror-2", Node: "aws-2", Program: inspect.ServiceMirror, Ready: true})
		}, "node-not-ready mirror-not-ready", Scope{Cluster: "aws", Node: "aws-2"}},
		"a quota that refuses pods": {func(p *patient) {
			p.aws.Workloads.Value[0].Ready, p.aws.Pods.Value, p.aws.Agents = 1, p.aws.Pods.Value[1:], p.aws.Agents[1:]
			p.aws.Warnings.Value = []inspect.Event{{Reason: "FailedCreate", About: "DaemonSet/semaphore-wireguard", Message: `pods "x" is forbidden: exceeded quota: q`}}
		}, "admission-refuses", Scope{Cluster: "aws"}},
		"an expired certificate":          {api("tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time"), "certificate-expired", Scope{Cluster: "aws", Remote: "gcp"}},
		"a name that isn't known":         {api("dial tcp: lookup api.gcp.example on 10.0.0.2:53: no such host"), "api-name-unresolved", Scope{Cluster: "aws", Remote: "gcp"}},
		"a port that reads like a status": {api("dial tcp 10.66.0.2:4010: connect: connection refused"), "api-away", Scope{Cluster: "aws", Remote: "gcp"}},
		"another cluster's context": {func(p *patient) {
			for n := range 2 {
				p.gcp.Agents[n].Value.Cluster, p.gcp.Agents[n].Value.Remotes = "merit", nil
				p.gcp.Nodes.Value[n].Annotations = map[string]string{}
				p.path(n, 0).Path.State, p.path(n, 1).Path.State = "down", "down"
			}
		}, "other-cluster", Scope{Cluster: "gcp"}},
		"a remote that isn't configured": {func(p *patient) {
			for n := range 2 {
				p.agent(n).Remotes, p.aws.Nodes.Value[n].Annotations = nil, map[string]string{}
			}
		}, "remote-missing", Scope{Cluster: "aws", Remote: "gcp"}},
		"an agent that fails besides a missing device": {func(p *patient) {
			p.remote(0).Device.Error, p.agent(0).Failing["device gcp"], p.agent(0).Failing["orphans"] = "x", "x", "no"
		}, "device-missing agent-failing", Scope{Cluster: "aws", Node: "aws-1", Remote: "gcp"}},
		"a mirror that isn't ready besides an agent in a crash loop": {func(p *patient) {
			p.install(inspect.ServiceMirror, 1)
			p.corefile("cluster.gcp:53 {\n}\n")
			p.aws.Pods.Value[0].Waiting = "CrashLoopBackOff"
			a := &p.aws.Agents[0]
			a.Value, a.Err = nil, "the container doesn't run"
		}, "agent-crash-loop mirror-not-ready", Scope{Cluster: "aws", Node: "aws-1"}},
		"an origin without ready endpoints": {func(p *patient) {
			p.services("gcp", 0)
		}, "origin-without-endpoints", Scope{Cluster: "gcp"}},
		"a mirror with other endpoints": {func(p *patient) {
			p.services("gcp", 2)
			p.aws.Imports.Value[0].Digest = "old"
		}, "mirror-outdated", Scope{Cluster: "aws", Remote: "gcp"}},
		"a mirror whose endpoints are withdrawn because packets are dropped": {func(p *patient) {
			p.services("gcp", 2)
			p.gcp.Workloads.Value, p.gcp.Exports.Value, p.gcp.Imports.Value = p.aws.Workloads.Value, nil, p.aws.Imports.Value
			p.gcp.Settings.Value = map[string]string{"SEMAPHORE_REMOTES": "aws"}
			p.aws.Exports.Value, p.aws.Imports.Value = []inspect.KubeService{p.gcp.Imports.Value[0]}, nil
			p.gcp.Imports.Value[0].Digest, p.gcp.Imports.Value[0].Origin = "old", "aws"
			down(p.path(0, 0), "no_answer", 0)
			down(p.back(0, 0), "no_answer", 0)
		}, "udp-blocked", Scope{"aws", "aws-1", "gcp", "gcp-1"}},
		"an origin that has just changed": {func(p *patient) {
			p.services("gcp", 2)
			p.aws.Imports.Value[0].Digest, p.gcp.Exports.Value[0].Changed = "old", inspecttest.Now
		}, "", Scope{}},
		"a service without a mirror": {func(p *patient) {
			p.services("gcp", 2)
			p.aws.Imports.Value = nil
		}, "mirror-outdated", Scope{Cluster: "aws", Remote: "gcp"}},
		"a service without a mirror, which is rejected": {func(p *patient) {
			p.services("gcp", 2)
			p.aws.Imports.Value = nil
			p.aws.Mirrors[0].Value.Rejected = []status.RejectedOrigin{{Origin: "gcp/shop/web", Reason: "invalid"}}
		}, "service-not-in-order", Scope{Cluster: "aws", Remote: "gcp"}},
		"services of a cluster that is no longer configured": {func(p *patient) {
			p.services("gcp", 2)
			p.aws.Mirrors[0].Value.Former = []status.FormerCluster{{Name: "merit", Services: 1, Slices: 2}}
		}, "service-not-in-order", Scope{Cluster: "aws", Remote: "merit"}},
		"a remote that the mirror ignores because it left": {func(p *patient) {
			p.services("gcp", 2)
			p.aws.Mirrors[0].Value.Departed = []string{"gcp"}
		}, "service-not-in-order", Scope{Cluster: "aws", Remote: "gcp"}},
		"a mirror that was uninstalled": {func(p *patient) {
			p.services("gcp", 2)
			p.aws.Workloads.Value, p.aws.Mirrors = p.aws.Workloads.Value[:1], nil
		}, "mirror-missing", Scope{Cluster: "aws"}},
		"a token that was replaced while watches are open": {func(p *patient) {
			p.agent(0).Credentials = map[string]status.Trial{"gcp": {Asked: &inspecttest.Now, Error: "get version: Unauthorized"}}
		}, "token-refused", Scope{Cluster: "aws", Node: "aws-1", Remote: "gcp"}},
		"rights of a remote's account that were removed while watches are open": {func(p *patient) {
			p.agent(0).Credentials = map[string]status.Trial{"gcp": {Asked: &inspecttest.Now, Error: "get /api/v1/nodes: Forbidden"}}
		}, "rights-missing", Scope{Cluster: "aws", Node: "aws-1", Remote: "gcp"}},
		"rights in the own cluster that were removed": {func(p *patient) {
			p.agent(0).Credentials = map[string]status.Trial{"aws": {Asked: &inspecttest.Now, Error: "get /api/v1/nodes: Forbidden"}}
		}, "own-api-failing", Scope{Cluster: "aws", Node: "aws-1"}},
		"rights in the own cluster that were removed, and annotations that are gone": {func(p *patient) {
			p.agent(0).Credentials = map[string]status.Trial{"aws": {Asked: &inspecttest.Now, Error: "get /api/v1/nodes: Forbidden"}}
			p.unpublish(0, "")
			p.agent(0).Failing["publish"] = unpublished
			for peer := range 2 {
				r := &p.gcp.Agents[peer].Value.Remotes[0]
				r.Peers, r.Rejected = r.Peers[1:], []status.Rejection{{Node: "aws-1", Reason: "public_key", Detail: "missing"}}
				down(p.path(0, peer), "no_answer", 0)
			}
		}, "own-api-failing", Scope{Cluster: "aws", Node: "aws-1"}},
		"tokens that nothing renews": {func(p *patient) {
			p.aws.Workloads.Value = append(p.aws.Workloads.Value, inspect.Workload{Kind: "Deployment", Name: "semaphore-tokens", Wanted: 1})
		}, "program-not-ready", Scope{Cluster: "aws"}},
		"a token that isn't renewed": {func(p *patient) {
			issued, expires := inspecttest.Now.Add(-23*time.Hour), inspecttest.Now.Add(time.Hour)
			p.agent(0).Credentials = map[string]status.Trial{"gcp": {Asked: &inspecttest.Now, Issued: &issued, Expires: &expires}}
		}, "token-expiring", Scope{Cluster: "aws", Node: "aws-1", Remote: "gcp"}},
		"two independent causes": {func(p *patient) {
			down(p.path(0, 0), "one_way", 9)
			down(p.back(0, 0), "no_answer", 9)
			api("list nodes: Unauthorized")(p)
		}, "token-refused udp-one-way", Scope{Cluster: "aws", Remote: "gcp"}},
	} {
		t.Run(name, func(t *testing.T) {
			clusters := inspecttest.Pair(2)
			tt.change(&patient{clusters[0], clusters[1]})
			d := diagnose(t, clusters, nil, false)
			var ids []string
			for _, c := range d.Causes {
				ids = append(ids, c.ID)
				if len(c.Evidence) == 0 || c.Remedy == "" || c.What == "" {
					t.Errorf("%s lacks something: %+v", c.ID, c)
				}
			}
			if got := strings.Join(ids, " "); got != tt.want {
				t.Fatalf("causes %q, want %q: %+v", got, tt.want, d.Causes)
			}
			want := Wrong
			if tt.want == "" {
				want = Well
			}
			if d.Verdict != want {
				t.Errorf("the verdict is %s, want %s: %+v", d.Verdict, want, d.Unknown)
			}
			if tt.want != "" {
				if diff := cmp.Diff(tt.where, d.Causes[0].Where); diff != "" {
					t.Errorf("where (-want +got):\n%s", diff)
				}
			}
		})
	}
}

func TestUnknownIsNotWell(t *testing.T) {
	for name, change := range map[string]func(p *patient){
		"an agent that doesn't answer": func(p *patient) { p.aws.Agents[0].Value, p.aws.Agents[0].Err = nil, "exec: no" },
		"an API server that is down": func(p *patient) {
			*p.gcp = inspect.Cluster{Name: "gcp", Kubernetes: inspect.Fact[string]{Err: "refused"}}
		},
		"a path without a sign":    func(p *patient) { p.path(0, 0).Path.State = "unknown" },
		"an unknown state":         func(p *patient) { p.path(0, 0).Path.State = "splendid" },
		"nodes that can't be read": func(p *patient) { p.aws.Nodes.Value, p.aws.Nodes.Err = nil, "forbidden" },
		"an agent without a response of the API server": func(p *patient) {
			ago := inspecttest.Now.Add(-10 * time.Minute)
			p.remote(0).API.LastContact = &ago
		},
		"a request without a response": func(p *patient) {
			p.agent(0).Credentials = map[string]status.Trial{"gcp": {Waiting: &inspecttest.Now}}
		},
		"an agent that has read nothing yet": func(p *patient) { p.remote(0).API.Synced = false },
		"an agent on standby without another": func(p *patient) {
			p.agent(0).Standby = &status.Standby{}
		},
		"a policy controller that doesn't lead": func(p *patient) {
			p.policy().Leading = false
			p.install(inspect.NetworkPolicy, 2)
		},
		"a pod of CoreDNS that isn't available": func(p *patient) {
			p.services("gcp", 2)
			p.aws.DNS.Value.Unavailable = 1
		},
		"a cluster without CoreDNS": func(p *patient) {
			p.services("gcp", 2)
			p.aws.DNS.Value = nil
		},
		"an agent that has just started": func(p *patient) { p.agent(0).Pending = []string{"routes"} },
	} {
		t.Run(name, func(t *testing.T) {
			clusters := inspecttest.Pair(2)
			change(&patient{clusters[0], clusters[1]})
			if d := diagnose(t, clusters, nil, false); d.Verdict != Unknown || len(d.Unknown) == 0 {
				t.Errorf("got %+v", d)
			}
		})
	}
	if d := diagnose(t, inspecttest.Pair(2), nil, true); d.Verdict != Unknown {
		t.Errorf("without a request of a pod it is %s", d.Verdict)
	}
	// Without paths nothing can be checked.
	for name, clusters := range map[string][]*inspect.Cluster{
		"one cluster": inspecttest.Pair(1)[:1], "no nodes": inspecttest.Pair(0), "one of them has none": {inspecttest.Pair(0)[0], inspecttest.Pair(1)[1]},
		"of three one has none": append(inspecttest.Pair(1), &inspect.Cluster{Name: "merit", Workloads: inspecttest.Pair(0)[0].Workloads}),
	} {
		if d := diagnose(t, clusters, nil, false); d.Verdict == Well {
			t.Errorf("%s: the verdict is %s", name, Well)
		}
	}
	if d := diagnose(t, inspecttest.Pair(1), nil, false); d.Verdict != Well {
		t.Errorf("a node in each of two clusters: %+v", d)
	}
	if d := diagnose(t, nil, nil, false); d.Verdict == Wrong {
		t.Errorf("without clusters: %+v", d)
	}
}

// TestRulesAreInOrder checks that roots come first.
func TestRulesAreInOrder(t *testing.T) {
	before := map[string]bool{}
	for _, r := range Rules() {
		for _, id := range r.After {
			if !before[id] {
				t.Errorf("%s: After contains %q, which isn't an earlier rule", r.ID, id)
			}
		}
		if before[r.ID] || r.Remedy == "" {
			t.Errorf("%s is a duplicate, or has no remedy", r.ID)
		}
		before[r.ID] = true
	}
}

func TestPrintedForPeople(t *testing.T) {
	clusters := inspecttest.Pair(2)
	clusters[0].Agents[0].Value.Remotes[0].API.Error = "Unauthorized \x1b[2J"
	var b strings.Builder
	if err := diagnose(t, clusters, nil, true).print(&b, ""); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"✗ token-refused: aws to gcp: the token is refused\n", `Unauthorized \x1b[2J`, "$ status of aws-1", "→ hand over", "? unknown: whether pods' own packets"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in:\n%s", want, b.String())
		}
	}
}

// TestOldAgents checks which agents are reported if versions differ, and with which evidence.
func TestOldAgents(t *testing.T) {
	const old = "it reports no paths"
	for name, tt := range map[string]struct {
		versions [4]string // aws-1, aws-2, gcp-1 and gcp-2
		pathless [4]bool
		want     []string // findings and their evidence
	}{
		"one version": {versions: [4]string{"v1", "v1", "v1", "v1"}},
		"one of four": {[4]string{"v1.2.0", "v1.2.0", "v1.1.0", "v1.2.0"}, [4]bool{}, []string{
			"the agent of gcp-1 has another version: it has v1.1.0; 3 of 4 agents have v1.2.0"}},
		"a tie, the newer one wins": {[4]string{"v1.9.0", "v1.9.0", "v1.10.0", "v1.10.0"}, [4]bool{}, []string{
			"the agent of aws-1 has another version: it has v1.9.0; 2 of 4 agents have v1.10.0",
			"the agent of aws-2 has another version: it has v1.9.0; 2 of 4 agents have v1.10.0"}},
		"a tie, the one with paths wins": {[4]string{"devel", "devel", "v1.0.0", "v1.0.0"}, [4]bool{false, false, true, true}, []string{
			"the agent of gcp-1 has another version: it has v1.0.0; 2 of 4 agents have devel; " + old,
			"the agent of gcp-2 has another version: it has v1.0.0; 2 of 4 agents have devel; " + old}},
		"most are old": {[4]string{"v1", "v0", "v0", "v0"}, [4]bool{false, true, true, true}, []string{
			"the agent of aws-1 has another version: it has v1; 3 of 4 agents have v0",
			"the agent of aws-2 has a version that reports no paths: it has v0",
			"the agent of gcp-1 has a version that reports no paths: it has v0",
			"the agent of gcp-2 has a version that reports no paths: it has v0"}},
	} {
		t.Run(name, func(t *testing.T) {
			clusters := inspecttest.Pair(2)
			for i, version := range tt.versions {
				a := clusters[i/2].Agents[i%2].Value
				a.Version = version
				for j := range a.Remotes[0].Peers {
					if tt.pathless[i] {
						a.Remotes[0].Peers[j].Path = nil
					}
				}
			}
			var got []string
			for _, f := range outdated(clusters) {
				got = append(got, f.What+": "+f.Evidence[0].Text)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestOldAgentsOfAnyVersions checks that the result is deterministic, also for versions
// without an order.
func TestOldAgentsOfAnyVersions(t *testing.T) {
	clusters := inspecttest.Pair(2)
	for i, version := range []string{"v1.9.0", "v1.10.0", "v1.2-devel", "v1.10.0-1-gabcdef"} {
		clusters[i/2].Agents[i%2].Value.Version = version
	}
	first := outdated(clusters)
	for range 100 {
		if diff := cmp.Diff(first, outdated(clusters)); diff != "" {
			t.Fatalf("another time (-first +got):\n%s", diff)
		}
	}
}
