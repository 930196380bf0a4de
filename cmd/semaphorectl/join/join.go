package join

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/cli"
	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/facts"
	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/handover"
	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/manifests"
)

// Options are the flags of join.
type Options struct {
	Wishes
	// Adopt takes over what was installed by other means.
	Adopt bool
	// NoProbe leaves out what takes temporary pods.
	NoProbe bool
	// Check ends when everything has been looked at.
	Check bool
	// Yes takes the bounds that clusters have named themselves, without asking.
	Yes bool
	// AfterStep is called after each step that changes something; an error ends the run
	// there. For tests of interruptions.
	AfterStep func(step string) error
}

// all are the clusters that something is done to.
type all struct {
	*cli.Session
	Options
	clusters []*cli.Cluster
	facts    []*facts.Facts
	settings []facts.Settings
	wanted   []*manifests.Cluster
	objects  [][]*unstructured.Unstructured
	taken    []map[int]bool // ports, by cluster
	agreed   []agreement
	// stays says which cluster goes on to reach which other one where it does.
	stays map[[2]string]bool
}

func newAll(ctx context.Context, s *cli.Session, clusters []*cli.Cluster, o Options) *all {
	n := len(clusters)
	a := &all{Session: s, Options: o, clusters: clusters,
		facts: make([]*facts.Facts, n), settings: make([]facts.Settings, n), wanted: make([]*manifests.Cluster, n),
		objects: make([][]*unstructured.Unstructured, n), taken: make([]map[int]bool, n),
		stays: map[[2]string]bool{},
	}
	if a.Servers == nil {
		a.Servers = map[string]string{}
	}
	a.Servers = maps.Clone(a.Servers)
	_ = a.each(func(i int, c *cli.Cluster) error {
		a.facts[i] = facts.Read(ctx, c)
		return nil
	})
	return a
}

// each does something for all clusters at once.
func (a *all) each(do func(i int, c *cli.Cluster) error) error {
	errs := make([]error, len(a.clusters))
	var group sync.WaitGroup
	for i, c := range a.clusters {
		group.Go(func() { errs[i] = do(i, c) })
	}
	group.Wait()
	return errors.Join(errs...)
}

// Join joins clusters, each with each.
func Join(ctx context.Context, s *cli.Session, clusters []*cli.Cluster, o Options) error {
	s.Say("looking at %s", names(clusters))
	a := newAll(ctx, s, clusters, o)
	if err := a.preflight(ctx); err != nil {
		return err
	}
	if o.Check {
		s.Done("nothing is in the way")
		return nil
	}
	if err := a.confirm(ctx); err != nil {
		return err
	}
	return a.install(ctx)
}

// confirm has the administrator agree to bounds that clusters have named themselves.
func (a *all) confirm(ctx context.Context) error {
	if a.Yes || !slices.ContainsFunc(a.agreed, agreement.asked) {
		return nil
	}
	agreed, err := a.Confirm(ctx, "Is that right?")
	switch {
	case errors.Is(err, cli.ErrNoTerminal):
		return cli.Usage(errors.New("the ranges above are what the clusters say of themselves, and nothing was changed: confirm them with --yes, or name them with --pod-subnets and --node-subnets"))
	case err != nil:
		return err
	case !agreed:
		return errors.New("nothing was changed; --pod-subnets and --node-subnets name other ranges")
	}
	return nil
}

func names(clusters []*cli.Cluster) string {
	var list []string
	for _, c := range clusters {
		list = append(list, c.Name)
	}
	return strings.Join(list, ", ")
}

// preflight looks at everything and changes nothing but for temporary pods. All that is
// in the way is told at once.
func (a *all) preflight(ctx context.Context) error {
	var faults []fault
	readable := true
	for i, f := range a.facts {
		if f.Calico.Version == "" && f.Version != "" && slices.Contains(a.Tools, manifests.Policy) {
			faults = append(faults, fault{cluster: f.Name, what: "there is no Calico, so semaphore-policy has nothing to write to", remedy: "say --tools wireguard,mirror"})
		}
		faults = append(faults, check(f, &a.Wishes, a.others(f))...)
		readable = readable && f.Version != "" && !slices.ContainsFunc(f.Unread, facts.IsInvalid)
		a.summary(i)
	}
	faults = append(faults, overlaps(a.facts, &a.Wishes)...)
	for _, f := range a.facts {
		agreed, refused := agree(f, a.sides(f))
		faults = append(faults, refused...)
		a.agreed = append(a.agreed, agreed...)
	}
	if readable {
		if err := a.render(); err != nil {
			return err
		}
		var mu sync.Mutex
		_ = a.each(func(i int, c *cli.Cluster) error {
			found := rights(ctx, c, a.objects[i])
			if !a.Adopt {
				found = append(found, foreign(ctx, c, a.objects[i])...)
			}
			mu.Lock()
			defer mu.Unlock()
			faults = append(faults, found...)
			return nil
		})
	}
	if readable {
		for i, f := range a.facts {
			faults = append(faults, collisions(f, a.settings[i], a.agreed, a.facts)...)
		}
		for i, f := range a.facts {
			if f.DNS == nil || !slices.Contains(a.wanted[i].Tools, manifests.Mirror) {
				continue
			}
			if _, err := blocks(a.settings[i], f.DNS.Corefile); err != nil {
				faults = append(faults, fault{cluster: f.Name, what: "names of services of other clusters: " + err.Error(), remedy: "give that cluster another name"})
			}
		}
	}
	if readable && !a.NoProbe {
		faults = append(faults, a.probe(ctx)...)
		if err := a.render(); err != nil {
			return err
		}
	}
	if err := a.tell(faults); err != nil {
		return err
	}
	// Behind all that clusters can make long.
	for _, one := range a.agreed {
		for _, line := range one.lines() {
			a.Say("%s", line)
		}
	}
	return nil
}

// sides are the clusters that one is joined with.
func (a *all) sides(f *facts.Facts) []side {
	var sides []side
	for _, other := range a.facts {
		if other != f {
			r := a.side(other)
			r.chosen = r.chosen && !a.stays[[2]string{f.Name, other.Name}]
			sides = append(sides, r)
		}
	}
	return sides
}

// others are the names of the clusters that one is joined with.
func (a *all) others(f *facts.Facts) []string {
	var names []string
	for _, other := range a.facts {
		if other != f {
			names = append(names, other.Name)
		}
	}
	return names
}

// summary says what was found.
func (a *all) summary(i int) {
	f := a.facts[i]
	if f.Version == "" {
		return
	}
	plugin := f.Plugin
	if plugin == "" {
		plugin = "network plugin unknown"
	}
	side := a.side(f)
	a.Done("%s: Kubernetes %s, %d nodes, %s, pods in %s, services in %s, nodes in %s",
		f.Name, f.Version, len(f.Nodes), plugin, shortened(side.pods), shortened(f.Services), shortened(side.machines))
}

// tell prints faults, and is an error when one is in the way.
func (a *all) tell(faults []fault) error {
	var errs []error
	for _, f := range few(faults) {
		if f.warning {
			a.Warn("%s", f)
			continue
		}
		errs = append(errs, errors.New(f.String()))
	}
	if len(errs) > 0 {
		errs = append(errs, fmt.Errorf("%d faults are in the way, and nothing was changed", len(errs)))
	}
	return errors.Join(errs...)
}

// mostTold is how many faults of one cluster are printed, and how many warnings: a cluster
// must not hide those of another one behind its own.
const mostTold = 40

// few are faults by cluster, each once, though two clusters may have it of a third one, and
// no more of each cluster than are printed.
func few(faults []fault) []fault {
	slices.SortStableFunc(faults, func(x, y fault) int { return strings.Compare(x.cluster, y.cluster) })
	type kind struct {
		cluster string
		warning bool
	}
	count, said, kept := map[kind]int{}, map[string]bool{}, []fault(nil)
	for _, f := range faults {
		if said[f.String()] {
			continue
		}
		said[f.String()] = true
		if count[kind{f.cluster, f.warning}]++; count[kind{f.cluster, f.warning}] <= mostTold {
			kept = append(kept, f)
		}
	}
	for of, n := range count {
		if n > mostTold {
			kept = append(kept, fault{cluster: of.cluster, what: fmt.Sprintf("and %d more of that", n-mostTold), warning: of.warning})
		}
	}
	slices.SortStableFunc(kept, func(x, y fault) int { return strings.Compare(x.cluster, y.cluster) })
	return kept
}

// render makes settings and objects of what is known by now.
func (a *all) render() error {
	a.want()
	for i, wanted := range a.wanted {
		var err error
		if a.objects[i], err = wanted.Render(); err != nil {
			return err
		}
	}
	return nil
}

// want makes settings of what is known by now, and says what clusters are to have.
func (a *all) want() {
	for i, f := range a.facts {
		a.settings[i] = settings(f, a.sides(f), a.taken[i])
		wishes := a.Wishes
		if wishes.Tools == nil {
			wishes.Tools = []string{manifests.WireGuard, manifests.Mirror}
			if f.Calico.Version != "" {
				wishes.Tools = manifests.Tools()
			}
		}
		a.wanted[i] = desired(f, &wishes, a.settings[i])
	}
}

// finishRevocations completes revocations that were interrupted. What is applied next
// gives the accounts back their rights and Secrets.
func (a *all) finishRevocations(ctx context.Context) error {
	return handover.Finish(ctx, a.Session, a.clusters)
}

// handAll hands over what is missing.
func (a *all) handAll(ctx context.Context) error {
	return a.each(func(_ int, to *cli.Cluster) error {
		var errs []error
		for _, from := range a.clusters {
			if from == to {
				continue
			}
			tools, _, err := handover.Hand(ctx, a.Session, from, to, handover.Missing)
			errs = append(errs, err)
			if len(tools) > 0 {
				a.Done("%s: tokens for %s: %s", to.Name, from.Name, strings.Join(tools, ", "))
			}
		}
		return errors.Join(errs...)
	})
}
