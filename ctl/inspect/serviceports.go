package inspect

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

// ServicePort is a port of a mirror, global service or import in a cluster, for one family.
type ServicePort struct {
	Service string // as clients name it: web.shop.svc.cluster.gcp
	Port    string // http 80/TCP; of the endpoints
	Family  string // IPv4 or IPv6
	// Ready are the numbers of ready endpoints by their cluster.
	Ready map[cluster.Name]int
}

// key orders and identifies ports.
func (p *ServicePort) key() string { return p.Service + " " + p.Port + " " + p.Family }

// ReadServicePorts reads the EndpointSlices of a cluster's service mirror, in all namespaces.
func ReadServicePorts(ctx context.Context, c *cli.Cluster) ([]ServicePort, error) {
	imports, err := ReadImports(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("list Services: %w", err)
	}
	names := map[string]string{} // of Services in our namespace, for clients
	for i := range imports {
		names[imports[i].Object] = imports[i].DNS()
	}
	ports := map[string]*ServicePort{}
	of := metav1.ListOptions{LabelSelector: discoveryv1.LabelManagedBy + "=" + ServiceMirror}
	err = cli.List(ctx, c.Client.DiscoveryV1().EndpointSlices(metav1.NamespaceAll), of, func(o *discoveryv1.EndpointSlice) error {
		service, from := names[o.Labels[discoveryv1.LabelServiceName]], o.Annotations[mark+"cluster"]
		if name := o.Labels[v1beta1.LabelServiceName]; name != "" {
			imported := KubeService{Namespace: o.Namespace, Name: name, ClusterSet: true}
			service, from = imported.DNS(), o.Labels[v1beta1.LabelSourceCluster]
		}
		if service == "" {
			return nil // Its Service has just been deleted.
		}
		origin, err := cluster.ParseName(from)
		if err != nil {
			return fmt.Errorf("the cluster of EndpointSlice %s/%s: %w", o.Namespace, o.Name, err)
		}
		ready := 0
		for i := range o.Endpoints {
			if r := o.Endpoints[i].Conditions.Ready; r == nil || *r {
				ready++
			}
		}
		for i := range o.Ports {
			p := &ServicePort{Service: service, Port: portText(&o.Ports[i]), Family: printable.Text(string(o.AddressType), printable.Short)}
			if known := ports[p.key()]; known != nil {
				p = known
			} else {
				ports[p.key()], p.Ready = p, map[cluster.Name]int{}
			}
			p.Ready[origin] += ready
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list EndpointSlices: %w", err)
	}
	var all []ServicePort
	for _, p := range ports {
		all = append(all, *p)
	}
	slices.SortFunc(all, func(a, b ServicePort) int { return cmp.Compare(a.key(), b.key()) })
	return all, nil
}

// portText describes a port of endpoints.
func portText(p *discoveryv1.EndpointPort) string {
	text, protocol := "all", corev1.ProtocolTCP
	if p.Protocol != nil {
		protocol = *p.Protocol
	}
	if p.Port != nil {
		text = fmt.Sprint(*p.Port)
	}
	text += "/" + string(protocol)
	if p.Name != nil && *p.Name != "" {
		text = *p.Name + " " + text
	}
	return printable.Text(text, printable.Short)
}
