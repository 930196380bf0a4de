package kube

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// realisticNode is as large as nodes are: with images, conditions, capacity and
// managed fields.
func realisticNode(i int) *corev1.Node {
	n := &corev1.Node{
		TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("ip-10-0-%d-%d.eu-west-1.compute.internal", i/256, i%256), UID: "2c1b0e1e-1234-4a5b-9c6d-0123456789ab", ResourceVersion: "123456789",
			Labels: map[string]string{}, Annotations: map[string]string{"aws.wireguard.semaphore.uw.io/pubKey": strings.Repeat("k", 44)},
		},
		Spec: corev1.NodeSpec{PodCIDRs: []string{fmt.Sprintf("10.%d.%d.0/24", 4+i/256, i%256)}},
	}
	for l := range 25 {
		n.Labels["topology.example.io/label-"+strconv.Itoa(l)] = "value-" + strconv.Itoa(l)
	}
	for range 6 {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: "MemoryPressure", Status: "False", Reason: "KubeletHasSufficientMemory", Message: "kubelet has sufficient memory available"})
	}
	for range 50 {
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{SizeBytes: 1 << 28, Names: []string{
			"registry.example.io/team/application@sha256:" + strings.Repeat("a", 64), "registry.example.io/team/application:v1.2.3",
		}})
	}
	n.Status.Capacity = corev1.ResourceList{"cpu": resource.MustParse("64"), "memory": resource.MustParse("256Gi"), "pods": resource.MustParse("110")}
	n.Status.NodeInfo.KubeletVersion = "v1.36.3"
	for range 3 {
		n.ManagedFields = append(n.ManagedFields, metav1.ManagedFieldsEntry{Manager: "kubelet", FieldsV1: metav1.NewFieldsV1(`{"f:status":{` + strings.Repeat(`"f:conditions":{},`, 60) + `"f:x":{}}}`)})
	}
	return n
}

func nodeShape() *shape { return shapeOf(reflect.TypeFor[corev1.Node]()) }

func TestObjectsOfUsualSizesAreAccepted(t *testing.T) {
	n := realisticNode(1)
	protobuf, err := n.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if err := checkProtobuf(protobuf, nodeShape()); err != nil {
		t.Errorf("protobuf: %v", err)
	}
	text, err := json.Marshal(n)
	if err != nil {
		t.Fatal(err)
	}
	if err := checkJSON(text); err != nil {
		t.Errorf("JSON: %v", err)
	}
	t.Logf("%d bytes in protobuf, %d in JSON", len(protobuf), len(text))
	slice := `{"endpoints":[` + strings.TrimSuffix(strings.Repeat(
		`{"addresses":["10.4.0.1"],"conditions":{"ready":true,"serving":true,"terminating":false},"nodeName":"n","targetRef":{"kind":"Pod","name":"p","namespace":"n","uid":"u"},"zone":"a","hints":{"forZones":[{"name":"a"}]}},`, 1000), ",") + `]}`
	if err := checkJSON([]byte(slice)); err != nil {
		t.Errorf("an EndpointSlice of 1,000 endpoints: %v", err)
	}
}

func TestObjectsThatGrowWhenDecodedAreRejected(t *testing.T) {
	conditions := appendField(nil, 3, bytes.Repeat([]byte{4<<3 | wireBytes, 0}, 1<<20))
	if err := checkProtobuf(conditions, nodeShape()); !errors.Is(err, errTooHeavy) {
		t.Errorf("a million conditions: %v", err)
	}
	containers := appendField(nil, 2, bytes.Repeat([]byte{2<<3 | wireBytes, 0}, 1<<20))
	if err := checkProtobuf(containers, shapeOf(reflect.TypeFor[corev1.Pod]())); !errors.Is(err, errTooHeavy) {
		t.Errorf("a million containers: %v", err)
	}
	if err := checkJSON([]byte(`[` + strings.Repeat(`{},`, 100_000) + `{}]`)); !errors.Is(err, errTooHeavy) {
		t.Errorf("a hundred thousand values: %v", err)
	}
}

func TestWeight(t *testing.T) {
	const value, member = 1 << 10, 96
	for text, want := range map[string]int64{
		`{}`: value, `[{},{}]`: 4 * value, `[1,2,3]`: 3 * value, `{"a":1,"b":2}`: value + member,
		`{"a":[{"b":",[{"},"\"{"],"c":{}}`: 5*value + member, `1,2`: value, `]]`: 0,
	} {
		if got, err := Weight([]byte(text)); err != nil || got != want+int64(len(text)) {
			t.Errorf("%s: %d, want %d: %v", text, got, want+int64(len(text)), err)
		}
	}
	if _, err := Weight(bytes.Repeat([]byte("["), 5000)); !errors.Is(err, errTooDeep) {
		t.Errorf("5,000 lists in each other: %v", err)
	}
}

// TestLargeDiscoveryIsAccepted weighs discovery of 2,000 custom resources.
func TestLargeDiscoveryIsAccepted(t *testing.T) {
	resource := `{"resource":"widgets","responseKind":{"group":"","version":"","kind":"Widget"},"scope":"Namespaced","singularResource":"widget",` +
		`"verbs":["delete","deletecollection","get","list","patch","create","update","watch"],"shortNames":["w"],"categories":["crossplane","managed","aws"],` +
		`"subresources":[{"subresource":"status","responseKind":{"group":"","version":"","kind":"Widget"},"verbs":["get","patch","update"]}]}`
	list := func(one string, n int) string { return "[" + strings.TrimSuffix(strings.Repeat(one+",", n), ",") + "]" }
	group := `{"metadata":{"name":"a.example.org","creationTimestamp":null},"versions":[{"version":"v1","resources":` + list(resource, 20) + `,"freshness":"Current"}]}`
	if err := atMost([]byte(`{"kind":"APIGroupDiscoveryList","items":`+list(group, 100)+`}`), maxAnswerDecoded); err != nil {
		t.Error(err)
	}
}

func TestQuantitiesThatAreSlowToParseAreRejected(t *testing.T) {
	for text, hard := range map[string]bool{
		"": false, "110": false, "64Gi": false, "0.5": false, "1e3": false, "1e-3": false, "1E9": false, "100m": false, "1e2147483647": false,
		"1e-2147483647": true, "1E-9999": true, "-.5e-00001": true, "\t1e-99999\t": true,
		strings.Repeat("9", 2000): true, strings.Repeat("9", 2000) + "Mi": true,
		// As in an UID.
		"2c1b0e1e-1234-4a5b-9c6d-0123456789ab": false, "12345e-1234-4a5b": false, "1e-1234a": false,
	} {
		name := text[:min(len(text), 20)]
		if got := hardQuantity([]byte(text)); got != hard {
			t.Errorf("%q: %v, want %v", name, got, hard)
		}
		if err := checkJSON([]byte(`{"a":"` + text + `"}`)); errors.Is(err, errQuantity) != hard {
			t.Errorf("%q in JSON: %v", name, err)
		}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "1e-99999"}}
		raw, err := node.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		entry := appendField(appendField(nil, 1, []byte("cpu")), 2, appendField(nil, 1, []byte(text)))
		raw = append(raw, appendField(nil, 3, appendField(nil, 1, entry))...)
		if err := checkProtobuf(raw, nodeShape()); errors.Is(err, errQuantity) != hard {
			t.Errorf("%q in protobuf: %v", name, err)
		}
	}
	if err := checkJSON([]byte(`{"cpu":1e-2147483647}`)); !errors.Is(err, errQuantity) {
		t.Errorf("a bare number: %v", err)
	}
}

// TestListsAreReadCompletely compares the objects read from lists with the lists.
func TestListsAreReadCompletely(t *testing.T) {
	list := &corev1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}, ListMeta: metav1.ListMeta{ResourceVersion: "7", Continue: "more"}}
	for i := range 20 {
		list.Items = append(list.Items, *realisticNode(i))
	}
	text, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := list.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for name, body := range map[string][]byte{"JSON": text, "protobuf": protobufUnknown("NodeList", raw)} {
		var got []string
		asked := &request{object: reflect.TypeFor[corev1.Node](), shape: nodeShape(), dropped: func() { t.Errorf("%s: dropped one", name) }, begin: func() {}}
		asked.item = func(object runtime.Object) error {
			node, ok := object.(*corev1.Node)
			if !ok || len(node.Status.Images) != 50 || node.Status.Capacity.Cpu().Value() != 64 {
				t.Errorf("%s: got %v", name, object)
				return nil
			}
			got = append(got, node.Name)
			return nil
		}
		head, err := readList(&allowance{from: bytes.NewReader(body), whole: 1 << 20, left: maxListHead}, name == "protobuf", asked)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var want []string
		for i := range list.Items {
			want = append(want, list.Items[i].Name)
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		var rest corev1.NodeList
		if name == "JSON" {
			err = json.Unmarshal(head, &rest)
		} else {
			var unknown runtime.Unknown
			if err = unknown.Unmarshal(head[len(protobufMagic):]); err == nil {
				err = rest.Unmarshal(unknown.Raw)
			}
		}
		if err != nil || rest.ResourceVersion != "7" || rest.Continue != "more" || len(rest.Items) > 0 {
			t.Errorf("%s: rest %v, error %v", name, rest, err)
		}
	}
}

func FuzzTakeList(f *testing.F) {
	f.Add([]byte(`{"kind":"NodeList","items":[{"metadata":{"name":"a"}},null],"metadata":{}}`), false)
	f.Add([]byte(listStart()), true)
	f.Fuzz(func(_ *testing.T, body []byte, protobuf bool) {
		asked := &request{object: reflect.TypeFor[corev1.Node](), shape: nodeShape(), dropped: func() {}, begin: func() {}}
		asked.item = func(runtime.Object) error { return nil }
		// Whatever is wrong with it, it ends.
		_, _ = readList(&allowance{from: bytes.NewReader(body), whole: 1 << 20, left: maxListHead}, protobuf, asked)
		_ = asked.checkEvent(body)
		_ = checkJSON(body)
	})
}

func TestSizeOfWhatIsKept(t *testing.T) {
	type kept struct {
		Name string
		list []string
		more *kept
		by   map[string]int
	}
	small := sizeOf("a", kept{})
	for name, large := range map[string]kept{
		"text":    {Name: strings.Repeat("x", 1000)},
		"list":    {list: []string{strings.Repeat("x", 1000)}},
		"space":   {list: make([]string, 0, 100)},
		"pointer": {more: &kept{Name: strings.Repeat("x", 1000)}},
		"map":     {by: map[string]int{strings.Repeat("x", 1000): 1}},
	} {
		if n := sizeOf("a", large); n < small+1000 || n > small+2000 {
			t.Errorf("%s: %d bytes, the empty one %d", name, n, small)
		}
	}
}
