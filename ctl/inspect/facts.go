package inspect

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/coredns"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
	"github.com/kube-semaphore/kube-semaphore/internal/endpoint"
	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

// Facts are the properties of one cluster. Fields that couldn't be read are empty, with an
// error in Unread.
type Facts struct {
	Name    string
	Version string // v1.36.3
	Minor   int
	// UID is that of the namespace kube-system, which no two clusters share; empty: unknown.
	UID   types.UID
	Nodes []Node
	// Pods, Services and Machines are the ranges of pods, ClusterIPs and nodes. PodsFrom is
	// the source of Pods; PodsSure is whether they also contain the pods of future nodes.
	Pods, Services, Machines []netip.Prefix
	// ServicesGiven is whether the administrator has named the ranges of ClusterIPs.
	ServicesGiven bool
	PodsFrom      string
	PodsSure      bool
	// PodPrefixes is from what agents must read the prefixes of a node's pods, as the chart's value
	// wireguard.podPrefixes; empty: from the Node. ReadPodPrefixes sets it.
	PodPrefixes string
	cilium      map[string][]netip.Prefix // of CiliumNodes, by name
	// Servers are addresses of the API server, the likeliest first.
	Servers []string
	// CA verifies them, in PEM: the cluster's own and, if that doesn't verify the server of the
	// kubeconfig, the one that does, whose subject is OtherCA.
	CA, OtherCA string
	// Plugin is the network plugin; empty: unknown.
	Plugin string
	// Calico is the version of Calico's API, empty without Calico.
	Calico schema.GroupVersion
	// Masquerade lists what masquerades pods' packets to other clusters, each with a remedy.
	Masquerade []string
	// DNS is the cluster's CoreDNS; nil: none was found.
	DNS *coredns.Setup
	// MultiCluster is the Multi-Cluster Services API.
	MultiCluster MultiCluster
	Installed    Installed
	Unread       []error
}

// Installed is the installation of Kube-Semaphore in a cluster.
type Installed struct {
	// Namespace is whether the namespace exists, Ours whether semaphorectl created it, and
	// Restricted its Pod Security Standard, if that doesn't admit agents.
	Namespace, Ours bool
	Restricted      string
	// Settings are the programs' settings, validated.
	Settings Settings
	Image    string
	// PullSecret is the Secret with the registry's credentials, if the pods have one.
	PullSecret string
	Tools      []string
	// Relay is whether semaphore-relay is installed, Relayed whether the agents read its objects.
	Relay, Relayed bool
	// Foreign are our programs that weren't installed by semaphorectl, and Owner is what applies one
	// of them and would set changes back; empty: nothing is known.
	Foreign []string
	Owner   string
}

// Misnamed returns the configured name of the cluster if it differs from the argument that
// it was selected with.
func (i Installed) Misnamed(asked string) string {
	if name := i.Settings["SEMAPHORE_CLUSTER_NAME"]; name != asked {
		return name
	}
	return ""
}

// answerTimeout bounds the first request to a cluster: an API server that accepts connections
// and doesn't answer is no reason to wait for all of the command's time.
const answerTimeout = 20 * time.Second

// Read reads all facts of a cluster. services are its ranges of ClusterIPs, if the administrator
// names them; otherwise they are read.
func Read(ctx context.Context, c *cli.Cluster, services ...netip.Prefix) *Facts {
	f := &Facts{Name: c.Name}
	first, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	version, err := serverVersion(first, c.Client)
	if err != nil {
		f.Unread = append(f.Unread, c.Unanswered(err))
		return f
	}
	f.Version = version.GitVersion
	_, _ = fmt.Sscanf(version.Minor, "%d", &f.Minor) // Some providers write "30+".
	if system, err := c.Client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{}); err == nil {
		f.UID = system.UID
	}
	f.Nodes, err = readNodes(ctx, c.Client)
	f.need("nodes", err)
	f.Machines = machines(f.Nodes)
	f.need("the API server's CA", f.readAuthority(ctx, c))
	f.DNS, err = coredns.Read(ctx, c.Client)
	f.need("CoreDNS's configuration", err)
	f.need("the installed programs", f.readInstalled(ctx, c))
	f.need("the network plugin", f.readPlugin(ctx, c))
	f.need("the ranges of pods", f.readPods(ctx, c))
	if f.Services = services; len(services) > 0 {
		f.ServicesGiven = true
	} else if err := f.readServices(ctx, c); err != nil {
		err = fmt.Errorf("read the ranges of services: %w", err)
		if !IsInvalid(err) {
			err = &cli.Advised{Err: err, Remedy: "check that the kubeconfig context of " + c.Name + " works and may list ServiceCIDRs, or, before Kubernetes 1.33, create Services in the namespace default; or name them: --service-subnets " + c.Name + "=10.96.0.0/12"}
		}
		f.Unread = append(f.Unread, err)
	}
	f.readServers(ctx, c)
	f.readMultiCluster(ctx, c)
	return f
}

// need notes the error of reading something.
func (f *Facts) need(what string, err error) {
	if err != nil {
		f.Unread = append(f.Unread, fmt.Errorf("read %s: %w", what, err))
	}
}

// machines returns networks that contain the nodes and, probably, future ones: private
// networks of at least 65,536 addresses, and public ones of 256, which may border on those
// of other owners.
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
	var other *x509.Certificate
	if f.CA, other = WithServersAuthority(ctx, c, f.CA); other != nil {
		f.OtherCA = printable.Text(other.Subject.String(), printable.Short)
	}
	return nil
}

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
	workloads, err := readWorkloads(ctx, c.Client)
	if err != nil {
		return err
	}
	i := &f.Installed
	if i.Settings, err = readSettings(ctx, c.Client, settingsOf(workloads)); err != nil {
		return err
	}
	for _, w := range workloads {
		if _, known := programs[w.Name]; !known {
			continue
		}
		i.Relay = i.Relay || w.Name == Relay
		i.Image, i.PullSecret = cmp.Or(w.Image, i.Image), cmp.Or(w.pullSecret, i.PullSecret)
		i.Owner = cmp.Or(i.Owner, w.owner)
		if w.foreign {
			i.Foreign = append(i.Foreign, w.Name)
		}
		if w.Name == WireGuard {
			i.Relayed = cmp.Or(w.remotesFrom, i.Settings[RemotesFrom]) == RemotesFromRelay
		}
	}
	i.Tools = Tools(workloads)
	return nil
}

// readServers finds addresses of the API server: that of the kubeconfig, unless it is a
// loopback address, and those of the Service kubernetes.
func (f *Facts) readServers(ctx context.Context, c *cli.Cluster) {
	if u, err := url.Parse(c.Server); err == nil && u.Scheme == "https" && !loopback(u.Hostname()) {
		f.Servers = append(f.Servers, strings.TrimSuffix(c.Server, "/"))
	}
	// Optional: errors are ignored.
	of := metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=kubernetes"}
	_ = cli.List(ctx, c.Client.DiscoveryV1().EndpointSlices("default"), of, func(s *discoveryv1.EndpointSlice) error {
		for _, p := range s.Ports {
			for _, e := range s.Endpoints {
				if p.Port == nil || len(e.Addresses) == 0 {
					continue
				}
				address, err := endpoint.ParseAddr(e.Addresses[0])
				if err != nil || *p.Port < 1 || *p.Port > 65535 {
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

// readServices finds the ranges of ClusterIPs: ServiceCIDRs since Kubernetes 1.33, or else
// the API server's errors for ClusterIPs outside of them, one of each family.
func (f *Facts) readServices(ctx context.Context, c *cli.Cluster) error {
	found, all := 0, []netip.Prefix(nil)
	err := cli.List(ctx, c.Client.NetworkingV1().ServiceCIDRs(), metav1.ListOptions{}, func(item *networkingv1.ServiceCIDR) error {
		found++
		for _, text := range item.Spec.CIDRs {
			if prefix, err := netip.ParsePrefix(text); err == nil {
				all = append(all, prefix.Masked())
			}
		}
		if len(all) > maxPrefixes {
			return tooMany("ServiceCIDR", item.Name, "spec.cidrs", maxPrefixes, "prefixes, with those of others")
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
	all = nil
	var errs []error
	for _, outside := range []string{"192.0.2.1", "2001:db8::1"} { // RFC 5737, RFC 3849
		ranges, err := refusedIP(ctx, c, outside)
		if IsInvalid(err) {
			return err
		}
		all, errs = append(all, ranges...), append(errs, err)
	}
	if f.Services = Compact(all); len(all) > 0 {
		return nil // A cluster may have one family only.
	}
	return errors.Join(errs...)
}

// refusedIP returns the ranges of ClusterIPs in the API server's error for one outside of them.
// Nothing is created.
func refusedIP(ctx context.Context, c *cli.Cluster, ip string) (ranges []netip.Prefix, err error) {
	_, err = c.Client.CoreV1().Services("default").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "semaphorectl-"},
		Spec:       corev1.ServiceSpec{ClusterIP: ip, Ports: []corev1.ServicePort{{Port: 1}}},
	}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err == nil {
		return nil, nil
	}
	_, text, _ := strings.Cut(err.Error(), "range of valid IPs is ")
	for word := range strings.FieldsFuncSeq(text, func(r rune) bool { return strings.ContainsRune(", ", r) }) {
		if prefix, parsed := netip.ParsePrefix(strings.TrimSuffix(word, ".")); parsed == nil {
			ranges = append(ranges, prefix.Masked())
		}
		if len(ranges) > maxPrefixes {
			return nil, &InvalidError{"the API server's error about a ClusterIP", "range of valid IPs", fmt.Errorf("more than %d prefixes", maxPrefixes)}
		}
	}
	return ranges, err
}
