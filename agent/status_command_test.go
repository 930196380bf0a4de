package agent

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/reporttest"
	"github.com/kube-semaphore/kube-semaphore/peers"
	"github.com/kube-semaphore/kube-semaphore/peers/paths"
)

// wellReport is a report without faults.
func wellReport() statuspage.Agent {
	ago := func(d time.Duration) *time.Time {
		at := reporttest.Now.Add(-d)
		return &at
	}
	return statuspage.Agent{
		Version: "v1.2.3 (revision 0123456789ab, go1.26.8)", Cluster: "aws", Node: "aws-1", Published: true, Local: true, Conditions: []statuspage.Condition{},
		Filter: statuspage.Filter{State: statuspage.FilterEnforced}, Exit: statuspage.Filter{State: statuspage.FilterEnforced},
		Pods: &statuspage.Pods{Source: "node", Why: "the node has podCIDRs", Known: true, Count: 1, Prefixes: []string{"10.2.1.0/24"}},
		Remotes: []statuspage.Remote{{
			Name: "gcp", PodSubnets: []string{"10.4.0.0/16"}, Source: string(peers.OriginAPI),
			API: statuspage.Connection{Synced: true, LastContact: ago(100 * time.Millisecond)},
			Device: statuspage.Device{
				Name: "wireguard.gcp", Index: 7, Backend: "userspace", PublicKey: "ours", ListenPort: 51820, MTU: 1420,
			},
			Peers: []statuspage.Peer{
				{
					Node: "gcp-2", PublicKey: "two", Endpoint: "10.66.0.5:51820", AllowedIPs: []string{"10.4.1.0/24", "fd04:0:0:1::/64", "fe80::2/128"},
					Path:   &statuspage.Path{State: string(paths.Up), Since: *ago(3 * time.Hour), Sign: string(paths.SignAnswer), Answers: true},
					Health: string(paths.HealthUp), LastHandshake: ago(75 * time.Second), LastHeard: ago(5 * time.Second), RxBytes: 3 << 20, TxBytes: 1536,
				},
				{
					Node: "gcp-1", PublicKey: "one", Endpoint: "10.66.0.4:51820", AllowedIPs: []string{"10.4.0.0/24", "fe80::1/128"},
					Path:   &statuspage.Path{State: string(paths.Up), Since: *ago(2 * time.Minute), Sign: string(paths.SignReceived)},
					Health: string(paths.HealthUp), LastHandshake: ago(15 * time.Second), LastHeard: ago(10 * time.Second), RxBytes: 92, TxBytes: 180,
				},
			},
			Rejected: []statuspage.Rejection{}, Forged: new(uint64), Stopped: new(uint64),
		}},
	}
}

func TestStatusForPeople(t *testing.T) {
	got := reporttest.Run(t, statusCommand(), wellReport())
	const want = `semaphore-wireguard v1.2.3 (revision 0123456789ab, go1.26.8)
cluster aws, node aws-1
pods of this node: 10.2.1.0/24, by node: the node has podCIDRs

REMOTE  CONTACT  PEERS FROM  DEVICE         BACKEND    PORT   MTU   UP  CONNECTING  WAITING  SILENT  DOWN  REJECTED  FORGED  STOPPED
gcp     0s ago   api         wireguard.gcp  userspace  51820  1420  2   0           0        0       0     0         0       0

REMOTE  NODE   ENDPOINT         HEALTH  SINCE     SIGN      HANDSHAKE  HEARD    RECEIVED  SENT     POD CIDRS
gcp     gcp-1  10.66.0.4:51820  up      2m0s ago  received  15s ago    10s ago  92 B      180 B    10.4.0.0/24
gcp     gcp-2  10.66.0.5:51820  up      3h0m ago  answer    1m15s ago  5s ago   3.0 MiB   1.5 KiB  10.4.1.0/24,fd04:0:0:1::/64

all is well
`
	if diff := cmp.Diff(reporttest.Printed{Stdout: want}, got); diff != "" {
		t.Errorf("differs (-want +got):\n%s", diff)
	}
}

// A filter that is switched off is shown and is no fault.
func TestStatusWithoutSourceFilter(t *testing.T) {
	rep := wellReport()
	rep.Filter = statuspage.Filter{State: statuspage.FilterOff}
	got := reporttest.Run(t, statusCommand(), rep)
	if got.Code != 0 || !strings.Contains(got.Stdout, "source filter off\n") || !strings.Contains(got.Stdout, "all is well") {
		t.Errorf("code %d\n%s", got.Code, got.Stdout)
	}
}

// Nor is a host without an address, as with some network plugins.
func TestStatusOfAHostWithoutAddress(t *testing.T) {
	rep := wellReport()
	rep.Unsourced = "10.2.1.0/24"
	got := reporttest.Run(t, statusCommand(), rep)
	const want = "\nhost has no address in 10.2.1.0/24: pods reach remote pods, the node itself and hostNetwork pods don't\n"
	if got.Code != 0 || !strings.Contains(got.Stdout, want) {
		t.Errorf("code %d\n%s", got.Code, got.Stdout)
	}
}

// Nor is a kernel that can't redirect pods to virtual addresses of their own cluster.
func TestStatusOfVirtualSubnets(t *testing.T) {
	rep, dropped := wellReport(), uint64(7)
	rep.Translation = &statuspage.Translation{Map: "10.2.0.0/16=100.64.0.0/16", Filter: statuspage.Filter{State: statuspage.FilterEnforced}, Untranslated: &dropped}
	got := reporttest.Run(t, statusCommand(), rep)
	const want = `
other clusters know pods of this one by 10.2.0.0/16=100.64.0.0/16
pods of this cluster don't reach each other by virtual addresses: the kernel lacks NAT of prefixes (Linux 5.8)
7 packets were dropped because they were not translated
`
	if got.Code != 0 || !strings.Contains(got.Stdout, want) {
		t.Errorf("code %d\n%s", got.Code, got.Stdout)
	}
}

// A peer whose address a node of the local cluster claims is retained, and shown.
func TestStatusNamesDisputedEndpoints(t *testing.T) {
	rep := wellReport()
	rep.Remotes[0].Peers[0].Disputed = `an address of this cluster's node "aws-2"`
	got := reporttest.Run(t, statusCommand(), rep)
	want := rep.Remotes[0].Peers[0].Node + ` (an address of this cluster's node "aws-2")`
	if got.Code != 1 || !strings.Contains(got.Stdout+got.Stderr, want) {
		t.Errorf("code %d\n%s%s", got.Code, got.Stdout, got.Stderr)
	}
}

func TestStatusSaysWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(*statuspage.Agent)
		want  []string // what is wrong, a line each
		shown string   // something in a table
	}{
		{
			"a peer without a session comes first",
			func(rep *statuspage.Agent) { rep.Remotes[0].Peers[0].Health = string(paths.HealthDown) },
			[]string{"remote gcp: no session with 1 of 2 peers: gcp-2"},
			"POD CIDRS\ngcp     gcp-2  10.66.0.5:51820  down ",
		},
		{
			"addresses of pods are not translated",
			func(rep *statuspage.Agent) {
				rep.Translation = &statuspage.Translation{Map: "10.2.0.0/16=100.64.0.0/16", Filter: statuspage.Filter{State: statuspage.FilterNotEnforced, Error: "x"}}
			},
			[]string{"addresses of pods are not translated: packets to remote pods are refused"},
			"other clusters know pods of this one by 10.2.0.0/16=100.64.0.0/16\n",
		},
		{
			"forwarding is off",
			func(rep *statuspage.Agent) {
				rep.Forwarding = statuspage.Forwarding{Known: true, Off: []string{"net.ipv4.ip_forward=0"}}
			},
			[]string{"this host doesn't forward packets between its pods and tunnels: net.ipv4.ip_forward=0"}, "",
		},
		{
			"a peer that answers no more",
			func(rep *statuspage.Agent) {
				peer := &rep.Remotes[0].Peers[0]
				peer.Health, peer.Path.State, peer.Path.Sign = string(paths.HealthDown), string(paths.Down), string(paths.SignNoAnswer)
			},
			[]string{"remote gcp: no more answers from 1 of 2 peers: gcp-2"},
			"no_answer",
		},
		{
			"a path that carries packets one way",
			func(rep *statuspage.Agent) {
				peer := &rep.Remotes[0].Peers[0]
				peer.Health, peer.Path.State, peer.Path.Sign = string(paths.HealthDown), string(paths.Down), string(paths.SignOneWay)
			},
			[]string{"remote gcp: packets arrive from but do not reach (one way) 1 of 2 peers: gcp-2"},
			"one_way",
		},
		{
			"a path that carries small packets",
			func(rep *statuspage.Agent) { rep.Remotes[0].Peers[1].Path.SmallOnly = true },
			[]string{"remote gcp: only small packets reach 1 of 2 peers: gcp-1"},
			"gcp-1",
		},
		{
			"a peer that no node is known for",
			func(rep *statuspage.Agent) {
				rep.Remotes[0].Peers[0].Node, rep.Remotes[0].Peers[0].Health = "", string(paths.HealthDown)
			},
			[]string{"remote gcp: no session with 1 of 2 peers: key two"},
			"key two",
		},
		{
			"a node that is rejected",
			func(rep *statuspage.Agent) {
				rep.Remotes[0].Rejected = []statuspage.Rejection{
					{Node: "gcp-3", Reason: string(peers.ReasonEndpoint), Detail: `endpoint "127.0.0.1:1": expected more`},
					{Node: "gcp-4", Reason: string(peers.ReasonPodCIDR), Detail: "outside", Partial: true},
					{Node: "gcp-4", Reason: string(peers.ReasonDuplicatePrefix), Detail: "taken", Partial: true},
				}
			},
			[]string{"remote gcp: rejected, in whole or in part: gcp-3, gcp-4"},
			"\ngcp     gcp-3          node    endpoint          endpoint \"127.0.0.1:1\": expected more\n" +
				"gcp     gcp-4          prefix  pod_cidr          outside\n",
		},
		{
			"what a node says can't change the screen",
			func(rep *statuspage.Agent) {
				rep.Remotes[0].Rejected = []statuspage.Rejection{{Node: "gcp\x1b[2J", Reason: string(peers.ReasonEndpoint), Detail: "a\rb\nall is well\u202e"}}
			},
			[]string{`remote gcp: rejected, in whole or in part: gcp\x1b[2J`},
			`a\rb; all is well\u202e`,
		},
		{
			"an API server that does not answer",
			func(rep *statuspage.Agent) { rep.Remotes[0].API.Error = "api.gcp:6443: connection refused" },
			[]string{"remote gcp: API server: api.gcp:6443: connection refused"}, "",
		},
		{
			"peers from disk",
			func(rep *statuspage.Agent) {
				rep.Remotes[0].API, rep.Remotes[0].Source = statuspage.Connection{}, string(peers.OriginDisk)
			},
			[]string{"remote gcp: its nodes have not been read since start"}, "gcp     never    disk ",
		},
		{
			"no device",
			func(rep *statuspage.Agent) {
				rep.Remotes[0].Peers, rep.Remotes[0].Device.Backend = nil, ""
				rep.Remotes[0].Device.Error = "no such device"
			},
			[]string{"remote gcp: device wireguard.gcp: no such device"}, "wireguard.gcp  -        51820",
		},
		{
			"a remote that is refused",
			func(rep *statuspage.Agent) {
				rep.Remotes[0].Refused = "10.0.0.0/8 overlaps 10.2.1.0/24, the pods of this node"
				rep.Remotes[0].Peers, rep.Remotes[0].API = nil, statuspage.Connection{}
			},
			[]string{"remote gcp is refused: 10.0.0.0/8 overlaps 10.2.1.0/24, the pods of this node"}, "",
		},
		{
			"systemd-networkd without the file for it",
			func(rep *statuspage.Agent) { rep.Networkd = true },
			[]string{"systemd-networkd removes rules and routes of the agent when it starts: 10-semaphore.conf isn't in /etc/systemd/networkd.conf.d"}, "",
		},
		{
			"an MTU that is too large",
			func(rep *statuspage.Agent) {
				rep.Remotes[0].Device.LargestMTU, rep.Remotes[0].Device.NarrowestEndpoint = 1340, "10.66.0.4"
			},
			[]string{"remote gcp: an MTU of 1420 exceeds the path to 10.66.0.4, which fragments: 1340 fits"}, "",
		},
		{
			"a remote without agents",
			func(rep *statuspage.Agent) { rep.Remotes[0].Peers = nil },
			[]string{"remote gcp: none of its nodes is a peer"}, "",
		},
		{
			"loops that fail, and a node that is not published",
			func(rep *statuspage.Agent) {
				rep.Published = false
				rep.Conditions = []statuspage.Condition{
					{Type: statuspage.Failing, Object: "publish", Message: "forbidden"},
					{Type: statuspage.Failing, Reason: statuspage.ReasonRouteInTheWay, Object: "routes", Message: "foreign route\nand another"},
					{Type: statuspage.Failing, Reason: statuspage.ReasonUndone, Object: "routes", Message: "foreign route\nand another"},
				}
			},
			[]string{
				"the node object of aws-1 does not have all keys and endpoints of this agent",
				"publish: forbidden", "routes: foreign route; and another",
			}, "",
		},
		{
			"a source filter that can't be installed",
			func(rep *statuspage.Agent) {
				rep.Filter = statuspage.Filter{State: statuspage.FilterNotEnforced, Error: "no nf_tables"}
				rep.Conditions = []statuspage.Condition{{Type: statuspage.Failing, Object: "source filter", Message: "no nf_tables"}}
				rep.Remotes[0].Forged = nil
			},
			[]string{"source filter: no nf_tables", "plaintext packets with a remote pod's source address are not dropped"},
			"2   0           0        0       0     0         -       0\n",
		},
		{
			"an exit filter that can't be installed",
			func(rep *statuspage.Agent) {
				rep.Exit = statuspage.Filter{State: statuspage.FilterNotEnforced, Error: "no nf_tables"}
			},
			[]string{"packets to remote pods that another program leads past the tunnel are not dropped: only routes and policy rules keep them from leaving in plaintext"}, "",
		},
		{
			"packets that the exit filter has just dropped",
			func(rep *statuspage.Agent) {
				n, at := uint64(9), reporttest.Now.Add(-time.Minute)
				rep.Remotes[0].Stopped, rep.Remotes[0].LastStopped, rep.Remotes[0].Stopping = &n, &at, true
			},
			[]string{"remote gcp: 9 packets to its pods were dropped because they would have left in plaintext, the last of them 1m0s ago"},
			"2   0           0        0       0     0         0       9\n",
		},
		{
			"a source filter that can't be read",
			func(rep *statuspage.Agent) {
				rep.Filter = statuspage.Filter{State: statuspage.FilterUnknown, Error: "not permitted"}
			},
			[]string{"source filter: not permitted"}, "",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			rep := wellReport()
			c.spoil(&rep)
			reporttest.Finds(t, statusCommand(), rep, c.want, c.shown)
			asJSON := reporttest.Run(t, statusCommand(), rep, "-o", "json")
			var again statuspage.Agent
			if err := json.Unmarshal([]byte(asJSON.Stdout), &again); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(rep, again); diff != "" {
				t.Errorf("the report as JSON (-want +got):\n%s", diff)
			}
			if want := "wrong:\n  " + strings.Join(c.want, "\n  ") + "\n"; asJSON.Code != 1 || asJSON.Stderr != want {
				t.Errorf("as JSON: code %d, stderr %q, want %q", asJSON.Code, asJSON.Stderr, want)
			}
		})
	}
}

// Unknown state has an exit code of its own, between well and wrong.
func TestStatusSaysWhatIsNotKnown(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(*statuspage.Agent)
		want  string
	}{
		{
			"a peer without a session yet",
			func(rep *statuspage.Agent) { rep.Remotes[0].Peers[1].Health = string(paths.HealthConnecting) },
			"remote gcp: no session yet with 1 of 2 peers: gcp-1",
		},
		{
			"a silent peer",
			func(rep *statuspage.Agent) { rep.Remotes[0].Peers[1].Health = string(paths.HealthSilent) },
			"remote gcp: nothing received lately from 1 of 2 peers: gcp-1",
		},
		{
			"an API server without recent contact",
			func(rep *statuspage.Agent) {
				at := reporttest.Now.Add(-3 * time.Minute)
				rep.Remotes[0].API.LastContact = &at
			},
			"remote gcp: last response of the API server: 3m0s ago",
		},
		{
			"nodes read but not configured as peers yet",
			func(rep *statuspage.Agent) {
				rep.Remotes[0].Source, rep.Remotes[0].Peers = string(peers.OriginNone), nil
			},
			"remote gcp: its nodes are not configured as peers yet",
		},
		{
			"loops without a completed pass",
			func(rep *statuspage.Agent) {
				rep.Conditions = []statuspage.Condition{{Type: statuspage.Pending, Object: "routes"}, {Type: statuspage.Pending, Object: "device gcp"}}
			},
			"not completed since start: routes, device gcp",
		},
		{
			"an agent of another release",
			func(rep *statuspage.Agent) { rep.Conditions = nil },
			"the agent doesn't report whether it fails: it is of another release",
		},
		{
			"unknown addresses of the local cluster",
			func(rep *statuspage.Agent) { rep.Local = false },
			"addresses of this cluster not read yet: endpoints of remote nodes can't be checked against them",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			rep := wellReport()
			c.spoil(&rep)
			got := reporttest.Run(t, statusCommand(), rep)
			if want := "\nunknown:\n  " + c.want + "\n"; got.Code != 2 || !strings.HasSuffix(got.Stdout, want) ||
				strings.Contains(got.Stdout, "all is well") {
				t.Errorf("code %d:\n%s\nwant 3, and at the end:%s", got.Code, got.Stdout, want)
			}
			rep.Published = false
			if got := reporttest.Run(t, statusCommand(), rep); got.Code != 1 || !strings.Contains(got.Stdout, c.want) {
				t.Errorf("with something wrong: code %d:\n%s", got.Code, got.Stdout)
			}
		})
	}
}
