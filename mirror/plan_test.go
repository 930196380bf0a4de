package mirror

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// model is what there is in three clusters, for a plan that has no API.
type model struct {
	rand  *rand.Rand
	views map[setID]*modelSet
	own   []*ownService
	zones []string
}

type modelSet struct {
	known, stale bool
	services     map[Key]*Service
	slices       map[sliceKey]*Slice
}

func newModel(r *rand.Rand, p *plan) *model {
	m := &model{rand: r, views: map[setID]*modelSet{}, zones: []string{""}}
	for _, id := range p.order {
		m.views[id] = &modelSet{services: map[Key]*Service{}, slices: map[sliceKey]*Slice{}}
	}
	return m
}

func modelPlan(own *holdings) *plan {
	clusters := []clusterConfig{
		{name: "gcp", local: true},
		{name: "aws", prefix: "c1", subnets: []netip.Prefix{netip.MustParsePrefix("10.4.0.0/16")}},
		{name: "merit", prefix: "c1-x"},
	}
	return newPlan(clusters, func(c clusterConfig) []setKind {
		if c.local {
			return []setKind{globalSet}
		}
		return []setKind{mirrorSet, globalSet}
	}, own)
}

// longName is too long to stay as it is, and twin the name of a service whose
// copy would be called like that of another one in the same namespace.
var longName = strings.Repeat("n", 60)

func twin(prefix, namespace, name string) string {
	return strings.TrimPrefix(shortened(fullName(prefix, Key{namespace, name})), fullName(prefix, Key{Namespace: namespace}))
}

// step changes one thing.
func (m *model) step() {
	ids := slices.SortedFunc(maps.Keys(m.views), func(a, b setID) int {
		if a.cluster != b.cluster {
			return map[bool]int{true: -1, false: 1}[a.cluster < b.cluster]
		}
		return int(a.kind) - int(b.kind)
	})
	s := m.views[ids[m.rand.IntN(len(ids))]]
	// Names that collide across prefixes and separators.
	names := []string{"n", "n-73736d-n", "m", longName, twin("gl", "z", longName), twin("c1", "z", longName)}
	k := Key{[]string{"y", "x-y", "x-y-73736d-n", "z"}[m.rand.IntN(4)], names[m.rand.IntN(len(names))]}
	switch m.rand.IntN(10) {
	case 0:
		s.known = true
	case 1:
		s.stale = !s.stale
	case 2:
		m.zones = [][]string{{""}, {"a"}, {"", "a", "b"}}[m.rand.IntN(3)]
	case 3, 4:
		delete(s.services, k)
	case 5:
		for key := range s.slices {
			delete(s.slices, key)
			break
		}
	case 6, 7:
		svc := &Service{Key: k, Created: time.Unix(int64(m.rand.IntN(3)), 0), LocalFirst: m.rand.IntN(2) == 0}
		svc.Spec.IPv4 = true
		svc.Spec.Headless = m.rand.IntN(4) == 0
		svc.Spec.Ports = []Port{tcp("http", 80+m.rand.Int32N(2))}
		if m.rand.IntN(8) == 0 {
			svc.Reject = "for the sake of it"
		}
		s.services[k] = svc
	default:
		sl := &Slice{Name: fmt.Sprintf("slice-%d", m.rand.IntN(6)), Service: k, Family: discoveryv1.AddressTypeIPv4}
		for range m.rand.IntN(4) {
			sl.Endpoints = append(sl.Endpoints, Endpoint{
				Address: netip.AddrFrom4([4]byte{10, byte(4 + m.rand.IntN(2)), 0, byte(1 + m.rand.IntN(200))}),
				Ready:   Condition(m.rand.IntN(3)),
			})
		}
		s.slices[sliceKey{k.Namespace, sl.Name}] = sl
	}
}

func (m *model) setViews() map[setID]setView {
	views := map[setID]setView{}
	for id, s := range m.views {
		views[id] = setView{
			known: s.known, stale: s.stale,
			services: slices.Collect(maps.Values(s.services)), slices: slices.Collect(maps.Values(s.slices)),
		}
	}
	return views
}

// contents is all that a plan wants, as hashes by name.
func contents(p *plan, sums summer) map[string]sum {
	all := map[string]sum{}
	for name, t := range p.names {
		all[name] = sums.of(sums.service(t.service(home)), t.id.String(), t.keeps, t.outdated, t.conflicts)
		for i := range t.slices {
			object := t.slices[i].object(home, t)
			all[object.Name] = sums.slice(object)
		}
	}
	return all
}

// write has the global services that a plan wants be there, as after a pass of
// the workers, and returns which of them changed.
func write(p *plan, own *holdings, sums summer, version int) map[Key]struct{} {
	all := make([]*ownService, 0, len(p.names))
	for name, t := range p.names {
		if !t.id.Global() {
			continue
		}
		s := t.service(home)
		s.UID, s.ResourceVersion = types.UID("uid of "+name), strconv.Itoa(version)
		o := sums.ownService(s)
		if have := own.services.get(name); have != nil && have.sum == o.sum {
			o = have
		}
		all = append(all, o)
	}
	_, globals := own.update(all, nil, nil, time.Now())
	return globals
}

// TestPlanEqualsOneFromNothing has a plan follow random changes. After each it
// must want what one wants that sees the state for the first time, and must
// have said of all names that differ from before that they may. What it wants
// doesn't change by being there.
func TestPlanEqualsOneFromNothing(t *testing.T) {
	for round := range 25 {
		seed := uint64(round)
		r := rand.New(rand.NewPCG(seed, 7))
		own := newHoldings()
		own.update([]*ownService{remembered("gl-x-y-73736d-n", Key{"x-y", "n"}, "aws", "gcp")}, nil, nil, time.Now())
		p := modelPlan(own)
		m := newModel(r, p)
		sums := newSummer()
		before, names := contents(p, sums), maps.Clone(p.names)
		for step := range 150 {
			m.step()
			changed, everything := p.update(m.setViews(), m.zones, nil)
			decided := contents(p, sums)
			globals := write(p, own, sums, step+2)
			more, again := p.update(m.setViews(), m.zones, globals)
			maps.Copy(changed, more)
			everything = everything || again
			if err := difference(contents(p, sums), decided); err != nil {
				t.Fatalf("seed %d, step %d: being there changes what is wanted:\n%v", seed, step, err)
			}
			fresh := modelPlan(own)
			fresh.update(m.setViews(), m.zones, nil)
			now := contents(p, sums)
			if err := difference(now, contents(fresh, sums)); err != nil {
				t.Fatalf("seed %d, step %d:\n%v", seed, step, err)
			}
			for name := range p.names {
				_, told := changed[name]
				if !told && !everything && now[name] != before[name] {
					t.Fatalf("seed %d, step %d: nobody was told of %s", seed, step, name)
				}
			}
			for name := range names {
				_, told := changed[name]
				if _, still := p.names[name]; !still && !told && !everything {
					t.Fatalf("seed %d, step %d: nobody was told of the end of %s", seed, step, name)
				}
			}
			// No two origins share a name.
			if len(p.names) != len(p.targets) {
				t.Fatalf("seed %d, step %d: %d names for %d origins", seed, step, len(p.names), len(p.targets))
			}
			before, names = now, maps.Clone(p.names)
		}
	}
}

func remembered(name string, k Key, clusters ...string) *ownService {
	return &ownService{
		identity: identity{name: name, uid: "u", version: "1", ours: true},
		id:       ID{Key: k}, global: true, clusters: clusters,
		spec: Spec{Traits{IPv4: true}, []Port{tcp("http", 80)}},
	}
}

func TestNothingIsRemovedOnTheWordOfAnUnsyncedCache(t *testing.T) {
	own := newHoldings()
	own.update([]*ownService{remembered("gl-shop-73736d-web", Key{"shop", "web"}, "aws", "merit")}, nil, nil, time.Now())
	p := modelPlan(own)
	c := &Controller{plan: p, own: own}
	none := map[setID]setView{}
	p.update(none, nil, map[Key]struct{}{{"shop", "web"}: {}})
	tg := p.names["gl-shop-73736d-web"]
	if tg == nil || !slices.Equal(tg.clusters, []string{"aws", "merit"}) || !slices.Equal(tg.keeps, []string{"aws", "merit"}) {
		t.Fatalf("with nothing known: %+v", tg)
	}
	foreign := &ownSlice{identity: identity{name: "x", ours: true}, service: tg.name, cluster: "merit"}
	if !c.keeps(tg, foreign) {
		t.Error("a slice of a cluster that has not been heard of goes")
	}
	// aws has been heard of, and has no such service.
	p.update(map[setID]setView{{"aws", globalSet}: {known: true}}, nil, nil)
	if tg = p.names["gl-shop-73736d-web"]; tg == nil || !slices.Equal(tg.clusters, []string{"merit"}) {
		t.Fatalf("with aws known: %+v", tg)
	}
	p.update(map[setID]setView{{"aws", globalSet}: {known: true}, {"merit", globalSet}: {known: true}}, nil, nil)
	if tg = p.names["gl-shop-73736d-web"]; tg != nil {
		t.Fatalf("with both known: %+v", tg)
	}
}
