package kube

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
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

// TestLargeClusterIsTakenWithinDefaultBounds lists 5,000 nodes as large as nodes
// are.
func TestLargeClusterIsTakenWithinDefaultBounds(t *testing.T) {
	if raceEnabled {
		withoutRace(t)
		return
	}
	const nodes = 5000
	first, err := json.Marshal(realisticNode(0))
	if err != nil {
		t.Fatal(err)
	}
	ca := newAuthority()
	api := newTLSServer(t, ca, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") == "true" {
			refuse(w, http.StatusUnprocessableEntity, "Invalid")
			return
		}
		w.Header().Set("Content-Type", typeJSON)
		total := 0
		write := func(text string) {
			n, _ := io.WriteString(w, text)
			total += n
		}
		write(`{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"5"},"items":[`)
		for i := range nodes {
			if i > 0 {
				write(",")
			}
			write(strings.NewReplacer("ip-10-0-0-0.", fmt.Sprintf("ip-10-0-%d-%d.", i/256, i%256), "10.4.0.0/24", fmt.Sprintf("10.%d.%d.0/24", 4+i/256, i%256)).Replace(string(first)))
		}
		write("]}")
		t.Logf("%d MB", total>>20)
	}))
	bounds := Bounds{Answer: 256 << 20}
	if os.Getenv(hostileEnv+"_UNBOUND") != "" {
		bounds = Bounds{}
	}
	b := &bench{metrics: NewMetrics("test", "test_failures_total")}
	client := clientWith(t, ClientConfig{Access: config.Access{
		APIURL: api.URL, CAFile: writeTemp(t, "ca", ca.pem), TokenFile: writeTemp(t, "token", []byte(secret)),
	}, Bounds: bounds})
	cfg := b.config(nil)
	cfg.Bounds = bounds
	cfg.Reader = wholeNodes(client)
	before := peakMemory(os.Getpid())
	b.watch = NewWatch(cfg)
	b.run(t)
	polltest.Until(t, hostilePatience, "sync", b.watch.Synced)
	if n := len(b.nodes()); n != nodes || b.watch.OverQuota() != nil {
		t.Errorf("%d nodes are kept; %v", n, b.watch.OverQuota())
	}
	b.stop()
	t.Logf("%d MiB more at the most, %d MiB in all", (peakMemory(os.Getpid())-before)>>20, peakMemory(os.Getpid())>>20)
}
