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

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
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

// Question is a part of a survey.
type Question int

// The questions that can be asked alone.
const (
	Programs Question = iota // Workloads and Settings
	Reports                  // Pods, and the reports of the programs in them
	Nodes                    // Nodes
	Rest                     // all others
)

// ForPods are the questions whose answers temporary pods need.
func ForPods() []Question { return []Question{Nodes, Programs} }

// Collect surveys clusters, all at the same time. Of the questions it asks those that are given;
// none: all. The facts about a cluster that can't be reached have errors.
func Collect(ctx context.Context, clusters []*cli.Cluster, only ...Question) []*Cluster {
	taken := make([]*Cluster, len(clusters))
	var taking sync.WaitGroup
	for i, c := range clusters {
		taking.Go(func() { taken[i] = collect(ctx, c, only) })
	}
	taking.Wait()
	return taken
}

// maxPaths bounds the paths from the nodes of one cluster to those of another one. 10,000 and
// 200 nodes have 2,000,000.
const maxPaths = 2 << 20

// TooMany reports whether clusters with so many nodes have more than maxPaths.
func TooMany(from, to int) bool { return from > 0 && to > maxPaths/from }

// BoundPaths drops the nodes of the larger one of two clusters with more than maxPaths.
func BoundPaths(clusters []*Cluster) {
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
}

func collect(ctx context.Context, access *cli.Cluster, only []Question) *Cluster {
	t := &collector{Cluster: &Cluster{Name: access.Name, Access: access.Access, Taken: time.Now()}, access: access, client: access.Client, clock: &clock{}}
	if len(only) == 0 {
		config := rest.CopyConfig(access.Config)
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return t.clock.over(next) })
		if client, err := kubernetes.NewForConfig(config); err == nil {
			t.client = client
		}
	}
	t.Kubernetes = read(ctx, t.Kubectl("version"), func(ctx context.Context) (string, error) {
		v, err := serverVersion(ctx, t.client)
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
	asked := func(q Question) bool { return len(only) == 0 || slices.Contains(only, q) }
	ask := func(q Question, do func()) {
		if asked(q) {
			reading.Go(do)
		}
	}
	ask(Nodes, func() { t.Nodes = read(ctx, t.Kubectl("get nodes -o yaml"), t.nodes) })
	ask(Programs, func() {
		t.Workloads = read(ctx, t.Kubectl("-n %s get daemonsets,deployments", cli.Namespace), func(ctx context.Context) ([]Workload, error) {
			return readWorkloads(ctx, t.client)
		})
		from := settingsOf(t.Workloads.Value)
		if len(from) == 0 {
			optional := true
			from = []corev1.ConfigMapEnvSource{{LocalObjectReference: corev1.LocalObjectReference{Name: "semaphore"}, Optional: &optional}}
		}
		t.Settings = read(ctx, t.Kubectl("-n %s get configmap %s -o yaml", cli.Namespace, from[0].Name), func(ctx context.Context) (Settings, error) {
			return readSettings(ctx, t.client, from)
		})
		// Addresses of origins are translated by the settings.
		for selector, of := range map[string]*Fact[[]KubeService]{MirrorSelector: &t.Exports, GlobalSelector: &t.Shared} {
			ask(Rest, func() {
				*of = read(ctx, t.Kubectl("get services,endpointslices -A -l %s", selector), t.exports(selector))
			})
		}
	})
	ask(Rest, func() {
		t.Warnings = read(ctx, t.Kubectl("-n %s get events --field-selector type=Warning", cli.Namespace), t.warnings)
	})
	ask(Rest, func() {
		t.DNS = read(ctx, t.Kubectl("-n kube-system get deployments,daemonsets,configmaps"), func(ctx context.Context) (*coredns.Setup, error) {
			return coredns.Read(ctx, t.client)
		})
		if t.DNS.Value != nil {
			t.DNS.Source = t.DNS.Value.Show(t.Access)
		}
	})
	ask(Rest, func() { t.Pools = read(ctx, t.Kubectl("get ippools -o yaml"), t.pools) })
	ask(Rest, func() {
		t.Imports = read(ctx, t.Kubectl("-n %s get services,endpointslices -l mirrored-svc=true", cli.Namespace), t.imports)
	})
	ask(Reports, func() {
		t.Pods = read(ctx, t.Kubectl("-n %s get pods -o wide", cli.Namespace), t.pods)
		if asked(Rest) {
			t.Stored = read(ctx, t.Kubectl("-n %s get wireguardpeers", cli.Namespace), t.stored)
		}
		listed := time.Now()
		t.ask(ctx)
		t.askBehind(ctx, listed)
	})
	reading.Wait()
	if len(only) == 0 {
		t.Clock = t.clock.fact(t.Kubectl("get --raw /version -v=8"))
	}
	return t.Cluster
}

// serverVersion is the first request to a cluster: without a response all others would fail, too.
func serverVersion(ctx context.Context, client kubernetes.Interface) (*version.Info, error) {
	return discovery.ToServerVersionInterfaceWithContext(client.Discovery()).ServerVersionWithContext(ctx)
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
		pools, err := readPools(ctx, t.access, gv)
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
