package inspect

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/endpoint"
)

// Labels and annotations of services (docs/service-mirror.md). The selectors are the defaults
// of settings.
const (
	MirrorSelector = mark + "mirror-service=true"
	GlobalSelector = mark + "global-service=true"
	mark           = "mirror.semaphore.uw.io/"
	// MirrorSetting and GlobalSetting are the settings with these defaults.
	MirrorSetting  = "SEMAPHORE_MIRROR_SELECTOR"
	GlobalSetting  = "SEMAPHORE_GLOBAL_SELECTOR"
	importSelector = "mirrored-svc=true"
)

// KubeService is a Service with its endpoints. Of an import, which the service mirror maintains
// in our namespace, Namespace and Name are those of the origin.
type KubeService struct {
	Namespace, Name string
	// Object is the name of an import, Origin the cluster of its origin; empty: it is a
	// global service.
	Object, Origin string
	// ClusterSet is whether it is an import of the Multi-Cluster Services API.
	ClusterSet bool
	Headless   bool
	ClusterIPs []string
	// Port is the first port of TCP, one for HTTP if there is any; 0: none.
	Port int32
	HTTP bool
	// External is whether the type is ExternalName.
	External bool
	Created  time.Time
	Endpoints
}

// Endpoints are those of a service.
type Endpoints struct {
	Ready, All int
	// Sample are some of the ready ones, at Port. Addresses are those by which other clusters
	// know pods.
	Sample []netip.AddrPort
	// Digest identifies the set of ready addresses.
	Digest string
	// Changed is when they were last written, by the clock of the API server; zero: unknown.
	Changed time.Time
	// Unready are the nodes of those that aren't ready; empty: one that isn't known.
	Unready map[string]bool
}

// maxSample bounds Endpoints.Sample.
const maxSample = 32

// DNS is the name of an import for clients.
func (s *KubeService) DNS() string {
	if s.ClusterSet {
		return s.Name + "." + s.Namespace + ".svc.clusterset.local"
	}
	return s.Name + "." + s.Namespace + ".svc.cluster." + cmp.Or(s.Origin, "global")
}

func (s *KubeService) String() string { return s.Namespace + "/" + s.Name }

// imports reads the Services of the mirror.
func (t *collector) imports(ctx context.Context) ([]KubeService, error) {
	return t.services(ctx, cli.Namespace, importSelector, "")
}

// exports reads the Services that have one of the labels for mirrors, or for global services.
func (t *collector) exports(selector string) func(context.Context) ([]KubeService, error) {
	return func(ctx context.Context) ([]KubeService, error) {
		return t.services(ctx, metav1.NamespaceAll, selector, selector)
	}
}

// readServices reads Services, without endpoints, and the names of the chosen ports; in our
// namespace the imports of the service mirror. A Service with an invalid name is an error: names
// become words of commands and of DNS.
func readServices(ctx context.Context, client kubernetes.Interface, namespace, selector string) (all []KubeService, ports map[string]string, err error) {
	ports = map[string]string{}
	err = cli.List(ctx, client.CoreV1().Services(namespace), metav1.ListOptions{LabelSelector: selector}, func(o *corev1.Service) error {
		if err := CheckName("a Service", "metadata.name", o.Name); err != nil {
			return err
		}
		s := KubeService{
			Namespace: o.Namespace, Name: o.Name, Headless: o.Spec.ClusterIP == corev1.ClusterIPNone, ClusterIPs: addresses(o.Spec.ClusterIPs),
			External: o.Spec.Type == corev1.ServiceTypeExternalName, Created: o.CreationTimestamp.Time,
		}
		if namespace != cli.Namespace && (o.Labels["mirrored-svc"] == "true" || o.Annotations[mark+"cluster"] != "") {
			return nil // What a mirror has made isn't an origin.
		}
		if namespace == cli.Namespace {
			if err := s.imported(o); err != nil || s.Object == "" {
				return err
			}
		}
		ports[o.Namespace+"/"+o.Name] = s.choose(o.Spec.Ports)
		all = append(all, s)
		return nil
	})
	return all, ports, err
}

// ReadImports reads the mirrors and global services of a cluster, without endpoints.
func ReadImports(ctx context.Context, c *cli.Cluster) ([]KubeService, error) {
	all, _, err := readServices(ctx, c.Client, cli.Namespace, importSelector)
	return all, err
}

// services reads Services and their EndpointSlices.
func (t *collector) services(ctx context.Context, namespace, selector, labels string) ([]KubeService, error) {
	all, ports, err := readServices(ctx, t.client, namespace, selector)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	at := map[string]*KubeService{}
	for i := range all {
		at[cmp.Or(all[i].key(namespace), all[i].String())] = &all[i]
	}
	var subnets config.SubnetMap
	if namespace != cli.Namespace {
		subnets = t.Settings.Value.SubnetMap()
	}
	ready := map[*KubeService]map[string]bool{}
	err = cli.List(ctx, t.client.DiscoveryV1().EndpointSlices(namespace), metav1.ListOptions{LabelSelector: labels}, func(o *discoveryv1.EndpointSlice) error {
		key := o.Namespace + "/" + o.Labels[discoveryv1.LabelServiceName]
		s := at[key]
		if s == nil {
			return nil
		}
		if ready[s] == nil {
			ready[s] = map[string]bool{}
		}
		s.add(o, ports[key], subnets, ready[s])
		return nil
	})
	for s, addresses := range ready {
		s.Digest = digest(addresses)
	}
	return all, err
}

// imported sets the names of an import by its annotations; without an Object nothing of it is known.
func (s *KubeService) imported(o *corev1.Service) error {
	origin, namespace, name := o.Annotations[mark+"cluster"], o.Annotations[mark+"namespace"], o.Annotations[mark+"name"]
	if name == "" || namespace == "" {
		return nil
	}
	for what, name := range map[string]string{mark + "namespace": namespace, mark + "name": name} {
		if err := CheckName("Service "+o.Name, what, name); err != nil {
			return err
		}
	}
	if origin != "" {
		if _, err := cluster.ParseName(origin); err != nil {
			return fmt.Errorf("the annotation %scluster of Service %s: %w", mark, o.Name, err)
		}
	}
	s.Object, s.Origin, s.Namespace, s.Name = o.Name, origin, namespace, name
	return nil
}

// addresses returns those of the texts that are addresses.
func addresses(texts []string) (all []string) {
	for _, text := range texts {
		if address, err := netip.ParseAddr(text); err == nil {
			all = append(all, address.String())
		}
	}
	return all
}

// key is the namespace and name of an import's object.
func (s *KubeService) key(namespace string) string {
	if s.Object == "" {
		return ""
	}
	return namespace + "/" + s.Object
}

// choose chooses the port that is asked, and returns its name.
func (s *KubeService) choose(ports []corev1.ServicePort) (name string) {
	for i := range ports {
		p := &ports[i]
		protocol := strings.ToLower(p.Name)
		if p.AppProtocol != nil {
			protocol = strings.ToLower(*p.AppProtocol)
		}
		http := protocol == "http" || strings.HasPrefix(protocol, "http-")
		if (p.Protocol == "" || p.Protocol == corev1.ProtocolTCP) && (s.Port == 0 || http && !s.HTTP) {
			s.Port, s.HTTP, name = p.Port, http, p.Name
		}
	}
	return name
}

// add adds the endpoints of a slice.
func (s *KubeService) add(slice *discoveryv1.EndpointSlice, port string, subnets config.SubnetMap, ready map[string]bool) {
	number := uint16(0)
	for _, p := range slice.Ports {
		if p.Port != nil && (p.Name == nil && port == "" || p.Name != nil && *p.Name == port) && *p.Port > 0 && *p.Port < 1<<16 {
			number = uint16(*p.Port)
		}
	}
	for _, m := range slice.ManagedFields {
		if m.Time != nil && m.Time.After(s.Changed) {
			s.Changed = m.Time.Time
		}
	}
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		s.All++
		if e.Conditions.Ready != nil && !*e.Conditions.Ready {
			if s.Unready == nil {
				s.Unready = map[string]bool{}
			}
			node := ""
			if e.NodeName != nil && len(s.Unready) < maxSample {
				node = *e.NodeName
			}
			s.Unready[node] = true
			continue
		}
		s.Ready++
		for _, address := range e.Addresses[:min(1, len(e.Addresses))] { // which all consumers use
			ip, err := endpoint.ParseAddr(address)
			if err == nil {
				ip = subnets.Virtual(ip)
				address = ip.String()
			}
			ready[address] = true
			if err == nil && number > 0 && len(s.Sample) < maxSample {
				s.Sample = append(s.Sample, netip.AddrPortFrom(ip, number))
			}
		}
	}
}

// digest identifies a set of addresses.
func digest(addresses map[string]bool) string {
	all := make([]string, 0, len(addresses))
	for address := range addresses {
		all = append(all, address)
	}
	slices.Sort(all)
	sum := sha256.Sum256([]byte(strings.Join(all, " ")))
	return hex.EncodeToString(sum[:8])
}

// Custom reports whether a selector isn't the default, so that the services that it selects
// aren't known.
func (c *Cluster) Custom(setting string) bool {
	value, set := c.Settings.Value[setting]
	return set && value != map[string]string{MirrorSetting: MirrorSelector, GlobalSetting: GlobalSelector}[setting]
}

// Lack is a Service without ready endpoints that other clusters use.
type Lack struct {
	Cluster *Cluster
	*KubeService
	// Global is the number of clusters of a global service; 0: it is mirrored.
	Global int
}

// Lacking returns the mirrored services of clusters whose origin has no ready endpoints, and
// the global services without any in all of their clusters.
func Lacking(clusters []*Cluster) []Lack {
	var all []Lack
	mirrored, known := map[string]bool{}, true
	for _, c := range clusters {
		known = known && c.Shared.Known() && !c.Custom(GlobalSetting)
		for i := range c.Imports.Value {
			if s := &c.Imports.Value[i]; s.Origin != c.Name {
				mirrored[s.Origin+" "+s.String()] = true
			}
		}
	}
	global := map[string]*Lack{}
	for _, c := range clusters {
		for i := range c.Exports.Value {
			if s := &c.Exports.Value[i]; s.Ready == 0 && mirrored[c.Name+" "+s.String()] {
				all = append(all, Lack{Cluster: c, KubeService: s})
			}
		}
		for i := range c.Shared.Value {
			s := &c.Shared.Value[i]
			l := global[s.String()]
			if l == nil || s.Ready > l.Ready {
				l = &Lack{Cluster: c, KubeService: s, Global: cmp.Or(l, &Lack{}).Global}
				global[s.String()] = l
			}
			l.Global++
		}
	}
	for _, name := range slices.Sorted(maps.Keys(global)) {
		if l := global[name]; known && l.Ready == 0 {
			all = append(all, *l)
		}
	}
	return all
}
