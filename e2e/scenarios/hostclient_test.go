package scenarios_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
)

// putAbroad creates objects in c like the service mirror: a dual-stack service without a
// selector, and slices with the addresses of a pod of the other cluster. It returns the
// service's URLs.
func putAbroad(t *testing.T, c *testbed.Cluster, pod *testbed.Pod) (urls []string) {
	t.Helper()
	both := corev1.IPFamilyPolicyRequireDualStack
	s, err := c.Client().CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "abroad"},
		Spec:       corev1.ServiceSpec{IPFamilyPolicy: &both, Ports: []corev1.ServicePort{{Name: "http", Port: 8888}}},
	}, metav1.CreateOptions{})
	must(t, err)
	name, port := "http", int32(programs.PodPort)
	for _, address := range pod.Addresses {
		family := discoveryv1.AddressTypeIPv4
		if address.Is6() {
			family = discoveryv1.AddressTypeIPv6
		}
		_, err := c.Client().DiscoveryV1().EndpointSlices("default").Create(t.Context(), &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Name: "abroad-" + strings.ToLower(string(family)), Labels: map[string]string{discoveryv1.LabelServiceName: s.Name}},
			AddressType: family,
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{address.String()}}},
			Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
		}, metav1.CreateOptions{})
		must(t, err)
	}
	for _, ip := range s.Spec.ClusterIPs {
		urls = append(urls, "http://"+net.JoinHostPort(ip, strconv.Itoa(8888))+"/")
	}
	return urls
}

// seenBy returns the source address that a pod sees of a request to a service's URL.
func seenBy(ctx context.Context, pod *testbed.Pod, client programs.Host, url string) (netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	body, err := client.Get(ctx, url)
	if err != nil {
		return netip.Addr{}, err
	}
	from, ours := strings.CutPrefix(strings.TrimSpace(body), pod.Name+" asked by ")
	if !ours {
		return netip.Addr{}, fmt.Errorf("answered %q, not by %s", body, pod.Name)
	}
	addr, err := netip.ParseAddrPort(from)
	return addr.Addr().Unmap(), err
}

// TestHostReachesServicesAbroad requests a service with endpoints in the other cluster from a
// node, like a pod with hostNetwork, and from a pod: over both families and with each mode of
// kube-proxy that this kernel supports. The endpoint must see the pod's own address, or the
// node's address in the mesh.
func TestHostReachesServicesAbroad(t *testing.T) {
	t.Parallel()
	nstest.Root(t)
	tb := testbed.Start(t, testbed.Config{}, tools.KubeProxy)
	ctx := within(t, 5*time.Minute)
	p, err := programs.StartPair(ctx, tb, program(t, programs.WireGuard), 1, nil)
	must(t, err)
	server := p.Pods[0]
	must(t, p.WaitConnected(within(t, time.Minute)))
	urls := putAbroad(t, p.GCP, server)

	for _, mode := range []string{"nftables", "iptables", "ipvs"} {
		t.Run(mode, func(t *testing.T) {
			if _, err := os.Stat("/proc/sys/net/ipv4/vs"); mode == "ipvs" && err != nil {
				t.Skip("NOT TESTED HERE: this kernel has no IPVS for kube-proxy; it is tested by " +
					"go run ./e2e/kernel -programs kube-proxy,iptables,ipset -run TestHostReachesRemotePodsThroughIPVS ./routes")
			}
			// A separate node, without rules of other modes.
			node, err := p.GCP.AddNode(t.Context(), testbed.NodeConfig{})
			must(t, err)
			pod, err := node.AddPod(t.Context(), testbed.PodConfig{})
			must(t, err)
			_, err = programs.StartAgent(t.Context(), p.Binary, node, p.AWS)
			must(t, err)
			_, err = node.StartKubeProxy(t.Context(), "--proxy-mode="+mode)
			must(t, err)
			for i, url := range urls {
				for name, from := range map[string]struct {
					host programs.Host
					want netip.Addr
				}{
					"the pod":  {pod, pod.Addresses[i]},
					"the node": {node, node.PodCIDRs[i].Addr().Next()},
				} {
					eventually(t, time.Minute, name+" to reach "+url, func(ctx context.Context) error {
						seen, err := seenBy(ctx, server, from.host, url)
						if err == nil && seen != from.want {
							err = fmt.Errorf("the endpoint saw %s, want %s", seen, from.want)
						}
						return err
					})
				}
			}
		})
	}
}
