package mirror

import (
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

func FuzzNames(f *testing.F) {
	f.Add("aws", "sys-log", "fluentd")
	f.Add("c1", "x-y", "n")
	f.Add("gl", "a", "b-73736d-c")
	f.Fuzz(func(t *testing.T, prefix, namespace, name string) {
		if len(validation.IsDNS1123Label(namespace))+len(validation.IsDNS1123Label(name))+len(validation.IsDNS1035Label(prefix)) > 0 {
			t.Skip()
		}
		if got := Name(prefix, origin.Key{Namespace: namespace, Name: name}); len(validation.IsDNS1035Label(got)) > 0 {
			t.Errorf("%q is not a valid service name: %v", got, validation.IsDNS1035Label(got))
		}
	})
}

func TestClaimsAreOrdered(t *testing.T) {
	old, young := time.Unix(1, 0), time.Unix(2, 0)
	inOrder := []claim{
		{id: origin.ID{Cluster: "", Key: origin.Key{Namespace: "x-y", Name: "z"}}, prefix: "gl", local: true},
		{id: origin.ID{Cluster: "zzz", Key: origin.Key{Namespace: "x-y", Name: "z"}}, prefix: "c", holds: true, created: young},
		{id: origin.ID{Cluster: "", Key: origin.Key{Namespace: "x-y", Name: strings.Repeat("n", 63)}}, prefix: "gl"},
		{id: origin.ID{Cluster: "", Key: origin.Key{Namespace: "x-y", Name: "a"}}, prefix: "gl"},
		{id: origin.ID{Cluster: "", Key: origin.Key{Namespace: "x-y", Name: "n"}}, prefix: "gl"},
		{id: origin.ID{Cluster: "long", Key: origin.Key{Namespace: "y", Name: "n"}}, prefix: "c1-x", created: young},
		{id: origin.ID{Cluster: "aaa", Key: origin.Key{Namespace: "x-y", Name: "n"}}, prefix: "c1", created: old},
		{id: origin.ID{Cluster: "aaa", Key: origin.Key{Namespace: "x-y", Name: "m"}}, prefix: "c1", created: young},
		{id: origin.ID{Cluster: "bbb", Key: origin.Key{Namespace: "x-y", Name: "a"}}, prefix: "c2", created: old},
	}
	for i := range inOrder {
		for j := range inOrder {
			got := compareClaims(inOrder[i], inOrder[j])
			if (got < 0) != (i < j) || (got == 0) != (i == j) {
				t.Errorf("%v and %v compare as %d", inOrder[i].id, inOrder[j].id, got)
			}
		}
	}
}

func TestSliceNames(t *testing.T) {
	web := origin.Key{Namespace: "shop", Name: "web"}
	slice := func(name string, family discoveryv1.AddressType) *origin.Slice {
		return &origin.Slice{Name: name, Service: web, Family: family}
	}
	names := map[string]bool{}
	for _, name := range []string{
		sliceName("svc", "aws", slice("a", "IPv4")),
		sliceName("svc", "aws", slice("b", "IPv4")),
		sliceName("svc", "aws", slice("a", "IPv6")), // the type of a slice is for life
		sliceName("svc", "gcp", slice("a", "IPv4")),
		sliceName("other", "aws", slice("a", "IPv4")),
	} {
		if names[name] {
			t.Errorf("%s is the name of two", name)
		}
		names[name] = true
		if of, ok := sliceOf(name); !ok || of != "svc" && of != "other" {
			t.Errorf("%s is of %q", name, of)
		}
	}
	sum := strings.Repeat("0", longHash)
	for _, name := range []string{"", "svc", "svc-abc12", "-" + sum, "svc" + sum, "svc_" + sum, "svc-" + sum[1:] + "g", "svc-" + sum[1:]} {
		if of, ok := sliceOf(name); ok {
			t.Errorf("%s is of %q", name, of)
		}
	}
}
