package mirror

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/synctest"
)

const (
	home       = "sys-semaphore"
	mirrorMark = "mirror.semaphore.uw.io/mirror-service"
	globalMark = "mirror.semaphore.uw.io/global-service"
	webName    = "aws-shop-73736d-web"
	globalName = "gl-shop-73736d-web"
	// settle is how long a change may take, in the time of the bubble. After an outage,
	// watches try again every half minute at the latest.
	settle = time.Minute
)

// fakes are three API servers in memory. The cluster gcp is the local one.
type fakes struct {
	gcp, aws, merit *kubetest.API
}

// bubble runs a test of a controller between fakes in a bubble of testing/synctest.
func bubble(t *testing.T, test func(t *testing.T, f *fakes)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		test(t, &fakes{kubetest.NewAPI(), kubetest.NewAPI(), kubetest.NewAPI()})
	})
}

func client(t *testing.T, api *kubetest.API) kube.Client {
	t.Helper()
	c, err := kube.NewClient(api.Config())
	must(t, err)
	return c
}

// controller returns a controller of gcp that doesn't run.
func (f *fakes) controller(t *testing.T, adjust func(*Config)) *Controller {
	t.Helper()
	cfg := Config{
		Cluster: "gcp", Namespace: home, Client: client(t, f.gcp),
		MirrorSelector: selector(t, mirrorMark+"=true"),
		Logger:         slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	for _, r := range []struct {
		name string
		api  *kubetest.API
	}{{"aws", f.aws}, {"merit", f.merit}} {
		remote := client(t, r.api)
		cfg.Remotes = append(cfg.Remotes, Remote{Name: r.name, Prefix: r.name, Client: func() (kube.Client, error) { return remote, nil }})
	}
	if adjust != nil {
		adjust(&cfg)
	}
	return New(cfg)
}

// instance is a controller that runs as the leader.
type instance struct {
	*Controller
	stop func()
}

// start runs a controller until the test ends or stop is called.
func (f *fakes) start(t *testing.T, adjust func(*Config)) *instance {
	t.Helper()
	c := f.controller(t, adjust)
	return &instance{c, kubetest.Run(t, c.Tasks(), c.Lead)}
}

// listed waits until the check accepts a service's entry in the status.
func (i *instance) listed(t *testing.T, name string, check func(s statuspage.Service) bool) {
	t.Helper()
	wait(t, "the status of "+name, func() error {
		all := i.Status().Services
		at := slices.IndexFunc(all, func(s statuspage.Service) bool { return s.Name == name })
		switch {
		case at < 0:
			return errors.New("not listed")
		case !check(all[at]):
			return fmt.Errorf("%+v", all[at])
		}
		return nil
	})
}

// rounds returns how many rounds or objects a test has: fewer with -short.
func rounds(all, short int) int {
	if testing.Short() {
		return short
	}
	return all
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func selector(t *testing.T, text string) labels.Selector {
	t.Helper()
	s, err := labels.Parse(text)
	must(t, err)
	return s
}

// wait fails the test unless the condition holds within settle.
func wait(t *testing.T, what string, condition func() error) {
	t.Helper()
	for limit := time.Now().Add(settle); ; time.Sleep(10 * time.Millisecond) {
		err := condition()
		if err == nil {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("wait for %s: %v", what, err)
		}
	}
}

// svc returns a service to mirror.
func svc(name string, adjust ...func(*corev1.Service)) *corev1.Service {
	return kubetest.Service(name, map[string]string{mirrorMark: "true"}, adjust...)
}

func global(s *corev1.Service) { s.Labels = map[string]string{globalMark: "true"} }

func ports(list ...corev1.ServicePort) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.Ports = list }
}

// put creates or replaces a service and slices of it. Each slice has one address.
func put(t *testing.T, api *kubetest.API, namespace string, s *corev1.Service, slices ...[2]string) {
	t.Helper()
	s = s.DeepCopy()
	s.Namespace = namespace
	api.Put(t, "services", s)
	for _, nameAndIP := range slices {
		sl := kubetest.EndpointSlice(s, nameAndIP[0], nameAndIP[1])
		sl.Namespace = namespace
		api.Put(t, "endpointslices", sl)
	}
}

// leadsTo waits until a service in the mirror namespace exists and its slices have exactly
// these addresses, and returns it.
func leadsTo(t *testing.T, api *kubetest.API, service string, want ...string) *corev1.Service {
	t.Helper()
	var s corev1.Service
	wait(t, "the endpoints of "+service, func() error {
		var got []string
		for _, sl := range kubetest.All[discoveryv1.EndpointSlice](api, "endpointslices", home) {
			if sl.Labels[discoveryv1.LabelServiceName] == service {
				for i := range sl.Endpoints {
					got = append(got, sl.Endpoints[i].Addresses...)
				}
			}
		}
		slices.Sort(got)
		s = corev1.Service{}
		if exists := api.Get("services", home, service, &s); !exists || !slices.Equal(got, want) {
			return fmt.Errorf("exists: %v, endpoints %v, want %v", exists, got, want)
		}
		return nil
	})
	return &s
}

// refuse makes an API server refuse writes whose verb, resource and name contain a text.
func refuse(api *kubetest.API, text string) {
	api.Hook(func(h *kubetest.Hooks) {
		h.Fail = func(r kubetest.Request) *metav1.Status {
			if strings.Contains(r.String(), text) {
				return kubetest.Failure(422, metav1.StatusReasonInvalid)
			}
			return nil
		}
	})
}
