package scenarios_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/wireguardpeers/v1alpha1"
	"github.com/kube-semaphore/kube-semaphore/peers"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

var (
	relayLost = flag.Duration("relay-lost", 0, "how long TestRelayFaults has no relay, beyond what agents need to report that")
	flapping  = flag.Int("flapping", 300, "nodes of the hostile remote of TestRelayFaults")
)

// faulty is a cluster, aws, whose agent reads the objects of two replicas of semaphore-relay. gcp
// is a peer under traffic, and merit has nodes that flap and publish what they shouldn't.
type faulty struct {
	aws, gcp, merit *testbed.Cluster
	pods            [2]*testbed.Pod // of aws and gcp
	agent           *programs.Agent
	relays          [2]*programs.Program
	lost            bool                                                                 // the relays shall not run
	objects         kube.Objects[*v1alpha1.WireguardPeers, *v1alpha1.WireguardPeersList] // the administrator's
}

// TestRelayFaults has semaphore-relay killed, replaced, lost and cut off, and its objects deleted,
// while packets go to a remote, and another remote floods the relay: no packet and no peer is lost.
// A long loss, with more nodes:
//
//	go test -run TestRelayFaults -v -timeout 30m ./e2e/scenarios -args -relay-lost 10m -flapping 5000
func TestRelayFaults(t *testing.T) {
	t.Parallel()
	f := newFaulty(t)
	written := f.count(t, "merit")
	f.expect(t, "the first objects", func(s *programs.Status) error {
		if r := s.Remote("merit"); len(r.Peers) == 0 || r.API.Error != "" {
			return fmt.Errorf("merit: %d peers: %s", len(r.Peers), r.API.Error)
		}
		return f.heard(s)
	})
	stop := f.flap(t)
	defer stop()

	f.fault(t, "a relay killed", true, func() {
		for range 3 {
			leader := f.leader(t)
			leader.Kill()
			f.leader(t)
			must(t, leader.Start())
			f.expect(t, "all objects", f.heard)
		}
	})
	f.fault(t, "both replaced, as in a rollout", true, func() {
		for range 2 {
			leader := f.leader(t)
			must(t, leader.Stop(within(t, repair)))
			must(t, leader.Start())
			f.expect(t, "the next leader", f.heard)
		}
	})
	f.fault(t, "both lost, and agents restarted", true, func() {
		f.lost = true
		for _, r := range f.relays {
			r.Kill()
		}
		f.expect(t, "the report of a relay that is gone", f.late("aws", "gcp"))
		f.restart(t)
		select {
		case <-time.After(*relayLost):
		case <-t.Context().Done():
		}
		f.agent.Kill()
		must(t, f.agent.Start())
		f.expect(t, "the same report", f.late("aws", "gcp"))
		f.lost = false
		f.expect(t, "the relay again", f.heard)
	})
	f.fault(t, "its API server away, and agents restarted", true, func() {
		must(t, f.aws.CutAPI())
		f.expect(t, "the error of the watch", func(s *programs.Status) error {
			if s.Remote("gcp").API.Error == "" {
				return errors.New("no error")
			}
			return nil
		})
		f.restart(t)
		must(t, f.aws.RestoreAPI())
		f.expect(t, "the API server again", f.heard)
	})
	f.fault(t, "the API server of gcp away", true, func() {
		must(t, f.gcp.CutAPI())
		f.expect(t, "the report of a silent remote", f.late("gcp"))
		must(t, f.gcp.RestoreAPI())
		f.expect(t, "the remote again", f.heard)
	})
	f.fault(t, "each object deleted", false, func() {
		for _, name := range f.names(t) {
			must(t, f.objects.Delete(t.Context(), name, metav1.DeleteOptions{}))
			f.expect(t, "the objects again", f.heard)
		}
	})
	f.fault(t, "all objects deleted", false, func() {
		for range 3 {
			f.deleteAll(t)
			f.expect(t, "the objects again", f.heard)
		}
	})
	f.fault(t, "all objects deleted without a relay, and agents restarted", false, func() {
		f.lost = true
		for _, r := range f.relays {
			must(t, r.Stop(within(t, repair)))
		}
		f.deleteAll(t)
		f.restart(t)
		f.lost = false
		f.expect(t, "the objects again", f.heard)
	})
	f.fault(t, "objects edited", true, func() {
		list, err := f.objects.List(t.Context(), metav1.ListOptions{LabelSelector: v1alpha1.ClusterLabel + "=gcp"})
		must(t, err)
		for i := range list.Items {
			list.Items[i].Spec.PodCIDRs, list.Items[i].Spec.Count = nil, list.Items[i].Spec.Count/2
			if _, err := f.objects.Update(t.Context(), &list.Items[i], metav1.UpdateOptions{}); !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
				t.Errorf("an edit of %s: %v", list.Items[i].Name, err)
			}
		}
	})
	stop()
	bytes, took := written()
	t.Logf("%d bytes written for merit in %v", bytes, took.Round(time.Second))
	// Each leader has a burst of 64 KiB beside as much a second, and there were 20 at most.
	if most := 64 << 10 * (20 + took.Seconds()); float64(bytes) > most {
		t.Errorf("%d bytes written for merit in %v, at most %.0f are allowed", bytes, took, most)
	}
	// The log has the lines of all starts.
	added := false
	for line := range strings.Lines(f.agent.Process().Log()) {
		if !strings.Contains(line, `msg="peers changed" cluster=gcp `) {
			continue
		}
		added = added || strings.Contains(line, "added=1")
		if !strings.Contains(line, "removed=0") {
			t.Errorf("a peer was removed: %s", line)
		}
	}
	if !added {
		t.Error("the log doesn't have the peer of gcp")
	}
}

// count counts the bytes of objects of a cluster that are written, until the returned function is
// called.
func (f *faulty) count(t *testing.T, cluster string) func() (bytes int, took time.Duration) {
	t.Helper()
	began, objects := time.Now(), metav1.ListOptions{LabelSelector: v1alpha1.ClusterLabel + "=" + cluster}
	list, err := f.objects.List(t.Context(), objects)
	must(t, err)
	objects.ResourceVersion = list.ResourceVersion
	written, err := f.objects.Watch(t.Context(), objects)
	must(t, err)
	bytes, done := 0, make(chan struct{})
	go func() {
		defer close(done)
		for event := range written.ResultChan() {
			o, is := event.Object.(*v1alpha1.WireguardPeers)
			if event.Type == watch.Deleted || !is {
				continue
			}
			o = o.DeepCopy()
			o.ManagedFields = nil
			text, err := json.Marshal(o)
			if err != nil {
				t.Error(err)
			}
			bytes += len(text)
		}
	}()
	return func() (int, time.Duration) {
		select {
		case <-done:
			t.Errorf("the watch of the objects of %s ended", cluster)
		default:
			written.Stop()
		}
		<-done
		return bytes, time.Since(began)
	}
}

func newFaulty(t *testing.T) *faulty {
	t.Helper()
	nstest.Root(t)
	tb := testbed.Start(t, testbed.Config{})
	t.Cleanup(func() { soundLogs(t, tb) })
	ctx := within(t, 15*time.Minute) // with thousands of nodes
	// In this order the pods of aws and gcp are in 10.2.0.0/16 and 10.4.0.0/16.
	started, err := tb.StartClusters(ctx, testbed.ClusterConfig{Name: "aws"}, testbed.ClusterConfig{Name: "gcp"},
		testbed.ClusterConfig{Name: "merit", PodSubnets: []netip.Prefix{netip.MustParsePrefix("100.64.0.0/10")}})
	must(t, err)
	f := &faulty{aws: started[0], gcp: started[1], merit: started[2]}
	must(t, programs.Grant(ctx, programs.WireGuard, started...))
	deploy := deployFolder(t)
	must(t, f.aws.Apply(ctx, filepath.Join(deploy, "relay", "crd.yaml"), filepath.Join(deploy, "relay", "admission.yaml"), filepath.Join(deploy, "wireguard", "relay", "rbac.yaml")))
	must(t, programs.Grant(ctx, programs.Relay, f.aws))
	client, err := kube.NewClient(f.aws.RESTConfig())
	must(t, err)
	f.objects = client.WireguardPeers(systemNamespace)
	for i, c := range []*testbed.Cluster{f.aws, f.gcp} {
		node, err := c.AddNode(ctx, testbed.NodeConfig{})
		must(t, err)
		f.pods[i], err = node.AddPod(ctx, testbed.PodConfig{})
		must(t, err)
		must(t, f.pods[i].Serve(ctx, programs.PodPort, nil))
	}
	must(t, f.merit.AddObjects(ctx, *flapping, func(i int, node *corev1.Node) { node.Annotations = hostile(i, i) }))

	must(t, f.aws.AwaitRight(ctx, systemNamespace, programs.WireGuard, authorizationv1.ResourceAttributes{
		Namespace: systemNamespace, Verb: "watch", Group: "semaphore.uw.io", Resource: v1alpha1.Resource,
	}, true))
	for i := range f.relays {
		f.relays[i], err = programs.Prepare(ctx, programs.Config{
			Name: programs.Relay, Replica: fmt.Sprintf("semaphore-relay-%d", i), Binary: program(t, programs.Relay), Port: 7790 + i,
		}, f.pods[0].Node, f.gcp, f.merit)
		must(t, err)
	}
	must(t, f.run())
	f.agent, err = programs.PrepareAgent(ctx, program(t, programs.WireGuard), f.pods[0].Node, f.gcp, f.merit)
	must(t, err)
	for _, remote := range []string{"gcp", "merit"} {
		for _, name := range []string{"API_URL", "CA_FILE", "TOKEN_FILE"} {
			delete(f.agent.Env, programs.Variable(remote, name))
		}
	}
	f.agent.Env["SEMAPHORE_REMOTES_FROM"] = config.RemotesFromRelay
	// The engine sends handshakes to each peer that doesn't answer: what is tested is the relay.
	f.agent.Env[programs.Variable("merit", "WG_MAX_PEERS")] = "50"
	must(t, f.agent.Start())
	_, err = programs.StartAgent(ctx, program(t, programs.WireGuard), f.pods[1].Node, f.aws)
	must(t, err)
	must(t, programs.WaitReach(within(t, 2*time.Minute), f.pods[0], f.pods[1]))
	must(t, programs.WaitReach(within(t, repair), f.pods[1], f.pods[0]))
	return f
}

// hostile returns what node i of merit publishes in round n: half of the nodes what a peer does,
// the others what isn't valid, too long, or of gcp.
func hostile(i, n int) map[string]string {
	all := map[string]string{
		peers.PublicKeyAnnotation("aws"): tunnel.Key{2, byte(i), byte(i >> 8)}.String(),
		peers.EndpointAnnotation("aws"):  fmt.Sprintf("198.18.%d.%d:%d", i>>8&255, i&255, 1024+n%60_000),
	}
	// All of them together fit into a list that the relay accepts.
	size := 1 + 1_000/(1+i)
	switch i % 6 {
	case 0:
		all[peers.PublicKeyAnnotation("aws")] = strings.Repeat("A", n%9*20*size)
	case 1:
		all[peers.EndpointAnnotation("aws")] = fmt.Sprintf("\x1b[3%dm[fe80::1%%$(reboot)]:1", n%8)
	case 2:
		all[peers.PodCIDRsAnnotation] = "10.4.0.0/16,0.0.0.0/0,::/0,10.2.0.0/17"
		if n%2 == 0 {
			all[peers.PodCIDRsAnnotation] = strings.Repeat("100.64.1.1/32,", 15*size)
		}
	}
	return all
}

// flap lets the nodes of merit change, and come and go, until the returned function is called.
func (f *faulty) flap(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	nodes := f.merit.Client().CoreV1().Nodes()
	var all sync.WaitGroup
	const at = 4 // a time
	for worker := range at {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(worker), 33))
			for n := 0; ctx.Err() == nil; n++ {
				i := rng.IntN(*flapping/at)*at + worker
				name := fmt.Sprintf("merit-object-%05d", i)
				patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": hostile(i, n)}})
				if err == nil {
					_, err = nodes.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
				}
				switch {
				case apierrors.IsNotFound(err):
					_, err = nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: hostile(i, n)}}, metav1.CreateOptions{})
				case err == nil && n%3 == 0:
					err = nodes.Delete(ctx, name, metav1.DeleteOptions{})
				}
				if err != nil && ctx.Err() == nil {
					t.Errorf("change %s: %v", name, err)
					return
				}
				select {
				case <-time.After(10 * time.Millisecond):
				case <-ctx.Done():
				}
			}
		})
	}
	return sync.OnceFunc(func() {
		cancel()
		all.Wait()
	})
}

// fault does something while packets go both ways, of which none may be lost. With unwritten the
// objects of aws and gcp must be the same after it.
func (f *faulty) fault(t *testing.T, what string, unwritten bool, do func()) {
	t.Helper()
	began, before := time.Now(), f.versions(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var series [2]testbed.PingResult
	var all sync.WaitGroup
	for i, from := range f.pods {
		all.Go(func() {
			var err error
			if series[i], err = from.PingSeries(ctx, f.pods[1-i].Addresses[0], 10*time.Millisecond); err != nil {
				t.Error(err)
			}
		})
	}
	do()
	cancel()
	all.Wait()
	after := f.versions(t)
	if unwritten && !slices.Equal(before, after) {
		t.Errorf("%s: objects were written:\n%v\n%v", what, before, after)
	}
	for _, s := range series {
		lost := s.Sent - s.Received
		t.Logf("%s, %v: %d of %d packets lost, silence of %v", what, time.Since(began).Round(time.Second), lost, s.Sent, s.LongestGap.Round(time.Millisecond))
		if lost > 0 || s.Sent == 0 {
			t.Error("packets are lost")
		}
	}
}

// versions returns names and versions of the objects of aws and gcp.
func (f *faulty) versions(t *testing.T) (all []string) {
	t.Helper()
	list, err := f.objects.List(t.Context(), metav1.ListOptions{LabelSelector: v1alpha1.ClusterLabel + " in (aws,gcp)"})
	must(t, err)
	for i := range list.Items {
		all = append(all, list.Items[i].Name+" "+list.Items[i].ResourceVersion)
	}
	return all
}

// names returns the names of the objects of aws and gcp.
func (f *faulty) names(t *testing.T) (all []string) {
	t.Helper()
	for _, object := range f.versions(t) {
		name, _, _ := strings.Cut(object, " ")
		all = append(all, name)
	}
	return all
}

func (f *faulty) deleteAll(t *testing.T) {
	t.Helper()
	out, err := f.aws.Kubectl(t.Context(), "delete", "--wait=false", "--namespace", systemNamespace, "--all", v1alpha1.Resource)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// run starts the replicas that don't run, as a kubelet does: one that has lost its lease ends.
func (f *faulty) run() error {
	for _, r := range f.relays {
		if p := r.Process(); !f.lost && (p == nil || !p.Running()) {
			if err := r.Start(); err != nil {
				return err
			}
		}
	}
	return nil
}

// leader waits for one leader.
func (f *faulty) leader(t *testing.T) (leader *programs.Program) {
	t.Helper()
	eventually(t, 2*time.Minute, "one leader", func(ctx context.Context) error {
		leader = nil
		for _, r := range f.relays {
			if leads, err := r.Leads(ctx); err == nil && leads {
				leader = r
			}
		}
		if leader == nil {
			return errors.New("no leader")
		}
		return nil
	})
	return leader
}

func (f *faulty) restart(t *testing.T) {
	t.Helper()
	must(t, f.agent.Stop(within(t, repair)))
	must(t, f.agent.Start())
	eventually(t, time.Minute, "the agent to be ready", f.agent.Ready)
}

// expect waits for a status of the agent in which it has its peer of gcp.
func (f *faulty) expect(t *testing.T, what string, want func(*programs.Status) error) {
	t.Helper()
	eventually(t, 5*time.Minute, what, func(ctx context.Context) error {
		if err := f.run(); err != nil {
			return err
		}
		s, err := f.agent.Status(ctx)
		if err != nil {
			return err
		}
		if n := len(s.Remote("gcp").Peers); n != 1 {
			return fmt.Errorf("%d peers of gcp", n)
		}
		return want(s)
	})
}

// heard is that the agent reads complete objects of a relay that has contact.
func (f *faulty) heard(s *programs.Status) error {
	if err := f.late()(s); err != nil {
		return err
	}
	if r := s.Remote("gcp"); r.Source != "api" || r.API.Error != "" {
		return fmt.Errorf("gcp: peers from %s: %s", r.Source, r.API.Error)
	}
	if !s.Local {
		return errors.New("own nodes aren't known")
	}
	return nil
}

// late is that the relay has no contact to these of aws and gcp.
func (f *faulty) late(clusters ...string) func(*programs.Status) error {
	return func(s *programs.Status) error {
		for _, name := range []string{"aws", "gcp"} {
			if c := s.Relay[name]; c.Late != slices.Contains(clusters, name) || c.Error != "" {
				return fmt.Errorf("Lease for %s: %+v", name, c)
			}
		}
		return nil
	}
}
