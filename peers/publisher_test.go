package peers

import (
	"context"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/synctest"
	"github.com/kube-semaphore/kube-semaphore/peers/pods"
)

var publications = []Publication{
	{Remote: "gcp", PublicKey: key(1), ListenPort: 51820},
	{Remote: "merit", PublicKey: key(2), ListenPort: 51821},
}

func kubernetesNode(addresses ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "aws-1", UID: "u1",
		Annotations: map[string]string{"node.alpha.kubernetes.io/ttl": "0"},
	}}
	n.Spec.PodCIDR = "10.2.3.0/24"
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "192.0.2.1"})
	return n
}

func TestAnnotations(t *testing.T) {
	tests := map[string]struct {
		addresses []string
		endpoint  string
	}{
		"IPv4":                   {[]string{"10.66.23.31"}, "10.66.23.31:51820"},
		"IPv6":                   {[]string{"fd66::31"}, "[fd66::31]:51820"},
		"the first of both":      {[]string{"10.66.23.31", "fd66::31"}, "10.66.23.31:51820"},
		"no address that is one": {[]string{"aws-1"}, ""},
		"none":                   {nil, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Annotations(TrimSelf(kubernetesNode(tt.addresses...)), publications[:1], &pods.Known{}, nil)
			if tt.endpoint == "" {
				if err == nil {
					t.Errorf("got %v, want an error", got)
				}
				return
			}
			want := map[string]string{
				"gcp.wireguard.semaphore.uw.io/pubKey":   key(1).String(),
				"gcp.wireguard.semaphore.uw.io/endpoint": tt.endpoint,
			}
			if diff := cmp.Diff(want, got); err != nil || diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

// TestPrefixWithoutAVirtualOneIsLeftOut publishes the others.
func TestPrefixWithoutAVirtualOneIsLeftOut(t *testing.T) {
	virtual := config.SubnetMap{{Real: netip.MustParsePrefix("10.2.0.0/16"), Virtual: netip.MustParsePrefix("100.64.0.0/16")}}
	got, err := Annotations(TrimSelf(kubernetesNode("10.66.23.31")), nil, &pods.Known{Publish: true, Prefixes: prefixes("10.2.3.0/24", "10.2.0.0/15")}, virtual)
	if err == nil || !strings.Contains(err.Error(), "only a part of 10.2.0.0/15 is in 10.2.0.0/16") || got[PodCIDRsAnnotation] != "100.64.3.0/24" {
		t.Errorf("%v, error %v", got, err)
	}
}

// TestNothingIsPublishedBeforeThePrefixesAreKnown keeps a new node from claiming its
// spec.podCIDRs while its pods may have other prefixes.
func TestNothingIsPublishedBeforeThePrefixesAreKnown(t *testing.T) {
	said := publications[:1]
	published := map[string]string{
		"gcp.wireguard.semaphore.uw.io/pubKey":   key(1).String(),
		"gcp.wireguard.semaphore.uw.io/endpoint": "10.66.23.31:51820",
	}
	merged := func(prefixes string) map[string]string {
		m := maps.Clone(published)
		m[PodCIDRsAnnotation] = prefixes
		return m
	}
	virtual := config.SubnetMap{{Real: netip.MustParsePrefix("10.2.0.0/16"), Virtual: netip.MustParsePrefix("100.64.0.0/16")}}
	mapped := func(prefixes string) map[string]string {
		m := merged(prefixes)
		m[config.SubnetMapAnnotation] = virtual.String()
		return m
	}
	for _, c := range []struct {
		name    string
		carried map[string]string
		pods    *pods.Known
		virtual config.SubnetMap
		want    map[string]string
	}{
		{"a new node", nil, nil, nil, map[string]string{}},
		{"one whose specification is right", nil, &pods.Known{}, nil, published},
		{"one with other prefixes", nil, &pods.Known{Publish: true, Prefixes: prefixes("10.2.9.0/26")}, nil, merged("10.2.9.0/26")},
		{"one with none yet", nil, &pods.Known{Publish: true}, nil, merged("")},
		{"one that has published before", map[string]string{PublicKeyAnnotation("gcp"): "before"}, nil, nil, published},
		{"one that has published its prefixes", map[string]string{PodCIDRsAnnotation: "10.2.9.0/26"}, nil, nil, merged("10.2.9.0/26")},
		{"a new node of a cluster with a map", nil, nil, virtual, map[string]string{}},
		{"one with a map whose specification is right", nil, &pods.Known{}, virtual, mapped("100.64.3.0/24")},
		{"one with a map and other prefixes", nil, &pods.Known{Publish: true, Prefixes: prefixes("10.1.9.0/26", "10.2.9.0/26", "192.168.0.0/24")}, virtual, mapped("10.1.9.0/26,100.64.9.0/26,192.168.0.0/24")},
		{"one that has published by the map", map[string]string{PodCIDRsAnnotation: "100.64.9.0/26", config.SubnetMapAnnotation: virtual.String()}, nil, virtual, mapped("100.64.9.0/26")},
		{"one that has published without the map", map[string]string{PodCIDRsAnnotation: "10.2.9.0/26"}, nil, virtual, mapped("100.64.9.0/26")},
		{"one that has published by another map", map[string]string{PodCIDRsAnnotation: "100.65.9.0/26", config.SubnetMapAnnotation: "10.2.0.0/16=100.65.0.0/16"}, nil, virtual, mapped("100.64.9.0/26")},
		{"one whose map was removed", map[string]string{PodCIDRsAnnotation: "100.64.9.0/26", config.SubnetMapAnnotation: virtual.String()}, nil, nil, merged("10.2.9.0/26")},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := kubernetesNode("10.66.23.31")
			maps.Copy(n.Annotations, c.carried)
			got, err := Annotations(TrimSelf(n), said, c.pods, c.virtual)
			if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

// TestPlainPodCIDRs publishes only what the admission policy accepts as the node's own.
func TestPlainPodCIDRs(t *testing.T) {
	for texts, want := range map[string]bool{
		"":                            false,
		"10.2.3.0/24":                 true,
		"10.2.3.0/24,fd02:0:0:3::/64": true,
		"10.2.3.7/24":                 false, // not masked
		"fd02:0:0:3:0::/64":           false, // not the shortest form
		"10.0.0.0/8":                  false, // too wide
		"10.2.3.0/24,x":               false,
	} {
		if got := plain(strings.FieldsFunc(texts, func(r rune) bool { return r == ',' })); got != want {
			t.Errorf("%q: %v", texts, got)
		}
	}
}

func TestTrimSelf(t *testing.T) {
	n := kubernetesNode("10.66.23.31")
	n.Annotations["gcp.wireguard.semaphore.uw.io/pubKey"] = "x"
	got := TrimSelf(n)
	want := Self{
		Name: "aws-1", UID: "u1", InternalIPs: []netip.Addr{netip.MustParseAddr("10.66.23.31")},
		ExternalIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		Annotations: map[string]string{"gcp.wireguard.semaphore.uw.io/pubKey": "x"},
		PodCIDRs:    []netip.Prefix{netip.MustParsePrefix("10.2.3.0/24")}, Plain: true,
	}
	if !got.Equal(want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, LastHeartbeatTime: metav1.Now()}}
	if !TrimSelf(n).Equal(want) {
		t.Error("a heartbeat changes the node")
	}
	n.UID = "u2"
	if TrimSelf(n).Equal(want) {
		t.Error("a recreated node is taken for the old one")
	}
}

// writes counts the write requests.
func writes(c *fake.Clientset) (n int) {
	for _, a := range c.Actions() {
		switch a.GetVerb() {
		case "get", "list", "watch":
		default:
			n++
		}
	}
	return n
}

func TestPublisher(t *testing.T) {
	client := fake.NewClientset(kubernetesNode("10.66.23.31"))
	nodes := client.CoreV1().Nodes()
	get := func() *corev1.Node {
		n, err := nodes.Get(context.Background(), "aws-1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	known := false
	here := &pods.Known{}
	p := NewPublisher(PublisherConfig{
		Pods: func() *pods.Known { return here }, Nodes: nodes, Publications: func() []Publication { return publications }, Logger: slog.New(slog.DiscardHandler),
		Self: func() (Self, bool) { return TrimSelf(get()), known },
	})
	pass := func(wantWrites int) {
		t.Helper()
		before := writes(client)
		if err := p.Reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := writes(client) - before; got != wantWrites {
			t.Fatalf("%d writes, want %d", got, wantWrites)
		}
	}
	want := map[string]string{
		"node.alpha.kubernetes.io/ttl":             "0",
		"gcp.wireguard.semaphore.uw.io/pubKey":     key(1).String(),
		"gcp.wireguard.semaphore.uw.io/endpoint":   "10.66.23.31:51820",
		"merit.wireguard.semaphore.uw.io/pubKey":   key(2).String(),
		"merit.wireguard.semaphore.uw.io/endpoint": "10.66.23.31:51821",
	}
	check := func() {
		t.Helper()
		if diff := cmp.Diff(want, get().Annotations); diff != "" {
			t.Fatalf("annotations (-want +got):\n%s", diff)
		}
	}

	pass(0)
	if p.Published() {
		t.Error("published before the node was known")
	}
	known = true
	pass(1)
	check()
	pass(0)
	if !p.Published() {
		t.Error("not published")
	}

	n := get()
	delete(n.Annotations, "gcp.wireguard.semaphore.uw.io/pubKey")
	n.Annotations["merit.wireguard.semaphore.uw.io/endpoint"] = "203.0.113.9:1"
	if _, err := nodes.Update(t.Context(), n, metav1.UpdateOptions{FieldManager: "another-manager"}); err != nil {
		t.Fatal(err)
	}
	pass(1)
	check()

	here = &pods.Known{Publish: true, Prefixes: prefixes("10.2.3.0/26", "10.2.9.7/32", "fd02::3:0/122")}
	pass(1)
	want = maps.Clone(want)
	want[PodCIDRsAnnotation] = "10.2.3.0/26,10.2.9.7/32,fd02::3:0/122"
	check()
	if got, published := TrimSelf(get()).Published(); !published || !slices.Equal(got, here.Prefixes) {
		t.Errorf("the node says %v, %v", got, published)
	}
	// A change within Spacing is delayed, and a pass without a change delays nothing.
	p.spacing = time.Hour
	last := here
	here = &pods.Known{Publish: true, Prefixes: prefixes("10.2.3.0/26")}
	pass(0)
	check()
	if due := p.Due(); time.Until(due) < 30*time.Minute || time.Until(due) > time.Hour {
		t.Errorf("the write is due at %v", due)
	}
	here = last
	pass(0)
	if due := p.Due(); !due.IsZero() {
		t.Errorf("nothing is to be written, at %v", due)
	}
	p.spacing = 0
	// Unknown prefixes retain the annotation.
	published := here
	here = nil
	pass(0)
	check()
	if p.Published() {
		t.Error("published what isn't known")
	}
	here = published
	pass(0)
	here = &pods.Known{Publish: true}
	pass(1)
	want[PodCIDRsAnnotation] = ""
	check()
	pass(0)
	here = &pods.Known{}
	pass(1)
	delete(want, PodCIDRsAnnotation)
	check()
	here = published
	pass(1)
	want[PodCIDRsAnnotation] = "10.2.3.0/26,10.2.9.7/32,fd02::3:0/122"
	check()

	n = get()
	n.Status.Addresses[0].Address = "10.66.23.32"
	if _, err := nodes.Update(t.Context(), n, metav1.UpdateOptions{FieldManager: "kubelet"}); err != nil {
		t.Fatal(err)
	}
	pass(1)
	want = maps.Clone(want)
	want["gcp.wireguard.semaphore.uw.io/endpoint"] = "10.66.23.32:51820"
	want["merit.wireguard.semaphore.uw.io/endpoint"] = "10.66.23.32:51821"
	check()

	if err := p.Withdraw(t.Context(), "aws-1"); err != nil {
		t.Fatal(err)
	}
	want = map[string]string{"node.alpha.kubernetes.io/ttl": "0"}
	check()
	if err := p.Withdraw(t.Context(), "aws-2"); err != nil {
		t.Errorf("withdrawing from a node that is gone: %v", err)
	}
}

// TestPublisherAppliesAsClientGoDoes compares the request with that of client-go's own
// types, byte by byte.
func TestPublisherAppliesAsClientGoDoes(t *testing.T) {
	type request struct {
		Method, URL, Body string
		Header            http.Header
	}
	sent := make(chan request, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodPatch {
			sent <- request{r.Method, r.URL.String(), string(body), r.Header}
			_, _ = w.Write(body) // as it is stored
			return
		}
		_, _ = w.Write([]byte(`{"kind":"Node","apiVersion":"v1","metadata":{"name":"aws-1","uid":"u1"}}`))
	}))
	t.Cleanup(server.Close)
	clients, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	nodes := clients.CoreV1().Nodes()
	p := NewPublisher(PublisherConfig{
		Pods: func() *pods.Known { return &pods.Known{} }, Nodes: nodes, Logger: slog.New(slog.DiscardHandler),
		Publications: func() []Publication { return publications },
		Self:         func() (Self, bool) { return TrimSelf(kubernetesNode("10.66.23.31")), true },
	})
	theirs := applycorev1.Node("aws-1").WithUID("u1")
	check := func(body string) {
		t.Helper()
		ours := <-sent
		if _, err := nodes.Apply(t.Context(), theirs, metav1.ApplyOptions{FieldManager: "semaphore-wireguard", Force: true}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(<-sent, ours); diff != "" {
			t.Errorf("request (-client-go's +ours):\n%s", diff)
		}
		if ours.Body != body {
			t.Errorf("body %s, want %s", ours.Body, body)
		}
	}

	if _, err := p.apply(t.Context(), "aws-1", "u1", nil); err != nil {
		t.Fatal(err)
	}
	check(`{"kind":"Node","apiVersion":"v1","metadata":{"name":"aws-1","uid":"u1"}}`)
	if err := p.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	theirs.WithAnnotations(map[string]string{
		"gcp.wireguard.semaphore.uw.io/pubKey":     key(1).String(),
		"gcp.wireguard.semaphore.uw.io/endpoint":   "10.66.23.31:51820",
		"merit.wireguard.semaphore.uw.io/pubKey":   key(2).String(),
		"merit.wireguard.semaphore.uw.io/endpoint": "10.66.23.31:51821",
	})
	check(`{"kind":"Node","apiVersion":"v1","metadata":{"name":"aws-1","uid":"u1","annotations":{` +
		`"gcp.wireguard.semaphore.uw.io/endpoint":"10.66.23.31:51820","gcp.wireguard.semaphore.uw.io/pubKey":"` + key(1).String() + `",` +
		`"merit.wireguard.semaphore.uw.io/endpoint":"10.66.23.31:51821","merit.wireguard.semaphore.uw.io/pubKey":"` + key(2).String() + `"}}}`)
}

// A missing device, or one without a key, has no endpoint. The annotations of an earlier
// process are retained: its kernel device may still work.
func TestPublisherRetainsUnknown(t *testing.T) {
	before := kubernetesNode("10.66.23.31")
	carried := map[string]string{
		"gcp.wireguard.semaphore.uw.io/pubKey":   key(7).String(),
		"gcp.wireguard.semaphore.uw.io/endpoint": "10.66.23.31:51829",
	}
	maps.Copy(before.Annotations, carried)
	client := fake.NewClientset(before)
	nodes := client.CoreV1().Nodes()
	now := []Publication{{Remote: "gcp", PublicKey: key(1)}, {Remote: "merit", ListenPort: 51821}}
	p := NewPublisher(PublisherConfig{
		Pods: func() *pods.Known { return &pods.Known{} }, Nodes: nodes, Publications: func() []Publication { return now }, Logger: slog.New(slog.DiscardHandler),
		Self: func() (Self, bool) {
			n, err := nodes.Get(t.Context(), "aws-1", metav1.GetOptions{})
			return TrimSelf(n), err == nil
		},
	})
	check := func(want map[string]string, published bool) {
		t.Helper()
		if err := p.Reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		n, err := nodes.Get(t.Context(), "aws-1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, TrimSelf(n).Annotations); diff != "" || p.Published() != published {
			t.Errorf("published: %v, annotations (-want +got):\n%s", p.Published(), diff)
		}
	}
	check(carried, false)
	check(carried, false)
	now = publications
	check(map[string]string{
		"gcp.wireguard.semaphore.uw.io/pubKey":     key(1).String(),
		"gcp.wireguard.semaphore.uw.io/endpoint":   "10.66.23.31:51820",
		"merit.wireguard.semaphore.uw.io/pubKey":   key(2).String(),
		"merit.wireguard.semaphore.uw.io/endpoint": "10.66.23.31:51821",
	}, true)
}

// admission removes an annotation from each write.
type admission struct{ Nodes }

func (a admission) Patch(ctx context.Context, name string, of types.PatchType, data []byte, options metav1.PatchOptions, subresources ...string) (*corev1.Node, error) {
	n, err := a.Nodes.Patch(ctx, name, of, data, options, subresources...)
	if err == nil {
		n = n.DeepCopy()
		delete(n.Annotations, PublicKeyAnnotation("gcp"))
	}
	return n, err
}

// TestPublisherReportsWhatAdmissionChanges has an admission policy that removes an annotation of each
// write: the node isn't published, and the write isn't repeated soon.
func TestPublisherReportsWhatAdmissionChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(kubernetesNode("10.66.23.31"))
		p := NewPublisher(PublisherConfig{
			Pods: func() *pods.Known { return &pods.Known{} }, Nodes: admission{client.CoreV1().Nodes()}, Publications: func() []Publication { return publications },
			Logger: slog.New(slog.DiscardHandler), Self: func() (Self, bool) { return TrimSelf(kubernetesNode("10.66.23.31")), true },
		})
		for range 60 {
			if err := p.Reconcile(t.Context()); err == nil || p.Published() {
				t.Fatalf("published: %v, error %v", p.Published(), err)
			}
			time.Sleep(time.Minute)
		}
		if n := writes(client); n < 4 || n > 7 {
			t.Errorf("%d writes in an hour, want one each ten minutes", n)
		}
	})
}

// TestPublisherOfAPolledNode writes once until the next poll can show it: no client has undone the write.
func TestPublisherOfAPolledNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		read := kubernetesNode("10.66.23.31")
		read.ResourceVersion = "7"
		client := fake.NewClientset(read)
		p := NewPublisher(PublisherConfig{
			Pods: func() *pods.Known { return &pods.Known{} }, Nodes: client.CoreV1().Nodes(), Publications: func() []Publication { return publications },
			Logger: slog.New(slog.DiscardHandler), Self: func() (Self, bool) { return TrimSelf(read), true }, Polled: func() time.Duration { return 2 * time.Minute },
		})
		for range 120 {
			if err := p.Reconcile(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if n := writes(client); n != 1 {
			t.Errorf("%d writes", n)
		}
	})
}

// TestPublisherWaitsForOneThatRemovesAnnotations has a client that removes annotations after
// each write.
func TestPublisherWaitsForOneThatRemovesAnnotations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(kubernetesNode("10.66.23.31"))
		nodes := client.CoreV1().Nodes()
		get := func() *corev1.Node {
			n, err := nodes.Get(context.Background(), "aws-1", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		said := slices.Clone(publications)
		p := NewPublisher(PublisherConfig{
			Pods: func() *pods.Known { return &pods.Known{} }, Nodes: nodes, Publications: func() []Publication { return said },
			Logger: slog.New(slog.DiscardHandler), Self: func() (Self, bool) { return TrimSelf(get()), true },
		})
		theirs := 0
		remove := func() {
			n := get()
			if _, set := n.Annotations[PublicKeyAnnotation("gcp")]; set {
				delete(n.Annotations, PublicKeyAnnotation("gcp"))
				if _, err := nodes.Update(t.Context(), n, metav1.UpdateOptions{FieldManager: "another-manager"}); err != nil {
					t.Fatal(err)
				}
				theirs++
			}
		}
		reconcile := func(d time.Duration) (n int, err error) {
			before := writes(client) - theirs
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
				err = p.Reconcile(t.Context())
				remove()
			}
			return writes(client) - theirs - before, err
		}
		n, err := reconcile(20 * time.Second)
		if n < 4 || n > 10 || err == nil || !strings.Contains(err.Error(), "annotations of node aws-1: an admission policy or another client changes it after each write") {
			t.Errorf("%d writes in 20 s, error %v; want a few", n, err)
		}
		if n, _ := reconcile(30 * time.Minute); n > 16 {
			t.Errorf("%d writes in half an hour", n)
		}
		// Another key doesn't wait.
		said[0].PublicKey = key(3)
		if n, _ := reconcile(100 * time.Millisecond); n != 1 {
			t.Errorf("%d writes of another key", n)
		}
	})
}
