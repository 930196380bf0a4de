package mirror

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestSliceNamesHaveNoSecondOrigin holds how much of a hash there is: whoever
// takes part in a global service may choose names until one fits.
func TestSliceNamesHaveNoSecondOrigin(t *testing.T) {
	name := sliceName("gl-shop-73736d-web", "aws", &Slice{Name: "web-1", Service: Key{"shop", "web"}, Family: discoveryv1.AddressTypeIPv4})
	digits, found := strings.CutPrefix(name, "gl-shop-73736d-web-")
	if !found || len(digits)*4 < 128 {
		t.Errorf("%s has %d bits of a hash, want 128 at least", name, len(digits)*4)
	}
}

// scene is a plan that the views of three clusters are shown to, and whose wishes
// come true.
type scene struct {
	*plan
	own   *holdings
	sums  summer
	views map[setID]setView
	age   int
}

func newScene() *scene {
	s := &scene{own: newHoldings(), sums: newSummer(), views: map[setID]setView{}}
	s.restart()
	return s
}

// restart forgets what only the process knows.
func (s *scene) restart() {
	s.plan = modelPlan(s.own)
	for _, id := range s.order {
		v := s.views[id]
		v.known = true
		s.views[id] = v
	}
}

// says has a cluster have these global services, and no others.
func (s *scene) says(t *testing.T, cluster string, all ...*Service) {
	t.Helper()
	s.views[setID{cluster, globalSet}] = setView{known: true, services: all}
	s.settle(t)
}

func (s *scene) settle(t *testing.T) {
	t.Helper()
	var globals map[Key]struct{}
	for range 2 {
		s.update(s.views, []string{""}, globals)
		s.age++
		globals = write(s.plan, s.own, s.sums, s.age)
	}
	if len(globals) > 0 {
		t.Errorf("what is wanted changes with what is there: %v", globals)
	}
}

// origin is a global service that a cluster says is of an age.
func origin(k Key, created int64, port int32, traits Traits) *Service {
	traits.IPv4 = true
	return &Service{Key: k, Created: time.Unix(created, 0), Spec: Spec{traits, []Port{tcp("http", port)}}}
}

// TestWhoJoinsLastDecidesNothing has remotes state whatever date suits them.
func TestWhoJoinsLastDecidesNothing(t *testing.T) {
	web := Key{"shop", "web"}
	honest := origin(web, 1000, 80, Traits{})
	backdated := origin(web, 1, 6666, Traits{Headless: true, PublishNotReady: true, AffinityTimeout: 1})
	backdated.LocalFirst = true
	check := func(t *testing.T, s *scene, accepted ...string) {
		t.Helper()
		tg := s.names[globalName]
		if tg == nil {
			t.Fatal("no global service")
		}
		if tg.spec.Traits != honest.Spec.Traits || tg.localFirst || tg.spec.Ports[0].Port != 80 {
			t.Errorf("%+v, local first %v: not as those have it who were there before", tg.spec, tg.localFirst)
		}
		if diff := cmp.Diff(accepted, tg.accepted); diff != "" {
			t.Errorf("accepted (-want +got):\n%s", diff)
		}
	}
	t.Run("the first remote stays first", func(t *testing.T) {
		s := newScene()
		s.says(t, "merit", honest)
		check(t, s, "merit")
		s.says(t, "aws", backdated)
		check(t, s, "merit", "aws")
		s.restart()
		s.settle(t)
		check(t, s, "merit", "aws")
	})
	t.Run("also while the object is away", func(t *testing.T) {
		s := newScene()
		s.says(t, "merit", honest)
		s.says(t, "aws", backdated)
		s.own.update(nil, nil, nil, time.Now())
		s.update(s.views, []string{""}, map[Key]struct{}{web: {}})
		check(t, s, "merit", "aws")
	})
	t.Run("the local cluster is before all", func(t *testing.T) {
		s := newScene()
		s.says(t, "aws", backdated)
		s.says(t, "gcp", honest)
		check(t, s, "aws")
		s.says(t, "merit", backdated)
		check(t, s, "aws", "merit")
	})
	t.Run("who goes loses its place", func(t *testing.T) {
		s := newScene()
		s.says(t, "aws", backdated)
		s.says(t, "merit", honest)
		s.says(t, "aws")
		check(t, s, "merit")
		s.says(t, "aws", backdated)
		check(t, s, "merit", "aws")
	})
	t.Run("who is out of reach keeps it", func(t *testing.T) {
		s := newScene()
		s.says(t, "merit", honest)
		s.restart()
		s.views[setID{"merit", globalSet}] = setView{}
		s.says(t, "aws", backdated)
		check(t, s, "merit", "aws")
		s.says(t, "merit", honest)
		check(t, s, "merit", "aws")
	})
	t.Run("the object of a version that kept no order", func(t *testing.T) {
		s := newScene()
		before := remembered(globalName, web, "aws", "merit")
		s.own.update([]*ownService{before}, nil, nil, time.Now())
		s.views[setID{"merit", globalSet}] = setView{}
		s.says(t, "aws", origin(web, 2000, 6666, Traits{Headless: true}))
		check(t, s) // until all have been heard of
		s.says(t, "merit", honest)
		check(t, s, "merit", "aws") // as that version had it
	})
}

// TestNobodyTakesAnothersName has a remote choose the name of its own service so
// that the global one would be called like another.
func TestNobodyTakesAnothersName(t *testing.T) {
	victim := origin(Key{"z", longName}, 1000, 80, Traits{})
	hostile := origin(Key{"z", twin("gl", "z", longName)}, 1, 6666, Traits{})
	name := GlobalName(victim.Key)
	if name != GlobalName(hostile.Key) {
		t.Fatalf("%s and %s: the names differ", name, GlobalName(hostile.Key))
	}
	for title, order := range map[string][]string{"victim first": {"aws", "merit"}, "hostile first": {"merit", "aws"}} {
		t.Run(title, func(t *testing.T) {
			s := newScene()
			all := map[string]*Service{"aws": victim, "merit": hostile}
			for _, cluster := range order {
				s.says(t, cluster, all[cluster])
			}
			s.restart()
			s.settle(t)
			if len(s.names) != 2 {
				t.Errorf("%d names for two services", len(s.names))
			}
			first := all[order[0]]
			if tg := s.names[name]; tg == nil || tg.id.Key != first.Key {
				t.Errorf("%s is not that of %v, who had it", name, first.Key)
			}
			// It is the local cluster's as well.
			s.says(t, "gcp", victim)
			if tg := s.names[name]; tg == nil || tg.id.Key != victim.Key {
				t.Errorf("%s is not that of the local service", name)
			}
		})
	}
	t.Run("at once", func(t *testing.T) {
		s := newScene()
		s.views[setID{"merit", globalSet}] = setView{known: true, services: []*Service{hostile}}
		s.says(t, "aws", victim)
		if tg := s.names[name]; tg == nil || tg.id.Key != victim.Key {
			t.Errorf("%s is that of a service that may choose it", name)
		}
	})
}

// testUpgradeOfSliceNames starts where a version left slices with the names that
// it gave them.
func testUpgradeOfSliceNames(t *testing.T, b *bed) {
	web, api := svc("web", global), svc("api")
	must(t, put(t.Context(), b.aws, "shop", web, slice(web, "web-1", "10.4.0.1")))
	must(t, put(t.Context(), b.aws, "shop", api, slice(api, "api-1", "10.4.0.2")))
	i := b.start(t, nil)
	b.quiet(t, i)
	i.stop()
	names := map[string]string{globalName: "10.4.0.1", "aws-shop-73736d-api": "10.4.0.2"}
	client := b.gcp.Client().DiscoveryV1().EndpointSlices(home)
	var old []string
	for name := range names {
		for _, sl := range b.slices(t, name) {
			before := sl.DeepCopy()
			before.ObjectMeta = metav1.ObjectMeta{
				Name: name + "-" + hash(sl.Name, hashLength), Labels: sl.Labels, Annotations: sl.Annotations,
			}
			_, err := client.Create(t.Context(), before, metav1.CreateOptions{})
			must(t, err)
			must(t, client.Delete(t.Context(), sl.Name, metav1.DeleteOptions{}))
			old = append(old, before.Name)
		}
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w, err := client.Watch(ctx, metav1.ListOptions{})
	must(t, err)
	gap := make(chan string, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		// By service and slice.
		there := map[string]map[string]bool{}
		for event := range w.ResultChan() {
			sl, ok := event.Object.(*discoveryv1.EndpointSlice)
			if !ok {
				continue
			}
			service := sl.Labels[discoveryv1.LabelServiceName]
			if there[service] == nil {
				there[service] = map[string]bool{}
			}
			has := event.Type != "DELETED" && slices.ContainsFunc(sl.Endpoints, func(e discoveryv1.Endpoint) bool {
				return slices.Contains(e.Addresses, names[service])
			})
			if there[service][sl.Name] = has; has {
				continue
			}
			if !anyOf(there[service]) {
				select {
				case gap <- service:
				default:
				}
			}
		}
	}()
	i = b.start(t, nil)
	b.inOrder(t, i)
	for name, address := range names {
		b.leadsTo(t, name, address)
		for _, sl := range b.slices(t, name) {
			if slices.Contains(old, sl.Name) {
				t.Errorf("slice %s is left", sl.Name)
			}
		}
	}
	cancel()
	<-done
	select {
	case service := <-gap:
		t.Errorf("%s was without its endpoint for a moment", service)
	default:
	}
}

func anyOf(m map[string]bool) bool {
	for _, v := range m {
		if v {
			return true
		}
	}
	return false
}
