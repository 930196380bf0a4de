package origin

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
)

func TestRejection(t *testing.T) {
	subnets := []netip.Prefix{netip.MustParsePrefix("10.4.0.0/16"), netip.MustParsePrefix("fd00:10:4::/48")}
	for _, c := range []struct {
		address string
		family  discoveryv1.AddressType
		subnets []netip.Prefix
		ok      bool
	}{
		{"10.4.0.1", "IPv4", subnets, true},
		{"fd00:10:4::1", "IPv6", subnets, true},
		{"10.5.0.1", "IPv4", subnets, false},
		{"10.5.0.1", "IPv4", nil, true},
		{"10.4.0.1", "IPv6", subnets, false},
		{"fd00:10:4::1", "IPv4", subnets, false},
		{"::ffff:10.4.0.1", "IPv6", subnets, false},
		{"fe80::1%eth0", "IPv6", nil, false},
		{"127.0.0.1", "IPv4", nil, false},
		{"0.0.0.0", "IPv4", nil, false},
		{"::", "IPv6", nil, false},
		{"::1", "IPv6", nil, false},
		{"169.254.169.254", "IPv4", nil, false},
		{"fe80::1", "IPv6", nil, false},
		{"224.0.0.1", "IPv4", nil, false},
		{"ff02::1", "IPv6", nil, false},
	} {
		if why := Rejection(netip.MustParseAddr(c.address), c.family, c.subnets); (why == "") != c.ok {
			t.Errorf("%s as %s in %v: %q", c.address, c.family, c.subnets, why)
		}
	}
}

// TestTrimSliceTranslates has pods in two subnets, whose virtual ones are in the other order.
func TestTrimSliceTranslates(t *testing.T) {
	var m config.SubnetMap
	if err := m.Decode("10.4.0.0/16=10.200.0.0/16,10.5.0.0/16=10.100.0.0/16,fd00:4::/48=fd00:c9::/48"); err != nil {
		t.Fatal(err)
	}
	for family, c := range map[discoveryv1.AddressType]struct{ have, want []string }{
		discoveryv1.AddressTypeIPv4: {
			[]string{"10.4.0.1", "10.4.0.1", "10.5.0.2", "10.6.0.3", "10.200.0.4", "::ffff:10.4.0.5"},
			[]string{"10.6.0.3", "10.100.0.2", "10.200.0.1", "10.200.0.4", "::ffff:10.4.0.5"},
		},
		discoveryv1.AddressTypeIPv6: {[]string{"fd00:4::1", "fd00:5::2", "fd00:4::3%eth0"}, []string{"fd00:4::3%eth0", "fd00:5::2", "fd00:c9::1"}},
	} {
		s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db-1"}, AddressType: family}
		s.Labels = map[string]string{discoveryv1.LabelServiceName: "db"}
		for _, a := range c.have {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
		}
		got, _ := TrimSlice(s, m)
		var all []string
		for _, e := range got.Endpoints {
			all = append(all, e.Address.String())
		}
		if !slices.Equal(all, c.want) {
			t.Errorf("%v become %v, want %v", c.have, all, c.want)
		}
	}
}

func TestTrimSliceKeepsNothingOfPods(t *testing.T) {
	name, hostname, bad, port, yes := "http", "db-0", "Not A Label", int32(80), true
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: "db-1"},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port}, {Port: &port}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.4.0.2", "10.4.0.9"}, Hostname: &hostname, NodeName: &name, Zone: &name, TargetRef: &corev1.ObjectReference{}},
			{Addresses: []string{"10.4.0.1"}, Hostname: &bad, Conditions: discoveryv1.EndpointConditions{Ready: &yes}},
			{Addresses: []string{"10.4.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: &yes}},
			{Addresses: []string{"010.4.0.1"}},
			{},
		},
	}
	if _, ok := TrimSlice(s, nil); ok {
		t.Error("a slice of no service is kept")
	}
	s.Labels = map[string]string{discoveryv1.LabelServiceName: "db"}
	got, _ := TrimSlice(s, nil)
	want := []Endpoint{
		{Address: netip.MustParseAddr("10.4.0.1"), Ready: True},
		{Address: netip.MustParseAddr("10.4.0.2"), Hostname: "db-0", Node: "http"},
	}
	if !slices.Equal(got.Endpoints, want) {
		t.Errorf("endpoints %+v, want %+v", got.Endpoints, want)
	}
	if !slices.Equal(got.Unreadable, []string{"010.4.0.1"}) {
		t.Errorf("unreadable %v", got.Unreadable)
	}
	if p := got.Ports[1]; *p.Name != "" || *p.Protocol != corev1.ProtocolTCP {
		t.Errorf("port without a name: %+v", p)
	}
}
