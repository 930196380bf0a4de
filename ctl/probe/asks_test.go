package probe

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/reach"
)

// refuse makes a client refuse a verb for a resource.
func refuse(client *fake.Clientset, verb, resource string, err error) {
	client.PrependReactor(verb, resource, func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, err })
}

// TestTemporaryServices checks that the slice of a temporary Service is deleted with it, and
// that the sweep deletes both, or returns an error.
func TestTemporaryServices(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("create", "services", func(a clienttesting.Action) (bool, runtime.Object, error) {
		service := a.(clienttesting.CreateAction).GetObject().(*corev1.Service)
		service.Name, service.UID = service.GenerateName+"x", "uid"
		return false, nil, nil
	})
	c := &cli.Cluster{Name: "aws", Client: client}
	if _, err := createFresh(t.Context(), c, "10.4.1.7"); err != nil {
		t.Fatal(err)
	}
	slices, err := client.DiscoveryV1().EndpointSlices(Namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(slices.Items) != 1 {
		t.Fatalf("slices %+v, %v", slices, err)
	}
	want := []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: "semaphorectl-x", UID: "uid"}}
	if diff := cmp.Diff(want, slices.Items[0].OwnerReferences); diff != "" {
		t.Errorf("owners (-want +got):\n%s", diff)
	}
	refused := fake.NewClientset()
	refuse(refused, "list", "services", errors.New("no answer"))
	err = Sweep(t.Context(), []*cli.Cluster{c, {Name: "gcp", Client: refused}})
	if err == nil || !strings.Contains(err.Error(), "gcp: delete temporary services in kube-system: no answer") || strings.Contains(err.Error(), "aws") {
		t.Errorf("the sweep: %v", err)
	}
	services, err := client.CoreV1().Services(Namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(services.Items) > 0 {
		t.Errorf("left: %+v, %v", services, err)
	}
}

// TestRefusals checks that errors of API servers are kept, by node.
func TestRefusals(t *testing.T) {
	admitted, refused := fake.NewClientset(), fake.NewClientset()
	refuse(refused, "create", "pods", apierrors.NewForbidden(corev1.Resource("pods"), "semaphorectl-x", errors.New("exceeded quota: q")))
	refuse(admitted, "create", "pods", errors.New("connection refused"))
	refuse(admitted, "create", "services", apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Service").GroupKind(), "x", nil))
	clusters := []*cli.Cluster{{Name: "aws", Client: admitted}, {Name: "gcp", Client: refused}}
	var all []*inspect.Cluster
	for _, c := range clusters {
		survey := &inspect.Cluster{Name: c.Name}
		survey.Nodes.Value, survey.Workloads.Value = []inspect.Node{{Name: c.Name + "-1", Ready: "True"}}, []inspect.Workload{{Name: inspect.WireGuard, Image: "ours"}}
		all = append(all, survey)
	}
	tried, err := Mesh(t.Context(), clusters, all, Plan{Nodes: 1, Fresh: true, Asks: map[[2]string][]reach.ServiceRequest{}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Refusals{{"gcp", "gcp-1"}: `pods "semaphorectl-x" is forbidden: exceeded quota: q`}, tried.Refused); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestPodsThatKubeletsRefuse ends the wait for a pod whose container will never start.
func TestPodsThatKubeletsRefuse(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: Namespace}, Status: corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfpods", Message: "too many pods"}}
	c := &cli.Cluster{Name: "aws", Client: fake.NewClientset(pod)}
	if _, err := Wait(t.Context(), c, pod, Running); err == nil || !strings.Contains(err.Error(), "OutOfpods too many pods") {
		t.Errorf("%v", err)
	}
}
