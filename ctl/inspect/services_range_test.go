package inspect

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// TestServiceRangesWithoutServiceCIDRs asks API servers of Kubernetes 1.30 to 1.32, which don't
// serve ServiceCIDRs, as they answer with these ranges of ClusterIPs.
func TestServiceRangesWithoutServiceCIDRs(t *testing.T) {
	forbidden := apierrors.NewForbidden(corev1.Resource("services"), "", errors.New("no"))
	for name, c := range map[string]struct {
		ranges string
		given  []netip.Prefix
		fail   error
		want   string
		err    string
	}{
		"IPv4":                        {ranges: "10.96.0.0/12", want: "10.96.0.0/12"},
		"IPv6":                        {ranges: "fd00:10:96::/112", want: "fd00:10:96::/112"},
		"both":                        {ranges: "10.96.0.0/12 fd00:10:96::/112", want: "10.96.0.0/12 fd00:10:96::/112"},
		"both, IPv6 first":            {ranges: "fd00:10:96::/112 10.96.0.0/12", want: "10.96.0.0/12 fd00:10:96::/112"},
		"not allowed":                 {ranges: "10.96.0.0/12", fail: forbidden, err: "forbidden"},
		"named by the administrator":  {ranges: "10.96.0.0/12", given: prefixes(t, "10.7.0.0/16"), want: "10.7.0.0/16"},
		"not allowed, and named":      {fail: forbidden, given: prefixes(t, "10.7.0.0/16"), want: "10.7.0.0/16"},
		"an answer without any range": {ranges: "", err: "IPv6 is not configured on this cluster"},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := fakeCluster("https://api.example:6443", node("a", "10.66.1.1", "10.2.1.0/24"))
			client := cluster.Client.(*fake.Clientset)
			client.PrependReactor("list", "servicecidrs", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, apierrors.NewNotFound(networkingv1.Resource("servicecidrs"), "")
			})
			client.PrependReactor("create", "services", func(action clienttesting.Action) (bool, runtime.Object, error) {
				create := action.(clienttesting.CreateActionImpl)
				if len(create.CreateOptions.DryRun) == 0 {
					t.Error("a Service is really created")
				}
				if c.fail != nil {
					return true, nil, c.fail
				}
				return true, nil, refusal(create.Object.(*corev1.Service), prefixes(t, c.ranges))
			})
			f := Read(t.Context(), cluster, c.given...)
			said := fmt.Sprint(errors.Join(f.Unread...))
			if got := list(f.Services); got != c.want || c.err == "" && strings.Contains(said, "services") || !strings.Contains(said, c.err) {
				t.Errorf("ranges %q, want %q; unread: %s", got, c.want, said)
			}
		})
	}
}

// refusal is the error of an API server for a ClusterIP outside of its ranges
// (pkg/registry/core/service/storage/alloc.go and ipallocator/interfaces.go of Kubernetes).
func refusal(s *corev1.Service, ranges []netip.Prefix) error {
	address := netip.MustParseAddr(s.Spec.ClusterIP)
	family := map[bool]string{true: "IPv4", false: "IPv6"}[address.Is4()]
	fault := field.Invalid(field.NewPath("spec", "clusterIPs").Index(0), []string{s.Spec.ClusterIP}, family+" is not configured on this cluster")
	for _, p := range ranges {
		if p.Addr().Is4() == address.Is4() {
			fault = field.Invalid(field.NewPath("spec", "clusterIPs"), []string{s.Spec.ClusterIP},
				fmt.Sprintf("failed to allocate IP %v: the provided IP (%v) is not in the valid range. The range of valid IPs is %s", address, address, p))
		}
	}
	return apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Service").GroupKind(), s.Name, field.ErrorList{fault})
}
