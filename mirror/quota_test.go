package mirror

import (
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// TestSliceIsWrittenWhenItsPortsChange changes only the ports of a slice.
func TestSliceIsWrittenWhenItsPortsChange(t *testing.T) {
	aws, web := setID{"aws", mirrored}, origin.Key{Namespace: "b", Name: "n"}
	w := newWorld()
	w.has(aws, web, "s", "10.4.0.1")
	w.says(t, aws, newOrigin(web, 1, 80, origin.Traits{}))
	before := w.sets[aws].slices[web]["s"]
	for port := range int32(2) {
		after := *before
		number := 8080 + port
		after.Ports = []discoveryv1.EndpointPort{{Port: &number}}
		w.slice(aws, before, &after)
		w.settle(t)
		for name, s := range w.slices {
			if len(s.Ports) != 1 || *s.Ports[0].Port != number {
				t.Errorf("%s has the ports %v, want %d", name, s.Ports, number)
			}
		}
		before = &after
	}
}
