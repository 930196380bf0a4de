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
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"

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
	// Foreign are our programs that weren't installed by semaphorectl, and Helm is the release
	// that installed one of them, or empty.
	Foreign []string
	Helm    string
}

// Misnamed returns the configured name of the cluster if it differs from the argument that
// it was selected with.
func (i Installed) Misnamed(asked string) string {
	if name := i.Settings["SEMAPHORE_CLUSTER_NAME"]; name != asked {
		return name
	}
	return ""
}

// ReadInstalled reads only Facts.Installed.
func ReadInstalled(ctx context.Context, c *cli.Cluster) (Installed, error) {
	f := &Facts{Name: c.Name}
	err := f.readInstalled(ctx, c)
	return f.Installed, err
}

// ReadForPods reads what temporary pods need of clusters, all at the same time: their nodes, and what
// is installed.
func ReadForPods(ctx context.Context, clusters []*cli.Cluster) []*Facts {
	all := make([]*Facts, len(clusters))
	var group sync.WaitGroup
	for i, c := range clusters {
		group.Go(func() {
			f := &Facts{Name: c.Name}
			if all[i] = f; f.readVersion(ctx, c) {
				f.need("nodes", f.readNodes(ctx, c))
				f.need("the installed programs", f.readInstalled(ctx, c))
			}
		})
	}
	group.Wait()
	return all
}

// answerTimeout bounds the first request to a cluster: an API server that accepts connections
// and doesn't answer is no reason to wait for all of the command's time.
const answerTimeout = 20 * time.Second

// Read reads all facts of a cluster. services are its ranges of ClusterIPs, if the administrator
// names them; otherwise they are read.
func Read(ctx context.Context, c *cli.Cluster, services ...netip.Prefix) *Facts {
	f := &Facts{Name: c.Name}
	if !f.readVersion(ctx, c) {
		return f
	}
	if system, err := c.Client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{}); err == nil {
		f.UID = system.UID
	}
	f.need("nodes", f.readNodes(ctx, c))
	f.need("the API server's CA", f.readAuthority(ctx, c))
	f.need("CoreDNS's configuration", f.readDNS(ctx, c))
	f.need("the installed programs", f.readInstalled(ctx, c))
	f.readPlugin(ctx, c)
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

// readVersion sends the first request; without a response all others would fail, too.
func (f *Facts) readVersion(ctx context.Context, c *cli.Cluster) bool {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	version, err := discovery.ToServerVersionInterfaceWithContext(c.Client.Discovery()).ServerVersionWithContext(ctx)
	if err != nil {
		f.Unread = append(f.Unread, c.Unanswered(err))
		return false
	}
	f.Version = version.GitVersion
	_, _ = fmt.Sscanf(version.Minor, "%d", &f.Minor) // Some providers write "30+".
	return true
}

func (f *Facts) readNodes(ctx context.Context, c *cli.Cluster) (err error) {
	f.Nodes, err = readNodes(ctx, c.Client)
	f.Machines = machines(f.Nodes)
	return err
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

func (f *Facts) readDNS(ctx context.Context, c *cli.Cluster) error {
	var err error
	f.DNS, err = coredns.Read(ctx, c.Client)
	return err
}

// programs maps names of workloads to tools; semaphore-relay is part of no tool.
var programs = map[string]string{WireGuard: manifests.WireGuard, ServiceMirror: manifests.Mirror, NetworkPolicy: manifests.Policy, Relay: ""}

// RemotesFrom is the setting that determines where agents read nodes, and RemotesFromRelay its
// value for those that read the objects of semaphore-relay.
const (
	RemotesFrom      = "SEMAPHORE_REMOTES_FROM"
	RemotesFromRelay = "relay"
)

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
				// Without them the remotes are unknown.
				return fmt.Errorf("settings of %s: %w", t.Labels["app.kubernetes.io/name"], err)
			}
			f.Installed.Settings, err = ParseSettings(cli.Namespace+"/"+settings.Name, settings.Data)
			if err != nil {
				return err
			}
		}
		f.Installed.Image = t.Spec.Containers[0].Image
		if secrets := t.Spec.ImagePullSecrets; len(secrets) > 0 {
			f.Installed.PullSecret = secrets[0].Name
		}
	}
	f.Installed.Relayed = relayed(templates, f.Installed.Settings)
	return nil
}

// relayed reports whether agents read the objects of semaphore-relay.
func relayed(templates []corev1.PodTemplateSpec, settings Settings) bool {
	for _, t := range templates {
		if t.Labels[programLabel] != WireGuard {
			continue
		}
		from := settings[RemotesFrom]
		for _, variable := range t.Spec.Containers[0].Env {
			if variable.Name == RemotesFrom {
				from = variable.Value
			}
		}
		return from == RemotesFromRelay
	}
	return false
}

func (f *Facts) tool(o metav1.Object, template *corev1.PodTemplateSpec, templates *[]corev1.PodTemplateSpec) {
	if tool, known := programs[o.GetName()]; known && len(template.Spec.Containers) > 0 {
		if tool != "" {
			f.Installed.Tools = append(f.Installed.Tools, tool)
		}
		f.Installed.Relay = f.Installed.Relay || o.GetName() == Relay
		*templates = append(*templates, *template)
		if o.GetLabels()[manifests.ManagedLabel] != manifests.Manager {
			f.Installed.Foreign = append(f.Installed.Foreign, o.GetName())
		}
		if o.GetLabels()[manifests.ManagedLabel] == "Helm" {
			f.Installed.Helm = cmp.Or(printable.Text(o.GetAnnotations()["meta.helm.sh/release-name"], printable.Short), "unknown")
		}
	}
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
