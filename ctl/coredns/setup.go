// Package coredns finds the CoreDNS of a cluster, what owns its configuration, and which zones
// it serves, and puts the server blocks for other clusters where that owner keeps them.
//
//	workloads, ConfigMaps ──▶ files that CoreDNS sees ──▶ server blocks ──▶ where ours go
//	read once                 by mounts, with imports     of all files      pure
package coredns

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
)

// namespaces are those in which the cluster's CoreDNS may run, the likeliest first.
var namespaces = []string{metav1.NamespaceSystem, "openshift-dns"}

// custom is the ConfigMap for additional server blocks where distributions have one.
const custom = "coredns-custom"

// Setup is the CoreDNS of a cluster.
type Setup struct {
	// Kind and Name are those of its workload; empty: it has none in the cluster.
	Kind, Name string
	Namespace  string
	// Image is that of its pods, Account their service account.
	Image, Account string
	// Unavailable is the number of its pods that should be available and aren't.
	Unavailable int32
	// Main is the ConfigMap with the Corefile, Key its key.
	Main, Key string
	// Domain is the cluster's own domain.
	Domain string
	// Reloads is whether it uses the plugin reload.
	Reloads bool
	// Owner is what owns the ConfigMap to which our server blocks are written.
	Owner Owner
	// NodeLocal is the cache on each node; nil: there is none.
	NodeLocal *NodeLocal

	// Broken is set if the marks around our server blocks aren't pairs, Invalid if CoreDNS
	// couldn't read its configuration.
	Broken, Invalid error
	// Unseen are the imports of server blocks whose files aren't in ConfigMaps.
	Unseen []string

	servers []Server // with ours
	others  []Server
	like    *Server // the server block of Domain, one on plain DNS if there is any
	main    string  // the path of the Corefile
	mounts  []mount
	target  place
	ours    []place // with our server blocks
	maps    map[string]*corev1.ConfigMap
}

// Bounds of what a namespace may contain for CoreDNS.
const (
	maxWorkloads = 50
	maxMaps      = 200
	maxMap       = 2 << 20 // bytes; the API server accepts 1 MiB
)

// place is a key of a ConfigMap in the namespace of CoreDNS.
type place struct{ name, key string }

// mount is a ConfigMap in the file system of CoreDNS, or another volume, without a name.
type mount struct {
	folder string
	name   string
	keys   map[string]string // file names of the mounted keys; nil: all keys, by their names
}

// Read finds the CoreDNS of a cluster. Without one it returns nil.
func Read(ctx context.Context, client kubernetes.Interface) (*Setup, error) {
	for _, namespace := range namespaces {
		in, err := readObjects(ctx, client, namespace)
		if err != nil {
			return nil, err
		}
		if s, err := in.setup(); s != nil || err != nil {
			return s, err
		}
	}
	return nil, nil
}

// objects are the objects of a namespace that may belong to CoreDNS.
type objects struct {
	namespace string
	workloads []workload
	maps      map[string]*corev1.ConfigMap
}

type workload struct {
	kind, name  string
	unavailable int32
	pod         corev1.PodTemplateSpec
}

func readObjects(ctx context.Context, client kubernetes.Interface, namespace string) (*objects, error) {
	in := &objects{namespace: namespace, maps: map[string]*corev1.ConfigMap{}}
	err := cli.List(ctx, client.AppsV1().Deployments(namespace), metav1.ListOptions{}, func(d *appsv1.Deployment) error {
		in.add(workload{"Deployment", d.Name, d.Status.UnavailableReplicas, d.Spec.Template})
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = cli.List(ctx, client.AppsV1().DaemonSets(namespace), metav1.ListOptions{}, func(s *appsv1.DaemonSet) error {
		in.add(workload{"DaemonSet", s.Name, s.Status.NumberUnavailable, s.Spec.Template})
		return nil
	})
	if err != nil {
		return nil, err
	}
	// Only hostile API servers have other names; they would become arguments of commands.
	in.workloads = slices.DeleteFunc(in.workloads, func(w workload) bool { return len(validation.IsDNS1123Subdomain(w.name)) > 0 })
	wanted := in.names()
	return in, cli.List(ctx, client.CoreV1().ConfigMaps(namespace), metav1.ListOptions{}, func(m *corev1.ConfigMap) error {
		_, corefile := m.Data["Corefile"]
		wanted := wanted[m.Name] || corefile || m.Name == custom || m.Name == stubs
		if !wanted || len(validation.IsDNS1123Subdomain(m.Name)) > 0 {
			return nil
		}
		size := 0
		for _, text := range m.Data {
			size += len(text)
		}
		switch {
		case size > maxMap:
			return fmt.Errorf("ConfigMap %s/%s has more than %d bytes", namespace, m.Name, maxMap)
		case len(in.maps) == maxMaps:
			return fmt.Errorf("namespace %s has more than %d ConfigMaps for CoreDNS", namespace, maxMaps)
		}
		in.maps[m.Name] = m
		return nil
	})
}

func (in *objects) add(w workload) {
	if (w.container() != nil || w.nodeLocal() != nil) && len(in.workloads) < maxWorkloads {
		in.workloads = append(in.workloads, w)
	}
}

// names are the ConfigMaps that the workloads mount.
func (in *objects) names() map[string]bool {
	all := map[string]bool{}
	for _, w := range in.workloads {
		for i := range w.pod.Spec.Containers {
			for _, m := range w.mounts(&w.pod.Spec.Containers[i]) {
				all[m.name] = true
			}
		}
	}
	return all
}

// image returns the last part of a container's image, without its tag.
func image(c *corev1.Container) string {
	name, _, _ := strings.Cut(path.Base(c.Image), "@")
	name, _, _ = strings.Cut(name, ":")
	return name
}

// container returns the container of a workload that runs CoreDNS; nil: none does.
func (w *workload) container() *corev1.Container {
	for i := range w.pod.Spec.Containers {
		c := &w.pod.Spec.Containers[i]
		isCoreDNS := strings.Contains(image(c), "coredns") || c.Name == "coredns" ||
			len(c.Command) > 0 && path.Base(c.Command[0]) == "coredns"
		if isCoreDNS && !isNodeLocal(c) {
			return c
		}
	}
	return nil
}

// argument returns the value of a flag of a container.
func argument(c *corev1.Container, name string) string {
	words := slices.Concat(c.Command, c.Args)
	for i, word := range words {
		flag, value, has := strings.Cut(strings.TrimLeft(word, "-"), "=")
		switch {
		case flag != name || !strings.HasPrefix(word, "-"):
		case has:
			return value
		case i+1 < len(words):
			return words[i+1]
		}
	}
	return ""
}

// mounts returns the ConfigMaps in the file system of a container.
func (w *workload) mounts(c *corev1.Container) []mount {
	var all []mount
	add := func(at corev1.VolumeMount, name string, items []corev1.KeyToPath) {
		m := mount{folder: at.MountPath, name: name}
		if len(items) > 0 || at.SubPath != "" {
			m.keys = map[string]string{}
		}
		for _, item := range items {
			m.keys[item.Key] = item.Path
		}
		if at.SubPath != "" {
			// A single file: its key is the part, unless an item renames it.
			key := at.SubPath
			for _, item := range items {
				if item.Path == at.SubPath {
					key = item.Key
				}
			}
			m.folder, m.keys = path.Dir(at.MountPath), map[string]string{key: path.Base(at.MountPath)}
		}
		all = append(all, m)
	}
	for _, at := range c.VolumeMounts {
		for _, v := range w.pod.Spec.Volumes {
			if v.Name != at.Name {
				continue
			}
			if v.ConfigMap != nil {
				add(at, v.ConfigMap.Name, v.ConfigMap.Items)
			}
			if v.Projected != nil {
				for _, source := range v.Projected.Sources {
					if source.ConfigMap != nil {
						add(at, source.ConfigMap.Name, source.ConfigMap.Items)
					}
				}
			}
			if v.ConfigMap == nil && v.Projected == nil {
				add(at, "", nil)
			}
		}
	}
	return all
}

// rank orders the workloads that run CoreDNS: that of the Service of the cluster's DNS first.
func (w *workload) rank() int {
	switch {
	case w.pod.Labels["k8s-app"] == "kube-dns" || w.pod.Labels["dns.operator.openshift.io/daemonset-dns"] != "":
		return 0
	case w.pod.Labels["k8s-app"] == "coredns":
		return 1
	case w.name == "coredns":
		return 2
	}
	return 3
}

// setup finds CoreDNS among the objects of a namespace; nil: there is none.
func (in *objects) setup() (*Setup, error) {
	running := slices.DeleteFunc(slices.Clone(in.workloads), func(w workload) bool { return w.container() == nil })
	slices.SortStableFunc(running, func(a, b workload) int { return cmp.Or(a.rank()-b.rank(), strings.Compare(a.name, b.name)) })
	s := &Setup{Namespace: in.namespace, maps: in.maps}
	main, mounts := "/etc/coredns/Corefile", []mount(nil)
	if len(running) > 0 {
		w := &running[0]
		s.Kind, s.Name, s.Unavailable = w.kind, w.name, w.unavailable
		s.Image, s.Account = w.container().Image, cmp.Or(w.pod.Spec.ServiceAccountName, "default")
		main = cmp.Or(argument(w.container(), "conf"), main)
		mounts = w.mounts(w.container())
	} else if name := in.bare(); name != "" {
		mounts = []mount{{"/etc/coredns", name, map[string]string{"Corefile": "Corefile"}}}
		if in.maps[custom] != nil {
			mounts = append(mounts, mount{folder: "/etc/coredns/custom", name: custom})
		}
	} else {
		return nil, nil
	}
	if err := s.parse(main, mounts); err != nil {
		return nil, err
	}
	s.NodeLocal = in.nodeLocal(s)
	return s, nil
}

// bare returns the ConfigMap of a CoreDNS that isn't a workload of the cluster; empty: there is
// none.
func (in *objects) bare() string {
	var names []string
	for name, m := range in.maps {
		if _, has := m.Data["Corefile"]; has && strings.Contains(name, "coredns") && !strings.Contains(name, "autopath") {
			names = append(names, name)
		}
	}
	switch {
	case len(names) == 0:
		return ""
	case slices.Contains(names, "coredns"):
		return "coredns"
	}
	return slices.Min(names) // Others are probably copies.
}

// parse reads the configuration from the mounted ConfigMaps.
func (s *Setup) parse(main string, mounts []mount) error {
	s.main, s.mounts = main, mounts
	all, others, at := files{}, files{}, map[string]place{}
	for _, m := range mounts {
		for key, text := range s.data(m.name) {
			name := key
			if m.keys != nil {
				if name = m.keys[key]; name == "" {
					continue
				}
			}
			file := path.Join(m.folder, name)
			all[file], others[file], at[file] = text, withoutBlock(text), place{m.name, key}
			if err := whole(text); err != nil && s.Broken == nil {
				s.Broken = fmt.Errorf("ConfigMap %s/%s, key %s: %w", s.Namespace, m.name, key, err)
			}
			if others[file] != text {
				s.ours = append(s.ours, at[file])
			}
		}
	}
	from, found := at[main]
	if !found {
		return fmt.Errorf("the configuration %s of %s %s/%s isn't in a ConfigMap", main, s.Kind, s.Namespace, s.Name)
	}
	s.Main, s.Key, s.target, s.Domain = from.name, from.key, from, "cluster.local"
	slices.SortFunc(s.ours, func(a, b place) int { return cmp.Or(strings.Compare(a.name, b.name), strings.Compare(a.key, b.key)) })
	now, theirs := parse(all, main), parse(others, main)
	if err := cmp.Or(theirs.err, now.err); err != nil {
		s.Invalid = fmt.Errorf("ConfigMap %s/%s: CoreDNS can't read its configuration: %w", s.Namespace, s.Main, err)
	}
	s.servers, s.others = now.servers, theirs.servers
	for i := range s.others {
		o := &s.others[i]
		s.Reloads = s.Reloads || o.directive("reload") != nil
		if d := o.directive("kubernetes"); d != nil && (s.like == nil || s.like.plain() == Address{} && o.plain() != Address{}) {
			if domain := domainOf(o, d); len(validation.IsDNS1123Subdomain(domain)) == 0 {
				s.like, s.Domain = o, domain
			}
		}
	}
	for _, pattern := range theirs.imports {
		if to, is := s.landing(pattern, mounts); is && s.target.name == s.Main {
			s.target = to
		}
		if slices.ContainsFunc(mounts, func(m mount) bool { return m.name == "" && within(path.Dir(pattern), m.folder) }) {
			s.Unseen = append(s.Unseen, pattern)
		}
	}
	s.Owner = owner(s.maps[s.target.name], s.Namespace, s.target != from)
	return nil
}

// domainOf returns the domain of the plugin kubernetes of a server block: its first zone or, as it then
// has those of the block, the first one there that isn't of addresses; empty: there is none.
func domainOf(o *Server, kubernetes *Directive) string {
	if len(kubernetes.Args) > 0 {
		return strings.TrimSuffix(kubernetes.Args[0], ".")
	}
	for _, z := range o.Zones {
		if zone := strings.TrimSuffix(z.Zone, "."); !strings.HasSuffix(zone, "in-addr.arpa") && !strings.HasSuffix(zone, "ip6.arpa") {
			return zone
		}
	}
	return ""
}

func (s *Setup) data(name string) map[string]string {
	if m := s.maps[name]; m != nil {
		return m.Data
	}
	return nil
}

func within(folder, parent string) bool {
	return folder == path.Clean(parent) || strings.HasPrefix(folder, path.Clean(parent)+"/")
}

// landing returns the key of another ConfigMap than that of the Corefile whose file a pattern
// of server blocks imports.
func (s *Setup) landing(pattern string, mounts []mount) (place, bool) {
	folder, name := path.Split(pattern)
	if strings.Count(name, "*") != 1 {
		return place{}, false
	}
	name = strings.Replace(name, "*", "semaphore", 1)
	if ok, err := path.Match(path.Base(pattern), name); !ok || err != nil || len(validation.IsConfigMapKey(name)) > 0 {
		return place{}, false
	}
	for _, m := range mounts {
		if m.name == "" || m.name == s.Main || m.keys != nil || path.Clean(m.folder) != path.Clean(folder) {
			continue
		}
		if o := s.maps[m.name]; o == nil || o.Immutable == nil || !*o.Immutable {
			return place{m.name, name}, true
		}
	}
	return place{}, false
}

// Target is where our server blocks go: a ConfigMap and its key.
func (s *Setup) Target() string {
	return fmt.Sprintf("ConfigMap %s/%s, key %s", s.Namespace, s.target.name, s.target.key)
}

// Restart is the arguments of kubectl that make CoreDNS read its configuration; empty: it
// isn't a workload of the cluster.
func (s *Setup) Restart() string {
	if s.Name == "" {
		return ""
	}
	return fmt.Sprintf("-n %s rollout restart %s/%s", s.Namespace, strings.ToLower(s.Kind), s.Name)
}

// Show is a command that shows the ConfigMaps with server blocks.
func (s *Setup) Show(access cli.Access) string {
	names := []string{s.Main}
	for _, at := range append(slices.Clone(s.ours), s.target) {
		if !slices.Contains(names, at.name) && s.maps[at.name] != nil {
			names = append(names, at.name)
		}
	}
	return access.Kubectl("-n %s get configmap "+strings.Join(names, " ")+" -o yaml", s.Namespace)
}

// Serves reports whether CoreDNS has a server block for a zone.
func (s *Setup) Serves(zone string) bool { return serves(s.servers, zone, s.like) }

// Foreign reports whether CoreDNS has a server block for a zone that isn't ours.
func (s *Setup) Foreign(zone string) bool { return serves(s.others, zone, s.like) }

func serves(servers []Server, zone string, like *Server) bool {
	at := like.plain()
	for i := range servers {
		if slices.ContainsFunc(servers[i].Zones, func(a Address) bool { return a.serves(zone, at) }) {
			return true
		}
	}
	return false
}

// defaultPorts are those of server blocks without a port, by transport.
var defaultPorts = map[string]string{"dns": "53", "tls": "853", "quic": "853", "grpc": "443", "https": "443", "https3": "443"}

// Twice returns the zones with two server blocks: CoreDNS doesn't start with them, and one that
// runs keeps its earlier configuration. It accepts those with the plugin view before another one.
func (s *Setup) Twice() []string {
	var all []string
	seen := map[string]bool{}
	for i := range s.servers {
		bind := ""
		if d := s.servers[i].directive("bind"); d != nil {
			bind = strings.Join(d.Args, " ")
		}
		for _, a := range s.servers[i].Zones {
			a.Port = cmp.Or(a.Port, defaultPorts[a.Transport])
			if key := a.String() + " " + bind; seen[key] {
				all = append(all, a.String())
			} else {
				seen[key] = s.servers[i].directive("view") == nil
			}
		}
	}
	return all
}

// Blocks returns our server blocks for the zones of remotes and of global services, except
// those that others serve.
func (s *Setup) Blocks(zones []Zone) (string, error) {
	if s == nil {
		s = &Setup{Domain: "cluster.local"}
	}
	return blocks(zones, s.like, cmp.Or(s.Domain, "cluster.local"), s.Foreign)
}
