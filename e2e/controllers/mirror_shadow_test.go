package controllers_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
	"github.com/kube-semaphore/kube-semaphore/mirror"
)

// settled waits until gcp has exactly the objects that a new controller with the configuration
// of an instance would write.
func (b *mirrorBed) settled(t *testing.T, i *mirrorInstance) {
	t.Helper()
	b.settledWith(t, i.cfg)
}

func (b *mirrorBed) settledWith(t *testing.T, cfg mirror.Config) {
	t.Helper()
	wait(t, "nothing left to write", func() error {
		if writes := b.shadow(t, cfg); len(writes) > 0 {
			return errors.New(strings.Join(writes, "\n"))
		}
		return nil
	})
}

// refusal refuses requests that write, and notes those of the mirror's objects.
type refusal struct {
	next http.RoundTripper

	mu     sync.Mutex
	writes []string
}

// RoundTrip implements http.RoundTripper.
func (r *refusal) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method == http.MethodGet {
		return r.next.RoundTrip(request)
	}
	if !strings.HasSuffix(request.URL.Path, "/events") {
		r.mu.Lock()
		r.writes = append(r.writes, request.Method+" "+request.URL.Path)
		r.mu.Unlock()
	}
	return nil, errors.New("writes are refused")
}

func (r *refusal) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.writes)
}

// shadow runs a new controller, whose writes are refused, until it has compared all services.
// It returns the refused writes.
func (b *mirrorBed) shadow(t *testing.T, cfg mirror.Config) []string {
	t.Helper()
	refused := &refusal{}
	local := as(b.gcp, b.credentials(t, b.gcp))
	local.ContentType = "application/vnd.kubernetes.protobuf"
	local.Wrap(func(next http.RoundTripper) http.RoundTripper {
		refused.next = next
		return refused
	})
	client, err := kube.NewClient(local)
	must(t, err)
	cfg.Client, cfg.WatchMetrics = client, kube.NewMetrics("shadow", "shadow_failures_total")
	c := mirror.New(cfg)
	// The controller's loop doesn't run: the only passes are the calls of Reconcile below.
	tasks := slices.DeleteFunc(c.Tasks(), func(task run.Task) bool { return task.String() == "services" })
	if len(tasks) != len(c.Tasks())-1 {
		t.Fatalf("tasks %v, want one more than without the loop", c.Tasks())
	}
	defer kubetest.Run(t, tasks, nil)()
	wait(t, "a first pass", func() error {
		return errors.Join(synced(t, cfg.WatchMetrics), c.Reconcile(t.Context()), c.Ready())
	})
	ctx, cancel := context.WithCancel(t.Context())
	var led sync.WaitGroup
	defer led.Wait()
	defer cancel()
	led.Go(func() { _ = c.Lead(ctx) }) // which returns nil
	wait(t, "the term to begin", func() error {
		if !c.Status().Leading {
			return errors.New("it doesn't lead")
		}
		return nil
	})
	must(t, c.Reconcile(t.Context()))
	wait(t, "everything to be compared", func() error {
		if len(refused.all()) > 0 {
			return nil
		}
		_, queued := samples(t, c.Metrics(), "semaphore_service_mirror_queue_adds_total")
		_, compared := samples(t, c.Metrics(), "semaphore_service_mirror_queue_work_duration_seconds")
		if compared < queued {
			return fmt.Errorf("%.0f of %.0f services", compared, queued)
		}
		return nil
	})
	return refused.all()
}

// synced returns an error until all watches have read everything.
func synced(t *testing.T, m *kube.Metrics) error {
	t.Helper()
	all, sum := samples(t, m, "shadow_remote_synced")
	if len(all) == 0 || int(sum) < len(all) {
		return fmt.Errorf("%v", all)
	}
	return nil
}

// testShadow checks that shadow reports a missing write.
func (b *mirrorBed) testShadow(t *testing.T) {
	web, both := svc("web"), svc("both", global)
	must(t, putService(t.Context(), b.aws, "shop", web, slice(web, "web-1", "10.4.0.1")),
		putService(t.Context(), b.gcp, "shop", both, slice(both, "both-1", "10.2.0.1")))
	wants := func(want ...string) {
		t.Helper()
		writes := b.shadow(t, b.config(t))
		for _, w := range want {
			if !slices.ContainsFunc(writes, func(write string) bool { return strings.HasPrefix(write, w) }) {
				t.Errorf("writes %q, want %q among them", writes, w)
			}
		}
		if len(want) == 0 && len(writes) > 0 {
			t.Errorf("writes %q, want none", writes)
		}
	}
	const services = "/api/v1/namespaces/" + home + "/services"
	wants("POST " + services)
	i := b.start(t, nil)
	b.leadsTo(t, webName, "10.4.0.1")
	b.leadsTo(t, "gl-shop-73736d-both", "10.2.0.1")
	b.settled(t, i)
	i.stop()
	wants()
	patchService(t, b.gcp, home, webName, `{"spec":{"ports":[{"name":"http","port":8080}]}}`)
	wants("PATCH " + services + "/" + webName)
	must(t, removeService(t.Context(), b.aws, "shop", "web"))
	wants("DELETE " + services + "/" + webName)
}
