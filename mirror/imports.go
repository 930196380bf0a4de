package mirror

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/kube-semaphore/internal/errlog"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
	"github.com/kube-semaphore/kube-semaphore/mirror/mcs"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
	"github.com/kube-semaphore/kube-semaphore/mirror/published"
)

// multicluster is the part of a controller for the Multi-Cluster Services API in the local
// cluster.
type multicluster struct {
	served     *published.Gate // the local cluster serves the API
	imports    *kube.Feed[ObservedImport]
	services   *kube.Feed[ObservedService]
	slices     *kube.Feed[ObservedSlice]
	namespaces *kube.Feed[namespaceState]
	detect     detector
}

func (m *multicluster) tasks() []run.Task {
	return []run.Task{
		&m.detect,
		published.Behind{Task: m.imports, Gate: m.served}, published.Behind{Task: m.services, Gate: m.served}, published.Behind{Task: m.slices, Gate: m.served}, published.Behind{Task: m.namespaces, Gate: m.served},
	}
}

// newMulticluster returns the feeds of imports and their objects.
func (c *Controller) newMulticluster() *multicluster {
	sums := c.state.sums
	m := &multicluster{served: published.NewGate()}
	m.detect = detector{client: c.cfg.Client, namespace: c.cfg.Namespace, served: m.served, notify: c.trigger.Fire, families: c.state.local.answers.has, log: errlog.Log{
		Logger: c.log, Failing: "the Multi-Cluster Services API is off", Quiet: detectEvery,
	}}
	if c.cfg.MultiClusterRequired {
		m.detect.log.Level = slog.LevelError
	}
	m.imports = localFeed(c, "service imports", func(client kube.Client) kube.Resource[*v1beta1.ServiceImportList] {
		return client.ServiceImports(metav1.NamespaceAll)
	}, nil, sums.observedImport, nil)
	m.services = localFeed(c, "derived services", servicesOf(metav1.NamespaceAll), func(options *metav1.ListOptions) {
		options.LabelSelector = mcs.LabelImported + "=" + labelValue
	}, sums.observedDerived, nil)
	m.slices = localFeed(c, "endpointslices of imports", slicesOf(metav1.NamespaceAll), func(options *metav1.ListOptions) {
		options.LabelSelector = discoveryv1.LabelManagedBy + "=" + managedBy + "," + mcs.LabelSourceCluster
	}, sums.observedImportSlice, nil)
	m.namespaces = localFeed(c, "namespaces", func(client kube.Client) kube.Resource[*corev1.NamespaceList] {
		return client.Namespaces()
	}, nil, func(n *corev1.Namespace) *namespaceState { return &namespaceState{going: n.DeletionTimestamp != nil} }, nil)
	return m
}

// read updates the state of imports and their objects.
func (m *multicluster) read(s *state) {
	l := s.local
	known := observe(m.imports, l.imports, byKey)
	known = observe(m.services, l.imported.services, byKey) && known
	known = observe(m.slices, l.imported.slices, byKey) && known
	changes, synced := m.namespaces.Changes()
	for _, c := range changes {
		if c.After == nil {
			delete(l.namespaces, c.Key)
		} else {
			l.namespaces[c.Key] = c.After
		}
		if (c.Before == nil) != (c.After == nil) || c.After != nil && *c.Before != *c.After {
			s.touchNamespace(c.Key)
		}
	}
	if known = known && synced; known != s.importsKnown {
		s.importsKnown = known
		s.touchAll()
	}
}

// fault returns why the imports can't be read, such as a missing right.
func (m *multicluster) fault() error {
	var errs []error
	for _, f := range []published.Health{m.imports, m.services, m.slices, m.namespaces} {
		if !f.Synced() || f.Stale() {
			errs = append(errs, f.Err())
		}
	}
	return errors.Join(errs...)
}

// detectEvery is the interval of looking whether the API can be implemented by now.
const detectEvery = 30 * time.Second

// detector waits until the local cluster serves the API, and the account may read its objects:
// other implementations install the same CRDs.
type detector struct {
	client    kube.Client
	namespace string // of mirrors
	served    *published.Gate
	notify    func()
	families  func([]corev1.IPFamily) // is called with those of the cluster
	log       errlog.Log
}

// String names the task.
func (*detector) String() string { return "detection of the Multi-Cluster Services API" }

// Run implements run.Task.
func (d *detector) Run(ctx context.Context) error {
	for {
		err := d.ask(ctx)
		d.log.Note(ctx, err)
		if err == nil {
			d.log.Logger.InfoContext(ctx, "the Multi-Cluster Services API is on")
			d.served.Open()
			d.notify()
			<-ctx.Done() // The end of a task is the end of the program.
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(detectEvery):
		}
	}
}

// errNotServed means that the CRDs aren't installed.
var errNotServed = errors.New("the CRDs of " + v1beta1.GroupVersion.String() + " are not installed in this cluster")

func (d *detector) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, detectEvery)
	defer cancel()
	var list metav1.APIResourceList
	err := d.client.REST().Get().AbsPath("/apis", v1beta1.GroupVersion.Group, v1beta1.GroupVersion.Version).Do(ctx).Into(&list)
	switch {
	case apierrors.IsNotFound(err):
		return errNotServed
	case err != nil:
		return fmt.Errorf("discover %v: %w", v1beta1.GroupVersion, err)
	}
	served := map[string]bool{}
	for i := range list.APIResources {
		served[list.APIResources[i].Name] = true
	}
	if !served[v1beta1.ServiceExportPluralName] || !served[v1beta1.ServiceImportPluralName] {
		return errNotServed
	}
	if err := d.mayRead(ctx); err != nil {
		return err
	}
	return d.askFamilies(ctx)
}

// askFamilies finds the IP families of the cluster by a request for a Service of both, which isn't
// stored. If it is refused, as each mirror is then, they stay unknown.
func (d *detector) askFamilies(ctx context.Context) error {
	both := origin.Spec{Traits: origin.Traits{IPv4: true, IPv6: true}, Ports: []origin.Port{{Port: 1, Target: intstr.FromInt32(1)}}}
	probe := &Service{Name: "families-" + separator + "-any", Spec: both}
	made, err := d.client.Services(d.namespace).Create(ctx, probe.object(d.namespace, ""), metav1.CreateOptions{
		FieldManager: fieldManager, FieldValidation: fieldValidation, DryRun: []string{metav1.DryRunAll},
	})
	switch {
	case kube.Refused(err):
		d.log.Logger.WarnContext(ctx, "headless imports will not have IP families: a Service of both is refused", "err", err)
	case err != nil:
		return fmt.Errorf("ask for the IP families of the cluster: %w", err)
	default:
		d.families(made.Spec.IPFamilies)
	}
	return nil
}

// mayRead returns an error without the rights of deploy/service-mirror/mcs, by an attempt to
// read each kind of object.
func (d *detector) mayRead(ctx context.Context) error {
	one := metav1.ListOptions{Limit: 1}
	_, err := d.client.ServiceImports(metav1.NamespaceAll).List(ctx, one)
	if err == nil {
		_, err = d.client.ServiceExports(metav1.NamespaceAll).List(ctx, one)
	}
	if err == nil {
		_, err = d.client.Namespaces().List(ctx, one)
	}
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("the account lacks the rights of deploy/service-mirror/mcs: %w", err)
	}
	return err
}

// Err returns why the API is off; nil: it is on, or was not looked for yet.
func (d *detector) Err() error { return d.log.Err() }
