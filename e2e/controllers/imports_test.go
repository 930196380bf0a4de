package controllers_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/mcs-api/config/crd"
	"sigs.k8s.io/mcs-api/pkg/apis/v1alpha1"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
	"github.com/kube-semaphore/kube-semaphore/mirror"
	"github.com/kube-semaphore/kube-semaphore/mirror/mcs"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// importBed is three clusters that are remotes of each other. The CRDs of the Multi-Cluster
// Services API are in gcp and aws. Merit has one IP family, IPv4.
type importBed struct {
	*bed
	admins map[string]kube.Client // by cluster
}

// Controllers of Kubernetes run in gcp if they are among the tools.
func newImportBed(t *testing.T, more ...string) *importBed {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	b := &importBed{&bed{tb: testbed.Start(t, testbed.Config{}, more...), accounts: map[string]*testbed.Credentials{}, binaries: map[string]string{}}, map[string]kube.Client{}}
	four := func(text string) []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix(text)} }
	all, err := b.tb.StartClusters(ctx, testbed.ClusterConfig{Name: "gcp", Controllers: len(more) > 0}, testbed.ClusterConfig{Name: "aws"},
		testbed.ClusterConfig{Name: "merit", PodSubnets: four("10.6.0.0/16"), ServiceSubnets: four("10.106.0.0/16")})
	must(t, err)
	b.gcp, b.aws, b.merit = all[0], all[1], all[2]
	for _, c := range all {
		createNamespace(t, c, home)
		must(t, c.Apply(ctx, "../../deploy/service-mirror/rbac.yaml", "../../deploy/service-mirror/admission.yaml", "../../deploy/service-mirror/mcs/rbac.yaml",
			"../../deploy/service-mirror/mcs/admission.yaml", "../../deploy/remote/service-mirror.yaml"))
		client, err := kube.NewClient(c.RESTConfig())
		must(t, err)
		b.admins[c.Name] = client
	}
	b.define(t, b.gcp)
	b.define(t, b.aws)
	return b
}

// define installs the CRDs.
func (b *importBed) define(t *testing.T, c *testbed.Cluster, adjust ...func(*unstructured.Unstructured)) {
	t.Helper()
	for _, text := range [][]byte{crd.ServiceExportCRD, crd.ServiceImportCRD} {
		o := &unstructured.Unstructured{}
		must(t, yaml.Unmarshal(text, &o.Object))
		for _, a := range adjust {
			a(o)
		}
		must(t, c.ApplyObjects(t.Context(), o))
	}
}

// alphaOnly removes all versions but v1alpha1 from a CRD, as older implementations have it.
func alphaOnly(o *unstructured.Unstructured) {
	versions, _, _ := unstructured.NestedSlice(o.Object, "spec", "versions")
	versions = slices.DeleteFunc(versions, func(v any) bool { return v.(map[string]any)["name"] != v1alpha1.GroupVersion.Version })
	versions[0].(map[string]any)["storage"] = true
	_ = unstructured.SetNestedSlice(o.Object, versions, "spec", "versions")
}

// start runs a controller of a cluster until the test ends or stop is called.
func (b *importBed) start(t *testing.T, local *testbed.Cluster, adjust ...func(*mirror.Config)) *mirrorInstance {
	t.Helper()
	client := func(c *testbed.Cluster, account string) kube.Client {
		cfg := as(c, b.account(t, c, account))
		cfg.ContentType = "application/vnd.kubernetes.protobuf"
		client, err := kube.NewClient(cfg)
		must(t, err)
		return client
	}
	cfg := mirror.Config{
		Cluster: local.Name, Namespace: home, Client: client(local, programs.ServiceMirror), MultiCluster: true,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)).With("in", local.Name),
	}
	for _, c := range b.all() {
		if c != local {
			remote := client(c, programs.ServiceMirror+"-remote")
			cfg.Remotes = append(cfg.Remotes, mirror.Remote{Name: c.Name, Prefix: c.Name, PodSubnets: c.PodSubnets, Tier: 1, Client: func() (kube.Client, error) { return remote, nil }})
		}
	}
	for _, a := range adjust {
		a(&cfg)
	}
	c := mirror.New(cfg)
	return &mirrorInstance{c, cfg, kubetest.Run(t, c.Tasks(), c.Lead)}
}

// startAll runs a controller in each of the clusters.
func (b *importBed) startAll(t *testing.T, clusters ...*testbed.Cluster) (all []*mirrorInstance) {
	t.Helper()
	for _, c := range clusters {
		all = append(all, b.start(t, c))
	}
	return all
}

// namespace creates a namespace for a test in the clusters, and removes the exports in it at
// its end.
func (b *importBed) namespace(t *testing.T, name string, clusters ...*testbed.Cluster) {
	t.Helper()
	for _, c := range clusters {
		createNamespace(t, c, name)
		t.Cleanup(func() {
			exports := b.admins[c.Name].ServiceExports(name)
			list, err := exports.List(context.WithoutCancel(t.Context()), metav1.ListOptions{})
			if apierrors.IsNotFound(err) {
				return
			}
			must(t, err)
			for i := range list.Items {
				must(t, exports.Delete(context.WithoutCancel(t.Context()), list.Items[i].Name, metav1.DeleteOptions{}))
			}
		})
	}
}

func (b *importBed) export(t *testing.T, c *testbed.Cluster, namespace, name string, adjust ...func(*v1beta1.ServiceExport)) {
	t.Helper()
	x := &v1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	for _, a := range adjust {
		a(x)
	}
	_, err := b.admins[c.Name].ServiceExports(namespace).Create(t.Context(), x, metav1.CreateOptions{})
	must(t, err)
}

func (b *importBed) unexport(t *testing.T, c *testbed.Cluster, namespace, name string) {
	t.Helper()
	must(t, b.admins[c.Name].ServiceExports(namespace).Delete(t.Context(), name, metav1.DeleteOptions{}))
}

// exported waits for the conditions of an export, as in "Valid=True Valid".
func (b *importBed) exported(t *testing.T, c *testbed.Cluster, namespace, name string, want ...string) *v1beta1.ServiceExport {
	t.Helper()
	var x *v1beta1.ServiceExport
	wait(t, "the conditions of "+name+" in "+c.Name, func() (err error) {
		if x, err = b.admins[c.Name].ServiceExports(namespace).Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			return err
		}
		var got []string
		for _, of := range x.Status.Conditions {
			if of.ObservedGeneration != x.Generation {
				return fmt.Errorf("%s is that of generation %d, not %d", of.Type, of.ObservedGeneration, x.Generation)
			}
			got = append(got, fmt.Sprintf("%s=%s %s", of.Type, of.Status, of.Reason))
		}
		for _, w := range want {
			if !slices.Contains(got, w) {
				return fmt.Errorf("%q, want %q", got, w)
			}
		}
		return nil
	})
	return x
}

// imported waits until an import is ready in a cluster, with these endpoints as in
// "aws 10.4.0.1:80", and returns it.
func (b *importBed) imported(t *testing.T, c *testbed.Cluster, namespace, name string, want ...string) *v1beta1.ServiceImport {
	t.Helper()
	var i *v1beta1.ServiceImport
	wait(t, "the import "+name+" in "+c.Name, func() (err error) {
		if got := b.endpoints(t, c, namespace, name); !slices.Equal(got, want) {
			return fmt.Errorf("endpoints %v, want %v", got, want)
		}
		if i, err = b.admins[c.Name].ServiceImports(namespace).Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			return err
		}
		ready := meta.FindStatusCondition(i.Status.Conditions, "Ready")
		if ready == nil || ready.Status != metav1.ConditionTrue || ready.ObservedGeneration != i.Generation {
			return fmt.Errorf("generation %d, conditions %v", i.Generation, i.Status.Conditions)
		}
		return nil
	})
	return i
}

func (b *importBed) slices(t *testing.T, c *testbed.Cluster, namespace, name string) []discoveryv1.EndpointSlice {
	t.Helper()
	list, err := c.Client().DiscoveryV1().EndpointSlices(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: mcs.LabelServiceName + "=" + name})
	must(t, err)
	return list.Items
}

func (b *importBed) endpoints(t *testing.T, c *testbed.Cluster, namespace, name string) (all []string) {
	t.Helper()
	for _, sl := range b.slices(t, c, namespace, name) {
		for i := range sl.Endpoints {
			for _, p := range sl.Ports {
				all = append(all, fmt.Sprintf("%s %s:%d", sl.Labels[mcs.LabelSourceCluster], sl.Endpoints[i].Addresses[0], *p.Port))
			}
		}
	}
	slices.Sort(all)
	return all
}

// gone waits until nothing of an import is left.
func (b *importBed) gone(t *testing.T, c *testbed.Cluster, namespace, name string) {
	t.Helper()
	wait(t, "the removal of "+name+" in "+c.Name, func() error {
		_, err := b.admins[c.Name].ServiceImports(namespace).Get(t.Context(), name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("the import: %w", cmpErr(err))
		}
		if _, err := c.Client().CoreV1().Services(namespace).Get(t.Context(), mcs.DerivedName(namespace, name), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the derived Service: %w", cmpErr(err))
		}
		if left := b.slices(t, c, namespace, name); len(left) > 0 {
			return fmt.Errorf("%d slices", len(left))
		}
		return nil
	})
}

func cmpErr(err error) error {
	if err == nil {
		return errors.New("it exists")
	}
	return err
}

// web returns a Service to export, without labels.
func web(name string, adjust ...func(*corev1.Service)) *corev1.Service {
	s := svc(name, adjust...)
	s.Labels = nil
	return s
}

func dual(s *corev1.Service) {
	policy := corev1.IPFamilyPolicyRequireDualStack
	s.Spec.IPFamilyPolicy = &policy
}

// TestImports runs controllers with the Multi-Cluster Services API on real API servers, under
// the accounts, rights and admission policies of deploy/.
func TestImports(t *testing.T) {
	t.Parallel()
	b := newImportBed(t)
	for _, c := range []struct {
		name string
		test func(b *importBed, t *testing.T)
	}{
		{"the own export first", (*importBed).testOwnExportFirst},
		{"one family", (*importBed).testFamilies},
		{"restart", (*importBed).testImportRestart},
		{"drift", (*importBed).testImportDrift},
		{"foreign objects", (*importBed).testForeignImports},
		{"exports that finalizers hold", (*importBed).testHeldExports},
		{"namespaces of a remote", (*importBed).testNamespacesOfARemote},
		{"missing rights", (*importBed).testMissingRights},
		{"without the component", (*importBed).testWithoutComponent},
		{"a policy that changes Services", (*importBed).testImportsChanged},
		{"a policy that refuses fields", (*importBed).testImportsRefused},
		{"CRDs that come later", (*importBed).testLaterCRDs},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(b, t) })
	}
}

// origins returns the endpoints of Services in a cluster's namespace, as imported does.
func (b *importBed) origins(t *testing.T, c *testbed.Cluster, namespace string) (all []string) {
	t.Helper()
	list, err := c.Client().DiscoveryV1().EndpointSlices(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "!" + mcs.LabelSourceCluster})
	must(t, err)
	for _, sl := range list.Items {
		for i := range sl.Endpoints {
			for _, p := range sl.Ports {
				all = append(all, fmt.Sprintf("%s %s:%d", c.Name, sl.Endpoints[i].Addresses[0], *p.Port))
			}
		}
	}
	slices.Sort(all)
	return all
}

// testFamilies exports a Service of one family to a cluster of the other one.
func (b *importBed) testFamilies(t *testing.T) {
	const ns = "families"
	b.define(t, b.merit)
	defer b.undefine(t, b.merit)
	b.namespace(t, ns, b.gcp, b.aws, b.merit)
	merit := b.startAll(t, b.merit, b.gcp)[0]
	six := web("six", func(s *corev1.Service) { s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol} })
	must(t, putService(t.Context(), b.aws, ns, six, slice(six, "six-1", "fd00:10:4::31")))
	both := web("both", dual)
	must(t, putService(t.Context(), b.aws, ns, both, slice(both, "both-1", "fd00:10:4::32"), slice(both, "both-2", "10.4.3.2")))
	b.export(t, b.aws, ns, "six")
	b.export(t, b.aws, ns, "both")
	wait(t, "the condition", func() error {
		i, err := b.admins["merit"].ServiceImports(ns).Get(t.Context(), "six", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if ready := meta.FindStatusCondition(i.Status.Conditions, "Ready"); ready == nil || ready.Status != metav1.ConditionFalse || ready.Reason != "IPFamilyNotSupported" || ready.ObservedGeneration != i.Generation {
			return fmt.Errorf("%v", i.Status.Conditions)
		}
		return nil
	})
	wait(t, "the import of both families", func() error {
		i, err := b.admins["merit"].ServiceImports(ns).Get(t.Context(), "both", metav1.GetOptions{})
		if err == nil && (len(i.Spec.IPs) != 1 || !slices.Equal(i.Spec.IPFamilies, []corev1.IPFamily{corev1.IPv4Protocol})) {
			err = fmt.Errorf("%+v", i.Spec)
		}
		return err
	})
	wait(t, "the import of IPv6", func() error {
		i, err := b.admins["gcp"].ServiceImports(ns).Get(t.Context(), "six", metav1.GetOptions{})
		if err == nil && (len(i.Spec.IPs) != 1 || !slices.Equal(i.Spec.IPFamilies, []corev1.IPFamily{corev1.IPv6Protocol})) {
			err = fmt.Errorf("%+v", i.Spec)
		}
		return err
	})
	// The same of headless Services, of which a cluster imports the families that it has.
	for name, of := range map[string][]corev1.IPFamily{"pods-six": {corev1.IPv6Protocol}, "pods-both": {corev1.IPv6Protocol, corev1.IPv4Protocol}} {
		s := web(name, headless, func(s *corev1.Service) { s.Spec.IPFamilies = of }, func(s *corev1.Service) {
			if len(of) > 1 {
				dual(s)
			}
		})
		must(t, putService(t.Context(), b.aws, ns, s, slice(s, name+"-1", "fd00:10:4::33")))
		b.export(t, b.aws, ns, name)
	}
	four := []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}[:1]
	for _, of := range []struct {
		in       string
		name     string
		families []corev1.IPFamily
		reason   string
	}{
		{"merit", "pods-six", nil, "IPFamilyNotSupported"},
		{"merit", "pods-both", four, "Ready"},
		{"gcp", "pods-six", []corev1.IPFamily{corev1.IPv6Protocol}, "Ready"},
		{"gcp", "pods-both", four[:2], "Ready"},
	} {
		wait(t, of.name+" in "+of.in, func() error {
			i, err := b.admins[of.in].ServiceImports(ns).Get(t.Context(), of.name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if ready := meta.FindStatusCondition(i.Status.Conditions, "Ready"); ready == nil || ready.Reason != of.reason || i.Spec.Type != v1beta1.Headless || !slices.Equal(i.Spec.IPFamilies, of.families) {
				return fmt.Errorf("%+v, %v", i.Spec, i.Status.Conditions)
			}
			return nil
		})
	}
	before := merit.still(t)
	time.Sleep(time.Second)
	if n := merit.still(t) - before; n > 10 {
		t.Errorf("%d writes of an import that can't be", n)
	}
}

// undefine removes the CRDs, and with them all imports and exports.
func (b *importBed) undefine(t *testing.T, c *testbed.Cluster) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	for _, name := range []string{"serviceexports." + v1beta1.GroupName, "serviceimports." + v1beta1.GroupName} {
		_, err := c.Kubectl(ctx, "delete", "customresourcedefinition", name)
		must(t, err)
	}
}

// answered waits until requests of a cluster's clients to a port of an import are answered by
// these endpoints, as in "aws 10.4.0.1".
func (b *importBed) answered(t *testing.T, c *testbed.Cluster, namespace, name string, number int32, want ...string) {
	t.Helper()
	wait(t, fmt.Sprintf("answers from port %d of %s in %s", number, name, c.Name), func() error {
		derived, err := c.Client().CoreV1().Services(namespace).Get(t.Context(), mcs.DerivedName(namespace, name), metav1.GetOptions{})
		if err != nil {
			return err
		}
		at := slices.IndexFunc(derived.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == number })
		var got []string
		for _, sl := range b.slices(t, c, namespace, name) {
			if at < 0 || !slices.ContainsFunc(sl.Ports, func(p discoveryv1.EndpointPort) bool { return *p.Name == derived.Spec.Ports[at].Name }) {
				continue
			}
			for i := range sl.Endpoints {
				got = append(got, sl.Labels[mcs.LabelSourceCluster]+" "+sl.Endpoints[i].Addresses[0])
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			return fmt.Errorf("%q, want %q; ports %v", got, want, derived.Spec.Ports)
		}
		return nil
	})
}

// testOwnExportFirst has a neighbour, gcp, that exports the names of aws with another port: before
// it, while its export is created again, and while gcp can't be read.
func (b *importBed) testOwnExportFirst(t *testing.T) {
	const ns = "own"
	b.namespace(t, ns, b.gcp, b.aws)
	b.start(t, b.gcp)
	running := b.start(t, b.aws)
	service := func(c *testbed.Cluster, name string, number int32, ip string) {
		t.Helper()
		s := web(name, ports(corev1.ServicePort{Name: "http", Protocol: corev1.ProtocolTCP, Port: number}))
		must(t, putService(t.Context(), c, ns, s, slice(s, name+"-1", ip)))
	}
	service(b.aws, "before", 80, "10.4.5.1")
	service(b.gcp, "before", 81, "10.2.5.1")
	b.export(t, b.gcp, ns, "before")
	b.answered(t, b.aws, ns, "before", 81, "gcp 10.2.5.1")
	b.export(t, b.aws, ns, "before")
	b.answered(t, b.aws, ns, "before", 80, "aws 10.4.5.1")
	b.answered(t, b.aws, ns, "before", 81, "gcp 10.2.5.1")
	for _, c := range []*testbed.Cluster{b.aws, b.gcp} {
		b.exported(t, c, ns, "before", "Conflict=True PortConflict")
	}

	both := func(name, awsIP, gcpIP string) {
		t.Helper()
		service(b.aws, name, 80, awsIP)
		b.export(t, b.aws, ns, name)
		b.answered(t, b.gcp, ns, name, 80, "aws "+awsIP)
		service(b.gcp, name, 80, gcpIP)
		b.export(t, b.gcp, ns, name)
		for _, c := range []*testbed.Cluster{b.aws, b.gcp} {
			b.answered(t, c, ns, name, 80, "aws "+awsIP, "gcp "+gcpIP)
		}
	}
	both("again", "10.4.5.2", "10.2.5.2")
	b.unexport(t, b.aws, ns, "again")
	b.answered(t, b.aws, ns, "again", 80, "gcp 10.2.5.2")
	service(b.gcp, "again", 81, "10.2.5.2")
	b.answered(t, b.aws, ns, "again", 81, "gcp 10.2.5.2")
	b.export(t, b.aws, ns, "again")
	b.answered(t, b.aws, ns, "again", 80, "aws 10.4.5.2")
	b.answered(t, b.aws, ns, "again", 81) // aws exported it first
	b.answered(t, b.gcp, ns, "again", 80, "aws 10.4.5.2")
	b.answered(t, b.gcp, ns, "again", 81, "gcp 10.2.5.2")

	both("silent", "10.4.5.3", "10.2.5.3")
	running.stop()
	answers := make(chan struct{})
	b.start(t, b.aws, func(cfg *mirror.Config) {
		for i := range cfg.Remotes {
			if r := &cfg.Remotes[i]; r.Name == "gcp" {
				client := r.Client
				r.Client = func() (kube.Client, error) {
					select {
					case <-answers:
						return client()
					default:
						return nil, errors.New("gcp doesn't answer")
					}
				}
			}
		}
	})
	service(b.aws, "silent", 8080, "10.4.5.3")
	b.answered(t, b.aws, ns, "silent", 8080, "aws 10.4.5.3")
	b.answered(t, b.gcp, ns, "silent", 8080, "aws 10.4.5.3")
	close(answers)
	service(b.aws, "silent", 80, "10.4.5.3")
	b.answered(t, b.aws, ns, "silent", 80, "aws 10.4.5.3", "gcp 10.2.5.3")

	// A port is renamed, cluster after cluster.
	for _, c := range []*testbed.Cluster{b.gcp, b.aws} {
		patchService(t, c, ns, "silent", `{"spec":{"ports":[{"name":"web","protocol":"TCP","port":80}]}}`)
		ip := map[*testbed.Cluster]string{b.aws: "10.4.5.3", b.gcp: "10.2.5.3"}[c]
		must(t, putSlice(t.Context(), c, ns, slice(web("silent", ports(corev1.ServicePort{Name: "web", Protocol: corev1.ProtocolTCP, Port: 80})), "silent-1", ip)))
		for _, in := range []*testbed.Cluster{b.aws, b.gcp} {
			if c == b.gcp {
				b.exported(t, in, ns, "silent", "Conflict=True PortConflict")
			} else {
				b.exported(t, in, ns, "silent", "Conflict=False NoConflicts")
			}
			b.answered(t, in, ns, "silent", 80, "aws 10.4.5.3", "gcp 10.2.5.3")
		}
	}
}

// testNamespacesOfARemote restarts with another list of the namespaces in which a remote may export.
func (b *importBed) testNamespacesOfARemote(t *testing.T) {
	const ns, other = "listed", "unlisted"
	b.namespace(t, ns, b.gcp, b.aws)
	b.namespace(t, other, b.gcp, b.aws)
	b.start(t, b.aws)
	listing := func(text string) func(*mirror.Config) {
		var names config.Namespaces
		must(t, names.Decode(text))
		return func(cfg *mirror.Config) {
			for i := range cfg.Remotes {
				if cfg.Remotes[i].Name == "aws" {
					cfg.Remotes[i].Imports = names.Contains
				}
			}
		}
	}
	first := b.start(t, b.gcp, listing("listed"))
	s := web("web")
	for n, namespace := range []string{ns, other} {
		must(t, putService(t.Context(), b.aws, namespace, s, slice(s, "web-1", fmt.Sprintf("10.4.6.%d", n+1))))
		b.export(t, b.aws, namespace, "web")
		b.exported(t, b.aws, namespace, "web", "Ready=True Exported")
	}
	b.imported(t, b.gcp, ns, "web", b.origins(t, b.aws, ns)...)
	first.still(t)
	b.gone(t, b.gcp, other, "web")
	first.stop()
	b.start(t, b.gcp, listing("*"))
	b.imported(t, b.gcp, other, "web", b.origins(t, b.aws, other)...)
}

func (b *importBed) testImportRestart(t *testing.T) {
	const ns = "restart"
	b.namespace(t, ns, b.gcp, b.aws)
	b.start(t, b.aws)
	first := b.start(t, b.gcp)
	s := web("web")
	must(t, putService(t.Context(), b.aws, ns, s, slice(s, "web-1", "10.4.4.1")))
	b.export(t, b.aws, ns, "web")
	must(t, putService(t.Context(), b.gcp, ns, s, slice(s, "web-1", "10.2.4.1")))
	b.export(t, b.gcp, ns, "web")
	want := append(b.origins(t, b.aws, ns), b.origins(t, b.gcp, ns)...)
	before := b.imported(t, b.gcp, ns, "web", want...)
	b.exported(t, b.gcp, ns, "web", "Conflict=False NoConflicts")
	first.still(t)
	first.stop()
	second := b.start(t, b.gcp)
	second.listed(t, ns+"/web", func(s statuspage.Service) bool { return s.Error == "" })
	if n := second.still(t); n != 0 {
		t.Errorf("%d writes after a restart", n)
	}
	second.stop()
	// What happens in between is made up for.
	b.unexport(t, b.aws, ns, "web")
	b.start(t, b.gcp)
	after := b.imported(t, b.gcp, ns, "web", b.origins(t, b.gcp, ns)...)
	if after.UID != before.UID || !slices.Equal(after.Spec.IPs, before.Spec.IPs) {
		t.Errorf("before %v\nafter %v", before, after)
	}
}

// testImportDrift repairs what others change. With the policies they can change everything but
// the import.
func (b *importBed) testImportDrift(t *testing.T) {
	const ns = "drift"
	b.namespace(t, ns, b.gcp, b.aws)
	b.startAll(t, b.gcp, b.aws)
	s := web("web")
	must(t, putService(t.Context(), b.aws, ns, s, slice(s, "web-1", "10.4.5.1")))
	b.export(t, b.aws, ns, "web")
	want := b.origins(t, b.aws, ns)
	before := b.imported(t, b.gcp, ns, "web", want...)
	derived := mcs.DerivedName(ns, "web")
	services := b.gcp.Client().CoreV1().Services(ns)
	patchService(t, b.gcp, ns, derived, `{"spec":{"selector":{"app":"x"},"sessionAffinity":"ClientIP"},"metadata":{"labels":{"team":"a"}}}`)
	wait(t, "the repair of the derived Service", func() error {
		d, err := services.Get(t.Context(), derived, metav1.GetOptions{})
		if err == nil && (len(d.Spec.Selector) > 0 || d.Spec.SessionAffinity != corev1.ServiceAffinityNone || d.Labels["team"] != "a") {
			err = fmt.Errorf("%+v", d)
		}
		return err
	})
	for _, sl := range b.slices(t, b.gcp, ns, "web") {
		must(t, b.gcp.Client().DiscoveryV1().EndpointSlices(ns).Delete(t.Context(), sl.Name, metav1.DeleteOptions{}))
	}
	b.imported(t, b.gcp, ns, "web", want...)
	must(t, services.Delete(t.Context(), derived, metav1.DeleteOptions{}))
	wait(t, "other addresses", func() error {
		d, err := services.Get(t.Context(), derived, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if i := b.imported(t, b.gcp, ns, "web", want...); !slices.Equal(i.Spec.IPs, d.Spec.ClusterIPs) {
			return fmt.Errorf("import %v, derived Service %v", i.Spec.IPs, d.Spec.ClusterIPs)
		}
		return nil
	})
	// Without Kubernetes' garbage collector its objects stay, and are adopted.
	must(t, b.admins["gcp"].ServiceImports(ns).Delete(t.Context(), "web", metav1.DeleteOptions{}))
	wait(t, "another import", func() error {
		i := b.imported(t, b.gcp, ns, "web", want...)
		d, err := services.Get(t.Context(), derived, metav1.GetOptions{})
		if err == nil && (i.UID == before.UID || len(d.OwnerReferences) != 1 || d.OwnerReferences[0].UID != i.UID) {
			err = fmt.Errorf("import %s, derived Service of %v", i.UID, d.OwnerReferences)
		}
		for _, sl := range b.slices(t, b.gcp, ns, "web") {
			if sl.OwnerReferences[0].UID != i.UID {
				err = errors.Join(err, fmt.Errorf("slice of %v", sl.OwnerReferences))
			}
		}
		return err
	})
	x := b.exported(t, b.aws, ns, "web")
	_, err := b.admins["aws"].ServiceExports(ns).Patch(t.Context(), "web", types.MergePatchType,
		[]byte(`{"status":{"conditions":[{"type":"Other","status":"True","reason":"Other","message":"","lastTransitionTime":"2026-01-01T00:00:00Z","observedGeneration":1}]}}`), metav1.PatchOptions{}, "status")
	must(t, err)
	if now := b.exported(t, b.aws, ns, "web", "Valid=True Valid", "Other=True Other"); len(now.Status.Conditions) != len(x.Status.Conditions)+1 {
		t.Errorf("%v", now.Status.Conditions)
	}
}

func (b *importBed) testForeignImports(t *testing.T) {
	const ns = "foreign"
	b.namespace(t, ns, b.gcp, b.aws)
	_, err := b.admins["gcp"].ServiceImports(ns).Create(t.Context(), &v1beta1.ServiceImport{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "web"}, Spec: v1beta1.ServiceImportSpec{Type: v1beta1.ClusterSetIP, IPs: []string{"1.2.3.4"}, Ports: []v1beta1.ServicePort{}},
	}, metav1.CreateOptions{})
	must(t, err)
	user := web(mcs.DerivedName(ns, "db"))
	must(t, putService(t.Context(), b.gcp, ns, user))
	i := b.start(t, b.gcp)
	for n, name := range []string{"web", "db"} {
		s := web(name)
		must(t, putService(t.Context(), b.aws, ns, s, slice(s, name+"-1", fmt.Sprintf("10.4.6.%d", n+1))))
		b.export(t, b.aws, ns, name)
		i.listed(t, ns+"/"+name, func(s statuspage.Service) bool { return strings.Contains(s.Error, "not ours") })
	}
	im, err := b.admins["gcp"].ServiceImports(ns).Get(t.Context(), "web", metav1.GetOptions{})
	must(t, err)
	s, err := b.gcp.Client().CoreV1().Services(ns).Get(t.Context(), user.Name, metav1.GetOptions{})
	must(t, err)
	if !slices.Equal(im.Spec.IPs, []string{"1.2.3.4"}) || len(s.Labels)+len(s.OwnerReferences) > 0 {
		t.Errorf("changed: %v, %v", im, s)
	}
	must(t, b.admins["gcp"].ServiceImports(ns).Delete(t.Context(), "web", metav1.DeleteOptions{}))
	must(t, b.gcp.Client().CoreV1().Services(ns).Delete(t.Context(), user.Name, metav1.DeleteOptions{}))
	b.imported(t, b.gcp, ns, "web", "aws 10.4.6.1:8080")
	b.imported(t, b.gcp, ns, "db", "aws 10.4.6.2:8080")
}

// testMissingRights takes the right to read exports of aws away.
func (b *importBed) testMissingRights(t *testing.T) {
	const ns = "rights"
	b.namespace(t, ns, b.gcp, b.aws)
	roles := b.aws.Client().RbacV1().ClusterRoles()
	role, err := roles.Get(t.Context(), "semaphore-service-mirror-remote", metav1.GetOptions{})
	must(t, err)
	less := role.DeepCopy()
	less.Rules = slices.DeleteFunc(less.Rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.APIGroups, v1beta1.GroupName) })
	if len(less.Rules) == len(role.Rules) {
		t.Fatal("no right to read exports")
	}
	less, err = roles.Update(t.Context(), less, metav1.UpdateOptions{})
	must(t, err)
	i := b.start(t, b.gcp)
	s := web("web")
	must(t, putService(t.Context(), b.gcp, ns, s, slice(s, "web-1", "10.2.9.1")))
	b.export(t, b.gcp, ns, "web")
	must(t, putService(t.Context(), b.aws, ns, s, slice(s, "web-1", "10.4.9.1")))
	b.export(t, b.aws, ns, "web")
	wait(t, "the status of aws", func() error {
		for _, c := range i.Status().Clusters {
			for _, w := range c.Watches {
				if c.Name == "aws" && w.Kind == "service exports" && strings.Contains(w.Error, "forbidden") {
					return nil
				}
			}
		}
		return fmt.Errorf("%+v", i.Status().Clusters)
	})
	b.imported(t, b.gcp, ns, "web", "gcp 10.2.9.1:8080")
	role.ResourceVersion = less.ResourceVersion
	_, err = roles.Update(t.Context(), role, metav1.UpdateOptions{})
	must(t, err)
	b.imported(t, b.gcp, ns, "web", "aws 10.4.9.1:8080", "gcp 10.2.9.1:8080")
}

// testWithoutComponent takes the rights of the component away in gcp: mirrors go on.
func (b *importBed) testWithoutComponent(t *testing.T) {
	const ns = "component"
	bindings := b.gcp.Client().RbacV1().ClusterRoleBindings()
	binding, err := bindings.Get(t.Context(), "semaphore-service-mirror-imports", metav1.GetOptions{})
	must(t, err)
	must(t, bindings.Delete(t.Context(), binding.Name, metav1.DeleteOptions{}))
	b.namespace(t, ns, b.gcp, b.aws)
	i := b.start(t, b.gcp, func(cfg *mirror.Config) { cfg.MirrorSelector = selector(t, mirrorMark+"=true") })
	s := svc("web")
	must(t, putService(t.Context(), b.aws, ns, s, slice(s, "web-1", "10.4.11.1")))
	b.export(t, b.aws, ns, "web")
	wait(t, "the mirror", func() error {
		_, err := b.gcp.Client().CoreV1().Services(home).Get(t.Context(), mirror.Name("aws", origin.Key{Namespace: ns, Name: "web"}), metav1.GetOptions{})
		return err
	})
	wait(t, "the status", func() error {
		if st := i.Status().MultiCluster; st == nil || !strings.Contains(st.Off, "lacks the rights of deploy/service-mirror/mcs") || st.Error != "" {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	must(t, removeService(t.Context(), b.aws, ns, "web"))
	binding.ResourceVersion = ""
	_, err = bindings.Create(t.Context(), binding, metav1.CreateOptions{})
	must(t, err)
	// It begins by itself.
	s = web("web")
	must(t, putService(t.Context(), b.aws, ns, s, slice(s, "web-1", "10.4.11.1")))
	b.imported(t, b.gcp, ns, "web", "aws 10.4.11.1:8080")
	if st := i.Status().MultiCluster; st.Off != "" || st.Error != "" {
		t.Errorf("%+v", st)
	}
}

// testImportsChanged has an admission policy that sets a field of all Services, and adds a
// label: also to a derived Service from before, which has no managed fields of ours.
func (b *importBed) testImportsChanged(t *testing.T) {
	const ns = "changed"
	b.namespace(t, ns, b.gcp, b.aws)
	i := b.start(t, b.gcp)
	for n, name := range []string{"before", "after"} {
		if name == "after" {
			end := apply(t, b.gcp, "mutatingadmissionpolicy", "distribution", "../../mirror/testdata/distribution.yaml")
			t.Cleanup(end)
			wait(t, "the policy", func() error {
				s, err := b.gcp.Client().CoreV1().Services(ns).Create(t.Context(), &corev1.Service{
					ObjectMeta: metav1.ObjectMeta{Name: "test", Labels: map[string]string{"a": "b"}}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
				}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
				if err == nil && s.Labels["team"] == "" {
					err = errors.New("not in force")
				}
				return err
			})
		}
		s := web(name)
		must(t, putService(t.Context(), b.aws, ns, s, slice(s, name+"-1", fmt.Sprintf("10.4.12.%d", n+1))))
		b.export(t, b.aws, ns, name)
		b.imported(t, b.gcp, ns, name, fmt.Sprintf("aws 10.4.12.%d:8080", n+1))
	}
	changed := web("before", ports(corev1.ServicePort{Name: "http", Port: 81, Protocol: corev1.ProtocolTCP}))
	must(t, putService(t.Context(), b.aws, ns, changed))
	for name, port := range map[string]int32{"before": 81, "after": 80} {
		wait(t, "the derived Service of "+name, func() error {
			d, err := b.gcp.Client().CoreV1().Services(ns).Get(t.Context(), mcs.DerivedName(ns, name), metav1.GetOptions{})
			if err == nil && (d.Spec.Ports[0].Port != port || d.Labels["team"] == "" || len(d.OwnerReferences) != 1) {
				err = fmt.Errorf("%+v %v, %+v", d.Spec.Ports, d.Labels, i.Status().Services)
			}
			return err
		})
	}
}

// testHeldExports deletes exports, and an EndpointSlice, that another controller holds.
func (b *importBed) testHeldExports(t *testing.T) {
	const ns = "held"
	b.namespace(t, ns, b.gcp, b.aws)
	b.startAll(t, b.gcp, b.aws)
	s := web("web")
	held := slice(s, "web-2", "10.4.14.2")
	held.Finalizers = []string{"example.com/hold"}
	must(t, putService(t.Context(), b.aws, ns, s, slice(s, "web-1", "10.4.14.1"), held))
	must(t, putService(t.Context(), b.gcp, ns, s, slice(s, "web-1", "10.2.14.1")))
	endpointSlices := b.aws.Client().DiscoveryV1().EndpointSlices(ns)
	release := []byte(`{"metadata":{"finalizers":null}}`)
	for _, c := range []*testbed.Cluster{b.aws, b.gcp} {
		b.export(t, c, ns, "web", func(x *v1beta1.ServiceExport) { x.Finalizers = held.Finalizers })
		t.Cleanup(func() {
			_, err := b.admins[c.Name].ServiceExports(ns).Patch(context.WithoutCancel(t.Context()), "web", types.MergePatchType, release, metav1.PatchOptions{})
			must(t, err)
		})
	}
	both := []*testbed.Cluster{b.aws, b.gcp}
	for _, c := range both {
		b.imported(t, c, ns, "web", "aws 10.4.14.1:8080", "aws 10.4.14.2:8080", "gcp 10.2.14.1:8080")
	}
	must(t, endpointSlices.Delete(t.Context(), "web-2", metav1.DeleteOptions{}))
	for _, c := range both {
		b.imported(t, c, ns, "web", "aws 10.4.14.1:8080", "gcp 10.2.14.1:8080")
	}
	_, err := endpointSlices.Patch(t.Context(), "web-2", types.MergePatchType, release, metav1.PatchOptions{})
	must(t, err)
	b.unexport(t, b.aws, ns, "web")
	for _, c := range both {
		b.imported(t, c, ns, "web", "gcp 10.2.14.1:8080")
	}
	b.unexport(t, b.gcp, ns, "web")
	for _, c := range both {
		b.gone(t, c, ns, "web")
	}
}

// testImportsRefused imports into a cluster with an admission policy that refuses what an older
// one doesn't know: everything else is imported, also of a running import.
func (b *importBed) testImportsRefused(t *testing.T) {
	const ns = "refused"
	b.namespace(t, ns, b.gcp, b.aws)
	end := apply(t, b.gcp, "validatingadmissionpolicy", "older", "../../mirror/testdata/older.yaml")
	app, zone, timeout := "kubernetes.io/h2c", corev1.ServiceTrafficDistributionPreferSameZone, int32(10)
	newer := func(s *corev1.Service) {
		s.Spec.TrafficDistribution, s.Spec.Ports[0].AppProtocol = &zone, &app
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &timeout}}
	}
	inForce := func(want bool) {
		t.Helper()
		wait(t, "the policy", func() error {
			_, err := b.gcp.Client().CoreV1().Services(ns).Create(t.Context(), web("test", newer), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if apierrors.IsInvalid(err) != want {
				return fmt.Errorf("in force: %v: %w", !want, cmpErr(err))
			}
			return nil
		})
	}
	inForce(true)
	s := web("web", newer)
	must(t, putService(t.Context(), b.aws, ns, s, slice(s, "web-1", "10.4.15.1")))
	i := b.start(t, b.gcp)
	b.export(t, b.aws, ns, "web", func(x *v1beta1.ServiceExport) {
		x.Spec.ExportedLabels, x.Spec.ExportedAnnotations = map[string]string{"team": "a"}, map[string]string{"note": "b"}
	})
	check := func(message string, ports int, distribution string) {
		t.Helper()
		wait(t, "the import", func() error {
			i, err := b.admins["gcp"].ServiceImports(ns).Get(t.Context(), "web", metav1.GetOptions{})
			if err != nil {
				return err
			}
			d, err := b.gcp.Client().CoreV1().Services(ns).Get(t.Context(), mcs.DerivedName(ns, "web"), metav1.GetOptions{})
			if err != nil {
				return err
			}
			ready := meta.FindStatusCondition(i.Status.Conditions, "Ready")
			if ready == nil || ready.Status != metav1.ConditionTrue || ready.Message != message || i.Annotations["note"] != "b" || *i.Spec.TrafficDistribution != zone || len(i.Spec.IPs) == 0 ||
				len(d.Spec.Ports) != ports || *d.Spec.TrafficDistribution != distribution || d.Spec.SessionAffinity != corev1.ServiceAffinityClientIP || *d.Spec.Ports[0].AppProtocol != app {
				return fmt.Errorf("%v\n%v\n%v", i, d, ready)
			}
			return nil
		})
	}
	const message = "the API server refuses some fields: derived service: trafficDistribution PreferSameZone as PreferClose, " +
		"endpointslice: no appProtocol of ports, serviceimport: no exported labels"
	b.imported(t, b.gcp, ns, "web", "aws 10.4.15.1:8080")
	check(message, 1, corev1.ServiceTrafficDistributionPreferClose)
	more := web("web", newer, func(s *corev1.Service) {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "more", Port: 81, Protocol: corev1.ProtocolTCP})
	})
	must(t, putService(t.Context(), b.aws, ns, more, slice(more, "web-1", "10.4.15.1")))
	b.imported(t, b.gcp, ns, "web", "aws 10.4.15.1:8080", "aws 10.4.15.1:8081")
	check(message, 2, corev1.ServiceTrafficDistributionPreferClose)
	before := i.still(t)
	time.Sleep(time.Second)
	if n := i.still(t) - before; n > 0 {
		t.Errorf("%d writes of what is refused", n)
	}
	end()
	inForce(false)
	i.stop() // or ten minutes
	b.start(t, b.gcp)
	check("", 2, zone)
}

// testLaterCRDs installs the CRDs in merit while controllers run there and elsewhere.
func (b *importBed) testLaterCRDs(t *testing.T) {
	const ns = "later"
	b.namespace(t, ns, b.gcp, b.aws)
	createNamespace(t, b.merit, ns)
	all := b.startAll(t, b.merit, b.gcp)
	required := b.start(t, b.merit, func(cfg *mirror.Config) { cfg.MultiClusterRequired = true })
	s := web("web")
	must(t, putService(t.Context(), b.aws, ns, s, slice(s, "web-1", "10.4.10.1")))
	b.export(t, b.aws, ns, "web")
	// Merit exports nothing, which holds nothing up.
	began := time.Now()
	b.imported(t, b.gcp, ns, "web", "aws 10.4.10.1:8080")
	if took := time.Since(began); took > 25*time.Second {
		t.Errorf("imported after %v", took)
	}
	if st := all[0].Status().MultiCluster; st == nil || !strings.Contains(st.Off, "not installed") || st.Error != "" {
		t.Errorf("%+v", st)
	}
	if st := required.Status().MultiCluster; st == nil || !strings.Contains(st.Error, "not installed") || st.Off != "" {
		t.Errorf("required: %+v", st)
	}
	for _, c := range all[0].Status().Clusters {
		if len(c.Watches) > 0 {
			t.Errorf("nothing of the API is read, and %s has watches: %+v", c.Name, c.Watches)
		}
	}
	required.stop()
	// Those of an older implementation are replaced, and its exports stay.
	b.define(t, b.merit, alphaOnly)
	_, err := b.merit.Dynamic().Resource(v1alpha1.SchemeGroupVersion.WithResource(v1beta1.ServiceExportPluralName)).Namespace(ns).Create(t.Context(),
		&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": v1alpha1.GroupVersion.String(), "kind": "ServiceExport", "metadata": map[string]any{"name": "web"},
		}}, metav1.CreateOptions{})
	must(t, err)
	b.define(t, b.merit)
	b.imported(t, b.merit, ns, "web", "aws 10.4.10.1:8080")
	must(t, putService(t.Context(), b.merit, ns, s, slice(s, "web-1", "10.6.10.1")))
	b.imported(t, b.merit, ns, "web", "aws 10.4.10.1:8080", "merit 10.6.10.1:8080")
	b.imported(t, b.gcp, ns, "web", "aws 10.4.10.1:8080", "merit 10.6.10.1:8080")
	// The CRDs go: nothing is removed elsewhere but what merit exported.
	b.undefine(t, b.merit)
	b.imported(t, b.gcp, ns, "web", "aws 10.4.10.1:8080")
}

// TestImportsAmongControllers runs Kubernetes' own controllers, of which the collectors of
// garbage and of namespaces delete what imports own, and change finalizers.
func TestImportsAmongControllers(t *testing.T) {
	t.Parallel()
	const ns = "shop"
	b := newImportBed(t, tools.KubeControllerManager, tools.KubeScheduler)
	b.namespace(t, ns, b.aws)
	createNamespace(t, b.gcp, ns)
	i := b.start(t, b.gcp)
	s := web("web")
	must(t, putService(t.Context(), b.aws, ns, s, slice(s, "web-1", "10.4.0.1")))
	b.export(t, b.aws, ns, "web")
	before := b.imported(t, b.gcp, ns, "web", "aws 10.4.0.1:8080")
	imports := b.admins["gcp"].ServiceImports(ns)
	foreground := metav1.DeletePropagationForeground
	must(t, imports.Delete(t.Context(), "web", metav1.DeleteOptions{PropagationPolicy: &foreground}))
	wait(t, "another import", func() error {
		now, err := imports.Get(t.Context(), "web", metav1.GetOptions{})
		if err == nil && now.UID == before.UID {
			err = fmt.Errorf("finalizers %v", now.Finalizers)
		}
		return err
	})
	after := b.imported(t, b.gcp, ns, "web", "aws 10.4.0.1:8080")
	// That comes last, and the collector deletes what has an owner.
	wait(t, "the owner of the derived Service", func() error {
		derived, err := b.gcp.Client().CoreV1().Services(ns).Get(t.Context(), mcs.DerivedName(ns, "web"), metav1.GetOptions{})
		if err == nil && !slices.ContainsFunc(derived.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == after.UID }) {
			err = fmt.Errorf("owners %v", derived.OwnerReferences)
		}
		return err
	})
	i.stop()
	must(t, imports.Delete(t.Context(), "web", metav1.DeleteOptions{}))
	b.gone(t, b.gcp, ns, "web")
	b.start(t, b.gcp)
	b.imported(t, b.gcp, ns, "web", "aws 10.4.0.1:8080")
	namespaces := b.gcp.Client().CoreV1().Namespaces()
	must(t, namespaces.Delete(t.Context(), ns, metav1.DeleteOptions{}))
	wait(t, "the end of the namespace", func() error {
		_, err := namespaces.Get(t.Context(), ns, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return cmpErr(err)
	})
	createNamespace(t, b.gcp, ns)
	b.imported(t, b.gcp, ns, "web", "aws 10.4.0.1:8080")
}
