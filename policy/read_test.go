package policy

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const podLabel = "policy.semaphore.uw.io/name"

var compareAddrs = cmpopts.EquateComparable(netip.Addr{})

// pod is an object as a remote's API server sends it.
func podObject(namespace, name, set string, phase corev1.PodPhase, ips ...string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, Labels: map[string]string{podLabel: set},
			CreationTimestamp: metav1.NewTime(time.Unix(1700000000, 0)),
		},
		Status: corev1.PodStatus{Phase: phase},
	}
	for _, ip := range ips {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	return p
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func TestPodFor(t *testing.T) {
	with := func(p *corev1.Pod, f func(*corev1.Pod)) *corev1.Pod {
		f(p)
		return p
	}
	base := Pod{Namespace: "ns", Name: "p", Set: "app", Created: 1700000000}
	is := func(f func(*Pod)) Pod {
		p := base
		f(&p)
		return p
	}
	running := corev1.PodRunning
	for name, test := range map[string]struct {
		object *corev1.Pod
		want   Pod
	}{
		"both families": {
			podObject("ns", "p", "app", running, "10.4.0.1", "fd00:10:4::1"),
			is(func(p *Pod) { p.V4, p.V6 = addr("10.4.0.1"), addr("fd00:10:4::1") }),
		},
		"an API server that fills podIP only": {
			with(podObject("ns", "p", "app", running), func(p *corev1.Pod) { p.Status.PodIP = "10.4.0.1" }),
			is(func(p *Pod) { p.V4 = addr("10.4.0.1") }),
		},
		"an IPv4 address written as IPv6": {
			podObject("ns", "p", "app", running, "::ffff:10.4.0.1"),
			is(func(p *Pod) { p.V4 = addr("10.4.0.1") }),
		},
		"a pod that succeeded has no address": {
			podObject("ns", "p", "app", corev1.PodSucceeded, "10.4.0.1"),
			is(func(p *Pod) { p.Finished = true }),
		},
		"a pod that failed has no address": {
			podObject("ns", "p", "app", corev1.PodFailed, "10.4.0.1"),
			is(func(p *Pod) { p.Finished = true }),
		},
		"host network": {
			with(podObject("ns", "p", "app", running, "192.168.0.1"), func(p *corev1.Pod) { p.Spec.HostNetwork = true }),
			is(func(p *Pod) { p.HostNetwork, p.V4 = true, addr("192.168.0.1") }),
		},
		"no address yet":            {podObject("ns", "p", "app", corev1.PodPending), base},
		"an address twice":          {podObject("ns", "p", "app", running, "10.4.0.1", "10.4.0.1"), is(func(p *Pod) { p.V4 = addr("10.4.0.1") })},
		"more than one of a family": {podObject("ns", "p", "app", running, "10.4.0.1", "10.4.0.2"), is(func(p *Pod) { p.V4, p.Fault = addr("10.4.0.1"), ReasonMoreAddress })},
		"not an address":            {podObject("ns", "p", "app", running, "10.4.0.0/16"), is(func(p *Pod) { p.Fault = ReasonBadAddress })},
		"the good one of two": {
			podObject("ns", "p", "app", running, "nonsense", "fd00::1"),
			is(func(p *Pod) { p.V6, p.Fault = addr("fd00::1"), ReasonBadAddress }),
		},
		"an empty label":                   {podObject("ns", "p", "", running, "10.4.0.1"), is(func(p *Pod) { p.Set, p.Fault = "", ReasonBadName })},
		"a label that no API server takes": {podObject("ns", "p", "ünïcode", running, "10.4.0.1"), is(func(p *Pod) { p.Set, p.Fault = "ünïcode", ReasonBadName })},
		"a label value of a megabyte": {
			podObject("ns", "p", strings.Repeat("x", rounds(1<<20, 1<<16)), running, "10.4.0.1"),
			is(func(p *Pod) { p.Set, p.Fault = strings.Repeat("x", maxReportedNameLen), ReasonBadName }),
		},
		"a namespace that is none": {podObject("n/s", "p", "app", running, "10.4.0.1"), is(func(p *Pod) { p.Namespace, p.Fault = "n/s", ReasonBadName })},
	} {
		t.Run(name, func(t *testing.T) {
			got, kept := PodFor(podLabel)(test.object)
			if !kept {
				t.Fatal("not kept")
			}
			if diff := cmp.Diff(test.want, got, compareAddrs); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestAddressesThatNoPodHasAreRefused(t *testing.T) {
	for _, ip := range []string{
		"0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "169.254.169.254",
		"::", "::1", "ff02::1", "fe80::1", "fe80::1%eth0", "fd00::1%eth0", "::ffff:127.0.0.1", "010.4.0.1", "",
	} {
		got, _ := PodFor(podLabel)(podObject("ns", "p", "app", corev1.PodRunning, ip))
		if got.V4.IsValid() || got.V6.IsValid() || got.Fault != ReasonBadAddress {
			t.Errorf("%q: got %v, %v, fault %q", ip, got.V4, got.V6, got.Fault)
		}
	}
}

func TestPodsWithoutTheLabelAreDropped(t *testing.T) {
	if _, kept := PodFor("semaphore.uw.systems/name")(podObject("ns", "p", "app", corev1.PodRunning)); kept {
		t.Error("kept a pod with the label of another domain")
	}
}

func FuzzPod(f *testing.F) {
	f.Add("ns", "pod", "app", "10.4.0.1", "fd00::1")
	f.Add("", "", "", "", "")
	f.Add("n s", "p\x00", strings.Repeat("é", 200), "::ffff:1.2.3.4", "1.2.3.4%x")
	f.Fuzz(func(t *testing.T, namespace, name, set, ip1, ip2 string) {
		p, kept := PodFor(podLabel)(podObject(namespace, name, set, corev1.PodRunning, ip1, ip2))
		if !kept {
			t.Fatal("not kept")
		}
		if p.V4.IsValid() && (!p.V4.Is4() || !usable(p.V4)) || p.V6.IsValid() && (!p.V6.Is6() || !usable(p.V6)) {
			t.Fatalf("addresses %v, %v", p.V4, p.V6)
		}
		if p.Fault == ReasonBadName && max(len(p.Namespace), len(p.Name), len(p.Set)) > 4*maxReportedNameLen {
			t.Fatal("holds on to a long name")
		}
		members := NewMembers(rules())
		members.Update(nil, &p, time.Time{})
		for _, id := range members.Touched() {
			for _, o := range desired(t, view(id, members.Addrs(id))) {
				if o.Identity.Name != set || o.Identity.Namespace != namespace {
					t.Fatalf("labels %v differ from the object's", o.Identity)
				}
			}
		}
	})
}
