package policy

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	calico "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
)

// TestNetworkSetsAreDecodedLikeClientGo compares our decoder with client-go's, for
// responses and watch events.
func TestNetworkSetsAreDecodedLikeClientGo(t *testing.T) {
	gv := kube.CalicoAPIs("v1")[0]
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(gv, &calico.GlobalNetworkSet{}, &calico.GlobalNetworkSetList{})
	metav1.AddToGroupVersion(scheme, gv)
	theirs := serializer.NewCodecFactory(scheme).WithoutConversion()
	info, _ := runtime.SerializerInfoForMediaType(theirs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	set := `{"apiVersion": "crd.projectcalico.org/v1", "kind": "GlobalNetworkSet", "metadata": {"name": "a", "Name": "b", "uid": "u",
		"resourceVersion": "7", "labels": {"x": "y"}, "creationTimestamp": "2026-11-22T10:00:00Z", "managedFields": [{"manager": "m"}]},
		"spec": {"nets": ["10.0.0.1/32", "fd00::1/128"], "unknown": 1}}`
	for name, data := range map[string]string{
		"a set":              set,
		"a bookmark":         `{"apiVersion": "crd.projectcalico.org/v1", "kind": "GlobalNetworkSet", "metadata": {"resourceVersion": "8", "annotations": {"k8s.io/initial-events-end": "true"}}}`,
		"a status":           `{"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure", "reason": "Expired", "code": 410}`,
		"a list":             `{"apiVersion": "crd.projectcalico.org/v1", "kind": "GlobalNetworkSetList", "metadata": {"resourceVersion": "9"}, "items": [` + set + `]}`,
		"another kind":       `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}`,
		"no kind":            `{"metadata": {"name": "a"}}`,
		"a set of no sense":  `{"apiVersion": "crd.projectcalico.org/v1", "kind": "GlobalNetworkSet", "spec": {"nets": 1}}`,
		"something else":     `[]`,
		"a set that is torn": set[:200],
	} {
		t.Run(name, func(t *testing.T) {
			want, wantKind, wantErr := theirs.DecoderToVersion(info.Serializer, nil).Decode([]byte(data), nil, nil)
			ours := newSetSerializer(theirs).DecoderToVersion(info.Serializer, nil)
			for n := range 3 {
				// With the end of the line that an answer has, and into what its caller has.
				text, into := data, runtime.Object(nil)
				if n == 1 {
					text, into = data+"\n", &calico.GlobalNetworkSet{}
				}
				got, kind, err := ours.Decode([]byte(text), nil, into)
				if n == 1 && wantKind != nil && wantKind.Kind != calico.KindGlobalNetworkSet {
					continue // the other says that it is of another kind
				}
				if diff := cmp.Diff(want, got); diff != "" && wantErr == nil || (err == nil) != (wantErr == nil) || err == nil && *kind != *wantKind {
					t.Errorf("decoded as %v, %v, want %v, %v (-want +got):\n%s", kind, err, wantKind, wantErr, diff)
				}
			}
		})
	}
}

// TestRecentSetsAreBounded decodes many network sets, each of which comes again soon.
func TestRecentSetsAreBounded(t *testing.T) {
	recent := newSetSerializer(nil).recent
	for n := range 1000 {
		data := fmt.Appendf(nil, "%d", n)
		set, sum := recent.take(data)
		if set != nil {
			t.Fatalf("%d is known before it came", n)
		}
		recent.put(sum, &calico.GlobalNetworkSet{ObjectMeta: metav1.ObjectMeta{Name: string(data)}})
		if n%3 == 0 {
			continue
		}
		if set, _ := recent.take(data); set == nil || set.Name != string(data) {
			t.Fatalf("%d comes again as %v", n, set)
		}
		if set, _ := recent.take(data); set != nil {
			t.Fatalf("%d is known for a third time", n)
		}
	}
	if n := len(recent.bySum); n > len(recent.sums) {
		t.Errorf("%d sets are kept, want %d at most", n, len(recent.sums))
	}
}
