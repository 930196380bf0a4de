package join

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/handover"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
)

// Options are the flags of join.
type Options struct {
	InstallOptions
	// Adopt accepts existing objects of a manual installation.
	Adopt bool
	// NoProbe skips the checks that need temporary pods.
	NoProbe bool
	// Files is whether nothing is changed, and values are written to files.
	Files bool
	// Check ends after the checks.
	Check bool
	// Yes accepts the ranges that clusters report, without confirmation.
	Yes bool
	// AfterStep is called after each step that changes something; an error ends the run
	// there. For tests of interruptions.
	AfterStep func(step string) error
}

// installation is the state of a run for all clusters.
type installation struct {
	*cli.Session
	Options
	clusters []*cli.Cluster
	facts    []*inspect.Facts
	settings []inspect.Settings
	wanted   []*manifests.Cluster
	objects  [][]*unstructured.Unstructured
	releases map[string]*installed // by cluster
	running  []*running
	taken    []map[int]bool // ports, by cluster
	agreed   []agreement
	// stays are the pairs of clusters for which the configured API server is kept.
	stays map[[2]string]bool
	// handed are the tools for which this run has handed over tokens, by cluster and the one
	// whose tokens they are.
	handed []map[string][]string
	gone   bool // leave --gone
}

func newInstallation(ctx context.Context, s *cli.Session, clusters []*cli.Cluster, o Options) *installation {
	n := len(clusters)
	a := &installation{Session: s, Options: o, clusters: clusters,
		facts: make([]*inspect.Facts, n), settings: make([]inspect.Settings, n), wanted: make([]*manifests.Cluster, n),
		objects: make([][]*unstructured.Unstructured, n), releases: map[string]*installed{}, taken: make([]map[int]bool, n),
		stays: map[[2]string]bool{}, handed: make([]map[string][]string, n),
	}
	if a.Servers == nil {
		a.Servers = map[string]string{}
	}
	a.Servers = maps.Clone(a.Servers)
	for _, c := range clusters {
		a.releases[c.Name] = &installed{c: c}
	}
	_ = a.each(func(i int, c *cli.Cluster) error {
		if a.facts[i] = inspect.Read(ctx, c, a.Services[c.Name]...); a.facts[i].Version == "" {
			return nil
		}
		if err := a.releases[c.Name].read(ctx); err != nil {
			a.facts[i].Unread = append(a.facts[i].Unread, err)
		}
		return nil
	})
	return a
}

// each calls do for all clusters at the same time.
func (a *installation) each(do func(i int, c *cli.Cluster) error) error {
	errs := make([]error, len(a.clusters))
	var group sync.WaitGroup
	for i, c := range a.clusters {
		group.Go(func() { errs[i] = do(i, c) })
	}
	group.Wait()
	return errors.Join(errs...)
}

// Join joins clusters, each with each other.
func Join(ctx context.Context, s *cli.Session, clusters []*cli.Cluster, o Options) error {
	s.Say("checking %s", names(clusters))
	a := newInstallation(ctx, s, clusters, o)
	if err := a.preflight(ctx); err != nil {
		return err
	}
	if o.Check {
		s.Done("no faults found, nothing was changed")
		return nil
	}
	if err := a.confirm(ctx); err != nil {
		return err
	}
	if err := a.install(ctx); err != nil {
		return err
	}
	a.next()
	return nil
}

// confirm asks the administrator to accept the ranges that clusters report.
func (a *installation) confirm(ctx context.Context) error {
	unchosen := len(a.options()) > 0
	switch {
	case unchosen && a.Yes:
		return a.errUnchosen() // Which addresses a mesh uses is no fact that a cluster reports.
	case !unchosen && (a.Yes || !slices.ContainsFunc(a.agreed, agreement.asked)):
		return nil
	}
	agreed, err := a.Confirm(ctx, "Are these ranges correct?")
	switch {
	case errors.Is(err, cli.ErrNoTerminal) && unchosen:
		return a.errUnchosen()
	case errors.Is(err, cli.ErrNoTerminal):
		return cli.Usage(errors.New("the ranges above are as the clusters report them, and nothing was changed: confirm them with --yes, or specify them with --pod-subnets and --node-subnets"))
	case err != nil:
		return cli.Hint(err, "nothing was changed")
	case !agreed:
		return errors.New("nothing was changed; specify the ranges with --pod-subnets and --node-subnets")
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

// preflight runs all checks, and reports all faults at once. It changes nothing except for
// temporary pods.
func (a *installation) preflight(ctx context.Context) error {
	if err := a.stopped(ctx); err != nil {
		return err
	}
	if faults := duplicates(a.clusters, a.facts); len(faults) > 0 {
		return a.report(faults) // All others would be consequences.
	}
	faults := a.virtualize(a.facts)
	if len(faults) == 0 && !a.NoProbe {
		faults = a.look(ctx)
	}
	readable := true
	for _, f := range a.facts {
		readable = readable && f.Version != "" && !slices.ContainsFunc(f.Unread, inspect.IsInvalid)
	}
	lacking := make([][]fault, len(a.facts))
	if readable {
		_ = a.each(func(i int, c *cli.Cluster) error {
			a.facts[i].ReadPodPrefixes(ctx, c)
			return nil
		})
		if err := a.render(); err != nil {
			return err
		}
		_ = a.each(func(i int, c *cli.Cluster) error {
			lacking[i] = rights(ctx, c, a.facts[i], a.objects[i], a.wanted[i].Relay || a.wanted[i].RelayAlone)
			return nil
		})
	}
	for i, f := range a.facts {
		if f.Calico.Version == "" && f.Version != "" && slices.Contains(a.Tools, manifests.Policy) {
			faults = append(faults, fault{cluster: f.Name, what: "Calico isn't installed, which semaphore-policy needs", remedy: "use --tools wireguard,mirror"})
		}
		found := check(f, &a.InstallOptions, a.others(f))
		if len(lacking[i]) > 0 {
			// These name all rights at once.
			found = slices.Concat(lacking[i], slices.DeleteFunc(found, func(f fault) bool { return f.forbidden }))
		}
		faults = append(faults, found...)
		a.summary(i)
	}
	faults = append(faults, overlaps(a.facts, &a.InstallOptions)...)
	for i, f := range a.facts {
		agreed, refused := agree(f, a.remotesOf(f))
		for n := range agreed {
			if readable && a.wanted[i].MultiCluster != nil {
				agreed[n].imports = imports(f.Installed.Settings, a.settings[i], cluster.Name(agreed[n].remote))
			}
		}
		faults = append(faults, refused...)
		a.agreed = append(a.agreed, agreed...)
	}
	if readable {
		faults = append(faults, a.proposals()...)
	}
	allowed := !slices.ContainsFunc(lacking, func(f []fault) bool { return len(f) > 0 })
	if readable {
		for i := range a.facts {
			faults = append(faults, a.owned(ctx, i)...)
		}
	}
	if readable && !a.Adopt {
		var mu sync.Mutex
		_ = a.each(func(i int, c *cli.Cluster) error {
			if len(lacking[i]) > 0 || a.facts[i].Installed.Owner != "" {
				return nil
			}
			found := foreign(ctx, c, a.objects[i])
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
			if slices.Contains(a.wanted[i].Tools, manifests.Mirror) {
				faults = append(faults, unnamed(f, a.wanted[i])...)
				faults = append(faults, unimported(f, a.wanted[i])...)
				faults = append(faults, crowded(f, a.settings[i])...)
			}
		}
	}
	if err := a.stopped(ctx); err != nil {
		return err
	}
	if readable && allowed && !a.NoProbe {
		faults = append(faults, a.probe(ctx)...)
		if err := a.stopped(ctx); err != nil {
			return err
		}
		if err := a.render(); err != nil {
			return err
		}
	}
	if err := a.report(faults); err != nil {
		return err
	}
	// After everything whose length clusters influence.
	for _, line := range a.virtualLines() {
		a.Say("%s", line)
	}
	for _, one := range a.agreed {
		for _, line := range one.lines() {
			a.Say("%s", line)
		}
	}
	return nil
}

// remotesOf returns the clusters that a cluster is joined with.
func (a *installation) remotesOf(f *inspect.Facts) []remoteSettings {
	var remotes []remoteSettings
	for _, other := range a.facts {
		if other != f {
			r := a.remoteSettings(other)
			r.chosen = r.chosen && !a.stays[[2]string{f.Name, other.Name}]
			remotes = append(remotes, r)
		}
	}
	return remotes
}

// others returns the names of the clusters that a cluster is joined with.
func (a *installation) others(f *inspect.Facts) []string {
	var names []string
	for _, other := range a.facts {
		if other != f {
			names = append(names, other.Name)
		}
	}
	return names
}

// summary prints the facts of a cluster.
func (a *installation) summary(i int) {
	f := a.facts[i]
	if f.Version == "" {
		return
	}
	say := a.Done
	known := []string{"Kubernetes " + f.Version}
	var unknown []string
	add := func(is bool, text, what string) {
		if is {
			known = append(known, text)
			return
		}
		unknown, say = append(unknown, what), a.Warn
	}
	remote := a.remoteSettings(f)
	add(len(f.Nodes) > 0, cli.Count(len(f.Nodes), "node"), "its nodes")
	pods := "pods in " + shortened(remote.pods)
	if len(remote.mapped.now) > 0 {
		pods += ", for other clusters in " + shortened(remote.mapped.known(remote.pods))
	}
	add(len(remote.pods) > 0, pods, "the ranges of its pods")
	add(len(f.Services) > 0, "services in "+shortened(f.Services), "those of its services")
	add(len(remote.machines) > 0, "nodes in "+shortened(remote.machines), "those of its nodes")
	if f.Plugin != "" {
		known = append(known, f.Plugin)
	} else {
		unknown = append(unknown, "its network plugin")
	}
	if f.PodPrefixes != "" {
		known = append(known, "prefixes of pods: "+f.PodPrefixes)
	}
	if len(unknown) > 0 {
		known = append(known, "unknown: "+strings.Join(unknown, ", "))
	}
	say("%s: %s", f.Name, strings.Join(known, ", "))
}

// report prints warnings, and returns an error for the other faults.
func (a *installation) report(faults []fault) error {
	var errs []error
	for _, f := range few(faults) {
		if f.warning {
			a.Warn("%s", f)
			continue
		}
		errs = append(errs, errors.New(f.String()))
	}
	if len(errs) > 0 {
		errs = append(errs, fmt.Errorf("%s, nothing was changed", cli.Count(len(errs), "fault")))
	}
	return errors.Join(errs...)
}

// maxFaults bounds the printed faults of a cluster, and its warnings: a cluster must not
// hide those of another one behind its own.
const maxFaults = 40

// few sorts faults by cluster, removes duplicates and applies maxFaults.
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
		if count[kind{f.cluster, f.warning}]++; count[kind{f.cluster, f.warning}] <= maxFaults {
			kept = append(kept, f)
		}
	}
	for of, n := range count {
		if n > maxFaults {
			kept = append(kept, fault{cluster: of.cluster, what: fmt.Sprintf("and %d more", n-maxFaults), warning: of.warning})
		}
	}
	slices.SortStableFunc(kept, func(x, y fault) int { return strings.Compare(x.cluster, y.cluster) })
	return kept
}

// render computes settings and objects from the facts so far.
func (a *installation) render() error {
	a.want()
	for i, wanted := range a.wanted {
		var err error
		if a.objects[i], err = wanted.Render(); err != nil {
			return err
		}
	}
	return nil
}

// want computes settings and manifests from the facts so far.
func (a *installation) want() {
	a.nodes = len(largest(a.facts).Nodes)
	for i, f := range a.facts {
		a.settings[i] = settings(f, a.remotesOf(f), a.taken[i])
		a.InstallOptions.choose(a.settings[i])
		a.setMap(f, a.settings[i])
		chosen := a.InstallOptions
		if chosen.Tools == nil {
			chosen.Tools = []string{manifests.WireGuard, manifests.Mirror}
			if f.Calico.Version != "" {
				chosen.Tools = manifests.Tools()
			}
		}
		if f.Installed.Owner != "" && !a.Files {
			chosen.Tools, chosen.Image, chosen.PullSecret = f.Installed.Tools, a.image(f), nil
		}
		if a.wanted[i] = a.desired(i, &chosen, a.settings[i]); !a.wanted[i].Relay && a.settings[i][inspect.RemotesFrom] == inspect.RemotesFromRelay {
			delete(a.settings[i], inspect.RemotesFrom)
		}
	}
}

// finishRevocations completes interrupted revocations. The next step would create the accounts
// without a wait.
func (a *installation) finishRevocations(ctx context.Context) error {
	var pairs []handover.Pair
	for _, from := range a.clusters {
		for _, to := range a.clusters {
			if from != to {
				pairs = append(pairs, handover.Pair{From: from, To: to})
			}
		}
	}
	return handover.Restore(ctx, a.Session, pairs)
}

// handAll hands over tokens that are missing or refused.
func (a *installation) handAll(ctx context.Context) error {
	return a.each(func(i int, to *cli.Cluster) error {
		var errs []error
		a.handed[i] = map[string][]string{}
		for _, from := range a.clusters {
			if from == to {
				continue
			}
			tools, _, err := handover.Hand(ctx, from, to, a.wanted[i].Tools, handover.Missing)
			errs = append(errs, err)
			a.handed[i][from.Name] = tools
			if len(tools) > 0 {
				a.Done("%s: tokens for %s: %s", to.Name, from.Name, strings.Join(tools, ", "))
			}
		}
		return errors.Join(errs...)
	})
}

// awaitTokens waits until the programs have tokens that are accepted.
func (a *installation) awaitTokens(ctx context.Context) error {
	return a.each(func(i int, c *cli.Cluster) error { return handover.Await(ctx, a.Session, c, a.handed[i]) })
}

// desired returns the manifests of a cluster, with the values that its release has besides.
func (a *installation) desired(i int, w *InstallOptions, settings inspect.Settings) *manifests.Cluster {
	wanted := desired(a.facts[i], w, settings)
	wanted.Have = a.releases[a.facts[i].Name].values()
	return wanted
}

// present returns the manifests of what is installed in a cluster.
func (a *installation) present(i int) *manifests.Cluster {
	have := a.facts[i].Installed
	return a.desired(i, &InstallOptions{Tools: have.Tools, Image: have.Image}, have.Settings)
}

// owned returns a fault if something else applies the installation of a cluster, and lacks values for
// the others; it prints these.
func (a *installation) owned(ctx context.Context, i int) []fault {
	f := a.facts[i]
	if f.Installed.Owner == "" || a.Files {
		return nil
	}
	have, err := a.present(i).Values()
	var absent map[string]bool
	if err == nil {
		absent, err = a.absent(ctx, i)
	}
	if err == nil {
		var want map[string]any
		if want, err = a.wanted[i].Values(); err == nil {
			differs := false
			maps.DeleteFunc(want, func(key string, value any) bool {
				equal := reflect.DeepEqual(value, have[key])
				differs = differs || !equal
				return equal && !absent[key]
			})
			if len(want) == 0 {
				return nil
			}
			var text []byte
			if text, err = yaml.Marshal(want); err == nil {
				a.Say("%s: values of the chart that differ from what is installed:", f.Name)
				for line := range strings.Lines(string(text)) {
					a.Say("  %s", strings.TrimSuffix(line, "\n"))
				}
				if !differs { // It may have the same under other names.
					return []fault{{cluster: f.Name, what: "it is installed by " + f.Installed.Owner + ", and has no objects that the values above make", warning: true,
						remedy: "set them there, unless it has the same by other means"}}
				}
				return []fault{{cluster: f.Name, what: "it is installed by " + f.Installed.Owner + ", which would set changes back",
					remedy: "set the values above there, and join again: then tokens are handed over"}}
			}
		}
	}
	return []fault{{cluster: f.Name, what: fmt.Sprintf("the values of its chart: %v", err)}}
}

// absent returns the values whose objects a cluster doesn't have, of those that are chosen by what was found in
// it: nothing that is installed shows these.
func (a *installation) absent(ctx context.Context, i int) (map[string]bool, error) {
	bare := *a.wanted[i]
	bare.PodPrefixes, bare.Pools = "", schema.GroupVersion{}
	others, err := bare.Render()
	if err != nil {
		return nil, err
	}
	absent := map[string]bool{}
	for _, o := range a.objects[i] {
		if slices.ContainsFunc(others, func(x *unstructured.Unstructured) bool {
			return x.GetKind() == o.GetKind() && x.GetName() == o.GetName()
		}) {
			continue
		}
		one, err := resourceOf(ctx, a.clusters[i], o)
		if err == nil {
			_, err = one.Get(ctx, o.GetName(), metav1.GetOptions{})
		}
		key := "wireguard"
		if o.GetKind() == "IPPool" {
			key = "calico"
		}
		if apierrors.IsNotFound(err) {
			absent[key] = true
		} else if err != nil {
			return nil, fmt.Errorf("read %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	return absent, nil
}
