package testbed

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
)

// NodeConfig describes a node. All fields have defaults.
type NodeConfig struct {
	// Name is the name of the Node object, unique in the testbed. Default: the
	// cluster's name and a number, such as aws-1.
	Name string
	// PodCIDRs are the prefixes of the node's pods. Default: the next free /24
	// and /64 of the cluster's pod subnets.
	PodCIDRs []netip.Prefix
	// Addresses are its InternalIPs, inside the underlay. Default: the next
	// free ones of the cluster's node subnets.
	Addresses []netip.Addr
	// Labels are those of the Node object.
	Labels map[string]string
}

// Node is a Node object and the machine behind it: a network namespace with an
// uplink and a bridge for pods, and a mount namespace whose /run is empty at
// boot and whose /var/lib and /etc are its own and outlive a reboot.
type Node struct {
	Host
	Cluster  *Cluster
	PodCIDRs []netip.Prefix

	dir string

	// Guarded by Cluster.mu.
	addresses []netip.Addr
	pods      []*Pod
	nextPod   int
}

// podBridge is the link of a node that its pods are behind. It has the first
// address of each podCIDR, as with the bridge plugin and host-local IPAM.
const podBridge = "cni0"

// AddNode creates a Node object and the machine behind it. Nodes of one cluster
// reach each other's pods through plain routes.
func (c *Cluster) AddNode(ctx context.Context, cfg NodeConfig) (*Node, error) {
	n, err := c.newNode(cfg)
	if err != nil {
		return nil, fmt.Errorf("add a node to %s: %w", c.Name, err)
	}
	if err := n.boot(); err != nil {
		return nil, errors.Join(fmt.Errorf("add node %s: %w", n.Name, err), n.close())
	}
	object := nodeObject(n.Name, n.PodCIDRs, n.addresses)
	object.Labels = cfg.Labels
	if _, err := c.client.CoreV1().Nodes().Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return nil, errors.Join(fmt.Errorf("add node %s: %w", n.Name, err), n.close())
	}
	c.mu.Lock()
	c.nodes = append(c.nodes, n)
	c.mu.Unlock()
	if err := c.routeBetweenNodes(); err != nil {
		return nil, err
	}
	c.log.Info("node added", "node", n.Name, "addresses", n.addresses, "pod_cidrs", n.PodCIDRs)
	return n, nil
}

func (c *Cluster) newNode(cfg NodeConfig) (*Node, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.taken++
	if cfg.Name == "" {
		cfg.Name = fmt.Sprintf("%s-%d", c.Name, c.taken)
	}
	if len(cfg.PodCIDRs) == 0 {
		var err error
		if cfg.PodCIDRs, err = podCIDRs(c.PodSubnets, c.taken); err != nil {
			return nil, err
		}
	}
	if len(cfg.Addresses) == 0 {
		for _, subnet := range c.NodeSubnets {
			cfg.Addresses = append(cfg.Addresses, nth(subnet, c.taken))
		}
	}
	return &Node{
		Host:      Host{Name: cfg.Name, tb: c.tb},
		Cluster:   c,
		PodCIDRs:  cfg.PodCIDRs,
		dir:       filepath.Join(c.dir, "nodes", cfg.Name),
		addresses: cfg.Addresses,
	}, nil
}

// podCIDRs returns the prefixes of node number n: /24 and /64, as Kubernetes
// does by default.
func podCIDRs(subnets []netip.Prefix, n int) ([]netip.Prefix, error) {
	var prefixes []netip.Prefix
	for _, subnet := range subnets {
		bits := 24
		if subnet.Addr().Is6() {
			bits = 64
		}
		prefix, err := nthSubnet(subnet, bits, n)
		if err != nil {
			return nil, fmt.Errorf("podCIDR: %w", err)
		}
		prefixes = append(prefixes, prefix)
	}
	return prefixes, nil
}

// nodeObject is a Node that is ready.
func nodeObject(name string, podCIDRs []netip.Prefix, addresses []netip.Addr) *corev1.Node {
	object := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: corev1.NodeStatus{
			Addresses:  nodeAddresses(name, addresses),
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	for _, prefix := range podCIDRs {
		object.Spec.PodCIDRs = append(object.Spec.PodCIDRs, prefix.String())
	}
	if len(podCIDRs) > 0 {
		object.Spec.PodCIDR = object.Spec.PodCIDRs[0]
	}
	return object
}

func nodeAddresses(name string, addresses []netip.Addr) []corev1.NodeAddress {
	list := []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}}
	for _, address := range addresses {
		list = append(list, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address.String()})
	}
	return list
}

// boot creates the machine: namespaces, links, addresses, routes.
func (n *Node) boot() error {
	varLib, etc := filepath.Join(n.dir, "var-lib"), filepath.Join(n.dir, "etc")
	if err := errors.Join(os.MkdirAll(varLib, 0o755), os.MkdirAll(etc, 0o755)); err != nil {
		return err
	}
	mounts := []sandbox.Mount{
		sandbox.Tmpfs("/run"),
		sandbox.Bind(varLib, "/var/lib"),
		sandbox.Overlay("/etc", etc),
		sandbox.Sysfs(),
	}
	// On most distributions this is a link to /run.
	if run, err := filepath.EvalSymlinks("/var/run"); err == nil && run != "/run" {
		mounts = append(mounts, sandbox.Tmpfs("/var/run"))
	}
	space, err := sandbox.New(n.Name, mounts...)
	if err != nil {
		return err
	}
	n.enter(space)
	if err := setForwarding(space, true); err != nil {
		return err
	}
	if err := n.tb.underlay.attach(n.Name, space, n.Addresses()); err != nil {
		return err
	}
	var gateways []netip.Prefix
	for _, prefix := range n.PodCIDRs {
		gateways = append(gateways, netip.PrefixFrom(nth(prefix, 1), prefix.Bits()))
	}
	_, err = addBridge(space.Netlink, podBridge, hardwareAddr(n.tb.underlay.portOf(n.Name).id, 1), gateways)
	return err
}

// setForwarding makes a space a router, or no router, for both families.
func setForwarding(space *sandbox.Space, on bool) error {
	value := []byte("0")
	if on {
		value = []byte("1")
	}
	return space.Do(func() error {
		return errors.Join(
			os.WriteFile("/proc/sys/net/ipv4/ip_forward", value, 0),
			os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", value, 0),
		)
	})
}

// routeBetweenNodes gives each node routes to the pods of the cluster's others.
func (c *Cluster) routeBetweenNodes() error {
	for _, n := range c.Nodes() {
		for _, other := range c.Nodes() {
			if other == n {
				continue
			}
			if err := n.routeTo(other); err != nil {
				return fmt.Errorf("route from %s to the pods of %s: %w", n.Name, other.Name, err)
			}
		}
	}
	return nil
}

func (n *Node) routeTo(other *Node) error {
	for _, prefix := range other.PodCIDRs {
		for _, address := range other.Addresses() {
			if address.Is4() != prefix.Addr().Is4() {
				continue
			}
			route := &netlink.Route{Dst: ipNet(prefix), Gw: address.AsSlice()}
			if err := n.Space().Netlink.RouteReplace(route); err != nil {
				return err
			}
			break
		}
	}
	return nil
}

// Addresses are the node's InternalIPs.
func (n *Node) Addresses() []netip.Addr {
	n.Cluster.mu.Lock()
	defer n.Cluster.mu.Unlock()
	return slices.Clone(n.addresses)
}

// Pods returns the node's pods in the order of their creation.
func (n *Node) Pods() []*Pod {
	n.Cluster.mu.Lock()
	defer n.Cluster.mu.Unlock()
	return slices.Clone(n.pods)
}

// VarLib is the folder that the node sees as /var/lib.
func (n *Node) VarLib() string { return filepath.Join(n.dir, "var-lib") }

// Object gets the Node object.
func (n *Node) Object(ctx context.Context) (*corev1.Node, error) {
	return n.Cluster.client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
}

// Patch changes the Node object by a JSON merge patch (RFC 7386), such as
// {"metadata":{"annotations":{"key":null}}}.
func (n *Node) Patch(ctx context.Context, patch string, subresources ...string) error {
	_, err := n.Cluster.client.CoreV1().Nodes().
		Patch(ctx, n.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...)
	if err != nil {
		return fmt.Errorf("patch node %s: %w", n.Name, err)
	}
	return nil
}

func (n *Node) close() error {
	var errs []error
	for _, p := range n.Pods() {
		errs = append(errs, p.shutDown())
	}
	return errors.Join(append(errs, n.shutDown())...)
}
