// Package facts reads what a cluster is, and changes nothing: its nodes, the ranges of
// its pods and services, its network plugin, its DNS, and what is installed.
package facts

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/cli"
	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/manifests"
	"github.com/kube-semaphore/kube-semaphore/internal/endpoint"
)

// Facts are those of one cluster. What couldn't be read is empty, and Unread says why.
type Facts struct {
	Name    string
	Version string // v1.36.3
	Minor   int
	Nodes   []Node
	// Pods, Services and Machines are where pods, ClusterIPs and nodes are. PodsFrom
	// says by which sign; PodsSure that new nodes' pods will be inside, too.
	Pods, Services, Machines []netip.Prefix
	PodsFrom                 string
	PodsSure                 bool
	// Servers are addresses of the API server, the likeliest first.
	Servers []string
	// CA verifies them, in PEM.
	CA string
	// Plugin is the network plugin, "" when it isn't known.
	Plugin string
	// Calico is the version of Calico's API to write pools with, empty without Calico.
	Calico schema.GroupVersion
	// Masquerade says what has pods' packets for other clusters masqueraded, and what
	// to do.
	Masquerade []string
	DNS        *DNS
	Installed  Installed
	Unread     []error
}

// Node is a machine of a cluster.
type Node struct {
	Name, Kernel, OS string
	Ready            bool
	Addresses        []netip.Addr // its InternalIPs
	External         bool         // it has an ExternalIP
	// Locations are what annotations say of where other clusters' nodes reach it, by the
	// cluster, or empty for all of them. They are the administrator's.
	Locations map[string]string
	Pods      []netip.Prefix
}

// Location is what a node's endpoint for a cluster is made of: what its annotations say,
// or else the setting.
func (n *Node) Location(remote string, settings map[string]string) (endpoint.Source, error) {
	for _, name := range []string{remote, ""} {
		if text, annotated := n.Locations[name]; annotated {
			return endpoint.Parse(text)
		}
	}
	return endpoint.Parse(cmp.Or(settings["SEMAPHORE_WG_ENDPOINT"], endpoint.InternalIP))
}

// Location reads the name of an annotation of a node that says where it is reached: by
// which cluster, empty for all of them.
func Location(annotation string) (remote string, is bool) {
	before, is := strings.CutSuffix(annotation, "wireguard.semaphore.uw.io/endpoint-address")
	return strings.TrimSuffix(before, "."), is
}

// DNS is the cluster's CoreDNS.
type DNS struct {
	Namespace, Name string // of the ConfigMap
	Corefile        string
	Reloads         bool
}

// Installed is what there is of ours.
type Installed struct {
	// Namespace says whether the namespace is there, Ours whether we made it, and
	// Restricted is the Pod Security Standard that keeps agents out of it.
	Namespace, Ours bool
	Restricted      string
	// Settings are those that the programs read, checked.
	Settings Settings
	Image    string
	Tools    []string
	// Foreign are programs of ours that somebody has installed by other means.
	Foreign []string
}

// Misnamed returns the name that what is installed has, where a cluster is asked for by
// another one; empty: it is asked for by its name, or nothing says one.
func (i Installed) Misnamed(asked string) string {
	if name := i.Settings["SEMAPHORE_CLUSTER_NAME"]; name != asked {
		return name
	}
	return ""
}

// ReadInstalled reads what there is of ours, and nothing else.
func ReadInstalled(ctx context.Context, c *cli.Cluster) (Installed, error) {
	f := &Facts{Name: c.Name}
	err := f.readInstalled(ctx, c)
	return f.Installed, err
}

// ReadAll reads clusters, all at the same time.
func ReadAll(ctx context.Context, clusters []*cli.Cluster) []*Facts {
	all := make([]*Facts, len(clusters))
	var group sync.WaitGroup
	for i, c := range clusters {
		group.Go(func() { all[i] = Read(ctx, c) })
	}
	group.Wait()
	return all
}

// Read reads all that can be read.
func Read(ctx context.Context, c *cli.Cluster) *Facts {
	f := &Facts{Name: c.Name}
	version, err := discovery.ToServerVersionInterfaceWithContext(c.Client.Discovery()).ServerVersionWithContext(ctx)
	if err != nil {
		// Whatever else is asked fails, too.
		f.Unread = append(f.Unread, fmt.Errorf("the API server at %s doesn't answer: %w", c.Server, err))
		return f
	}
	f.Version = version.GitVersion
	_, _ = fmt.Sscanf(version.Minor, "%d", &f.Minor) // Some providers write "30+".
	for what, read := range map[string]func(context.Context, *cli.Cluster) error{
		"nodes": f.readNodes, "the API server's authorities": f.readAuthority, "CoreDNS": f.readDNS, "what is installed": f.readInstalled,
	} {
		if err := read(ctx, c); err != nil {
			f.Unread = append(f.Unread, fmt.Errorf("read %s: %w", what, err))
		}
	}
	f.readPlugin(ctx, c)
	if err := f.readPods(ctx, c); err != nil {
		f.Unread = append(f.Unread, fmt.Errorf("read where pods are: %w", err))
	}
	if err := f.readServices(ctx, c); err != nil {
		f.Unread = append(f.Unread, fmt.Errorf("read the range of services: %w", err))
	}
	f.readServers(ctx, c)
	return f
}

func (f *Facts) readNodes(ctx context.Context, c *cli.Cluster) error {
	err := cli.List(ctx, c.Client.CoreV1().Nodes(), metav1.ListOptions{}, func(n *corev1.Node) error {
		if err := CheckName("a Node", "metadata.name", n.Name); err != nil {
			return err
		}
		node := Node{Name: n.Name, Kernel: n.Status.NodeInfo.KernelVersion, OS: n.Status.NodeInfo.OperatingSystem, Locations: map[string]string{}}
		for _, condition := range n.Status.Conditions {
			node.Ready = node.Ready || condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue
		}
		for _, address := range n.Status.Addresses {
			ip, err := netip.ParseAddr(address.Address)
			if err == nil && address.Type == corev1.NodeInternalIP {
				node.Addresses = append(node.Addresses, ip.Unmap())
			}
			if len(node.Addresses) > mostOfNode {
				return tooMany("Node", n.Name, "status.addresses", mostOfNode, "InternalIPs")
			}
			node.External = node.External || err == nil && address.Type == corev1.NodeExternalIP
		}
		for name, text := range n.Annotations {
			if remote, is := Location(name); is {
				node.Locations[remote] = text
			}
		}
		if len(n.Spec.PodCIDRs) > mostOfNode {
			return tooMany("Node", n.Name, "spec.podCIDRs", mostOfNode, "prefixes")
		}
		for _, cidr := range n.Spec.PodCIDRs {
			if prefix, err := netip.ParsePrefix(cidr); err == nil {
				node.Pods = append(node.Pods, prefix.Masked())
			}
		}
		f.Nodes = append(f.Nodes, node)
		return nil
	})
	if err != nil {
		f.Nodes = nil // Some of them are no answer.
		return err
	}
	f.Machines = machines(f.Nodes)
	return nil
}

// machines are networks that hold the nodes, and leave room for more of them: of private
// networks 65,536 addresses at least, of others 256, as they end at a neighbour's.
func machines(nodes []Node) []netip.Prefix {
	var all []netip.Prefix
	for _, n := range nodes {
		for _, a := range n.Addresses {
			bits := 64
			switch {
			case a.Is4() && a.IsPrivate():
				bits = 16
			case a.Is4():
				bits = 24
			}
			all = append(all, netip.PrefixFrom(a, bits).Masked())
		}
	}
	return Compact(all)
}

func (f *Facts) readAuthority(ctx context.Context, c *cli.Cluster) error {
	found, err := c.Client.CoreV1().ConfigMaps("kube-system").Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
	if apierrors.IsNotFound(err) && len(c.Config.CAData) > 0 {
		f.CA, err = Certificates(c.Config.CAData)
		return err
	}
	if err != nil || found.Data["ca.crt"] == "" {
		return err
	}
	if f.CA, err = Certificates([]byte(found.Data["ca.crt"])); err != nil {
		return &InvalidError{"ConfigMap kube-system/kube-root-ca.crt", "ca.crt", err}
	}
	return nil
}

func (f *Facts) readDNS(ctx context.Context, c *cli.Cluster) error {
	return cli.List(ctx, c.Client.CoreV1().ConfigMaps("kube-system"), metav1.ListOptions{}, func(m *corev1.ConfigMap) error {
		corefile, has := m.Data["Corefile"]
		if !has || !strings.Contains(m.Name, "coredns") || strings.Contains(m.Name, "autopath") {
			return nil
		}
		if f.DNS != nil && m.Name != "coredns" {
			return nil // A copy, as it may be.
		}
		f.DNS = &DNS{Namespace: m.Namespace, Name: m.Name, Corefile: corefile}
		for line := range strings.Lines(corefile) {
			f.DNS.Reloads = f.DNS.Reloads || strings.HasPrefix(strings.TrimSpace(line), "reload")
		}
		return nil
	})
}

// programs are the workloads, by the tool that they are.
var programs = map[string]string{"semaphore-wireguard": manifests.WireGuard, "semaphore-service-mirror": manifests.Mirror, "semaphore-policy": manifests.Policy}

func (f *Facts) readInstalled(ctx context.Context, c *cli.Cluster) error {
	namespace, err := c.Client.CoreV1().Namespaces().Get(ctx, cli.Namespace, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	f.Installed.Namespace, f.Installed.Ours = true, namespace.Labels[manifests.ManagedLabel] == manifests.Manager
	if level := namespace.Labels["pod-security.kubernetes.io/enforce"]; level != "privileged" {
		f.Installed.Restricted = level
	}
	var templates []corev1.PodTemplateSpec
	err = cli.List(ctx, c.Client.AppsV1().DaemonSets(cli.Namespace), metav1.ListOptions{}, func(s *appsv1.DaemonSet) error {
		f.tool(s, &s.Spec.Template, &templates)
		return nil
	})
	if err != nil {
		return err
	}
	err = cli.List(ctx, c.Client.AppsV1().Deployments(cli.Namespace), metav1.ListOptions{}, func(d *appsv1.Deployment) error {
		f.tool(d, &d.Spec.Template, &templates)
		return nil
	})
	if err != nil {
		return err
	}
	slices.Sort(f.Installed.Tools)
	for _, t := range templates {
		for _, from := range t.Spec.Containers[0].EnvFrom {
			if from.ConfigMapRef == nil || len(f.Installed.Settings) > 0 {
				continue
			}
			settings, err := c.Client.CoreV1().ConfigMaps(cli.Namespace).Get(ctx, from.ConfigMapRef.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) && from.ConfigMapRef.Optional != nil && *from.ConfigMapRef.Optional {
				continue
			}
			if err != nil {
				// Without it nobody knows which neighbours there are.
				return fmt.Errorf("settings of %s: %w", t.Labels["app.kubernetes.io/name"], err)
			}
			f.Installed.Settings, err = ParseSettings(cli.Namespace+"/"+settings.Name, settings.Data)
			if err != nil {
				return err
			}
		}
		f.Installed.Image = t.Spec.Containers[0].Image
	}
	return nil
}

func (f *Facts) tool(o metav1.Object, template *corev1.PodTemplateSpec, templates *[]corev1.PodTemplateSpec) {
	if tool := programs[o.GetName()]; tool != "" && len(template.Spec.Containers) > 0 {
		f.Installed.Tools = append(f.Installed.Tools, tool)
		*templates = append(*templates, *template)
		if o.GetLabels()[manifests.ManagedLabel] != manifests.Manager {
			f.Installed.Foreign = append(f.Installed.Foreign, o.GetName())
		}
	}
}

// readServers finds addresses of the API server: the administrator's, unless it is one
// of this machine's own, and those that the cluster itself knows.
func (f *Facts) readServers(ctx context.Context, c *cli.Cluster) {
	if u, err := url.Parse(c.Server); err == nil && u.Scheme == "https" && !loopback(u.Hostname()) {
		f.Servers = append(f.Servers, strings.TrimSuffix(c.Server, "/"))
	}
	// It is one more way, not one that is needed.
	of := metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=kubernetes"}
	_ = cli.List(ctx, c.Client.DiscoveryV1().EndpointSlices("default"), of, func(s *discoveryv1.EndpointSlice) error {
		for _, p := range s.Ports {
			for _, e := range s.Endpoints {
				if p.Port == nil || len(e.Addresses) == 0 {
					continue
				}
				address, err := netip.ParseAddr(e.Addresses[0])
				if address = address.Unmap(); err != nil || endpoint.Check(address) != nil || *p.Port < 1 || *p.Port > 65535 {
					continue
				}
				server := "https://" + net.JoinHostPort(address.String(), fmt.Sprint(*p.Port))
				if len(f.Servers) < 4 && !slices.Contains(f.Servers, server) {
					f.Servers = append(f.Servers, server)
				}
			}
		}
		return nil
	})
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && (ip.IsLoopback() || ip.IsUnspecified())
}

// readServices finds where ClusterIPs are: ServiceCIDRs of Kubernetes 1.33 on, or what
// the API server says of an address that can't be.
func (f *Facts) readServices(ctx context.Context, c *cli.Cluster) error {
	found, all := 0, []netip.Prefix(nil)
	err := cli.List(ctx, c.Client.NetworkingV1().ServiceCIDRs(), metav1.ListOptions{}, func(item *networkingv1.ServiceCIDR) error {
		found++
		for _, text := range item.Spec.CIDRs {
			if prefix, err := netip.ParsePrefix(text); err == nil {
				all = append(all, prefix.Masked())
			}
		}
		if len(all) > mostPrefixes {
			return tooMany("ServiceCIDR", item.Name, "spec.cidrs", mostPrefixes, "prefixes, with those of others")
		}
		return nil
	})
	if IsInvalid(err) {
		return err
	}
	if err == nil && found > 0 {
		f.Services = Compact(all)
		return nil
	}
	_, err = c.Client.CoreV1().Services("default").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "semaphorectl-"},
		Spec:       corev1.ServiceSpec{ClusterIP: "192.0.2.1", Ports: []corev1.ServicePort{{Port: 1}}},
	}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err == nil {
		return nil
	}
	all = nil
	if _, text, found := strings.Cut(err.Error(), "range of valid IPs is "); found {
		for word := range strings.FieldsFuncSeq(text, func(r rune) bool { return strings.ContainsRune(", ", r) }) {
			if prefix, parsed := netip.ParsePrefix(strings.TrimSuffix(word, ".")); parsed == nil {
				all = append(all, prefix.Masked())
			}
			if len(all) > mostPrefixes {
				return &InvalidError{"what the API server says of a ClusterIP", "range of valid IPs", fmt.Errorf("more than %d prefixes", mostPrefixes)}
			}
		}
	}
	if f.Services = Compact(all); len(all) == 0 {
		return err
	}
	return nil
}
