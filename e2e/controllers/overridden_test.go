package controllers_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	calico "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

// apply applies admission policies until the returned function is called, at the latest at
// the end of the test.
func apply(t *testing.T, c *testbed.Cluster, kind, name, file string) (end func()) {
	t.Helper()
	must(t, c.Apply(t.Context(), file))
	over := false
	end = func() {
		if over {
			return
		}
		over = true
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), settle)
		defer cancel()
		if _, err := c.Kubectl(ctx, "delete", kind+","+kind+"binding", name); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(end)
	return end
}

// undo calls change for each event of a watch, as a controller that insists on it, until the
// test ends.
func undo(t *testing.T, w watch.Interface, err error, change func(context.Context, watch.Event)) {
	t.Helper()
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range w.ResultChan() {
			change(ctx, e)
		}
	}()
	t.Cleanup(func() {
		cancel()
		w.Stop()
		<-done
	})
}

// testOverridden has an admission policy that sets a field of all Services, and adds a label.
func (b *mirrorBed) testOverridden(t *testing.T) {
	web := svc("web")
	must(t, putService(t.Context(), b.aws, "shop", svc("before"), slice(svc("before"), "before-1", "10.4.1.1")))
	i := b.start(t, nil)
	b.service(t, "aws-shop-73736d-before")
	services := b.gcp.Client().CoreV1().Services(home)
	end := apply(t, b.gcp, "mutatingadmissionpolicy", "distribution", "../../mirror/testdata/distribution.yaml")
	inForce := func(want bool) {
		t.Helper()
		wait(t, "the policy to begin or end", func() error {
			s, err := services.Create(t.Context(), &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Name: "test", Labels: map[string]string{"a": "b"}}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
			}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if is := err == nil && s.Labels["team"] != ""; err == nil && is != want {
				err = fmt.Errorf("in force: %v", is)
			}
			return err
		})
	}
	inForce(true)
	must(t, putService(t.Context(), b.aws, "shop", web, slice(web, "web-1", "10.4.0.1")))
	if s := b.service(t, webName); s.Labels["team"] != "network" || s.Spec.TrafficDistribution == nil {
		t.Fatalf("the policy has not changed the Service: %v", s)
	}
	b.leadsTo(t, webName, "10.4.0.1")
	before := i.writesOf(t, "service", "patch")
	for n := range 20 {
		address := fmt.Sprintf("10.4.3.%d", n+1)
		must(t, putSlice(t.Context(), b.aws, "shop", slice(web, "web-1", address)))
		b.leadsTo(t, webName, address)
	}
	if n := i.writesOf(t, "service", "patch") - before; n != 0 {
		t.Errorf("%d patches of the Service for 20 changes of endpoints, want none", n)
	}
	i.listed(t, webName, func(s statuspage.Service) bool { return len(s.Overridden) == 1 })
	wait(t, "the Event", func() error {
		for _, e := range eventsAbout(t, b.gcp, webName) {
			if e.Reason == "Overridden" && strings.Contains(e.Message, "changes it after each write") {
				return nil
			}
		}
		return errors.New("none")
	})
	// A Service without managed fields from before the policy gets the label, too.
	must(t, putService(t.Context(), b.aws, "shop", svc("before", ports(corev1.ServicePort{Name: "http", Port: 81, Protocol: corev1.ProtocolTCP}))))
	wait(t, "the changed port", func() error {
		s := b.service(t, "aws-shop-73736d-before")
		if s.Spec.Ports[0].Port != 81 || s.Labels["team"] == "" {
			return fmt.Errorf("%+v %v, %+v", s.Spec.Ports, s.Labels, i.Status().Services)
		}
		return nil
	})
	end()
	inForce(false)
}

// testOverriddenByAnother has a controller that sets a field of a Service and of its slice.
func (b *mirrorBed) testOverriddenByAnother(t *testing.T) {
	web := svc("web")
	must(t, putService(t.Context(), b.aws, "shop", web, slice(web, "web-1", "10.4.0.1")))
	i := b.start(t, nil)
	b.leadsTo(t, webName, "10.4.0.1")
	services, endpointSlices := b.gcp.Client().CoreV1().Services(home), b.gcp.Client().DiscoveryV1().EndpointSlices(home)
	theirs := metav1.PatchOptions{FieldManager: "their-controller"}
	patchService(t, b.gcp, home, webName, `{"spec":{"sessionAffinity":"ClientIP"}}`)
	wait(t, "the first repair", func() error {
		if s := b.service(t, webName); s.Spec.SessionAffinity != corev1.ServiceAffinityNone {
			return errors.New("not repaired")
		}
		return nil
	})
	b.quiet(t, i)
	before, beforeSlices := i.writesOf(t, "service", "patch"), i.writesOf(t, "endpointslice", "patch")
	w, err := services.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + webName})
	undo(t, w, err, func(ctx context.Context, e watch.Event) {
		if s, is := e.Object.(*corev1.Service); is && s.Spec.SessionAffinity != corev1.ServiceAffinityClientIP {
			_, _ = services.Patch(ctx, s.Name, types.MergePatchType, []byte(`{"spec":{"sessionAffinity":"ClientIP"}}`), theirs)
		}
	})
	name := b.slices(t, webName)[0].Name
	w, err = endpointSlices.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	undo(t, w, err, func(ctx context.Context, _ watch.Event) {
		_, _ = endpointSlices.Patch(ctx, name, types.MergePatchType, []byte(`{"ports":[{"port":1}]}`), theirs)
	})
	const time20s = 20 * time.Second
	timer := time.NewTimer(time20s)
	defer timer.Stop()
	<-timer.C
	n, m := i.writesOf(t, "service", "patch")-before, i.writesOf(t, "endpointslice", "patch")-beforeSlices
	t.Logf("patches in 20 s: %d of the Service, %d of the slice", n, m)
	if n > 9 || m > 9 {
		t.Errorf("%d patches of the Service and %d of the slice in 20 s, want a few", n, m)
	}
	i.listed(t, webName, func(s statuspage.Service) bool { return len(s.Overridden) == 2 })
	wait(t, "the Event", func() error {
		for _, e := range eventsAbout(t, b.gcp, webName) {
			if e.Reason == "Overridden" && strings.Contains(e.Message, "changes it after each write") {
				t.Log(e.Message)
				return nil
			}
		}
		return errors.New("none")
	})
	// A withdrawn endpoint doesn't wait.
	begin := time.Now()
	must(t, putSlice(t.Context(), b.aws, "shop", slice(web, "web-1", "10.4.0.2")))
	b.leadsTo(t, webName, "10.4.0.2")
	t.Logf("endpoints after %v", time.Since(begin))
}

// writesOf returns the number of write requests of a kind with a verb.
func (i *mirrorInstance) writesOf(t *testing.T, kind, verb string) int {
	t.Helper()
	all, _ := samples(t, i.Metrics(), "semaphore_service_mirror_writes_total")
	for _, s := range all {
		if s.labels["kind"] == kind && s.labels["verb"] == verb {
			return int(s.value)
		}
	}
	return 0
}

// testLabelled has an admission policy that adds a label to all network sets.
func (b *policyBed) testLabelled(t *testing.T) {
	for _, local := range []*testbed.Cluster{b.aws, b.gcp} {
		t.Run(local.Name, func(t *testing.T) {
			sets := b.sets(t, local)
			deletePods(t, b.merit)
			putPods(t, b.merit, running("ns", "p", "app", "10.6.0.1"), running("ns", "q", "app", "10.6.0.2"))
			i := b.start(t, local, nil, b.merit)
			expect(t, sets, contents{"merit-ns-app": set("merit", "ns", "app", "10.6.0.1", "10.6.0.2")})
			apply(t, local, "mutatingadmissionpolicy", "label-sets", "../../policy/testdata/label.yaml")
			wait(t, "the policy to be in force", func() error {
				s, err := sets.Create(t.Context(), &calico.GlobalNetworkSet{ObjectMeta: metav1.ObjectMeta{Name: "test", Labels: map[string]string{"a": "b"}}},
					metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
				if err == nil && s.Labels["team"] == "" {
					err = errors.New("not in force")
				}
				return err
			})
			must(t, deletePod(t.Context(), b.merit, "ns", "p"))
			expect(t, sets, contents{"merit-ns-app": set("merit", "ns", "app", "10.6.0.2")})
			putPods(t, b.merit, running("ns", "r", "app", "10.6.0.3"), running("ns", "s", "new", "10.6.0.4"))
			expect(t, sets, contents{
				"merit-ns-app": set("merit", "ns", "app", "10.6.0.2", "10.6.0.3"), "merit-ns-new": set("merit", "ns", "new", "10.6.0.4"),
			})
			for _, name := range []string{"merit-ns-app", "merit-ns-new"} {
				s, err := sets.Get(t.Context(), name, metav1.GetOptions{})
				must(t, err)
				if s.Labels["team"] != "network" {
					t.Errorf("labels of %s: %v", name, s.Labels)
				}
			}
			wait(t, "no failure", func() error {
				if failing := i.status(t, "merit").Failing; len(failing) > 0 {
					return fmt.Errorf("failing %v", failing)
				}
				return nil
			})
			deletePods(t, b.merit)
			expect(t, sets, contents{})
			i.stop()
		})
	}
}

// testNetAdded has an admission policy that adds a net to all network sets, while leaders change
// and a pod is deleted.
func (b *policyBed) testNetAdded(t *testing.T) {
	for _, local := range []*testbed.Cluster{b.aws, b.gcp} {
		t.Run(local.Name, func(t *testing.T) {
			sets := b.sets(t, local)
			deletePods(t, b.merit)
			putPods(t, b.merit, running("ns", "p", "app", "10.6.0.1"), running("ns", "q", "app", "10.6.0.2"))
			end := apply(t, local, "mutatingadmissionpolicy", "add-net", "../../policy/testdata/add-net.yaml")
			nets := func(want int) func() error {
				return func() error {
					s, err := sets.Create(t.Context(), &calico.GlobalNetworkSet{ObjectMeta: metav1.ObjectMeta{Name: "test"}, Spec: calico.GlobalNetworkSetSpec{Nets: []string{"10.6.0.1/32"}}},
						metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
					if err == nil && len(s.Spec.Nets) != want {
						err = fmt.Errorf("%d nets", len(s.Spec.Nets))
					}
					return err
				}
			}
			wait(t, "the policy to be in force", nets(2))
			i := b.start(t, local, nil, b.merit)
			expect(t, sets, contents{"merit-ns-app": set("merit", "ns", "app", "10.6.0.1", "10.6.0.2", "192.0.2.1")})
			before, err := sets.Get(t.Context(), "merit-ns-app", metav1.GetOptions{})
			must(t, err)
			for range 2 {
				i.stop()
				i = b.start(t, local, nil, b.merit)
				wait(t, "the report", func() error {
					if o := i.status(t, "merit").Overridden; len(o) != 1 {
						return fmt.Errorf("overridden %+v", o)
					}
					return nil
				})
			}
			must(t, deletePod(t.Context(), b.merit, "ns", "p"))
			expect(t, sets, contents{"merit-ns-app": set("merit", "ns", "app", "10.6.0.2", "192.0.2.1")})
			after, err := sets.Get(t.Context(), "merit-ns-app", metav1.GetOptions{})
			must(t, err)
			if after.UID != before.UID {
				t.Error("the set was deleted and created again")
			}
			end()
			wait(t, "the policy to be no longer in force", nets(1))
			deletePods(t, b.merit)
			expect(t, sets, contents{})
			i.stop()
		})
	}
}

// testRemovalRefused has an admission policy that refuses all patches.
func (b *policyBed) testRemovalRefused(t *testing.T) {
	sets := b.sets(t, b.gcp)
	putPods(t, b.merit, running("ns", "p", "app", "10.6.0.1"), running("ns", "q", "app", "10.6.0.2"))
	i := b.start(t, b.gcp, nil, b.merit)
	expect(t, sets, contents{"merit-ns-app": set("merit", "ns", "app", "10.6.0.1", "10.6.0.2")})
	end := apply(t, b.gcp, "validatingadmissionpolicy", "refuse-patches", "../../policy/testdata/refuse-patches.yaml")
	wait(t, "the refusal to be in force", func() error {
		_, err := sets.Patch(t.Context(), "merit-ns-app", types.MergePatchType, []byte(`{"metadata":{"annotations":{"a":"b"}}}`),
			metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			return errors.New("not refused")
		}
		return nil
	})
	must(t, deletePod(t.Context(), b.merit, "ns", "p"))
	expect(t, sets, contents{"merit-ns-app": set("merit", "ns", "app", "10.6.0.2")})
	putPods(t, b.merit, running("ns", "r", "app", "10.6.0.3"))
	wait(t, "the refusal in the status", func() error {
		if why := i.status(t, "merit").Failing["merit-ns-app"]; !strings.Contains(why, "refused by the test") {
			return fmt.Errorf("failing %v", i.status(t, "merit").Failing)
		}
		return nil
	})
	end()
	expect(t, sets, contents{"merit-ns-app": set("merit", "ns", "app", "10.6.0.2", "10.6.0.3")})
}

// testSetOverridden has a controller that sets the nets of a network set.
func (b *policyBed) testSetOverridden(t *testing.T) {
	sets := b.sets(t, b.aws)
	putPods(t, b.gcp, running("ns", "p", "app", "10.4.0.1"), running("ns", "q", "app", "10.4.0.2"))
	i := b.start(t, b.aws, nil, b.gcp)
	expect(t, sets, contents{"gcp-ns-app": set("gcp", "ns", "app", "10.4.0.1", "10.4.0.2")})
	w, err := sets.Watch(t.Context(), metav1.ListOptions{})
	undo(t, w, err, func(ctx context.Context, e watch.Event) {
		if s, is := e.Object.(*calico.GlobalNetworkSet); is && len(s.Spec.Nets) > 1 {
			_, _ = sets.Patch(ctx, s.Name, types.MergePatchType, []byte(`{"spec":{"nets":["10.4.0.1/32"]}}`), metav1.PatchOptions{FieldManager: "their-controller"})
		}
	})
	patches := func() (n int) {
		all, _ := samples(t, i.metrics, "semaphore_policy_writes_total")
		for _, s := range all {
			if s.labels["verb"] == "patch" {
				n = int(s.value)
			}
		}
		return n
	}
	before := patches()
	timer := time.NewTimer(15 * time.Second)
	defer timer.Stop()
	<-timer.C
	n := patches() - before
	t.Logf("%d patches in 15 s", n)
	if n > 9 {
		t.Errorf("%d patches in 15 s, want a few", n)
	}
	wait(t, "the report", func() error {
		if o := i.status(t, "gcp").Overridden; len(o) != 1 {
			return fmt.Errorf("overridden %+v after %d patches", o, patches()-before)
		}
		return nil
	})
	// A deleted pod leaves at once.
	begin := time.Now()
	must(t, deletePod(t.Context(), b.gcp, "ns", "p"))
	expect(t, sets, contents{"gcp-ns-app": set("gcp", "ns", "app", "10.4.0.2")})
	t.Logf("removed after %v", time.Since(begin))
}
