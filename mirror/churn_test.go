package mirror

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// churn makes random changes to services and slices of the three clusters,
// from a seed that is logged. Services of one name take turns at being to
// mirror, global, headless, without ports in common, or gone.
type churn struct {
	b    *bed
	rand *rand.Rand
	uid  int
}

func (b *bed) newChurn(t *testing.T) *churn {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return &churn{b: b, rand: rand.New(rand.NewPCG(seed, 0))}
}

func (c *churn) step(ctx context.Context) error {
	clusters := []*testbed.Cluster{c.b.aws, c.b.merit, c.b.gcp}
	at := c.rand.IntN(len(clusters))
	cluster := clusters[at]
	namespace := fmt.Sprintf("churn-%d", c.rand.IntN(2))
	name := fmt.Sprintf("s%d", c.rand.IntN(4))
	if c.rand.IntN(6) == 0 {
		return remove(ctx, cluster, namespace, name)
	}
	s := svc(name)
	switch {
	case c.rand.IntN(2) == 0:
		global(s)
		if c.rand.IntN(3) == 0 {
			localFirst(s)
		}
	case c.rand.IntN(4) == 0:
		s.Labels[globalMark] = "true"
	}
	if c.rand.IntN(6) == 0 {
		headless(s)
	}
	for _, p := range []corev1.ServicePort{{Name: "metrics", Port: 9090, Protocol: corev1.ProtocolTCP}, {Name: "other", Port: 80, Protocol: corev1.ProtocolTCP}} {
		if c.rand.IntN(4) == 0 {
			s.Spec.Ports = append(s.Spec.Ports[:len(s.Spec.Ports)-c.rand.IntN(2)], p)
		}
	}
	var all []*discoveryv1.EndpointSlice
	for i := range c.rand.IntN(3) {
		var ips []string
		for range c.rand.IntN(5) {
			c.uid++
			// Some are another cluster's.
			of := at
			if c.rand.IntN(10) == 0 {
				of = c.rand.IntN(3)
			}
			ips = append(ips, fmt.Sprintf("10.%d.%d.%d", []int{4, 6, 2}[of], c.uid/250%250, 1+c.uid%250))
		}
		sl := slice(s, fmt.Sprintf("%s-%d", name, i), ips...)
		for e := range sl.Endpoints {
			ready := c.rand.IntN(4) > 0
			sl.Endpoints[e].Conditions.Ready = &ready
		}
		all = append(all, sl)
	}
	err := put(ctx, cluster, namespace, s, all...)
	if err != nil && strings.Contains(err.Error(), "may not change once set") {
		// Headless or not is for life; so are the ports' uniqueness rules.
		return remove(ctx, cluster, namespace, name)
	}
	if err != nil && strings.Contains(err.Error(), "is invalid") {
		return nil
	}
	return err
}

// testRandom runs random histories, each from where the last one ended, and
// compares what is there in the end with a computation from nothing.
func testRandom(t *testing.T, b *bed) {
	c := b.newChurn(t)
	i := b.start(t, nil)
	for range 6 {
		for range 40 {
			must(t, c.step(t.Context()))
		}
		b.inOrder(t, i)
		if c.rand.IntN(2) == 0 {
			i.stop()
			i = b.start(t, nil)
		}
	}
}

// steady creates services that stay, in all three clusters, and returns their
// names.
func (b *bed) steady(t *testing.T) []string {
	t.Helper()
	var names []string
	for n := range 12 {
		s := svc(fmt.Sprintf("s%d", n))
		if n%2 == 0 {
			global(s)
		}
		names = append(names, s.Name)
		for i, c := range []*testbed.Cluster{b.aws, b.merit, b.gcp} {
			must(t, put(t.Context(), c, "steady", s.DeepCopy(), slice(s, s.Name, fmt.Sprintf("10.%d.200.%d", []int{4, 6, 2}[i], 1+n))))
		}
	}
	return names
}

// replica prepares the built program on a node of gcp.
func (b *bed) replica(t *testing.T, name string, port int) *programs.Program {
	t.Helper()
	b.once.Do(func() {
		var err error
		b.binary, err = programs.Build(t.Context(), "semaphore-service-mirror", b.tb.Dir(), "-race")
		must(t, err)
		b.node, err = b.gcp.AddNode(t.Context(), testbed.NodeConfig{})
		must(t, err)
	})
	r, err := programs.Prepare(t.Context(), programs.Config{
		Name: programs.ServiceMirror, Replica: name, Binary: b.binary, Port: port,
	}, b.node, b.aws, b.merit)
	must(t, err)
	t.Cleanup(func() {
		if p := r.Process(); p != nil {
			p.Kill()
			if log := p.Log(); strings.Contains(log, "DATA RACE") || strings.Contains(log, "panic:") {
				t.Errorf("%s:\n%s", name, log)
			}
		}
	})
	return r
}

// testKills kills the program again and again while its clusters change.
func testKills(t *testing.T, b *bed) {
	names := b.steady(t)
	r := b.replica(t, "killed", 8081)
	must(t, r.Start())
	cfg := b.config(t)
	wait(t, "what must be", func() error { return b.differs(t.Context(), cfg) })
	seen := b.record(t, func(string) bool { return false })

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- b.shuffle(ctx, names) }()
	for range 12 {
		// From before it has read anything to in the midst of writing.
		<-time.After(time.Duration(50+rand.IntN(900)) * time.Millisecond)
		r.Kill()
		must(t, r.Start())
	}
	cancel()
	must(t, <-done)
	wait(t, "what must be", func() error { return b.differs(t.Context(), cfg) })
	seen.check(t)
}

// shuffle changes ports and endpoints of services that stay until ctx ends.
func (b *bed) shuffle(ctx context.Context, names []string) error {
	for n := 0; ctx.Err() == nil; n++ {
		i := rand.IntN(3)
		c, subnet := []*testbed.Cluster{b.aws, b.merit, b.gcp}[i], []int{4, 6, 2}[i]
		name := names[rand.IntN(len(names))]
		s, err := c.Client().CoreV1().Services("steady").Get(context.WithoutCancel(ctx), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if rand.IntN(3) == 0 {
			s.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80 + rand.Int32N(3), Protocol: corev1.ProtocolTCP}}
			if _, err := c.Client().CoreV1().Services("steady").Update(context.WithoutCancel(ctx), s, metav1.UpdateOptions{}); err != nil {
				return err
			}
		}
		ips := []string{fmt.Sprintf("10.%d.%d.%d", subnet, n/250%200, 1+n%250), fmt.Sprintf("10.%d.201.%d", subnet, 1+n%250)}
		if err := putSlice(context.WithoutCancel(ctx), c, "steady", slice(s, fmt.Sprintf("%s-%d", name, rand.IntN(2)), ips...)); err != nil {
			return err
		}
	}
	return nil
}

// testFlapping has the API server of merit come and go: killed, which breaks
// connections, and cut off, which leaves them hanging.
func testFlapping(t *testing.T, b *bed) {
	b.steady(t)
	r := b.replica(t, "flapped", 8082)
	must(t, r.Start())
	cfg := b.config(t)
	wait(t, "what must be", func() error { return b.differs(t.Context(), cfg) })
	seen := b.record(t, func(string) bool { return true })
	for round := range 6 {
		b.merit.StopAPI()
		<-time.After(time.Duration(rand.IntN(3000)) * time.Millisecond)
		must(t, b.merit.StartAPI(t.Context()))
		<-time.After(time.Duration(rand.IntN(3000)) * time.Millisecond)
		must(t, b.merit.CutAPI())
		<-time.After(time.Duration(rand.IntN(3000)) * time.Millisecond)
		must(t, b.merit.RestoreAPI())
		if round%2 == 0 {
			// The cut may have come before it has heard of merit at all.
			r.Kill()
			must(t, r.Start())
		}
	}
	// It is heard of again, and what changes there counts.
	s := svc("late")
	must(t, put(t.Context(), b.merit, "steady", s, slice(s, "late", "10.6.0.1")))
	b.leadsTo(t, "merit-steady-73736d-late", "10.6.0.1")
	seen.check(t, "service merit-steady-73736d-late ADDED")
	// Nobody has to wait until its lease has expired.
	must(t, r.Stop(t.Context()))
}

// testReplicas has two replicas agree on one that writes, and hand over.
func testReplicas(t *testing.T, b *bed) {
	replicas := []*programs.Program{b.replica(t, "one", 8083), b.replica(t, "two", 8084)}
	// A replica that doesn't answer in time, or has just lost the lease to the other one,
	// is asked again.
	leader := func() (leads *programs.Program) {
		t.Helper()
		wait(t, "one leader", func() error {
			count := 0
			for _, r := range replicas {
				if yes, err := r.Leads(t.Context()); err == nil && yes {
					leads = r
					count++
				}
			}
			if count != 1 {
				return fmt.Errorf("%d leaders", count)
			}
			return nil
		})
		return leads
	}
	for _, r := range replicas {
		must(t, r.Start())
	}
	leader()
	s := svc("web")
	must(t, put(t.Context(), b.aws, "shop", s, slice(s, "web", "10.4.0.1")))
	b.leadsTo(t, "aws-shop-73736d-web", "10.4.0.1")

	lease := func() *coordinationv1.LeaseSpec {
		t.Helper()
		l, err := b.gcp.Client().CoordinationV1().Leases(home).Get(t.Context(), managedBy, metav1.GetOptions{})
		must(t, err)
		return &l.Spec
	}
	first, held := leader(), lease()
	must(t, first.Stop(t.Context()))
	// It has expired only when nobody gave it up, and nobody else took it since.
	if now := lease(); held.HolderIdentity == nil || *held.HolderIdentity == "" || cmp.Diff(held.HolderIdentity, now.HolderIdentity) == "" &&
		cmp.Diff(held.AcquireTime, now.AcquireTime) == "" {
		t.Errorf("the lease was not given up: %+v", now)
	}
	must(t, putSlice(t.Context(), b.aws, "shop", slice(s, "web", "10.4.0.1", "10.4.0.2")))
	b.leadsTo(t, "aws-shop-73736d-web", "10.4.0.1", "10.4.0.2")
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		if _, err := leader().Get(t.Context(), path); err != nil {
			t.Error(err)
		}
	}
}
