package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/reconcile"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/clientset"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/logtest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
)

func TestOnLink(t *testing.T) {
	for prefix, want := range map[string]string{
		"10.66.1.2/16":    "10.66.0.0 10.66.255.255",
		"192.0.2.200/26":  "192.0.2.192 192.0.2.255",
		"10.0.0.1/30":     "10.0.0.0 10.0.0.3",
		"10.0.0.1/31":     "",
		"10.0.0.1/32":     "",
		"fd66::1/64":      "",
		"255.255.255.1/8": "255.0.0.0 255.255.255.255",
	} {
		var got []string
		for _, a := range onLink(netip.MustParsePrefix(prefix)) {
			got = append(got, a.String())
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v, want %q", prefix, got, want)
		}
	}
}

// TestServiceRanges reads the service ranges from API servers with and without
// ServiceCIDRs.
func TestServiceRanges(t *testing.T) {
	resource := schema.GroupResource{Group: "networking.k8s.io", Resource: "servicecidrs"}
	var (
		answer   error
		cidrs    = []string{"fd96::/112", "10.96.0.1/12", "none"}
		log      logtest.Buffer
		building = reconcile.NewTrigger()
	)
	client := fake.NewClientset()
	client.PrependReactor("list", "servicecidrs", func(clienttesting.Action) (bool, runtime.Object, error) {
		list := &networkingv1.ServiceCIDRList{Items: []networkingv1.ServiceCIDR{
			{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}},
		}}
		return true, list, answer
	})
	// It can't stream lists, as older API servers.
	client.PrependWatchReactor("nodes", func(action clienttesting.Action) (bool, watch.Interface, error) {
		request, ok := action.(clienttesting.WatchActionImpl)
		streams := ok && request.ListOptions.SendInitialEvents != nil
		return streams, nil, apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", nil)
	})
	l := newLocal(&config.Wireguard{}, clientset.Client(client), nil, nil, kube.NewMetrics("test", "test_failures_total"), slog.New(slog.NewTextHandler(&log, nil)), func(c change) {
		if c == localNodesChanged {
			building.Fire()
		}
	})
	built := func() bool {
		select {
		case <-building.C():
			return true
		default:
			return false
		}
	}
	answer = apierrors.NewForbidden(resource, "", nil)
	if err := l.readServices(t.Context()); err == nil || l.services.Load() != nil {
		t.Errorf("an API server that has let us read nothing yet: %v, %v", l.services.Load(), err)
	}
	// The nodes have never been read.
	if err := l.build(t.Context()); err != nil || l.known.Load() != nil {
		t.Errorf("known without the nodes: %v, %v", l.known.Load(), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() { _ = l.watch.Run(ctx) }) // It ends without an error.
	defer watching.Wait()
	defer cancel()
	polltest.Until(t, time.Minute, "the nodes to be read", l.nodes.Synced)
	polltest.Until(t, time.Minute, "word of that", built)
	for _, step := range []struct {
		name   string
		answer error
		fails  bool
		built  bool
		want   []netip.Prefix
	}{
		{"no answer yet", errors.New("connection refused"), true, false, nil},
		{"an API server that has no such objects", apierrors.NewNotFound(resource, ""), false, true, []netip.Prefix{}},
		{"an API server with ServiceCIDRs", nil, false, true, []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd96::/112")}},
		{"the same again", nil, false, false, []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd96::/112")}},
		{"a right that was taken: what was known stays", apierrors.NewForbidden(resource, "", nil), false, false, []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd96::/112")}},
		{"no answer: what was known stays", errors.New("connection refused"), true, false, []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd96::/112")}},
	} {
		answer = step.answer
		if err := l.readServices(t.Context()); (err != nil) != step.fails {
			t.Errorf("%s: %v", step.name, err)
		}
		if got := built(); got != step.built {
			t.Errorf("%s: triggered a build: %v", step.name, got)
		}
		var got []netip.Prefix
		if known := l.services.Load(); known != nil {
			got = *known
		}
		if diff := cmp.Diff(step.want, got, cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, diff)
		}
	}
	if n := strings.Count(log.String(), "service ranges of this cluster unknown"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, log.String())
	}
}
