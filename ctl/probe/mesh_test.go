package probe

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"

	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/reach"
)

func place(cluster, node string, addresses ...string) server {
	return server{NodeRef: NodeRef{cluster, node}, image: "ours", addresses: addresses}
}

// TestAsker checks that each pod of a remote is tested at each address of a shared family,
// and that others are reported with a reason.
func TestAsker(t *testing.T) {
	dead := place("gcp", "gcp-3")
	dead.err = errors.New("no image")
	servers := []server{
		place("aws", "aws-1", "10.2.1.7", "fd00:2::7"), place("gcp", "gcp-1", "10.4.1.7", "fd00:4::7"),
		place("gcp", "gcp-2", "10.4.2.7"), dead, place("merit", "merit-1", "10.6.1.7"),
	}
	a := newAsker(&servers[0], "gcp", servers, 7, nil)
	if diff := cmp.Diff(reach.Request{Try: []string{"10.4.1.7", "fd00:4::7", "10.4.2.7"}, Patience: 7}, a.request, cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	a.result = &reach.Result{Connections: []reach.Try{{RTT: 1}, {RTT: 2}, {Error: "no"}}}
	var got Results
	a.collect(&got)
	aws, gcp := servers[0].NodeRef, "gcp"
	want := Results{
		Connections: []Connection{
			{From: aws, To: NodeRef{gcp, "gcp-1"}, Address: "10.4.1.7", Try: reach.Try{RTT: 1}},
			{From: aws, To: NodeRef{gcp, "gcp-1"}, Address: "fd00:4::7", Try: reach.Try{RTT: 2}},
			{From: aws, To: NodeRef{gcp, "gcp-2"}, Address: "10.4.2.7", Try: reach.Try{Error: "no"}},
			{From: aws, To: NodeRef{gcp, "gcp-3"}, Skipped: "no pod runs on gcp/gcp-3: no image"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("collected (-want +got):\n%s", diff)
	}
}

// TestAskerWithoutResult checks that the reason is reported.
func TestAskerWithoutResult(t *testing.T) {
	servers := []server{place("aws", "aws-1", "10.2.1.7"), place("gcp", "gcp-1", "10.4.1.7"), place("gcp", "gcp-2", "fd00:4::7")}
	a := newAsker(&servers[0], "gcp", servers, 0, nil)
	a.err = errors.New("not within 90s")
	var got Results
	a.collect(&got)
	var why []string
	for _, connection := range got.Connections {
		why = append(why, connection.To.Node+": "+connection.Skipped)
	}
	if diff := cmp.Diff([]string{"gcp-1: the pod on aws/aws-1 failed: not within 90s", "gcp-2: their pods have no common address family"}, why); diff != "" {
		t.Errorf("collected (-want +got):\n%s", diff)
	}
}

func TestPick(t *testing.T) {
	nodes := []inspect.Node{{Name: "a"}, {Name: "b", Ready: "True", OS: "windows"}, {Name: "c", Ready: "True", OS: "linux"}, {Name: "d", Ready: "True"}, {Name: "e", Ready: "True"}}
	if diff := cmp.Diff([]string{"c", "d"}, Pick(nodes, 2)); diff != "" {
		t.Errorf("picked (-want +got):\n%s", diff)
	}
}

// TestPodsOfPods checks that the pods have minimal privileges.
func TestPodsOfPods(t *testing.T) {
	pod := OnNode("ours", "aws-1", reach.Request{ServeFor: 9})
	c := pod.Spec.Containers[0]
	if pod.Spec.HostNetwork || pod.Spec.NodeName != "aws-1" || *pod.Spec.AutomountServiceAccountToken || len(c.SecurityContext.Capabilities.Add) > 0 || pod.Spec.ActiveDeadlineSeconds == nil {
		t.Errorf("it is %+v", pod.Spec)
	}
}

func TestImage(t *testing.T) {
	installed := &inspect.Cluster{}
	installed.Workloads.Value = []inspect.Workload{{Name: inspect.WireGuard, Image: "there"}, {Name: "others", Image: "other"}}
	for _, tt := range []struct {
		given string
		of    *inspect.Cluster
		want  string
	}{{"given", installed, "given"}, {"", installed, "there"}, {"", &inspect.Cluster{}, ""}} {
		got, err := (&Plan{Image: tt.given}).image(tt.of)
		if got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("got %q, %v, want %q", got, err, tt.want)
		}
	}
}

// TestAddressesAreThoseOfPods checks that a hostile cluster can't direct another cluster's
// pods to arbitrary addresses.
func TestAddressesAreThoseOfPods(t *testing.T) {
	for _, c := range []struct {
		says, want, taken string // taken within 10.4.0.0/16 and fd00:10:4::/48
	}{
		{"10.4.1.2 fd00:10:4:1::2", "10.4.1.2 fd00:10:4:1::2", "10.4.1.2 fd00:10:4:1::2"},
		{"169.254.169.254", "", ""}, {"127.0.0.1", "", ""}, {"::1", "", ""}, {"fe80::1", "", ""}, {"224.0.0.1", "", ""}, {"0.0.0.0", "", ""}, {"x", "", ""},
		{"10.4.1.2 10.4.1.3 10.4.1.4", "10.4.1.2", "10.4.1.2"}, {"::ffff:10.4.1.2", "10.4.1.2", "10.4.1.2"}, {"::ffff:240.0.0.1", "", ""}, {"fd00:10:4:1::2%eth0", "", ""},
		{"10.66.1.2 fd00:10:4:1::2", "10.66.1.2 fd00:10:4:1::2", "fd00:10:4:1::2"}, {"203.0.113.9", "203.0.113.9", ""},
	} {
		pod := &corev1.Pod{}
		for word := range strings.FieldsSeq(c.says) {
			pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: word})
		}
		got := Addresses(pod)
		taken := Taken(got, inspect.Settings{"SEMAPHORE_REMOTE_GCP_POD_SUBNETS": "10.4.0.0/16,fd00:10:4::/48"}, "gcp")
		if strings.Join(got, " ") != c.want || strings.Join(taken, " ") != c.taken {
			t.Errorf("of %s: %q, taken %q", c.says, got, taken)
		}
		if all := Taken(got, nil, "gcp"); len(all) != len(got) {
			t.Errorf("without bounds: %q of %q", all, got)
		}
	}
	servers := []server{
		{NodeRef: NodeRef{"aws", "a"}, addresses: []string{"10.2.1.2"}},
		{NodeRef: NodeRef{"gcp", "g"}, cluster: 1, addresses: []string{"10.66.1.2"}},
	}
	a := newAsker(&servers[0], "gcp", servers, 0, inspect.Settings{"SEMAPHORE_REMOTE_GCP_POD_SUBNETS": "10.4.0.0/16"})
	if len(a.request.Try) > 0 || len(a.connections) != 1 || !strings.Contains(a.connections[0].Skipped, "outside the pod subnets of gcp in the settings of aws") {
		t.Errorf("it tries %q, and says %+v", a.request.Try, a.connections)
	}
}
