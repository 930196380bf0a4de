package scenarios_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
)

// faults are those that are cheap in the testbed. Agents are aws-1, aws-2, gcp-1 and gcp-2,
// in this order.
func (s *surgery) faults() []fault {
	aws1, gcp1 := s.Agents[0].Node, s.Agents[2].Node
	subnets := s.Agents[0].Env[programs.Variable("gcp", "POD_SUBNETS")]
	settings := func(agents []int, change map[string]string) func(*testing.T) {
		return func(t *testing.T) {
			for _, i := range agents {
				s.restart(t, i, change)
			}
		}
	}
	run := func(agent int, line string) func(*testing.T) {
		return func(t *testing.T) { s.shell(t, agent, line) }
	}
	return []fault{
		{
			name: "UDP dropped by a firewall in one direction", want: "udp-one-way",
			make: run(2, "nft 'table inet fault { chain in { type filter hook input priority -10; ip saddr "+aws1.Addresses()[0].String()+" meta l4proto udp drop; }; }'"),
			heal: run(2, "nft delete table inet fault"),
		},
		{
			name: "UDP dropped by a firewall in both", want: "udp-blocked",
			make: func(t *testing.T) { must(t, s.Testbed.Drop(aws1, gcp1)) },
			heal: func(t *testing.T) { must(t, s.Testbed.Restore(aws1, gcp1)) },
		},
		{
			name: "MTU on the way smaller than the tunnel's", want: "mtu-too-large",
			make: func(t *testing.T) {
				s.shell(t, 0, "ip link set eth0 mtu 1400")
				s.restart(t, 0, map[string]string{"WG_MTU": "1420"})
			},
			heal: func(t *testing.T) {
				s.shell(t, 0, "ip link set eth0 mtu 1500")
				s.restart(t, 0, map[string]string{"WG_MTU": ""})
			},
		},
		{
			name: "wrong CA", want: "wrong-ca",
			make: settings([]int{0}, map[string]string{"CA_FILE": s.AWS.CAFile()}),
			heal: settings([]int{0}, map[string]string{"CA_FILE": s.GCP.CAFile()}),
		},
		{
			name: "expired token", want: "token-refused",
			make: func(t *testing.T) {
				must(t, s.Agents[0].Remote["gcp"].Expire(t.Context()))
				s.restart(t, 0, nil)
			},
			heal: func(t *testing.T) {
				must(t, s.Agents[0].Remote["gcp"].Rotate(t.Context()))
				s.restart(t, 0, nil)
			},
		},
		{
			name: "a token replaced by a wrong one while watches are open", want: "token-refused",
			make: func(t *testing.T) {
				must(t, os.WriteFile(s.Agents[0].Remote["gcp"].TokenFile(), []byte("eyJhbGciOiJub25lIn0.e30.wrong"), 0o600))
			},
			heal: func(t *testing.T) { must(t, s.Agents[0].Remote["gcp"].Rotate(t.Context())) },
		},
		{
			name: "an admission policy that refuses annotations", want: "admission-refuses",
			make: func(t *testing.T) {
				s.refuse(t)
				must(t, aws1.Patch(t.Context(), `{"metadata":{"annotations":{"gcp.wireguard.semaphore.uw.io/pubKey":null,"gcp.wireguard.semaphore.uw.io/endpoint":null}}}`))
			},
			heal: s.admit,
		},
		{
			name: "a port blocked at one node", want: "udp-one-way",
			make: run(2, "nft 'table inet fault { chain in { type filter hook input priority -10; udp dport 51820 drop; }; }'"),
			heal: run(2, "nft delete table inet fault"),
		},
		{
			name: "forwarding switched off on a node", want: "forwarding-off",
			make: run(0, "echo 0 > /proc/sys/net/ipv4/ip_forward"),
			heal: run(0, "echo 1 > /proc/sys/net/ipv4/ip_forward"),
		},
		{
			name: "API server away", want: "api-away",
			// The agents of gcp can't be read, and can't reach it themselves.
			make: func(*testing.T) { s.GCP.StopAPI() },
			heal: func(t *testing.T) { must(t, s.GCP.StartAPI(within(t, 3*time.Minute))) },
		},
		{
			name: "account with too few rights", want: "rights-missing",
			make: func(t *testing.T) {
				s.unbind(t, 2, programs.WireGuard+"-remote")
				s.restart(t, 0, nil)
			},
			heal: s.grant,
		},
		{
			name: "pod subnet configured wrong", want: "pod-subnets-wrong",
			make: settings([]int{0}, map[string]string{"POD_SUBNETS": gcp1.PodCIDRs[0].String()}),
			heal: settings([]int{0}, map[string]string{"POD_SUBNETS": subnets}),
		},
		{
			name: "overlapping subnets", want: "subnets-overlap",
			make: settings([]int{0}, map[string]string{"POD_SUBNETS": subnets + "," + aws1.PodCIDRs[0].String()}),
			heal: settings([]int{0}, map[string]string{"POD_SUBNETS": subnets}),
		},
		{
			name: "key changed on one side, without the right to publish it", want: "own-api-failing",
			make: func(t *testing.T) {
				s.unbind(t, 0, programs.WireGuard)
				must(t, s.Agents[0].Stop(within(t, time.Minute)))
				must(t, os.Remove(filepath.Join(aws1.VarLib(), programs.WireGuard, "wireguard.gcp.key")))
				must(t, s.Agents[0].Start())
			},
			besides: []string{"agent-failing", "key-changed"},
			heal:    s.grant,
		},
		{
			name: "annotations gone, without the right to publish them", want: "own-api-failing", besides: []string{"annotations-gone"},
			make: func(t *testing.T) {
				s.unbind(t, 0, programs.WireGuard)
				must(t, aws1.Patch(t.Context(), `{"metadata":{"annotations":{"gcp.wireguard.semaphore.uw.io/pubKey":null,"gcp.wireguard.semaphore.uw.io/endpoint":null}}}`))
			},
			heal: s.grant,
		},
		{
			name: "two nodes with one key", want: "duplicate-key",
			make: func(t *testing.T) { s.key(t, 2, 3) },
			heal: func(t *testing.T) {
				must(t, s.Agents[3].Stop(within(t, time.Minute)))
				must(t, os.Remove(filepath.Join(s.Agents[3].Node.VarLib(), programs.WireGuard, "wireguard.aws.key")))
				must(t, s.Agents[3].Start())
			},
		},
		{
			name: "device deleted by hand, and another link of its name", want: "device-missing",
			make: func(t *testing.T) {
				must(t, s.Agents[0].Stop(within(t, time.Minute)))
				s.shell(t, 0, "ip link delete wireguard.gcp; ip link add wireguard.gcp type bridge")
				must(t, s.Agents[0].Start())
			},
			heal: run(0, "ip link delete wireguard.gcp"),
		},
		{
			name: "foreign route in the way", want: "foreign-route",
			make: run(0, "ip route replace 10.4.0.0/16 dev eth0 proto static table 115115"),
			heal: run(0, "ip route delete 10.4.0.0/16 dev eth0 proto static table 115115"),
		},
		{
			name: "masqueraded pod traffic",
			make: run(0, "nft 'table ip fault { chain out { type nat hook postrouting priority 100; oifname wireguard.gcp masquerade; }; }'"),
			heal: run(0, "nft delete table ip fault"),
		},
		{
			name: "FORWARD chain drops",
			make: run(0, "nft 'table inet fault { chain through { type filter hook forward priority 0; oifname wireguard.gcp drop; }; }'"),
			heal: run(0, "nft delete table inet fault"),
		},
		{
			name: "listen port taken", want: "port-taken",
			make: func(t *testing.T) {
				s.shell(t, 0, "ip link add holds-port type vxlan id 9 dstport 51999 local "+aws1.Addresses()[0].String()+"; ip link set holds-port up")
				s.restart(t, 0, map[string]string{"WG_LISTEN_PORT": "51999"})
			},
			heal: func(t *testing.T) {
				s.shell(t, 0, "ip link delete holds-port")
				s.restart(t, 0, map[string]string{"WG_LISTEN_PORT": ""})
			},
		},
		{
			name: "agent in a crash loop", want: "agent-crash-loop",
			make: func(t *testing.T) { s.container(t, "CrashLoopBackOff") },
			heal: func(t *testing.T) { s.container(t, "") },
		},
		{
			name: "CoreDNS block missing", want: "coredns-block-missing",
			make: func(t *testing.T) { s.mirrorObjects(t, 2, ".:53 {\n}\n") },
			heal: s.noMirror,
		},
		{
			name: "mirror not running", want: "mirror-not-running",
			make: func(t *testing.T) { s.mirrorObjects(t, 0, "cluster.gcp:53 {\n}\n") },
			heal: s.noMirror,
		},
		{
			name: "clocks apart by hours", want: "clocks-apart",
			make: func(t *testing.T) { s.lease(t, 3*time.Hour) },
			heal: func(t *testing.T) { s.lease(t, 0) },
		},
	}
}

// refuse makes an admission policy of aws refuse what agents write to nodes.
func (s *surgery) refuse(t *testing.T) {
	t.Helper()
	api, fail := s.AWS.Client().AdmissionregistrationV1(), admissionv1.Fail
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "fault"}, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		FailurePolicy: &fail,
		MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Update},
			Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"nodes"}},
		}}}},
		Validations: []admissionv1.Validation{{Expression: "!request.userInfo.username.startsWith('system:serviceaccount:')", Message: "accounts must not change nodes"}},
	}}
	_, err := api.ValidatingAdmissionPolicies().Create(t.Context(), policy, metav1.CreateOptions{})
	must(t, err)
	_, err = api.ValidatingAdmissionPolicyBindings().Create(t.Context(), &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "fault"},
		Spec:       admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: "fault", ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
	}, metav1.CreateOptions{})
	must(t, err)
	config := s.AWS.RESTConfig()
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:default:any", Groups: []string{"system:masters"}}
	account, err := kubernetes.NewForConfig(config)
	must(t, err)
	eventually(t, time.Minute, "the policy to be enforced", func(ctx context.Context) error {
		_, err := account.CoreV1().Nodes().Patch(ctx, s.Agents[0].Node.Name, types.MergePatchType, []byte(`{"metadata":{"annotations":{"x":"y"}}}`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			return errors.New("it isn't")
		}
		return nil
	})
}

// admit removes it.
func (s *surgery) admit(t *testing.T) {
	t.Helper()
	api := s.AWS.Client().AdmissionregistrationV1()
	must(t, api.ValidatingAdmissionPolicyBindings().Delete(t.Context(), "fault", metav1.DeleteOptions{}))
	must(t, api.ValidatingAdmissionPolicies().Delete(t.Context(), "fault", metav1.DeleteOptions{}))
}

// unbind deletes the binding of an account, which has its name, in the cluster of an agent.
func (s *surgery) unbind(t *testing.T, agent int, account string) {
	t.Helper()
	c := s.Agents[agent].Node.Cluster
	must(t, c.Client().RbacV1().ClusterRoleBindings().Delete(t.Context(), account, metav1.DeleteOptions{}))
	must(t, c.AwaitRight(t.Context(), systemNamespace, account, authorizationv1.ResourceAttributes{Verb: "watch", Resource: "nodes"}, false))
}

// grant restores all rights.
func (s *surgery) grant(t *testing.T) {
	t.Helper()
	must(t, programs.Grant(t.Context(), programs.WireGuard, s.AWS, s.GCP))
}

// key gives an agent the key of another one.
func (s *surgery) key(t *testing.T, from, to int) {
	t.Helper()
	file := func(agent int) string {
		return filepath.Join(s.Agents[agent].Node.VarLib(), programs.WireGuard, "wireguard.aws.key")
	}
	must(t, s.Agents[to].Stop(within(t, time.Minute)))
	content, err := os.ReadFile(file(from))
	must(t, err)
	must(t, os.WriteFile(file(to), content, 0o600))
	must(t, s.Agents[to].Start())
}

// container sets the waiting reason of the first agent's pod; empty: it runs.
func (s *surgery) container(t *testing.T, reason string) {
	t.Helper()
	status := corev1.ContainerStatus{Name: "agent", Image: "none", ImageID: "none"}
	if reason != "" {
		status.RestartCount = 7
		status.State.Waiting = &corev1.ContainerStateWaiting{Reason: reason}
		status.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 64, Reason: "Error"}
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"containerStatuses": []any{status}}})
	must(t, err)
	node := s.Agents[0].Node
	_, err = node.Cluster.Client().CoreV1().Pods(programs.Namespace).
		Patch(t.Context(), programs.PodName(node), types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	must(t, err)
}

// mirrorObjects creates the service mirror's Deployment in aws, with so many ready pods, and
// CoreDNS's configuration.
func (s *surgery) mirrorObjects(t *testing.T, ready int32, corefile string) {
	t.Helper()
	ctx, client := t.Context(), s.AWS.Client()
	labels := map[string]string{"app.kubernetes.io/name": programs.ServiceMirror, "app.kubernetes.io/part-of": "kube-semaphore"}
	replicas := int32(2)
	_, err := client.AppsV1().Deployments(programs.Namespace).Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: programs.ServiceMirror, Labels: labels},
		Spec:       appsv1.DeploymentSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template(labels)},
	}, metav1.CreateOptions{})
	exists(t, err)
	_, err = client.AppsV1().Deployments(programs.Namespace).Patch(ctx, programs.ServiceMirror, types.MergePatchType,
		fmt.Appendf(nil, `{"status":{"replicas":2,"readyReplicas":%d}}`, ready), metav1.PatchOptions{}, "status")
	must(t, err)
	_, err = client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem}}, metav1.CreateOptions{})
	exists(t, err)
	maps := client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	coredns := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "coredns"}, Data: map[string]string{"Corefile": corefile}}
	if _, err = maps.Create(ctx, coredns, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
		_, err = maps.Update(ctx, coredns, metav1.UpdateOptions{})
	}
	must(t, err)
}

// noMirror removes the Deployment: it has no pods.
func (s *surgery) noMirror(t *testing.T) {
	t.Helper()
	must(t, s.AWS.Client().AppsV1().Deployments(programs.Namespace).Delete(t.Context(), programs.ServiceMirror, metav1.DeleteOptions{}))
}

// lease is renewed by the kubelet of the first node, with a clock that is ahead.
func (s *surgery) lease(t *testing.T, ahead time.Duration) {
	t.Helper()
	ctx, client := context.WithoutCancel(t.Context()), s.AWS.Client()
	_, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: corev1.NamespaceNodeLease}}, metav1.CreateOptions{})
	exists(t, err)
	leases, name := client.CoordinationV1().Leases(corev1.NamespaceNodeLease), s.Agents[0].Node.Name
	if ahead == 0 {
		must(t, leases.Delete(ctx, name, metav1.DeleteOptions{}))
		return
	}
	at := metav1.NewMicroTime(time.Now().Add(ahead))
	_, err = leases.Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &name, RenewTime: &at},
	}, metav1.CreateOptions{})
	must(t, err)
}

func exists(t *testing.T, err error) {
	t.Helper()
	if !apierrors.IsAlreadyExists(err) {
		must(t, err)
	}
}
