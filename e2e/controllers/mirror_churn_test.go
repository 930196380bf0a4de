package controllers_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// churn makes random changes to services and slices of the three clusters, from a seed that
// is logged. A service of one name is by turns to mirror, global, headless, without ports in
// common, or deleted.
type churn struct {
	b    *mirrorBed
	rand *rand.Rand
	uid  int
}

func (b *mirrorBed) newChurn(t *testing.T) *churn {
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
		return removeService(ctx, cluster, namespace, name)
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
			// Some are addresses of another cluster.
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
	err := putService(ctx, cluster, namespace, s, all...)
	if err != nil && strings.Contains(err.Error(), "may not change once set") {
		// A service can't become headless, or stop being headless.
		return removeService(ctx, cluster, namespace, name)
	}
	if err != nil && strings.Contains(err.Error(), "is invalid") {
		return nil
	}
	return err
}

// testRandom runs random histories, each from the end of the last one.
func (b *mirrorBed) testRandom(t *testing.T) {
	c := b.newChurn(t)
	i := b.start(t, nil)
	for range 6 {
		for range 40 {
			must(t, c.step(t.Context()))
		}
		b.settled(t, i)
		if c.rand.IntN(2) == 0 {
			i.stop()
			i = b.start(t, nil)
		}
	}
}

// steady creates services in all three clusters that are never deleted, and returns their
// names.
func (b *mirrorBed) steady(t *testing.T) []string {
	t.Helper()
	var names []string
	for n := range 12 {
		s := svc(fmt.Sprintf("s%d", n))
		if n%2 == 0 {
			global(s)
		}
		names = append(names, s.Name)
		for i, c := range []*testbed.Cluster{b.aws, b.merit, b.gcp} {
			must(t, putService(t.Context(), c, "steady", s.DeepCopy(), slice(s, s.Name, fmt.Sprintf("10.%d.200.%d", []int{4, 6, 2}[i], 1+n))))
		}
	}
	return names
}

// mirrorReplica prepares a replica of the program in gcp.
func (b *mirrorBed) mirrorReplica(t *testing.T, name string, port int) *programs.Program {
	t.Helper()
	return b.replica(t, programs.ServiceMirror, name, port, b.gcp, b.aws, b.merit)
}

// testKills kills the program a dozen times while services change.
func (b *mirrorBed) testKills(t *testing.T) {
	names := b.steady(t)
	r := b.mirrorReplica(t, "killed", 8081)
	must(t, r.Start())
	cfg := b.config(t)
	b.settledWith(t, cfg)
	seen := b.record(t)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- b.shuffle(ctx, names) }()
	for range 12 {
		// The times range from before the first read until during writes.
		<-time.After(time.Duration(50+rand.IntN(900)) * time.Millisecond)
		r.Kill()
		must(t, r.Start())
	}
	cancel()
	must(t, <-done)
	b.settledWith(t, cfg)
	b.undisturbed(t, seen, false)
}

// shuffle changes ports and endpoints of the services of steady until ctx ends.
func (b *mirrorBed) shuffle(ctx context.Context, names []string) error {
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

// testFlapping interrupts the API server of merit several times: it is killed, which closes
// its connections, or cut off, which doesn't.
func (b *mirrorBed) testFlapping(t *testing.T) {
	b.steady(t)
	r := b.mirrorReplica(t, "flapped", 8082)
	must(t, r.Start())
	cfg := b.config(t)
	b.settledWith(t, cfg)
	seen := b.record(t)
	for round := range 6 {
		b.merit.StopAPI()
		<-time.After(time.Duration(rand.IntN(3000)) * time.Millisecond)
		must(t, b.merit.StartAPI(t.Context()))
		<-time.After(time.Duration(rand.IntN(3000)) * time.Millisecond)
		must(t, b.merit.CutAPI())
		<-time.After(time.Duration(rand.IntN(3000)) * time.Millisecond)
		must(t, b.merit.RestoreAPI())
		if round%2 == 0 {
			// The cut may have come before the replica has read merit at all.
			r.Kill()
			must(t, r.Start())
		}
	}
	// In contact again, its changes count.
	s := svc("late")
	must(t, putService(t.Context(), b.merit, "steady", s, slice(s, "late", "10.6.0.1")))
	b.leadsTo(t, "merit-steady-73736d-late", "10.6.0.1")
	b.undisturbed(t, seen, true, "merit-steady-73736d-late")
	// The next leader need not wait until the lease has expired.
	must(t, r.Stop(t.Context()))
}
