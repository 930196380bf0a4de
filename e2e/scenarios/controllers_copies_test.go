package scenarios_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/policy"
)

// mirrors are the copies of the service mirror: a Service each, with one slice.
type mirrors struct{ *controllers }

func (mirrors) program() string { return programs.ServiceMirror }

func (mirrors) kind() schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: "services"}
}

func (mirrors) kinds() []string { return []string{"services", "endpointslices"} }

func (mirrors) local(remote, name string) string {
	return remote + "-" + origins + "-73736d-" + name
}

func (mirrors) put(ctx context.Context, c *testbed.Cluster, name, address string) error {
	return putOrigin(ctx, c, service(name, "mirror-service=true"), address)
}

func (mirrors) shared(ctx context.Context, c *testbed.Cluster, name, address string) (local string, merged bool, err error) {
	return "gl-" + origins + "-73736d-" + name, true, putOrigin(ctx, c, service(name, "global-service=true"), address)
}

func putOrigin(ctx context.Context, c *testbed.Cluster, s *corev1.Service, address string) error {
	if _, err := c.Client().CoreV1().Services(origins).Create(ctx, s.DeepCopy(), metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	if address == "" {
		return nil
	}
	name, protocol, port, yes := "http", corev1.ProtocolTCP, int32(programs.PodPort), true
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: s.Name + "-1", Labels: s.Labels},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Protocol: &protocol, Port: &port}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &yes}}},
	}
	slice.Labels[discoveryv1.LabelServiceName] = s.Name
	api := c.Client().DiscoveryV1().EndpointSlices(origins)
	_, err := api.Create(ctx, slice, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = api.Update(ctx, slice, metav1.UpdateOptions{})
	}
	return err
}

func (mirrors) bare(ctx context.Context, c *testbed.Cluster, name, _ string) error {
	return putOrigin(ctx, c, service(name, "mirror-service=true"), "")
}

func (mirrors) remove(ctx context.Context, c *testbed.Cluster, name string) error {
	if err := c.Client().DiscoveryV1().EndpointSlices(origins).Delete(ctx, name+"-1", metav1.DeleteOptions{}); err != nil {
		return err
	}
	return c.Client().CoreV1().Services(origins).Delete(ctx, name, metav1.DeleteOptions{})
}

func (mirrors) spoil() string {
	return `{"spec":{"ports":[{"name":"http","port":1,"protocol":"TCP"}]}}`
}

func (mirrors) foreign(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Service", "metadata": map[string]any{"name": name, "namespace": programs.Namespace},
		"spec": map[string]any{"ports": []any{map[string]any{"port": int64(9), "protocol": "TCP"}}},
	}}
}

func (m mirrors) read(ctx context.Context, list *unstructured.UnstructuredList) (map[string][]string, error) {
	all := map[string][]string{}
	for i := range list.Items {
		if list.Items[i].GetLabels()["mirrored-svc"] == "true" {
			all[list.Items[i].GetName()] = nil
		}
	}
	endpoints, err := m.gcp.Client().DiscoveryV1().EndpointSlices(programs.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range endpoints.Items {
		name := endpoints.Items[i].Labels[discoveryv1.LabelServiceName]
		if _, ok := all[name]; !ok {
			continue
		}
		for j := range endpoints.Items[i].Endpoints {
			all[name] = append(all[name], endpoints.Items[i].Endpoints[j].Addresses...)
		}
		slices.Sort(all[name])
	}
	return all, nil
}

func (m mirrors) fault(ctx context.Context, p *programs.Program, remote, name string) (string, error) {
	var status statuspage.Mirror
	err := p.Status(ctx, &status)
	for i := range status.Services {
		if s := &status.Services[i]; s.Name == m.local(remote, name) {
			return s.Error, err
		}
	}
	return "", err
}

func (m mirrors) removedAt(ctx context.Context, p *programs.Program, remote string) (*time.Time, error) {
	var status statuspage.Mirror
	err := p.Status(ctx, &status)
	for i := range status.Services {
		if s := &status.Services[i]; strings.HasPrefix(s.Name, m.local(remote, "")) && s.RemovedAt != nil {
			return s.RemovedAt, err
		}
	}
	return nil, err
}

func (mirrors) contact(ctx context.Context, p *programs.Program, remote string) (stale bool, fault string, err error) {
	var status statuspage.Mirror
	err = p.Status(ctx, &status)
	for i := range status.Clusters {
		if c := &status.Clusters[i]; c.Name == remote {
			for _, w := range c.Watches {
				stale, fault = stale || w.Stale, fault+w.Error
			}
		}
	}
	return stale, fault, err
}

func (mirrors) bounded(ctx context.Context, p *programs.Program, remote string) (said string, err error) {
	var status statuspage.Mirror
	err = p.Status(ctx, &status)
	for i := range status.Clusters {
		if c := &status.Clusters[i]; c.Name == remote {
			said = c.Bounds
		}
	}
	return said, err
}

func (mirrors) bound(remote string) (setting, metric string) {
	return "MAX_SERVICES", fmt.Sprintf("semaphore_service_mirror_over_bounds{cluster=%q}", remote)
}

// sets are the copies of policy: a network set each.
type sets struct{ *controllers }

func (sets) program() string { return programs.Policy }

func (sets) kind() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "projectcalico.org", Version: "v3", Resource: "globalnetworksets"}
}

func (s sets) kinds() []string { return []string{s.kind().Resource} }

func (sets) local(remote, name string) string { return remote + "-" + origins + "-" + name }

func (sets) put(ctx context.Context, c *testbed.Cluster, name, address string) error {
	api := c.Client().CoreV1().Pods(origins)
	pod, err := api.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"policy.semaphore.uw.io/name": name}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		pod, err = api.Get(ctx, name, metav1.GetOptions{})
	}
	if err != nil {
		return err
	}
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: address, PodIPs: []corev1.PodIP{{IP: address}}}
	_, err = api.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	return err
}

func (s sets) shared(ctx context.Context, c *testbed.Cluster, name, address string) (local string, merged bool, err error) {
	return s.local("aws", name), false, s.put(ctx, c, name, address)
}

func (s sets) bare(ctx context.Context, c *testbed.Cluster, name, address string) error {
	return s.put(ctx, c, name, address)
}

func (sets) remove(ctx context.Context, c *testbed.Cluster, name string) error {
	now := int64(0)
	return c.Client().CoreV1().Pods(origins).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &now})
}

func (sets) spoil() string { return `{"spec":{"nets":["192.0.2.1/32"]}}` }

func (s sets) foreign(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": s.kind().GroupVersion().String(), "kind": "GlobalNetworkSet", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"nets": []any{"192.0.2.1/32"}},
	}}
}

func (sets) read(_ context.Context, list *unstructured.UnstructuredList) (map[string][]string, error) {
	all := map[string][]string{}
	for i := range list.Items {
		o := &list.Items[i]
		if o.GetLabels()["managed-by"] != programs.Policy {
			continue
		}
		nets, _, err := unstructured.NestedStringSlice(o.Object, "spec", "nets")
		if err != nil {
			return nil, err
		}
		addresses := []string{}
		for _, n := range nets {
			prefix, err := netip.ParsePrefix(n)
			if err != nil {
				return nil, err
			}
			addresses = append(addresses, prefix.Addr().String())
		}
		slices.Sort(addresses)
		all[o.GetName()] = addresses
	}
	return all, nil
}

// remote returns a replica's report about a remote.
func (sets) remote(ctx context.Context, p *programs.Program, name string) (r statuspage.PolicyRemote, all statuspage.Policy, err error) {
	err = p.Status(ctx, &all)
	if at := slices.IndexFunc(all.Remotes, func(r statuspage.PolicyRemote) bool { return r.Name == name }); at >= 0 {
		r = all.Remotes[at]
	}
	return r, all, err
}

func (s sets) fault(ctx context.Context, p *programs.Program, remote, name string) (string, error) {
	r, _, err := s.remote(ctx, p, remote)
	natural := s.local(remote, name)
	for _, set := range r.Sets {
		if set.Name == name && set.Object != natural {
			return "named " + set.Object + ", because what has its name is not ours", err
		}
	}
	return r.Failing[natural], err
}

func (s sets) removedAt(ctx context.Context, p *programs.Program, remote string) (*time.Time, error) {
	_, all, err := s.remote(ctx, p, remote)
	if at, ok := all.RemovedAt[remote]; ok {
		return &at, err
	}
	return nil, err
}

func (s sets) contact(ctx context.Context, p *programs.Program, remote string) (stale bool, fault string, err error) {
	r, _, err := s.remote(ctx, p, remote)
	return r.Stale, r.API.Error, err
}

func (s sets) bounded(ctx context.Context, p *programs.Program, remote string) (said string, err error) {
	r, _, err := s.remote(ctx, p, remote)
	if beyond := r.Skipped[string(policy.ReasonTooManySets)]; beyond.Pods > 0 {
		said = fmt.Sprintf("%d pods are in no set", beyond.Pods)
	}
	return said, err
}

func (sets) bound(remote string) (setting, metric string) {
	return "MAX_SETS", fmt.Sprintf("semaphore_policy_skipped_pods{cluster=%q,reason=%q}", remote, policy.ReasonTooManySets)
}
