package scenarios_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/pathreport"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
)

// failover is a mesh of two nodes in each of two clusters. In gcp the service mirror
// runs, and a kube-proxy on each node, one of each mode that this kernel can. A global
// service has two pods in each cluster, a mirror those of aws.
type failover struct {
	*programs.Pair
	mirror *programs.Program
	local  []*testbed.Pod // of the global service, in gcp
	ports  int            // used for attempts
}

func startFailover(t *testing.T) *failover {
	t.Helper()
	nstest.Root(t)
	tb := testbed.Start(t, testbed.Config{}, tools.KubeProxy)
	t.Cleanup(func() { soundLogs(t, tb) })
	ctx := within(t, 5*time.Minute)
	p, err := programs.StartPair(ctx, tb, program(t, programs.WireGuard), 2, nil)
	must(t, err)
	f := &failover{Pair: p}
	must(t, programs.Grant(ctx, programs.ServiceMirror, p.AWS, p.GCP))
	f.mirror, err = programs.Prepare(ctx, programs.Config{
		Name: programs.ServiceMirror, Replica: "service-mirror", Binary: program(t, programs.ServiceMirror), Port: 8080,
	}, p.GCP.Nodes()[0], p.AWS)
	must(t, err)
	must(t, f.mirror.Start())
	for i, mode := range []string{"nftables", "iptables"} {
		node := p.GCP.Nodes()[i]
		_, err := node.StartKubeProxy(ctx, "--proxy-mode="+mode)
		must(t, err)
		pod, err := node.AddPod(ctx, testbed.PodConfig{})
		must(t, err)
		must(t, pod.Serve(ctx, programs.PodPort, nil))
		f.local = append(f.local, pod)
	}
	putService(t, p.AWS, "shop", service("web", "global-service=true"), p.Pods[:2]...)
	putService(t, p.GCP, "shop", service("web", "global-service=true"), f.local...)
	putService(t, p.AWS, "shop", service("only", "mirror-service=true"), p.Pods[:2]...)
	must(t, p.WaitConnected(within(t, time.Minute)))
	return f
}

// url waits for a service of the mirror namespace.
func (f *failover) url(t *testing.T, name string) string {
	t.Helper()
	n := &naming{Pair: f.Pair}
	return "http://" + net.JoinHostPort(n.clusterIP(t, name), "8888") + "/"
}

// asking is a test's client.
type asking struct{ *programs.Client }

func ask(t *testing.T, from *testbed.Pod, url string) *asking {
	t.Helper()
	a := &asking{programs.StartClient(t.Context(), from, url)}
	t.Cleanup(a.Stop)
	return a
}

// settled waits until all requests of so many seconds were answered by exactly these pods. It
// returns when the last one failed, or was answered by another pod; zero: none.
func (a *asking) settled(t *testing.T, since time.Time, seconds int, pods ...*testbed.Pod) (failed int, last time.Time) {
	t.Helper()
	want := map[string]bool{}
	for _, pod := range pods {
		want[pod.Name] = true
	}
	eventually(t, 4*time.Minute, "all requests to be answered", func(context.Context) error {
		began := time.Now().Add(-time.Duration(seconds) * time.Second)
		got := map[string]bool{}
		for _, r := range a.Since(began) {
			if r.Err != nil {
				return r.Err
			}
			got[r.By] = true
		}
		if began.Before(since) || !maps.Equal(got, want) {
			return fmt.Errorf("answered by %v", got)
		}
		return nil
	})
	return a.Failed(since)
}

// even returns when each of these pods had answered a request since a time.
func (a *asking) even(since time.Time, pods ...*testbed.Pod) time.Time {
	var last time.Time
	for _, pod := range pods {
		first := a.First(since, pod)
		if first.IsZero() {
			return first
		}
		if first.After(last) {
			last = first
		}
	}
	return last
}

func seconds(since, at time.Time) string {
	if at.IsZero() {
		return "never"
	}
	return fmt.Sprintf("%.1f s", at.Sub(since).Seconds())
}

// each does something to the paths between the nodes of gcp and all of aws.
func (f *failover) each(t *testing.T, do func(a, b *testbed.Node) error, gcp ...*testbed.Node) {
	t.Helper()
	for _, a := range gcp {
		for _, b := range f.AWS.Nodes() {
			must(t, do(a, b))
		}
	}
}

func (f *failover) status(ctx context.Context) (s statuspage.Mirror, err error) {
	err = f.mirror.Status(ctx, &s)
	return s, err
}

// says waits until the mirror reports so many reports and no withdrawn endpoint: a stall of
// this machine for two seconds is a temporary outage, too.
func (f *failover) says(t *testing.T, reports int) {
	t.Helper()
	eventually(t, repair, "nothing to be withdrawn", func(ctx context.Context) error {
		s, err := f.status(ctx)
		if err == nil && (len(s.Paths.Withdrawn) > 0 || s.Paths.Reports != reports) {
			err = fmt.Errorf("%+v, want %d reports", s.Paths, reports)
		}
		return err
	})
}

// outage unplugs something, waits until no request fails, plugs it in again, and prints how
// long that took for a client on each node.
func (f *failover) outage(t *testing.T, what string, unplug, plugIn func()) {
	t.Helper()
	url := f.url(t, "gl-shop-73736d-web")
	everybody := append(slices.Clone(f.local), f.Pods[:2]...)
	clients := []*asking{ask(t, f.Pods[2], url), ask(t, f.Pods[3], url)}
	modes := []string{"nftables", "iptables"}
	events := watchFailover(t, f.GCP, "gl-shop-73736d-web")
	// Endpoints that were withdrawn some minutes ago would be held for longer.
	must(t, f.mirror.Stop(within(t, repair)))
	must(t, f.mirror.Start())
	eventually(t, repair, "the mirror to be ready", f.mirror.Ready)
	begun := time.Now()
	for _, c := range clients {
		c.settled(t, begun, 2, everybody...)
	}
	at := time.Now()
	unplug()
	lost := f.attempts(t, url)
	for i, c := range clients {
		failed, last := c.settled(t, at, 5, f.local...)
		t.Logf("%s unplugged, %s: %d requests of 10 a second failed, the last one after %s: %s",
			what, modes[i], failed, seconds(at, last), failures(at, c.Since(at)))
	}
	t.Logf("meanwhile: %s", events.since(at))
	for _, port := range lost {
		if err := f.attempt(t, url, port, 10*time.Second); err != nil {
			t.Errorf("from port %d, of which an attempt got no answer before: %v", port, err)
		}
	}
	t.Logf("new attempts from %d ports of which attempts got no answer were answered", len(lost))
	f.refuses(t)
	defer func() { t.Logf("meanwhile: %s", events.since(at)) }()
	at = time.Now()
	plugIn()
	for i, c := range clients {
		failed, last := c.settled(t, at, 3, everybody...)
		t.Logf("%s plugged in, %s: used evenly after %s; %d requests failed, the last one after %s",
			what, modes[i], seconds(at, c.even(at, everybody...)), failed, seconds(at, last))
		c.Stop()
	}
	eventually(t, repair, "all endpoints to be back", func(ctx context.Context) error {
		s, err := f.status(ctx)
		if err == nil && len(s.Paths.Withdrawn) > 0 {
			err = fmt.Errorf("withdrawn: %+v", s.Paths.Withdrawn)
		}
		return err
	})
}

// refuses connects to the service with endpoints in aws only, which refuses at once.
func (f *failover) refuses(t *testing.T) {
	t.Helper()
	url := f.url(t, "aws-shop-73736d-only")
	for _, from := range f.Pods[2:] {
		eventually(t, repair, "a refusal", func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			began := time.Now()
			_, err := from.Get(ctx, url)
			if err == nil || !strings.Contains(err.Error(), "connection refused") {
				return fmt.Errorf("not refused: %w", err)
			}
			t.Logf("a service with no endpoint left refuses %s after %v", from.Name, time.Since(began).Round(time.Millisecond))
			return nil
		})
	}
}

// TestFailover causes one outage after the other, and counts failed requests.
func TestFailover(t *testing.T) {
	t.Parallel()
	f := startFailover(t)
	nodes := f.GCP.Nodes()
	t.Run("a cluster", func(t *testing.T) {
		f.outage(t, "a cluster", func() {
			f.each(t, f.Testbed.Drop, nodes...)
			must(t, f.AWS.CutAPI())
		}, func() {
			must(t, f.AWS.RestoreAPI())
			f.each(t, f.Testbed.Restore, nodes...)
		})
	})
	t.Run("its nodes", func(t *testing.T) {
		f.outage(t, "its nodes",
			func() { f.each(t, f.Testbed.Drop, nodes...) }, func() { f.each(t, f.Testbed.Restore, nodes...) })
	})
	t.Run("its API server", f.onlyAPI)
	t.Run("one direction", f.oneDirection)
	t.Run("large packets", f.largePackets)
	t.Run("one local node", f.oneNode)
	t.Run("an agent is restarted meanwhile", f.restarted)
	t.Run("with 1,000 local nodes", f.crowd)
	t.Run("drained", f.drained)
}

// onlyAPI cuts off the API server of aws for 15 s: nothing is withdrawn.
func (f *failover) onlyAPI(t *testing.T) {
	client := ask(t, f.Pods[2], f.url(t, "gl-shop-73736d-web"))
	must(t, f.AWS.CutAPI())
	at := time.Now()
	everybody := append(slices.Clone(f.local), f.Pods[:2]...)
	failed, _ := client.settled(t, at, 15, everybody...)
	f.says(t, 0)
	must(t, f.AWS.RestoreAPI())
	t.Logf("its API server unplugged for %s: %d requests failed", seconds(at, time.Now()), failed)
}

// oneNode cuts the cable of one node of gcp: that one reports it, and nothing is
// withdrawn.
func (f *failover) oneNode(t *testing.T) {
	broken := f.GCP.Nodes()[1]
	client := ask(t, f.Pods[2], f.url(t, "gl-shop-73736d-web"))
	at := time.Now()
	f.each(t, f.Testbed.Drop, broken)
	defer f.each(t, f.Testbed.Restore, broken)
	waitReports(t, f.GCP, 1)
	t.Logf("one local node unplugged: reported after %s", seconds(at, time.Now()))
	everybody := append(slices.Clone(f.local), f.Pods[:2]...)
	failed, _ := client.settled(t, time.Now(), 5, everybody...)
	t.Logf("%d requests of another node failed", failed)
	f.says(t, 1)
}

// restarted restarts agents while all paths are down: what they reported stays.
func (f *failover) restarted(t *testing.T) {
	nodes := f.GCP.Nodes()
	waitReports(t, f.GCP, 0)
	f.each(t, f.Testbed.Drop, nodes...)
	defer func() {
		f.each(t, f.Testbed.Restore, nodes...)
		waitReports(t, f.GCP, 0)
	}()
	waitReports(t, f.GCP, 2)
	client := ask(t, f.Pods[2], f.url(t, "gl-shop-73736d-web"))
	client.settled(t, time.Now(), 2, f.local...)
	at := time.Now()
	for _, a := range f.Agents[2:] {
		must(t, a.Stop(within(t, repair)))
		must(t, a.Start())
	}
	failed, last := client.settled(t, at, 15, f.local...)
	t.Logf("both agents restarted while all is down: %d requests failed, the last one after %s", failed, seconds(at, last))
}

// crowd adds 1,000 nodes with simulated agents to gcp, which report that all of aws is down
// some seconds after it is.
func (f *failover) crowd(t *testing.T) {
	const crowd = 1000
	name := func(i int) string { return fmt.Sprintf("gcp-crowd-%04d", i) }
	must(t, testbed.InParallel(t.Context(), crowd, func(ctx context.Context, i int) error {
		_, err := f.GCP.Client().CoreV1().Nodes().Create(ctx, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name(i)},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
		}, metav1.CreateOptions{})
		return err
	}))
	eventually(t, repair, "the mirror to know all nodes", func(ctx context.Context) error {
		s, err := f.status(ctx)
		if err == nil && s.Paths.ReadyNodes != crowd+2 {
			err = fmt.Errorf("%d nodes are ready", s.Paths.ReadyNodes)
		}
		return err
	})
	leases := f.GCP.Client().CoordinationV1().Leases(systemNamespace)
	owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "crowd", UID: "crowd"}
	// Detected after 1.9 to 2.7 s, and written within a second.
	agents := func(detect time.Duration, do func(ctx context.Context, i int) error) (done func()) {
		var wg sync.WaitGroup
		ctx := t.Context()
		for i := range crowd {
			wg.Go(func() {
				select {
				case <-ctx.Done():
				case <-time.After(detect + rand.N(800*time.Millisecond) + rand.N(time.Second)):
					if err := do(ctx, i); err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
						t.Errorf("agent %d: %v", i, err)
					}
				}
			})
		}
		return wg.Wait
	}
	nodes := f.GCP.Nodes()
	wait := func() {}
	outage, restored := context.WithCancel(t.Context())
	defer restored()
	f.outage(t, "a cluster, with 1,000 local nodes,", func() {
		f.each(t, f.Testbed.Drop, nodes...)
		must(t, f.AWS.CutAPI())
		wait = agents(1900*time.Millisecond, func(ctx context.Context, i int) error {
			r := pathreport.Report{Node: name(i), Remotes: map[string]pathreport.Down{"aws": {AllBut: true}}}
			_, err := leases.Create(ctx, r.Lease(systemNamespace, owner, time.Now()), metav1.CreateOptions{})
			for err == nil {
				// On a busy machine the outage takes longer than a report is valid.
				select {
				case <-outage.Done():
					return nil
				case <-time.After(pathreport.Renewal):
				}
				renewed := fmt.Appendf(nil, `{"spec":{"renewTime":%q}}`, time.Now().UTC().Format(metav1.RFC3339Micro))
				_, err = leases.Patch(ctx, pathreport.Name(name(i)), types.MergePatchType, renewed, metav1.PatchOptions{})
			}
			return err
		})
	}, func() {
		restored()
		wait()
		must(t, f.AWS.RestoreAPI())
		f.each(t, f.Testbed.Restore, nodes...)
		wait = agents(2500*time.Millisecond, func(ctx context.Context, i int) error {
			return leases.Delete(ctx, pathreport.Name(name(i)), metav1.DeleteOptions{})
		})
	})
	wait()
	must(t, testbed.InParallel(t.Context(), crowd, func(ctx context.Context, i int) error {
		return f.GCP.Client().CoreV1().Nodes().Delete(ctx, name(i), metav1.DeleteOptions{})
	}))
}

// drain sets the annotation that drains aws.
func (f *failover) drain(t *testing.T, value string) {
	t.Helper()
	patch := []byte(`{"metadata":{"annotations":{"mirror.semaphore.uw.io/drained":` + value + `}}}`)
	_, err := f.AWS.Client().CoreV1().Services("default").Patch(t.Context(), "kubernetes", types.MergePatchType, patch, metav1.PatchOptions{})
	must(t, err)
}

// drained drains aws by an annotation and ends that, with no request failing.
func (f *failover) drained(t *testing.T) {
	client := ask(t, f.Pods[2], f.url(t, "gl-shop-73736d-web"))
	everybody := append(slices.Clone(f.local), f.Pods[:2]...)
	client.settled(t, time.Now(), 2, everybody...)
	at := time.Now()
	f.drain(t, `"true"`)
	failed, _ := client.settled(t, at, 2, f.local...)
	var last time.Time
	for _, r := range client.Since(at) {
		if r.By == f.Pods[0].Name || r.By == f.Pods[1].Name {
			last = r.At
		}
	}
	t.Logf("drained: the last request went there after %s; %d failed", seconds(at, last), failed)
	// The API server reconciles that Service, and keeps the annotation.
	at = time.Now()
	client.settled(t, at, 15, f.local...)
	at = time.Now()
	f.drain(t, "null")
	failed, _ = client.settled(t, at, 2, everybody...)
	t.Logf("taken back: used evenly after %s; %d failed", seconds(at, client.even(at, everybody...)), failed)
}
