package inspect

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/coredns"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

// Bounds of one survey, for slow or hostile clusters.
const (
	readTimeout = 15 * time.Second // of one fact
	askers      = 24               // concurrent reads of reports of one cluster
	maxEvents   = 200
)

// Labels and names in our manifests, and the group of the agents' annotations.
const (
	programLabel    = "app.kubernetes.io/name"
	WireGuard       = "semaphore-wireguard"
	ServiceMirror   = "semaphore-service-mirror"
	NetworkPolicy   = "semaphore-policy"
	Relay           = "semaphore-relay"
	AnnotationGroup = "wireguard.semaphore.uw.io"
)

// Collect surveys clusters, all at the same time. The facts about a cluster that can't be
// reached have errors.
func Collect(ctx context.Context, clusters []*cli.Cluster) []*Cluster {
	taken := make([]*Cluster, len(clusters))
	var taking sync.WaitGroup
	for i, c := range clusters {
		taking.Go(func() { taken[i] = collect(ctx, c) })
	}
	taking.Wait()
	boundPaths(taken)
	return taken
}

// maxPaths bounds the paths from the nodes of one cluster to those of another one. 10,000 and
// 200 nodes have 2,000,000.
const maxPaths = 2 << 20

// TooMany reports whether clusters with so many nodes have more than maxPaths.
func TooMany(from, to int) bool { return from > 0 && to > maxPaths/from }

// boundPaths drops the nodes of the larger one of two clusters with more than maxPaths.
func boundPaths(clusters []*Cluster) {
	for i, a := range clusters {
		for _, b := range clusters[:i] {
			larger, n, other := a, len(a.Nodes.Value), len(b.Nodes.Value)
			if other > n {
				larger, n, other = b, other, n
			}
			if TooMany(n, other) {
				larger.Nodes.Value = nil
				larger.Nodes.Err = fmt.Sprintf("%d nodes beside %d: more than %d paths", n, other, maxPaths)
			}
		}
	}
}

// collector surveys one cluster.
type collector struct {
	*Cluster
	access *cli.Cluster
	client kubernetes.Interface
	clock  *clock
	weight atomic.Int64 // of all reports
	flying atomic.Int64 // bytes of those that are being read
	// named is the ConfigMap that our programs have their settings from; empty: none is known.
	named string
	// settingsRead is closed when Settings is set.
	settingsRead chan struct{}
}

// Programs reads the reports of a cluster's programs, and nothing else but which pods they have.
func Programs(ctx context.Context, access *cli.Cluster) *Cluster {
	t := &collector{Cluster: &Cluster{Name: access.Name, Context: access.Context, Taken: time.Now()}, access: access, client: access.Client}
	t.readPods(ctx)
	t.ask(ctx)
	return t.Cluster
}

func (t *collector) readPods(ctx context.Context) {
	t.Pods = read(ctx, t.Kubectl("-n %s get pods -o wide", cli.Namespace), t.pods)
}

func collect(ctx context.Context, access *cli.Cluster) *Cluster {
	t := &collector{Cluster: &Cluster{Name: access.Name, Context: access.Context, Taken: time.Now()}, access: access, client: access.Client, clock: &clock{}, settingsRead: make(chan struct{})}
	config := rest.CopyConfig(access.Config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return t.clock.over(next) })
	if client, err := kubernetes.NewForConfig(config); err == nil {
		t.client = client
	}
	t.Kubernetes = read(ctx, t.Kubectl("version"), func(ctx context.Context) (string, error) {
		v, err := discovery.ToServerVersionInterfaceWithContext(t.client.Discovery()).ServerVersionWithContext(ctx)
		if err != nil {
			return "", err
		}
		return v.GitVersion, nil
	})
	if !t.Kubernetes.Known() {
		t.nothing(t.Kubernetes.Err)
		return t.Cluster
	}
	var reading sync.WaitGroup
	reading.Go(func() { t.Nodes = read(ctx, t.Kubectl("get nodes -o yaml"), t.nodes) })
	reading.Go(func() {
		t.Workloads = read(ctx, t.Kubectl("-n %s get daemonsets,deployments", cli.Namespace), t.workloads)
		t.Settings = read(ctx, t.Kubectl("-n %s get configmap %s -o yaml", cli.Namespace, t.settingsName()), t.settings)
		close(t.settingsRead)
	})
	reading.Go(func() {
		t.Warnings = read(ctx, t.Kubectl("-n %s get events --field-selector type=Warning", cli.Namespace), t.warnings)
	})
	reading.Go(func() {
		t.DNS = read(ctx, t.Kubectl("-n kube-system get deployments,daemonsets,configmaps"), func(ctx context.Context) (*coredns.Setup, error) {
			return coredns.Read(ctx, t.client)
		})
		if t.DNS.Value != nil {
			t.DNS.Source = t.DNS.Value.Show(t.Context)
		}
	})
	reading.Go(func() { t.Pools = read(ctx, t.Kubectl("get ippools -o yaml"), t.pools) })
	reading.Go(func() {
		t.Imports = read(ctx, t.Kubectl("-n %s get services,endpointslices -l mirrored-svc=true", cli.Namespace), t.imports)
	})
	reading.Go(func() {
		t.Exports = read(ctx, t.Kubectl("get services,endpointslices -A -l %s", MirrorSelector), t.exports(MirrorSelector))
	})
	reading.Go(func() {
		t.Shared = read(ctx, t.Kubectl("get services,endpointslices -A -l %s", GlobalSelector), t.exports(GlobalSelector))
	})
	t.readPods(ctx)
	t.Stored = read(ctx, t.Kubectl("-n %s get wireguardpeers", cli.Namespace), t.stored)
	listed := time.Now()
	t.ask(ctx)
	t.askBehind(ctx, listed)
	reading.Wait()
	t.Clock = t.clock.fact(t.Kubectl("get --raw /version -v=8"))
	return t.Cluster
}

// nothing sets the error of all facts.
func (t *collector) nothing(why string) {
	t.Clock.Err, t.Nodes.Err, t.Pods.Err, t.Workloads.Err = why, why, why, why
	t.Warnings.Err, t.DNS.Err, t.Pools.Err = why, why, why
	t.Imports.Err, t.Exports.Err, t.Shared.Err, t.Settings.Err, t.Stored.Err = why, why, why, why, why
}

// read returns the result of get as a fact.
func read[T any](ctx context.Context, source string, get func(context.Context) (T, error)) Fact[T] {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	type answer struct {
		value T
		err   error
	}
	// The survey continues after the timeout even if get ignores it.
	answered := make(chan answer, 1)
	go func() {
		value, err := get(ctx)
		answered <- answer{value, err}
	}()
	select {
	case a := <-answered:
		if a.err != nil {
			return Fact[T]{Source: source, Err: printable.Text(a.err.Error(), printable.Short)}
		}
		return Fact[T]{Value: a.value, Source: source}
	case <-ctx.Done():
		return Fact[T]{Source: source, Err: "no answer within " + readTimeout.String()}
	}
}

func (t *collector) nodes(ctx context.Context) ([]Node, error) {
	nodes, err := readNodes(ctx, t.client)
	if err != nil {
		return nil, err
	}
	nodes = slices.DeleteFunc(nodes, func(n Node) bool { return n.Agentless() != "" })
	// Optional: errors are ignored.
	renewed := map[string]time.Time{}
	_ = cli.List(ctx, t.client.CoordinationV1().Leases(corev1.NamespaceNodeLease), metav1.ListOptions{}, func(l *coordinationv1.Lease) error {
		if l.Spec.RenewTime != nil {
			renewed[l.Name] = l.Spec.RenewTime.Time
		}
		return nil
	})
	for i := range nodes {
		nodes[i].Renewed = renewed[nodes[i].Name]
	}
	return byName(nodes, func(n *Node) string { return n.Name }), nil
}

func (t *collector) pods(ctx context.Context) ([]Pod, error) {
	pods := []Pod{}
	err := cli.List(ctx, t.client.CoreV1().Pods(cli.Namespace), metav1.ListOptions{}, func(o *corev1.Pod) error {
		if err := CheckName("a Pod", "metadata.name", o.Name); err != nil {
			return err
		}
		if o.Spec.NodeName != "" {
			if err := CheckName("Pod "+o.Name, "spec.nodeName", o.Spec.NodeName); err != nil {
				return err
			}
		}
		p := Pod{
			Name: o.Name, Node: o.Spec.NodeName, IP: o.Status.PodIP, Program: o.Labels[programLabel],
			Phase: string(o.Status.Phase), Deleting: o.DeletionTimestamp != nil,
		}
		for _, c := range o.Status.Conditions {
			p.Ready = p.Ready || c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		}
		for _, s := range slices.Concat(o.Status.InitContainerStatuses, o.Status.ContainerStatuses) {
			p.Restarts += s.RestartCount
			if s.State.Waiting != nil && s.State.Waiting.Reason != "PodInitializing" {
				p.Waiting = s.State.Waiting.Reason
			}
			if end := s.LastTerminationState.Terminated; end != nil {
				p.Ended = printable.Text(strings.TrimSpace(end.Reason+" "+end.Message), printable.Short)
			}
		}
		pods = append(pods, p)
		return nil
	})
	if err != nil {
		return nil, err // A partial list would be wrong.
	}
	return byName(pods, func(p *Pod) string { return p.Name }), nil
}

func (t *collector) workloads(ctx context.Context) ([]Workload, error) {
	ours := metav1.ListOptions{LabelSelector: "app.kubernetes.io/part-of=kube-semaphore"}
	inspect := func(s *corev1.PodSpec) (image string) {
		if len(s.Containers) == 0 {
			return ""
		}
		for _, from := range s.Containers[0].EnvFrom {
			if from.ConfigMapRef != nil {
				t.named = from.ConfigMapRef.Name
			}
		}
		return s.Containers[0].Image
	}
	var found []Workload
	err := cli.List(ctx, t.client.AppsV1().DaemonSets(cli.Namespace), ours, func(s *appsv1.DaemonSet) error {
		found = append(found, Workload{"DaemonSet", s.Name, s.Status.DesiredNumberScheduled, s.Status.NumberReady, inspect(&s.Spec.Template.Spec)})
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = cli.List(ctx, t.client.AppsV1().Deployments(cli.Namespace), ours, func(d *appsv1.Deployment) error {
		found = append(found, Workload{"Deployment", d.Name, wanted(d), d.Status.ReadyReplicas, inspect(&d.Spec.Template.Spec)})
		return nil
	})
	return byName(found, func(w *Workload) string { return w.Name }), err
}

func wanted(d *appsv1.Deployment) int32 {
	if d.Spec.Replicas == nil {
		return 1
	}
	return *d.Spec.Replicas
}

func (t *collector) warnings(ctx context.Context) ([]Event, error) {
	var events []Event
	err := cli.List(ctx, t.client.CoreV1().Events(cli.Namespace), metav1.ListOptions{FieldSelector: "type=Warning", Limit: maxEvents}, func(e *corev1.Event) error {
		if len(events) == maxEvents {
			return cli.ErrEnough
		}
		last := e.LastTimestamp.Time
		if e.Series != nil {
			last = e.Series.LastObservedTime.Time
		} else if last.IsZero() {
			last = e.EventTime.Time
		}
		events = append(events, Event{
			Reason: e.Reason, About: e.InvolvedObject.Kind + "/" + e.InvolvedObject.Name,
			Message: printable.Text(e.Message, printable.Short), Last: last,
		})
		return nil
	})
	slices.SortFunc(events, func(a, b Event) int { return b.Last.Compare(a.Last) })
	return events, err
}

// pools reads Calico's IP pools from the first served API.
func (t *collector) pools(ctx context.Context) ([]Pool, error) {
	for _, gv := range kube.CalicoAPIs("auto") {
		pools := []Pool{}
		err := cli.ListUntyped(ctx, t.access.Dynamic.Resource(PoolsOf(gv)), metav1.ListOptions{}, func(o *unstructured.Unstructured) error {
			cidr, _, _ := unstructured.NestedString(o.Object, "spec", "cidr")
			disabled, _, _ := unstructured.NestedBool(o.Object, "spec", "disabled")
			noExport, _, _ := unstructured.NestedBool(o.Object, "spec", "disableBGPExport")
			pools = append(pools, Pool{o.GetName(), cidr, disabled, noExport})
			return nil
		})
		switch {
		case apierrors.IsNotFound(err) || meta.IsNoMatchError(err):
			continue
		case err != nil:
			return nil, err
		}
		return pools, nil
	}
	return nil, nil
}
