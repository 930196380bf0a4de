package controllers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/policy"
)

// evil is a remote's API server that sends objects that no real one accepts.
type evil struct {
	pods  []corev1.Pod
	flips time.Duration // between two labels of the first pod; 0: never
	sent  atomic.Int64
}

// serve answers lists and watches of pods.
func (e *evil) serve(t *testing.T) *rest.Config {
	t.Helper()
	list, err := json.Marshal(&corev1.PodList{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: e.pods,
	})
	must(t, err)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("sendInitialEvents") != "" {
			http.Error(w, "not supported", http.StatusUnprocessableEntity)
			return
		}
		if r.URL.Query().Get("watch") == "" {
			// The client may be gone.
			_, _ = w.Write(list)
			return
		}
		e.watch(w, r)
	}))
	server.Config.BaseContext = func(net.Listener) context.Context { return t.Context() }
	server.Start()
	t.Cleanup(server.Close)
	return &rest.Config{Host: server.URL, QPS: -1}
}

func (e *evil) watch(w http.ResponseWriter, r *http.Request) {
	flusher, ok := w.(http.Flusher)
	if !ok {
		return
	}
	flusher.Flush()
	if e.flips == 0 {
		<-r.Context().Done()
		return
	}
	ticker := time.NewTicker(e.flips)
	defer ticker.Stop()
	for n := 2; ; n++ {
		select {
		case <-r.Context().Done():
			return
		case <-ticker.C:
		}
		pod := e.pods[0].DeepCopy()
		pod.ResourceVersion = fmt.Sprint(n)
		pod.Labels[domain+"/name"] = fmt.Sprintf("flip-%d", n%2)
		if json.NewEncoder(w).Encode(map[string]any{"type": watch.Modified, "object": pod}) != nil {
			return
		}
		flusher.Flush()
		e.sent.Add(1)
	}
}

func evilPod(name, set string, ips ...string) corev1.Pod {
	p := corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, ResourceVersion: "1", Labels: map[string]string{domain + "/name": set}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for _, ip := range ips {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	return p
}

// testHostile serves pods of 100,000 sets, bad addresses and names, and a pod whose label changes
// a hundred times a second, beside a good remote.
func (b *policyBed) testHostile(t *testing.T) {
	const most = 50
	sets := b.sets(t, b.aws)
	e := &evil{flips: 10 * time.Millisecond}
	e.pods = append(e.pods, evilPod("flipper", "flip-0", "10.4.0.1"))
	for i, ip := range []string{
		"10.2.0.1", "10.102.0.1", "0.0.0.0", "127.0.0.1", "224.0.0.1", "169.254.169.254", "8.8.8.8", "::", "::1", "fe80::1", "10.4.0.0/16", "", "evil.example",
	} {
		e.pods = append(e.pods, evilPod(fmt.Sprintf("address-%d", i), "addresses", ip))
	}
	for i, name := range []string{"", "ünïcode", "a/b", "../../x", strings.Repeat("x", 1<<20), "x\ny", "-x", "x-"} {
		e.pods = append(e.pods, evilPod(fmt.Sprintf("name-%d", i), name, "10.4.0.2"))
	}
	e.pods = append(e.pods, evilPod("many", "many", func() (ips []string) {
		for i := range 1000 {
			ips = append(ips, fmt.Sprintf("10.4.%d.%d", 100+i/250, 1+i%250))
		}
		return ips
	}()...))
	for i := range 100_000 {
		e.pods = append(e.pods, evilPod(fmt.Sprintf("flood-%d", i), fmt.Sprintf("flood-%d", i), "10.4.0.3"))
	}
	cfg := e.serve(t)
	putPods(t, b.merit, running("ns", "p", "app", "10.6.0.1"))

	r := recordSets(t, sets)
	i := b.start(t, b.aws, func(c *policy.Config) {
		c.Remotes[0].Client = func() (kube.Client, error) { return kube.NewClient(cfg) }
		c.Remotes[0].Rules.Subnets = []netip.Prefix{netip.MustParsePrefix("10.4.0.0/16")}
		c.Remotes[0].Rules.MaxSets = 2 * most // of which one namespace has half
	}, b.gcp, b.merit)

	wait(t, "the hostile remote's sets", func() error {
		if n := len(i.status(t, "gcp").Sets); n < most-1 {
			return fmt.Errorf("%d sets", n)
		}
		return nil
	})
	// Meanwhile sets of the good remote follow its pods, at nearly the pace of the API
	// servers.
	pace, stop := keepPace(t, b.aws, b.merit)
	for n := 2; n < 12; n++ {
		ip := fmt.Sprintf("10.6.0.%d", n)
		began := time.Now()
		putPods(t, b.merit, running("ns", fmt.Sprintf("p-%d", n), "app", ip))
		wait(t, "the good remote's set", func() error {
			got, err := membersOf(t.Context(), sets)
			if err != nil {
				return err
			}
			if !slices.Contains(got[policy.Identity{Cluster: "merit", Namespace: "ns", Name: "app"}], netip.MustParseAddr(ip)) {
				return fmt.Errorf("no %s", ip)
			}
			return nil
		})
		if took := time.Since(began); took > 5*time.Second+pace.slowest(began, time.Now()) {
			t.Errorf("the good remote waited %v", took)
		}
	}
	stop()
	wait(t, "some hundred flips", func() error {
		if n := e.sent.Load(); n < 300 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	wait(t, "what isn't used to be counted", func() error {
		skipped := i.status(t, "gcp").Skipped
		for reason, least := range map[policy.Reason]int{
			policy.ReasonOutside: 3, policy.ReasonBadAddress: 10, policy.ReasonBadName: 8,
			policy.ReasonMoreAddress: 1, policy.ReasonTooManySets: 100_000 - most,
		} {
			if skipped[string(reason)].Pods < least {
				return fmt.Errorf("%s: %v, want %d pods at least", reason, skipped[string(reason)], least)
			} else if n := len(skipped[string(reason)].Examples); n == 0 || n > 10 {
				t.Errorf("%s: %d examples", reason, n)
			}
		}
		return nil
	})
	i.stop()
	r.end(t)

	allowed := netip.MustParsePrefix("10.4.0.0/16")
	flips := 0
	r.replay(func(v version, s state) {
		ours := 0
		for _, s := range networkSets(s) {
			if s.Labels[domain+"/cluster"] != "gcp" {
				continue
			}
			ours++
			for _, n := range s.Spec.Nets {
				if prefix, err := netip.ParsePrefix(n); err != nil || !prefix.IsSingleIP() || !allowed.Contains(prefix.Addr()) {
					t.Errorf("version %s of %s lets %s in", v.object.GetResourceVersion(), v.object.GetName(), n)
				}
			}
		}
		if ours > most {
			t.Errorf("%d sets of the hostile remote, want %d at most", ours, most)
		}
		if strings.HasPrefix(v.object.GetName(), "gcp-ns-flip-") {
			flips++
		}
	})
	if sent := int(e.sent.Load()); flips > sent {
		t.Errorf("%d writes for %d flips", flips, sent)
	}
}
