package mirror

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// TestTextOfARemoteIsTruncated adds objects with long or invalid names, families and
// addresses to a remote.
func TestTextOfARemoteIsTruncated(t *testing.T) {
	long := strings.Repeat("\x1b", 1<<20)
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{long}}},
	}
	w, id, web := newWorld(), setOf("aws", mirrored), origin.Key{Namespace: "shop", Name: "web"}
	for i, family := range []string{"IPv4", long} {
		s.Name, s.AddressType = fmt.Sprint("web-", i), discoveryv1.AddressType(family)
		sl, _ := origin.TrimSlice(s, nil)
		w.slice(id, nil, sl)
	}
	for name, rejected := range map[string]bool{"web": false, "A/../../nodes/x": true, "a.b": true, long: true} {
		service := svc(name)
		service.Namespace = "shop"
		if o := origin.TrimService(service, nil); (o.Reject != "") != rejected {
			t.Errorf("%.40q: %q", name, o.Reject)
		}
		service.Namespace, service.Name = name, "web"
		if o := origin.TrimService(service, nil); (o.Reject != "") != rejected {
			t.Errorf("namespace %.40q: %q", name, o.Reject)
		}
	}
	w.says(t, id, newOrigin(web, 1, 80, origin.Traits{}))
	tally := w.plans[Name("c1", web)].Tallies["aws"]
	if tally.Rejected != 2 || len(tally.Example) > 1000 || strings.Contains(tally.Example, "\x1b") {
		t.Errorf("%d rejected, with an example of %d bytes: %.80q", tally.Rejected, len(tally.Example), tally.Example)
	}
}

// FuzzSlice takes what a remote can put into a slice through to what is
// written: never an address that isn't one of its pods.
func FuzzSlice(f *testing.F) {
	f.Add("10.4.0.1", "db-0", "http", int32(80), true, "IPv4")
	f.Add("fd00:10:4::1", "", "", int32(0), false, "IPv6")
	f.Add("::ffff:10.4.0.1", "x", "y", int32(-1), true, "FQDN")
	f.Fuzz(func(t *testing.T, address, hostname, port string, number int32, ready bool, family string) {
		s := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: "web-1"},
			AddressType: discoveryv1.AddressType(family),
			Ports:       []discoveryv1.EndpointPort{{Name: &port, Port: &number}, {}},
			Endpoints: []discoveryv1.Endpoint{
				{Addresses: []string{address}, Hostname: &hostname, Conditions: discoveryv1.EndpointConditions{Ready: &ready}},
				{Addresses: []string{address}},
			},
		}
		s.Labels = map[string]string{discoveryv1.LabelServiceName: "web"}
		sl, ok := origin.TrimSlice(s, nil)
		if !ok {
			t.Fatal("not kept")
		}
		if again, _ := origin.TrimSlice(s, nil); !sl.Equal(again) {
			t.Error("differs when read again")
		}
		subnet := netip.MustParsePrefix("10.4.0.0/16")
		id, k := setOf("aws", mirrored), origin.Key{Namespace: "shop", Name: "web"}
		w := newWorld(clusterConfig{name: "gcp", local: true}, clusterConfig{name: "aws", subnets: []netip.Prefix{subnet}})
		sl.Service = k
		w.slice(id, nil, sl)
		w.origin(id, k, newOrigin(k, 1, 80, origin.Traits{}))
		of, _ := w.want(Name("", k))
		for i := range of.Slices {
			object := of.Slices[i].object(home, &of, "")
			for _, p := range object.Ports {
				if len(validation.IsDNS1123Label(*p.Name)) > 0 && *p.Name != "" {
					t.Errorf("port name %q", *p.Name)
				}
			}
			for e := range object.Endpoints {
				a, err := netip.ParseAddr(object.Endpoints[e].Addresses[0])
				if err != nil || !subnet.Contains(a) {
					t.Errorf("endpoint %v", object.Endpoints[e].Addresses)
				}
			}
			if w.sums.slice(object, &sliceMarks) != w.sums.slice(object.DeepCopy(), &sliceMarks) {
				t.Error("a copy has another hash")
			}
		}
	})
}
