package policy

import (
	"net/netip"
	"strings"
	"testing"
	"time"

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
		pods := newPodIndex(rules())
		_, got := pods.update(nil, &p)
		for _, id := range got {
			for _, o := range desired(t, view(id, pods.addresses(id))) {
				if o.Identity.Name != set || o.Identity.Namespace != namespace {
					t.Fatalf("labels %v differ from the object's", o.Identity)
				}
			}
		}
	})
}
