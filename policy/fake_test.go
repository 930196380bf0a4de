package policy

import (
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	calico "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/logtest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/synctest"
)

// rig is a controller that leads, between API servers in memory: sets is the local one,
// pods are those of the remotes, by name.
type rig struct {
	*Controller
	sets *kubetest.API
	pods map[string]*kubetest.API
	log  *logtest.Buffer
	stop func()
}

// bubble runs a test in a bubble of testing/synctest.
func bubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, test)
}

// access returns access to the network sets of an API server.
func access(t testing.TB, api *kubetest.API) *Calico {
	t.Helper()
	c, err := NewCalico(api.Config(), "v3")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// startRig runs a controller of the remotes gcp and merit until the test ends.
func startRig(t *testing.T, sets *kubetest.API, adjust func(*Config)) *rig {
	t.Helper()
	r := &rig{sets: sets, pods: map[string]*kubetest.API{}, log: &logtest.Buffer{}}
	cfg := Config{
		Cluster: "aws", Labels: domain(), Calico: access(t, sets), Metrics: NewMetrics(),
		RemovalGrace: 10 * time.Minute, Logger: slog.New(slog.NewTextHandler(r.log, nil)),
	}
	for _, name := range []string{"gcp", "merit"} {
		api := kubetest.NewAPI()
		client, err := kube.NewClient(api.Config())
		if err != nil {
			t.Fatal(err)
		}
		r.pods[name] = api
		cfg.Remotes = append(cfg.Remotes, RemoteConfig{
			Rules: Rules{Cluster: name}, Client: func() (kube.Client, error) { return client, nil },
		})
	}
	if adjust != nil {
		adjust(&cfg)
	}
	r.Controller = New(cfg)
	r.stop = kubetest.Run(t, r.Tasks(), r.Lead)
	elapse(time.Second)
	return r
}

// put creates or replaces a pod of gcp.
func (r *rig) put(t *testing.T, name, set string, ips ...string) {
	t.Helper()
	r.putOf(t, "gcp", name, set, ips...)
}

func (r *rig) putOf(t *testing.T, remote, name, set string, ips ...string) {
	t.Helper()
	r.pods[remote].Put(t, "pods", podObject("ns", name, set, corev1.PodRunning, ips...))
}

// drop deletes a pod of gcp.
func (r *rig) drop(name string) { r.pods["gcp"].Remove("pods", "ns", name) }

// elapse waits for a time of the bubble, and until all that was due then is done.
func elapse(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// content returns the network sets as text, by name.
func content(api *kubetest.API) map[string]string {
	all := map[string]string{}
	for _, set := range kubetest.All[calico.GlobalNetworkSet](api, kube.NetworkSets, "") {
		all[set.Name] = strings.Join(set.Spec.Nets, " ")
	}
	return all
}

// wantSets fails the test unless the network sets are these, by name.
func (r *rig) wantSets(t *testing.T, want map[string]string) {
	t.Helper()
	synctest.Wait()
	if diff := cmp.Diff(want, content(r.sets)); diff != "" {
		t.Errorf("sets (-want +got):\n%s\nrequests %v\n%s", diff, requests(r.sets), r.log)
	}
}

// requests returns the requests for single network sets so far, as in "create gcp-ns-a".
func requests(api *kubetest.API) []string {
	all := []string{}
	for _, r := range api.Requests() {
		all = append(all, r.Verb+" "+r.Name)
	}
	return all
}

// writes returns the requests so far that write.
func writes(api *kubetest.API) []string {
	return slices.DeleteFunc(requests(api), func(request string) bool { return strings.HasPrefix(request, "get") })
}

// putSet creates or replaces a network set, as another client would.
func putSet(t *testing.T, api *kubetest.API, set *calico.GlobalNetworkSet) {
	t.Helper()
	api.Put(t, kube.NetworkSets, set)
}

// edit changes a network set, as another client would.
func edit(t *testing.T, api *kubetest.API, name string, change func(*calico.GlobalNetworkSet)) {
	t.Helper()
	var set calico.GlobalNetworkSet
	if !api.Get(kube.NetworkSets, "", name, &set) {
		t.Fatalf("no network set %s", name)
	}
	change(&set)
	putSet(t, api, &set)
}

// removeSet deletes a network set, as another client would.
func removeSet(api *kubetest.API, name string) { api.Remove(kube.NetworkSets, "", name) }

// refuse makes an API server refuse some writes, as with a quota.
func refuse(api *kubetest.API, refused func(verb, name string) bool) {
	api.Hook(func(h *kubetest.Hooks) {
		h.Fail = func(r kubetest.Request) *metav1.Status {
			if refused(r.Verb, r.Name) {
				return kubetest.Failure(http.StatusForbidden, metav1.StatusReasonForbidden)
			}
			return nil
		}
	})
}

// rounds returns how many rounds or objects a test has: fewer with -short.
func rounds(all, short int) int {
	if testing.Short() {
		return short
	}
	return all
}

func networkSetNamed(name string, labels map[string]string, nets ...string) *calico.GlobalNetworkSet {
	set := networkSet(labels, "", nets...)
	set.Name, set.UID, set.ResourceVersion = "gcp-ns-"+name, "", ""
	return set
}
