package testbed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// ClusterConfig describes a cluster. All fields but the name have defaults, which depend on
// the number of clusters, so that none overlap.
type ClusterConfig struct {
	// Name is a DNS label, unique in the testbed.
	Name string
	// PodSubnets are the prefixes that nodes take their podCIDRs from, one or
	// two families. Default: 10.2.0.0/16 and fd00:10:2::/48 for the first
	// cluster, 10.4.0.0/16 and fd00:10:4::/48 for the second, and so on.
	PodSubnets []netip.Prefix
	// VirtualSubnets are what other clusters know PodSubnets by, in the same order and of the
	// same lengths. Default: PodSubnets. With others, two clusters may have equal PodSubnets.
	VirtualSubnets []netip.Prefix
	// ServiceSubnets are the prefixes of ClusterIPs. Default: 10.102.0.0/16
	// and fd00:10:102::/112 for the first cluster, 104 for the second.
	ServiceSubnets []netip.Prefix
	// NodeSubnets are the parts of the underlay that nodes take their
	// addresses from. Default: 10.66.1.0/24 and fd00:66::1:0/112 for the first
	// cluster, 10.66.2.0/24 and fd00:66::2:0/112 for the second.
	NodeSubnets []netip.Prefix
	// APIServerArgs are appended to the arguments of kube-apiserver.
	APIServerArgs []string
	// Controllers also runs kube-controller-manager and kube-scheduler, which nodes with
	// a kubelet need. They must be among the tools.
	Controllers bool
}

// Cluster is a control plane with nodes.
type Cluster struct {
	Name           string
	PodSubnets     []netip.Prefix
	VirtualSubnets []netip.Prefix
	ServiceSubnets []netip.Prefix
	NodeSubnets    []netip.Prefix

	tb    *Testbed
	log   *slog.Logger
	dir   string
	plane *controlPlane

	rest      *rest.Config
	client    kubernetes.Interface
	dynamic   dynamic.Interface
	discovery discovery.DiscoveryInterface

	mu       sync.Mutex
	nodes    []*Node
	taken    int // number of nodes with default addresses
	accounts int // number of written credentials
}

// newCluster registers a cluster and completes its configuration.
func (tb *Testbed) newCluster(cfg ClusterConfig) (*Cluster, error) {
	if faults := validation.IsDNS1123Label(cfg.Name); len(faults) > 0 {
		return nil, fmt.Errorf("cluster %q: %v", cfg.Name, faults)
	}
	tb.mu.Lock()
	defer tb.mu.Unlock()
	for _, c := range tb.clusters {
		if c.Name == cfg.Name {
			return nil, fmt.Errorf("cluster %q exists already", cfg.Name)
		}
	}
	number := len(tb.clusters) + 1
	c := &Cluster{
		Name:           cfg.Name,
		PodSubnets:     cfg.PodSubnets,
		VirtualSubnets: cfg.VirtualSubnets,
		ServiceSubnets: cfg.ServiceSubnets,
		NodeSubnets:    cfg.NodeSubnets,
		tb:             tb,
		log:            tb.log.With("cluster", cfg.Name),
		dir:            filepath.Join(tb.state.dir, cfg.Name),
	}
	if len(c.PodSubnets) == 0 {
		c.PodSubnets = []netip.Prefix{
			netip.MustParsePrefix(fmt.Sprintf("10.%d.0.0/16", 2*number)),
			netip.MustParsePrefix(fmt.Sprintf("fd00:10:%d::/48", 2*number)),
		}
	}
	if len(c.VirtualSubnets) == 0 {
		c.VirtualSubnets = c.PodSubnets
	}
	if len(c.VirtualSubnets) != len(c.PodSubnets) {
		return nil, fmt.Errorf("cluster %s: virtual subnets %v of pod subnets %v", cfg.Name, c.VirtualSubnets, c.PodSubnets)
	}
	if len(c.ServiceSubnets) == 0 {
		c.ServiceSubnets = []netip.Prefix{
			netip.MustParsePrefix(fmt.Sprintf("10.%d.0.0/16", 100+2*number)),
			netip.MustParsePrefix(fmt.Sprintf("fd00:10:%d::/112", 100+2*number)),
		}
	}
	var addresses []netip.Addr
	for _, prefix := range tb.underlay.firstOfEachFamily() {
		bits := 24
		if prefix.Addr().Is6() {
			bits = 112
		}
		subnet, err := nthSubnet(prefix, bits, number)
		if err != nil {
			return nil, fmt.Errorf("cluster %s: addresses of nodes: %w", cfg.Name, err)
		}
		if len(cfg.NodeSubnets) == 0 {
			c.NodeSubnets = append(c.NodeSubnets, subnet)
		}
		addresses = append(addresses, nth(prefix, 10+number))
	}
	c.plane = newControlPlane(c, addresses, cfg)
	tb.clusters = append(tb.clusters, c)
	return c, nil
}

// firstOfEachFamily returns the prefixes that hold the API servers.
func (u *underlay) firstOfEachFamily() []netip.Prefix {
	var first []netip.Prefix
	for _, prefix := range u.prefixes {
		if !slices.ContainsFunc(first, func(f netip.Prefix) bool { return f.Addr().Is4() == prefix.Addr().Is4() }) {
			first = append(first, prefix)
		}
	}
	return first
}

// start brings the control plane up and makes the clients.
func (c *Cluster) start(ctx context.Context) error {
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return fmt.Errorf("start cluster %s: %w", c.Name, err)
	}
	if err := c.plane.create(ctx); err != nil {
		return fmt.Errorf("start cluster %s: %w", c.Name, err)
	}
	if err := c.newClients(); err != nil {
		return fmt.Errorf("start cluster %s: %w", c.Name, err)
	}
	if err := c.plane.startEtcd(); err != nil {
		return fmt.Errorf("start cluster %s: %w", c.Name, err)
	}
	if err := c.StartAPI(ctx); err != nil {
		return err
	}
	return c.plane.startControllers()
}

// newClients creates the administrator's clients. They connect from the underlay, despite
// cuts, and without a rate limit.
func (c *Cluster) newClients() (err error) {
	c.rest = &rest.Config{
		Host: c.APIURL(),
		TLSClientConfig: rest.TLSClientConfig{
			CAData:   c.plane.ca.pem,
			CertData: c.plane.admin.cert,
			KeyData:  c.plane.admin.key,
		},
		Dial:      c.tb.underlay.dial,
		QPS:       -1,
		UserAgent: "testbed",
	}
	if c.client, err = kubernetes.NewForConfig(c.rest); err != nil {
		return err
	}
	if c.dynamic, err = dynamic.NewForConfig(c.rest); err != nil {
		return err
	}
	if c.discovery, err = discovery.NewDiscoveryClientForConfig(c.rest); err != nil {
		return err
	}
	return c.writeKubeconfig(c.AdminKubeconfig(), kubeconfig{
		server: c.APIURL(),
		ca:     c.plane.ca.pem,
		cert:   c.plane.admin.cert,
		key:    c.plane.admin.key,
	})
}

// Virtual returns the address that other clusters know a pod's address by.
func (c *Cluster) Virtual(address netip.Addr) netip.Addr {
	for i, subnet := range c.PodSubnets {
		if !subnet.Contains(address) {
			continue
		}
		there := nth(c.VirtualSubnets[i], 0).AsSlice()
		for bit := subnet.Bits(); bit < address.BitLen(); bit++ {
			there[bit/8] |= address.AsSlice()[bit/8] & (0x80 >> (bit % 8))
		}
		address, _ = netip.AddrFromSlice(there)
		break
	}
	return address
}

// Client is the administrator's typed client. No cut and no rate limit applies
// to it; StopAPI does.
func (c *Cluster) Client() kubernetes.Interface { return c.client }

// Dynamic is the administrator's client for objects of any kind.
func (c *Cluster) Dynamic() dynamic.Interface { return c.dynamic }

// RESTConfig is the administrator's client configuration, for clients of other
// kinds and other users.
func (c *Cluster) RESTConfig() *rest.Config { return rest.CopyConfig(c.rest) }

// APIURL is the URL of the API server for nodes: at its first underlay address.
func (c *Cluster) APIURL() string {
	return "https://" + net.JoinHostPort(c.plane.addresses[0].String(), apiPort)
}

// CAFile is the certificate of the CA behind APIURL, in PEM.
func (c *Cluster) CAFile() string { return filepath.Join(c.dir, "ca.crt") }

// CAURL serves the content of CAFile over https, with a certificate of the CA
// in Testbed.PublicCAFile.
func (c *Cluster) CAURL() string {
	return "https://" + net.JoinHostPort(c.plane.addresses[0].String(), caPort) + "/ca.crt"
}

// AdminKubeconfig is the path of a kubeconfig file with all rights. It works
// from every machine on the underlay.
func (c *Cluster) AdminKubeconfig() string { return filepath.Join(c.dir, "admin.kubeconfig") }

// Kubectl runs kubectl as the administrator and returns what it printed.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	kubectl, err := c.tb.tool("kubectl")
	if err != nil {
		return "", err
	}
	args = append([]string{"--kubeconfig", c.AdminKubeconfig(), "--cache-dir", filepath.Join(c.dir, "kubectl-cache")}, args...)
	return c.tb.underlay.space.Output(ctx, kubectl, args...)
}

// Nodes returns the nodes that are machines of the testbed, in the order of
// their creation.
func (c *Cluster) Nodes() []*Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.nodes)
}

func (c *Cluster) close() error {
	var errs []error
	for _, n := range c.Nodes() {
		errs = append(errs, n.close())
	}
	return errors.Join(append(errs, c.plane.close())...)
}

// tool is the path of a binary in Config.Tools.
func (tb *Testbed) tool(name string) (string, error) {
	path, ok := tb.config.Tools[name]
	if !ok {
		return "", fmt.Errorf("testbed: Config.Tools has no %s", name)
	}
	return path, nil
}
