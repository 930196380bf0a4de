package mirror

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

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
