package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
	"github.com/kube-semaphore/kube-semaphore/internal/reach"
)

// ServiceTest is a request of a pod to a service, and its result.
type ServiceTest struct {
	From NodeRef
	// Remote is the cluster of the service's endpoints; From.Cluster in a test of a
	// cluster's own pods by others of its pods.
	Remote string
	reach.ServiceRequest
	// Fresh is whether the service is a temporary one, with the pod on To as its only
	// endpoint.
	Fresh  bool
	To     NodeRef
	Result reach.ServiceResult
	// Skipped is the reason for a missing result, or empty.
	Skipped string
}

// fresh is a temporary Service in one cluster, whose endpoint is a pod of another one: its
// ClusterIP is served only where kube-proxy follows changes.
type fresh struct {
	from, remote string
	to           NodeRef
	address      string // with port; empty: see err
	err          error
}

// serveFresh creates a Service in each cluster for each remote.
func serveFresh(ctx context.Context, clusters []*cli.Cluster, servers []server, taken func(c, remote string, addresses []string) []string) []fresh {
	var all []fresh
	var group sync.WaitGroup
	var mu sync.Mutex
	for _, c := range clusters {
		for _, remote := range clusters {
			if c == remote {
				continue
			}
			group.Go(func() {
				f := fresh{from: c.Name, remote: remote.Name, err: errors.New("no pod of " + remote.Name + " runs")}
				for i := range servers {
					s := &servers[i]
					if s.Cluster != remote.Name || s.err != nil {
						continue
					}
					if addresses := taken(c.Name, remote.Name, s.addresses); len(addresses) > 0 {
						f.to = s.NodeRef
						f.address, f.err = createFresh(ctx, c, addresses[0])
						break
					}
				}
				mu.Lock()
				defer mu.Unlock()
				all = append(all, f)
			})
		}
	}
	group.Wait()
	return all
}

// createFresh creates the Service, and returns its ClusterIP with the port.
func createFresh(ctx context.Context, c *cli.Cluster, endpoint string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*answerWithin)
	defer cancel()
	family, kind := corev1.IPv6Protocol, discoveryv1.AddressTypeIPv6
	if ip, err := netip.ParseAddr(endpoint); err == nil && ip.Is4() {
		family, kind = corev1.IPv4Protocol, discoveryv1.AddressTypeIPv4
	}
	labels := map[string]string{manifests.ManagedLabel: manifests.Manager, temporary: "true"}
	single, tcp, port, ready := corev1.IPFamilyPolicySingleStack, corev1.ProtocolTCP, int32(reach.Port), true
	service, err := c.Client.CoreV1().Services(Namespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "semaphorectl-", Labels: labels},
		Spec: corev1.ServiceSpec{
			IPFamilies: []corev1.IPFamily{family}, IPFamilyPolicy: &single, Ports: []corev1.ServicePort{{Port: port, Protocol: tcp}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	labels[discoveryv1.LabelServiceName], labels[discoveryv1.LabelManagedBy] = service.Name, manifests.Manager
	_, err = c.Client.DiscoveryV1().EndpointSlices(Namespace).Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: service.Name + "-", Labels: labels,
			// Should this process be killed, one deletion is enough for both.
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: service.Name, UID: service.UID}},
		},
		AddressType: kind, Ports: []discoveryv1.EndpointPort{{Name: new(string), Port: &port, Protocol: &tcp}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{endpoint}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
	}, metav1.CreateOptions{})
	return net.JoinHostPort(service.Spec.ClusterIP, strconv.Itoa(reach.Port)), err
}

// sweepServices deletes the temporary Services of this and earlier runs. Without the right
// to do so there are none.
func sweepServices(ctx context.Context, c *cli.Cluster) error {
	chosen := metav1.ListOptions{LabelSelector: temporary + "=true," + manifests.ManagedLabel + "=" + manifests.Manager}
	var errs []error
	err := cli.List(ctx, c.Client.CoreV1().Services(Namespace), chosen, func(s *corev1.Service) error {
		if err := c.Client.CoreV1().Services(Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
		return nil
	})
	if err != nil && !apierrors.IsForbidden(err) {
		errs = append(errs, err)
	}
	err = c.Client.DiscoveryV1().EndpointSlices(Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, chosen)
	if err != nil && !apierrors.IsForbidden(err) {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%s: delete temporary services in %s: %w", c.Name, Namespace, err)
	}
	return nil
}

// window returns the services that the pod with this number asks: all, or a part of them that
// differs between pods.
func window(all []reach.ServiceRequest, number int) []reach.ServiceRequest {
	if len(all) <= reach.MaxAsks-1 { // one is for a fresh Service
		return all
	}
	var some []reach.ServiceRequest
	for i := range reach.MaxAsks - 1 {
		some = append(some, all[(number*(reach.MaxAsks-1)+i)%len(all)])
	}
	return some
}

// plan adds the services to ask to an asker's request.
func (a *asker) plan(plan *Plan, fresh []fresh, number int) {
	for _, service := range window(plan.Asks[[2]string{a.from.Cluster, a.remote}], number) {
		a.requests = append(a.requests, ServiceTest{From: a.from.NodeRef, Remote: a.remote, ServiceRequest: service})
	}
	for _, f := range fresh {
		if f.from != a.from.Cluster || f.remote != a.remote {
			continue
		}
		one := ServiceTest{From: a.from.NodeRef, Remote: a.remote, Fresh: true, To: f.to}
		if f.err != nil {
			one.Skipped = "no temporary Service could be created: " + f.err.Error()
			a.skipped = append(a.skipped, one)
			continue
		}
		one.ServiceRequest = reach.ServiceRequest{Addresses: []string{f.address}, HTTP: true}
		a.requests = append(a.requests, one)
	}
	for i := range a.requests {
		a.request.Asks = append(a.request.Asks, a.requests[i].ServiceRequest)
	}
}

// collectRequests adds the results of asking services.
func (a *asker) collectRequests(results *Results) {
	for i := range a.requests {
		one := &a.requests[i]
		switch {
		case a.result == nil:
			one.Skipped = fmt.Sprintf("the pod on %s failed: %v", a.from.NodeRef, a.err)
		case len(a.result.Services) != len(a.requests):
			one.Skipped = "the image " + a.from.image + " is too old for this test; set another one with --image"
		default:
			one.Result = a.result.Services[i]
		}
	}
	results.Requests = append(append(results.Requests, a.requests...), a.skipped...)
}

// controls returns askers that test endpoints of each cluster from one of its own pods.
func controls(servers []server, plan *Plan) []*asker {
	var all []*asker
	seen := map[string]bool{}
	for i := range servers {
		s := &servers[i]
		if own := plan.Asks[[2]string{s.Cluster, s.Cluster}]; len(own) > 0 && !seen[s.Cluster] && s.err == nil {
			seen[s.Cluster] = true
			for number := 0; number*(reach.MaxAsks-1) < len(own) && number < MaxNodes; number++ {
				a := &asker{from: s, remote: s.Cluster, request: reach.Request{}}
				a.plan(plan, nil, number)
				all = append(all, a)
			}
		}
	}
	return all
}

// sweepWithin bounds the deletion of temporary objects.
const sweepWithin = 20 * time.Second
