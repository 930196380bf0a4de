package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
)

// readAll reads a list of a kind.
func readAll[T any, P decodable[T]](body io.Reader) (objects []apiruntime.Object, head ListHead, dropped int, err error) {
	head, err = ReadList(body, func(decode func(any) error) error {
		read := new(T)
		if err := decode(read); errors.Is(err, errWrongType) {
			dropped++
			return nil
		} else if err != nil {
			return err
		}
		objects = append(objects, P(read).object())
		return nil
	})
	return objects, head, dropped, err
}

func eventsOf(decode decodeFunc, body string, dropped func()) *events {
	from := io.NopCloser(strings.NewReader(body))
	return &events{stream: newStream(from), form: form{decode, func(apiruntime.Object) bool { return true }}, body: from, dropped: dropped}
}

// TestReadFields reads objects that have all fields that are read, and others.
func TestReadFields(t *testing.T) {
	t.Parallel()
	deleted := metav1.Unix(1_700_000_001, 0)
	full := func() metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Name: "n", Namespace: "s", UID: "u", ResourceVersion: "7", CreationTimestamp: metav1.Unix(1_700_000_000, 0), DeletionTimestamp: &deleted,
			Labels: map[string]string{"l": "1"}, Annotations: map[string]string{"a": "2"},
		}
	}
	more := full()
	more.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m", FieldsV1: metav1.NewFieldsV1(`{"f:a":{}}`)}}
	more.OwnerReferences = []metav1.OwnerReference{{Name: "o"}}
	yes, name, udp, seconds, port, app := true, "http", corev1.ProtocolUDP, int32(9), int32(80), "h2c"
	node := *realisticNode(1)
	node.ObjectMeta = more
	wantNode := corev1.Node{ObjectMeta: full(), Spec: node.Spec}
	pod := corev1.Pod{ObjectMeta: more, Spec: corev1.PodSpec{HostNetwork: true, Containers: []corev1.Container{{Name: "c"}}}, Status: corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: "10.4.0.1", PodIPs: []corev1.PodIP{{IP: "10.4.0.1"}, {IP: "fd00::1"}}, HostIP: "192.0.2.1",
	}}
	wantPod := *pod.DeepCopy()
	wantPod.ObjectMeta, wantPod.Spec.Containers, wantPod.Status.HostIP = full(), nil, ""
	service := corev1.Service{ObjectMeta: more, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.0.0.1", IPFamilies: []corev1.IPFamily{corev1.IPv6Protocol},
		Ports:           []corev1.ServicePort{{Name: name, Protocol: udp, Port: port, TargetPort: intstr.FromString("web"), AppProtocol: &app, NodePort: 30_000}},
		SessionAffinity: corev1.ServiceAffinityClientIP, SessionAffinityConfig: &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}},
		PublishNotReadyAddresses: true, Selector: map[string]string{"a": "b"},
	}}
	wantService := *service.DeepCopy()
	wantService.ObjectMeta, wantService.Spec.Selector = full(), nil
	slice := discoveryv1.EndpointSlice{
		ObjectMeta: more, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{"10.4.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &yes},
			Hostname: &name, NodeName: &name, Zone: &name, TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "p"},
		}},
		Ports: []discoveryv1.EndpointPort{{Name: &name, Protocol: &udp, Port: &port, AppProtocol: &app}},
	}
	wantSlice := *slice.DeepCopy()
	wantSlice.ObjectMeta = full()
	for _, c := range []struct {
		given, want apiruntime.Object
		read        func(io.Reader) ([]apiruntime.Object, ListHead, int, error)
	}{
		{&node, &wantNode, readAll[nodeRead]},
		{&pod, &wantPod, readAll[podRead]},
		{&service, &wantService, readAll[serviceRead]},
		{&slice, &wantSlice, readAll[sliceRead]},
	} {
		text, err := json.Marshal(c.given)
		must(t, err)
		list := fmt.Sprintf(`{"kind":"List","apiVersion":"v1","metadata":{"resourceVersion":"7","continue":"more"},"items":[%s,{"metadata":7},%s]}`, text, text)
		got, head, dropped, err := c.read(strings.NewReader(list))
		if err != nil || dropped != 1 || head.ResourceVersion != "7" || head.Continue != "more" || head.Kind != "List" {
			t.Errorf("%T: head %+v, %d dropped: %v", c.given, head, dropped, err)
		}
		if diff := cmp.Diff([]apiruntime.Object{c.want, c.want}, got); diff != "" {
			t.Errorf("%T (-want +got):\n%s", c.given, diff)
		}
	}
}

// TestObjectsThatGrowWhenDecodedAreRejected decodes the objects of 10 MiB that take the most
// memory, and measures all allocations, including freed ones.
func TestObjectsThatGrowWhenDecodedAreRejected(t *testing.T) {
	if raceEnabled {
		withoutRace(t)
		return
	}
	const most = 64 << 20
	fill := func(begin, part, end string) string {
		return begin + strings.TrimSuffix(strings.Repeat(part, (maxObject-100)/len(part)), ",") + end
	}
	labels := &strings.Builder{}
	for i := 0; labels.Len() < maxObject-100; i++ {
		fmt.Fprintf(labels, `"%x":"",`, i)
	}
	for name, c := range map[string]struct {
		object string
		read   func(io.Reader) ([]apiruntime.Object, ListHead, int, error)
		ok     bool
	}{
		"labels":          {`{"metadata":{"labels":{` + strings.TrimSuffix(labels.String(), ",") + `}}}`, readAll[nodeRead], false},
		"prefixes":        {fill(`{"spec":{"podCIDRs":[`, `"",`, `]}}`), readAll[nodeRead], false},
		"conditions":      {fill(`{"status":{"conditions":[`, `{},`, `]}}`), readAll[nodeRead], true},
		"addresses":       {fill(`{"status":{"podIPs":[`, `{},`, `]}}`), readAll[podRead], false},
		"ports":           {fill(`{"spec":{"ports":[`, `{},`, `]}}`), readAll[serviceRead], false},
		"null ports":      {fill(`{"spec":{"ports":[`, `null,`, `]}}`), readAll[serviceRead], false},
		"families":        {fill(`{"spec":{"ipFamilies":[`, `"",`, `]}}`), readAll[serviceRead], false},
		"endpoints":       {fill(`{"endpoints":[`, `{},`, `]}`), readAll[sliceRead], false},
		"no endpoints":    {fill(`{"endpoints":[`, `0,`, `]}`), readAll[sliceRead], false},
		"targets":         {fill(`{"endpoints":[`, `{"targetRef":{},"hints":{}},`, `]}`), readAll[sliceRead], false},
		"fewer targets":   {`{"endpoints":[` + strings.Repeat(`{"targetRef":{},"hints":{}},`, maxCommas/2-1) + `{}]}`, readAll[sliceRead], true},
		"their addresses": {fill(`{"endpoints":[{"addresses":[`, `"",`, `]}]}`), readAll[sliceRead], false},
		"one large text":  {fill(`{"metadata":{"name":"`, `,`, `"}}`), readAll[nodeRead], true},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		objects, _, dropped, err := c.read(strings.NewReader(`{"items":[` + c.object + `]}`))
		runtime.ReadMemStats(&after)
		taken := after.TotalAlloc - before.TotalAlloc
		t.Logf("%s: %d MiB", name, taken>>20)
		if err != nil || len(objects)+dropped != 1 || (len(objects) == 1) != c.ok || taken > most {
			t.Errorf("%s: %d decoded, %d dropped, %d MiB allocated: %v", name, len(objects), dropped, taken>>20, err)
		}
	}
	if slice := fill(`{"endpoints":[`, `{},`, `]}`); len(slice) < maxObject-200 {
		t.Errorf("objects of %d bytes", len(slice))
	}
	endpoint := `{"addresses":["10.4.0.1"],"conditions":{"ready":true,"serving":true,"terminating":false},"nodeName":"n","targetRef":{"kind":"Pod","name":"p","namespace":"n","uid":"u"},"zone":"a","hints":{"forZones":[{"name":"a"}]}}`
	slice := `{"items":[{"endpoints":[` + strings.TrimSuffix(strings.Repeat(endpoint+",", 1000), ",") + `]}]}`
	if objects, _, _, err := readAll[sliceRead](strings.NewReader(slice)); err != nil || len(objects) != 1 {
		t.Errorf("an EndpointSlice of 1,000 endpoints: %v", err)
	}
}

// TestObjectOfEscapedTextIsRead reads an object of the size that etcd stores, in which API servers write
// each character as 6 bytes.
func TestObjectOfEscapedTextIsRead(t *testing.T) {
	t.Parallel()
	pod := `{"metadata":{"name":"p"},"spec":{"containers":[{"args":["` + strings.Repeat(`\u003c`, 1500<<10) + `"]}]}}`
	if objects, _, _, err := readAll[podRead](strings.NewReader(`{"items":[` + pod + `]}`)); err != nil || len(objects) != 1 {
		t.Errorf("%d objects: %v", len(objects), err)
	}
}

// TestEventsAreReadOneByOne reads events, of which one has an object that can't be decoded.
func TestEventsAreReadOneByOne(t *testing.T) {
	t.Parallel()
	node := func(name string) string {
		return `{"kind":"Node","metadata":{"name":"` + name + `","resourceVersion":"7"}}`
	}
	body := `{"type":"ADDED","object":` + node("a") + `}
		{"type":"MODIFIED","object":{"metadata":[]}}
		{"type":"DELETED","object":` + node("b") + "}\n" +
		`{"object":` + node("c") + `,"type":"ADDED"}` + "\n" +
		`{"type":"BOOKMARK","object":{"metadata":{"annotations":{"k8s.io/initial-events-end":"true"}}}}` +
		`{"type":"ERROR","object":{"kind":"Status","status":"Failure","code":410,"reason":"Expired"}}`
	dropped := 0
	events := eventsOf(decodeAs[nodeRead], body, func() { dropped++ })
	var got []string
	for {
		kind, object, err := events.Decode()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				t.Error(err)
			}
			break
		}
		switch o := object.(type) {
		case *corev1.Node:
			got = append(got, fmt.Sprint(kind, o.Name, o.Annotations))
		case *metav1.Status:
			got = append(got, fmt.Sprint(kind, o.Code, o.Reason))
		}
	}
	want := []string{"ADDEDamap[]", "DELETEDbmap[]", "ADDEDcmap[]", "BOOKMARKmap[k8s.io/initial-events-end:true]", "ERROR410Expired"}
	if diff := cmp.Diff(want, got); diff != "" || dropped != 1 {
		t.Errorf("%d dropped (-want +got):\n%s", dropped, diff)
	}
	for _, body := range []string{
		`{"object":{}}`, `{"object":{},"type":"ERROR"}`, `{"type":"ADDED","object":{},"more":1}`, `{"type":"ADDED","object":{}`, `{"type":"ADDED","object":{`, `[]`, `{`, `7`, `{"type":7,"object":{}}`,
	} {
		events := eventsOf(decodeAs[nodeRead], body, func() {})
		if kind, _, err := events.Decode(); err == nil || errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %s, error %v", body, kind, err)
		}
	}
}

func FuzzReadList(f *testing.F) {
	f.Add([]byte(`{"kind":"NodeList","items":[{"metadata":{"name":"a"}},null],"metadata":{}}`))
	f.Add([]byte(`{"type":"ADDED","object":{"metadata":{"name":"a"}}}`))
	f.Add([]byte(`{"items":[{"endpoints":[{},{}],"ports":[null]}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		// Whatever is wrong with it, it ends.
		for _, read := range []func(io.Reader) ([]apiruntime.Object, ListHead, int, error){
			readAll[nodeRead], readAll[podRead], readAll[serviceRead], readAll[sliceRead],
		} {
			if _, _, _, err := read(strings.NewReader(string(body))); errors.Is(err, io.EOF) && len(body) > 100 && json.Valid(body) {
				t.Error(err)
			}
		}
		events := eventsOf(decodeAs[sliceRead], string(body), func() {})
		for kind := watch.EventType(""); ; {
			var err error
			if kind, _, err = events.Decode(); err != nil {
				break
			}
			_ = kind
		}
	})
}
