package scenarios_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
)

// faults are those that the testbed can make cheaply. Agents are aws-1, aws-2, gcp-1 and
// gcp-2, in this order.
func (s *surgery) faults(t *testing.T) []fault {
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
			name: "API server away", want: "api-away",
			// The agents of gcp can't be asked, nor reach it themselves.
			make: func(*testing.T) { s.GCP.StopAPI() },
			heal: func(t *testing.T) { must(t, s.GCP.StartAPI(within(t, time.Minute))) },
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
			name: "key changed on one side", want: "key-changed",
			make: func(t *testing.T) {
				s.unbind(t, 0, programs.WireGuard)
				must(t, s.Agents[0].Stop(within(t, time.Minute)))
				must(t, os.Remove(filepath.Join(aws1.VarLib(), programs.WireGuard, "wireguard.gcp.key")))
				must(t, s.Agents[0].Start())
			},
			besides: []string{"agent-failing"},
			heal:    s.grant,
		},
		{
			name: "annotations gone", want: "annotations-gone",
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
	}
}

// unbind takes an account's rights away in the cluster of an agent.
func (s *surgery) unbind(t *testing.T, agent int, binding string) {
	t.Helper()
	must(t, s.Agents[agent].Node.Cluster.Client().RbacV1().ClusterRoleBindings().Delete(t.Context(), binding, metav1.DeleteOptions{}))
}

// grant gives all rights back.
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
