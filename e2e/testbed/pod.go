package testbed

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
)

// PodConfig describes a pod. All fields have defaults.
type PodConfig struct {
	// Name is that of the pod, unique in the node. Default: pod-1, pod-2.
	Name string
	// Addresses are inside the node's podCIDRs, or elsewhere, as with network plugins
	// that ignore podCIDRs: then the node has a route for each, and the cluster's other
	// nodes have none. Default: the next free ones of the podCIDRs.
	Addresses []netip.Addr
	// Object, when it isn't nil, is a Pod to create in the API, bound to the
	// node and running. What it lacks of name, namespace ("default") and
	// containers is filled in.
	Object *corev1.Pod
}

// Pod is a network namespace behind its node.
type Pod struct {
	Host
	Node      *Node
	Addresses []netip.Addr

	id int // number of the pod on its node, and of its link
}

// AddPod puts a pod on the node.
func (n *Node) AddPod(ctx context.Context, cfg PodConfig) (*Pod, error) {
	n.Cluster.mu.Lock()
	n.nextPod++
	p := &Pod{Node: n, Addresses: cfg.Addresses, id: n.nextPod}
	n.Cluster.mu.Unlock()
	if cfg.Name == "" {
		cfg.Name = fmt.Sprintf("pod-%d", p.id)
	}
	p.Host = Host{Name: n.Name + "-" + cfg.Name, tb: n.tb}
	if len(p.Addresses) == 0 {
		for _, prefix := range n.PodCIDRs {
			p.Addresses = append(p.Addresses, nth(prefix, 1+p.id))
		}
	}
	if err := p.boot(); err != nil {
		return nil, errors.Join(fmt.Errorf("add pod %s: %w", p.Name, err), p.shutDown())
	}
	if cfg.Object != nil {
		if err := p.create(ctx, cfg.Name, cfg.Object.DeepCopy()); err != nil {
			return nil, errors.Join(fmt.Errorf("add pod %s: %w", p.Name, err), p.shutDown())
		}
	}
	n.Cluster.mu.Lock()
	n.pods = append(n.pods, p)
	n.Cluster.mu.Unlock()
	return p, nil
}

// boot creates the pod's namespace and its link to the node.
func (p *Pod) boot() error {
	space, err := sandbox.New(p.Name)
	if err != nil {
		return err
	}
	p.enter(space)
	node := p.Node.Space().Netlink
	attrs := netlink.NewLinkAttrs()
	attrs.Name = fmt.Sprintf("veth%d", p.id)
	veth := &netlink.Veth{
		LinkAttrs:        attrs,
		PeerName:         "eth0",
		PeerHardwareAddr: hardwareAddr(p.tb.underlay.portOf(p.Node.Name).id, 1+p.id),
		PeerNamespace:    space.NsFd(),
	}
	if err := node.LinkAdd(veth); err != nil {
		return fmt.Errorf("create the pod's link: %w", err)
	}
	bridge, err := node.LinkByName(podBridge)
	if err != nil {
		return err
	}
	if err := plug(node, bridge.Attrs().Index, attrs.Name); err != nil {
		return err
	}
	link, err := space.Netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	if err := space.Netlink.LinkSetUp(link); err != nil {
		return err
	}
	for _, address := range p.Addresses {
		prefix, within, err := p.Node.podCIDROf(address)
		if err != nil {
			return err
		}
		bits, gateway := prefix.Bits(), nth(prefix, 1)
		if !within {
			bits = address.BitLen()
		}
		if err := addAddress(space.Netlink, link, netip.PrefixFrom(address, bits)); err != nil {
			return err
		}
		if !within {
			toGateway := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(netip.PrefixFrom(gateway, bits)), Scope: netlink.SCOPE_LINK}
			toPod := &netlink.Route{LinkIndex: bridge.Attrs().Index, Dst: ipNet(netip.PrefixFrom(address, bits)), Scope: netlink.SCOPE_LINK}
			if err := errors.Join(space.Netlink.RouteReplace(toGateway), node.RouteReplace(toPod)); err != nil {
				return fmt.Errorf("add the routes between the pod and its node: %w", err)
			}
		}
		if err := space.Netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: gateway.AsSlice()}); err != nil {
			return fmt.Errorf("add the pod's default route: %w", err)
		}
	}
	return nil
}

// podCIDROf returns the podCIDR of the node that an address is in, or else one of its
// family.
func (n *Node) podCIDROf(address netip.Addr) (prefix netip.Prefix, within bool, err error) {
	for _, p := range n.PodCIDRs {
		if p.Contains(address) {
			return p, true, nil
		}
		if p.Addr().BitLen() == address.BitLen() {
			prefix = p
		}
	}
	if !prefix.IsValid() {
		return prefix, false, fmt.Errorf("the node has no podCIDR of the family of %s", address)
	}
	return prefix, false, nil
}

// create makes the Pod object and the status that a kubelet would report.
func (p *Pod) create(ctx context.Context, name string, object *corev1.Pod) error {
	if object.Name == "" {
		object.Name = name
	}
	if object.Namespace == "" {
		object.Namespace = metav1.NamespaceDefault
	}
	if len(object.Spec.Containers) == 0 {
		object.Spec.Containers = []corev1.Container{{Name: "main", Image: "example.org/testbed"}}
	}
	object.Spec.NodeName = p.Node.Name
	pods := p.Node.Cluster.client.CoreV1().Pods(object.Namespace)
	created, err := pods.Create(ctx, object, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	created.Status = corev1.PodStatus{
		Phase:      corev1.PodRunning,
		PodIP:      p.Addresses[0].String(),
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
	}
	for _, address := range p.Addresses {
		created.Status.PodIPs = append(created.Status.PodIPs, corev1.PodIP{IP: address.String()})
	}
	for _, address := range p.Node.Addresses() {
		created.Status.HostIPs = append(created.Status.HostIPs, corev1.HostIP{IP: address.String()})
	}
	if len(created.Status.HostIPs) > 0 {
		created.Status.HostIP = created.Status.HostIPs[0].IP
	}
	_, err = pods.UpdateStatus(ctx, created, metav1.UpdateOptions{})
	return err
}

// URL is that of a port of the pod at its first address.
func (p *Pod) URL(port int) string { return p.URLs(port)[0] }

// URLs are those of a port of the pod, one per address.
func (p *Pod) URLs(port int) []string { return urls(p.Addresses, port) }

// VirtualURLs are URLs for clients in other clusters.
func (p *Pod) VirtualURLs(port int) []string { return urls(p.VirtualAddresses(), port) }

// VirtualAddresses are the addresses that other clusters know the pod by.
func (p *Pod) VirtualAddresses() []netip.Addr {
	var all []netip.Addr
	for _, address := range p.Addresses {
		all = append(all, p.Node.Cluster.Virtual(address))
	}
	return all
}

func urls(addresses []netip.Addr, port int) []string {
	var urls []string
	for _, address := range addresses {
		urls = append(urls, "http://"+netip.AddrPortFrom(address, uint16(port)).String())
	}
	return urls
}

// Remove takes the pod off its node. A Pod object in the API stays.
func (p *Pod) Remove() error {
	if err := p.unplug(); err != nil {
		return err
	}
	c := p.Node.Cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, other := range p.Node.pods {
		if other == p {
			p.Node.pods = append(p.Node.pods[:i:i], p.Node.pods[i+1:]...)
			break
		}
	}
	return nil
}

// unplug deletes the pod's link at once; the kernel would take it with the
// namespace, but later.
func (p *Pod) unplug() error {
	node := p.Node.Space().Netlink
	link, err := node.LinkByName(fmt.Sprintf("veth%d", p.id))
	if err != nil {
		return errors.Join(err, p.shutDown())
	}
	var errs []error
	for _, address := range p.Addresses {
		if _, within, err := p.Node.podCIDROf(address); err == nil && !within {
			errs = append(errs, node.RouteDel(&netlink.Route{Dst: ipNet(netip.PrefixFrom(address, address.BitLen())), Scope: netlink.SCOPE_LINK}))
		}
	}
	return errors.Join(append(errs, node.LinkDel(link), p.shutDown())...)
}
