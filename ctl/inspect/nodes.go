package inspect

import (
	"cmp"
	"context"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/endpoint"
	"github.com/kube-semaphore/kube-semaphore/internal/ipam"
	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

// Node is a Node object.
type Node struct {
	Name, Kernel, OS string
	Ready            string       // the condition's status: True, False or Unknown
	Addresses        []netip.Addr // its InternalIPs
	External         bool         // it has an ExternalIP
	Virtual          bool         // it has no host
	Pods             []netip.Prefix
	// Annotations are those that agents publish and read.
	Annotations map[string]string
	ovn         bool // it has OVN-Kubernetes' annotation
	// Map is the map of pod subnets that its agent publishes.
	Map string
	// Locations are the administrator's annotations of the endpoint for other clusters'
	// nodes, by cluster; empty: all of them.
	Locations map[string]string
	// Renewed is when the kubelet last renewed its lease, by its own clock; zero: unknown.
	Renewed time.Time
}

// Waiting returns the number of nodes whose agents don't run, because the nodes aren't ready.
func (f *Facts) Waiting() (count int) {
	for i := range f.Nodes {
		if n := &f.Nodes[i]; n.Agentless() == "" && n.Ready != string(corev1.ConditionTrue) {
			count++
		}
	}
	return count
}

// Agentless returns why the DaemonSet of deploy/wireguard selects no pod for a node, or
// nothing.
func (n *Node) Agentless() string {
	switch {
	case n.OS != "" && n.OS != "linux":
		return "runs " + n.OS
	case n.Virtual:
		return "has no host"
	}
	return ""
}

// Location is the source of a node's endpoint for a cluster: its annotations, or the
// setting.
func (n *Node) Location(remote string, settings map[string]string) (endpoint.Source, error) {
	for _, name := range []string{remote, ""} {
		if text, annotated := n.Locations[name]; annotated {
			return endpoint.Parse(text)
		}
	}
	return endpoint.Parse(cmp.Or(settings["SEMAPHORE_WG_ENDPOINT"], endpoint.InternalIP))
}

// Location parses the name of a node's endpoint annotation. It returns the cluster that it
// is for; empty: all of them.
func Location(annotation string) (remote string, is bool) {
	before, is := strings.CutSuffix(annotation, AnnotationGroup+"/endpoint-address")
	return strings.TrimSuffix(before, "."), is
}

// readNodes reads the nodes, without Renewed.
func readNodes(ctx context.Context, client kubernetes.Interface) ([]Node, error) {
	nodes := []Node{}
	err := cli.List(ctx, client.CoreV1().Nodes(), metav1.ListOptions{}, func(o *corev1.Node) error {
		if err := CheckName("a Node", "metadata.name", o.Name); err != nil {
			return err
		}
		n := Node{
			Name: o.Name, Kernel: o.Status.NodeInfo.KernelVersion, OS: o.Status.NodeInfo.OperatingSystem,
			Annotations: map[string]string{}, Locations: map[string]string{},
			Virtual: o.Labels["type"] == "virtual-kubelet" || o.Labels["eks.amazonaws.com/compute-type"] == "fargate",
		}
		for _, condition := range o.Status.Conditions {
			if condition.Type == corev1.NodeReady {
				n.Ready = string(condition.Status)
			}
		}
		for _, address := range o.Status.Addresses {
			ip, err := netip.ParseAddr(address.Address)
			if err == nil && address.Type == corev1.NodeInternalIP {
				n.Addresses = append(n.Addresses, ip.Unmap())
			}
			if len(n.Addresses) > maxOfNode {
				return tooMany("Node", o.Name, "status.addresses", maxOfNode, "InternalIPs")
			}
			n.External = n.External || err == nil && address.Type == corev1.NodeExternalIP
		}
		n.ovn = o.Annotations[ipam.OVNSubnets] != ""
		for name, text := range o.Annotations {
			if name == config.SubnetMapAnnotation {
				n.Map = printable.Text(text, maxMap)
			}
			if remote, is := Location(name); is {
				n.Locations[remote] = text
			}
			if strings.Contains(name, AnnotationGroup+"/") {
				n.Annotations[name] = printable.Text(text, printable.Short)
			}
		}
		if len(o.Spec.PodCIDRs) > maxOfNode {
			return tooMany("Node", o.Name, "spec.podCIDRs", maxOfNode, "prefixes")
		}
		for _, cidr := range o.Spec.PodCIDRs {
			if prefix, err := netip.ParsePrefix(cidr); err == nil {
				n.Pods = append(n.Pods, prefix.Masked())
			}
		}
		nodes = append(nodes, n)
		return nil
	})
	if err != nil {
		return nil, err // A partial list would be wrong.
	}
	return nodes, nil
}
