package mirror

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// TestWhatMustGoIsUrgent changes the endpoints of a global service.
func TestWhatMustGoIsUrgent(t *testing.T) {
	web := origin.Key{Namespace: "shop", Name: "web"}
	for _, c := range []struct {
		name          string
		before, after []string
		urgent        bool
	}{
		{"another address", []string{"http 10.4.0.1"}, []string{"http 10.4.0.1 10.4.0.2"}, false},
		{"another port", []string{"http 10.4.0.1"}, []string{"http,metrics 10.4.0.1"}, false},
		{"one becomes ready", []string{"http 10.4.0.1 !10.4.0.2"}, []string{"http 10.4.0.1 10.4.0.2"}, false},
		{"one that isn't ready leaves", []string{"http 10.4.0.1 !10.4.0.2"}, []string{"http 10.4.0.1"}, true},
		{"an address leaves", []string{"http 10.4.0.1 10.4.0.2"}, []string{"http 10.4.0.1"}, true},
		{"one leaves, another comes", []string{"http 10.4.0.1 10.4.0.2"}, []string{"http 10.4.0.1 10.4.0.3"}, true},
		{"all leave", []string{"http 10.4.0.1 10.4.0.2"}, []string{"http"}, true},
		{"one is no longer ready", []string{"http 10.4.0.1 10.4.0.2"}, []string{"http 10.4.0.1 !10.4.0.2"}, true},
		{"a port leaves", []string{"http,metrics 10.4.0.1"}, []string{"http 10.4.0.1"}, true},
		{"a protocol leaves", []string{"http 10.4.0.1"}, []string{"http/UDP 10.4.0.1"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld()
			o := newOrigin(web, 1, 80, origin.Traits{})
			o.Spec.Ports = append(o.Spec.Ports, tcp("metrics", 9090))
			w.hears(setOf("aws", merged), o)
			w.offers("aws", web, c.before...)
			w.settle(t)
			w.offers("aws", web, c.after...)
			want, have := w.want(globalName)
			urgent := map[string]bool{}
			changes := w.sums.Diff(&have, &want)
			for i := range changes {
				urgent[changes[i].Object] = changes[i].urgent(&have)
			}
			if diff := cmp.Diff(map[string]bool{aSlice: c.urgent}, urgent); diff != "" {
				t.Errorf("urgent (-want +got):\n%s", diff)
			}
		})
	}
}
