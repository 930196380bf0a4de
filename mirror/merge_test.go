package mirror

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

func tcp(name string, port int32) origin.Port {
	return origin.Port{Name: name, Protocol: corev1.ProtocolTCP, Port: port, Target: intstr.FromInt32(port)}
}

func udp(name string, port int32) origin.Port {
	p := tcp(name, port)
	p.Protocol = corev1.ProtocolUDP
	return p
}

func TestHintsCoverAllZones(t *testing.T) {
	var zones []string
	for _, r := range "abcdefghijklmnopqrst" {
		zones = append(zones, string(r))
	}
	covered := map[string]bool{}
	for i := range 3 {
		h := hints(zones, i)
		if len(h.ForZones) != maxZones {
			t.Errorf("endpoint %d is for %d zones", i, len(h.ForZones))
		}
		for _, z := range h.ForZones {
			covered[z.Name] = true
		}
	}
	if len(covered) != len(zones) {
		t.Errorf("%d of %d zones are covered by three endpoints", len(covered), len(zones))
	}
	if hints(nil, 0) != nil {
		t.Error("hints without zones")
	}
}
