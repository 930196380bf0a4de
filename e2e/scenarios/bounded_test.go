package scenarios_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/logtest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

// bounded is a kind that the watches of a remote read, with bounds.
type bounded struct {
	kind   string
	reader func(client func() (kube.Client, error)) *kube.Reader
	direct func(ctx context.Context, c kubernetes.Interface) (runtime.Object, error)
	// read removes what isn't read of an object.
	read func(runtime.Object)
}

func nodeReader(client func() (kube.Client, error), whole bool) *kube.Reader {
	r := kube.NewNodeReader(client, func(*metav1.PartialObjectMetadata) bool { return true })
	r.SetWhole(whole)
	return r
}

func boundedKinds() []bounded {
	type source = func() (kube.Client, error)
	return []bounded{
		{
			"nodes",
			func(c source) *kube.Reader { return nodeReader(c, true) },
			func(ctx context.Context, c kubernetes.Interface) (runtime.Object, error) {
				return c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
			},
			func(o runtime.Object) {
				n := o.(*corev1.Node)
				n.Spec = corev1.NodeSpec{PodCIDR: n.Spec.PodCIDR, PodCIDRs: n.Spec.PodCIDRs}
				n.Status = corev1.NodeStatus{}
			},
		},
		{
			"metadata of nodes",
			func(c source) *kube.Reader { return nodeReader(c, false) },
			func(ctx context.Context, c kubernetes.Interface) (runtime.Object, error) {
				nodes, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
				if err != nil {
					return nil, err
				}
				list := &metav1.PartialObjectMetadataList{}
				for i := range nodes.Items {
					list.Items = append(list.Items, metav1.PartialObjectMetadata{ObjectMeta: nodes.Items[i].ObjectMeta})
				}
				return list, nil
			},
			func(runtime.Object) {},
		},
		{
			"services",
			func(c source) *kube.Reader { return kube.ReadServices(c, "", nil) },
			func(ctx context.Context, c kubernetes.Interface) (runtime.Object, error) {
				return c.CoreV1().Services("").List(ctx, metav1.ListOptions{})
			},
			func(o runtime.Object) {
				s := &o.(*corev1.Service).Spec
				s.ClusterIPs, s.IPFamilyPolicy, s.Selector = nil, nil, nil
			},
		},
		{
			"endpointslices",
			func(c source) *kube.Reader { return kube.ReadEndpointSlices(c, nil) },
			func(ctx context.Context, c kubernetes.Interface) (runtime.Object, error) {
				return c.DiscoveryV1().EndpointSlices("").List(ctx, metav1.ListOptions{})
			},
			func(runtime.Object) {},
		},
	}
}

// TestBoundedWatchSeesAllObjects compares the objects of a watch with the bounds of a
// remote, and of one without, with those of the API server, of an older release, which can't
// stream lists, and of a newer one: all fields that are read are equal, and no failure is
// logged.
func TestBoundedWatchSeesAllObjects(t *testing.T) {
	t.Parallel()
	nstest.Root(t)
	tb := testbed.Start(t, testbed.Config{})
	clusters, err := tb.StartClusters(within(t, 3*time.Minute),
		testbed.ClusterConfig{Name: "old", APIServerArgs: []string{"--feature-gates=WatchList=false"}}, testbed.ClusterConfig{Name: "new"})
	must(t, err)
	for _, c := range clusters {
		must(t, c.AddObjects(within(t, time.Minute), 200, func(i int, n *corev1.Node) {
			n.Annotations = map[string]string{"a": strings.Repeat("x", i)}
		}))
		must(t, c.Grant(t.Context(), "default", "reader", rbacv1.PolicyRule{
			APIGroups: []string{"", "discovery.k8s.io"}, Resources: []string{"nodes", "services", "endpointslices"}, Verbs: []string{"list", "watch"},
		}))
		credentials, err := c.Credentials(t.Context(), "default", "reader")
		must(t, err)
		access := config.Access{Kubeconfig: credentials.Kubeconfig()}
		for name, bounds := range map[string]kube.Bounds{"bounded": {Answer: 64 << 20}, "unbounded": {}} {
			for _, k := range boundedKinds() {
				t.Run(c.Name+"/"+name+"/"+k.kind, func(t *testing.T) { compareBounded(t, c, access, bounds, k) })
			}
		}
	}
}

func compareBounded(t *testing.T, c *testbed.Cluster, access config.Access, bounds kube.Bounds, k bounded) {
	cfg, err := kube.RESTConfig(kube.ClientConfig{
		Access: access, UserAgent: "test", Bounds: bounds, Dial: c.RESTConfig().Dial,
	})
	must(t, err)
	client, err := kube.NewClient(cfg)
	must(t, err)
	var log logtest.Buffer
	w := kube.NewWatch(kube.WatchConfig[runtime.Object]{
		Cluster: c.Name, Kind: k.kind, Bounds: bounds,
		Reader: k.reader(func() (kube.Client, error) { return client, nil }),
		Keep:   func(obj runtime.Object) (runtime.Object, bool) { return obj, true },
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := w.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	defer running.Wait()
	defer cancel()
	if strings.HasSuffix(k.kind, "nodes") {
		eventually(t, repair, "the first sync", func(context.Context) error {
			if !w.Synced() {
				return fmt.Errorf("not synced: %w", w.Err())
			}
			return nil
		})
		name := "late-" + strconv.FormatInt(time.Now().UnixNano(), 36)
		_, err := c.Client().CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		must(t, err)
	}
	eventually(t, repair, "the same objects", func(ctx context.Context) error {
		list, err := k.direct(ctx, c.Client())
		if err != nil {
			return err
		}
		want, err := meta.ExtractList(list)
		if err != nil {
			return err
		}
		got, _ := w.Snapshot()
		if len(want) == 0 || len(got) != len(want) {
			return fmt.Errorf("%d objects, want %d; %w", len(got), len(want), w.Err())
		}
		byName(t, got)
		byName(t, want)
		for i := range want {
			metadata, err := meta.Accessor(want[i])
			if err != nil {
				return err
			}
			metadata.SetManagedFields(nil)
			metadata.SetOwnerReferences(nil)
			metadata.SetGenerateName("")
			k.read(want[i])
			if !apiequality.Semantic.DeepEqual(want[i], got[i]) {
				return fmt.Errorf("(-want +got):\n%s", cmp.Diff(want[i], got[i]))
			}
		}
		return nil
	})
	if w.OverQuota() != nil || strings.Contains(log.String(), "level=WARN") {
		t.Errorf("OverQuota() = %v, log:\n%s", w.OverQuota(), log.String())
	}
}

func byName(t *testing.T, objects []runtime.Object) {
	key := func(o runtime.Object) string {
		accessor, err := meta.Accessor(o)
		if err != nil {
			t.Error(err)
			return ""
		}
		return accessor.GetNamespace() + "/" + accessor.GetName()
	}
	slices.SortFunc(objects, func(a, b runtime.Object) int { return strings.Compare(key(a), key(b)) })
}
