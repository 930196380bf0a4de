package scenarios_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// testByHand changes one of our objects, deletes it, and then checks that nothing is written
// without a change.
func (f *controllers) testByHand(t *testing.T) {
	for _, s := range f.subjects {
		local := s.local("aws", "hand")
		before := f.has(t, s, f.aws, "hand", 2)
		objects := f.gcp.Dynamic().Resource(s.kind()).Namespace(s.namespace())
		right, err := objects.Get(t.Context(), local, metav1.GetOptions{})
		must(t, err)
		f.patch(t, s, local, s.spoil())
		eventually(t, patient, local+" to be put right", func(ctx context.Context) error {
			now, err := objects.Get(ctx, local, metav1.GetOptions{})
			if err == nil && !reflect.DeepEqual(now.Object["spec"], right.Object["spec"]) {
				err = fmt.Errorf("%v, want %v", now.Object["spec"], right.Object["spec"])
			}
			return err
		})
		must(t, objects.Delete(t.Context(), local, metav1.DeleteOptions{}))
		if now := f.comes(t, s, f.aws, "hand", 2); now.uid == before.uid {
			t.Errorf("%s: %s was not deleted", s.program(), local)
		}
	}
	counts := map[*subject]int{}
	for _, s := range f.subjects {
		counts[s] = f.writes(t, s)
	}
	select {
	case <-time.After(10 * time.Second): // Long enough for periodic writes.
	case <-t.Context().Done():
	}
	for _, s := range f.subjects {
		if n := f.writes(t, s) - counts[s]; n > 0 {
			t.Errorf("%s: %d writes although nothing happened", s.program(), n)
		}
		s.alive(t)
	}
}

func (f *controllers) testForeign(t *testing.T) {
	for _, s := range f.subjects {
		local := s.local("aws", "taken")
		objects := f.gcp.Dynamic().Resource(s.kind()).Namespace(s.namespace())
		foreign, err := objects.Create(t.Context(), s.foreign(local), metav1.CreateOptions{})
		must(t, err)
		f.puts(t, s, f.aws, "taken", 3)
		f.has(t, s, f.aws, "other", 3)
		f.says(t, s, f.aws, "taken", "not ours")
		must(t, s.remove(t.Context(), f.aws, "taken"))
		f.says(t, s, f.aws, "taken", "")
		now, err := objects.Get(t.Context(), local, metav1.GetOptions{})
		must(t, err)
		if now.GetResourceVersion() != foreign.GetResourceVersion() {
			t.Errorf("%s: a foreign object has changed: %v, and was %v", s.program(), now, foreign)
		}
		must(t, objects.Delete(t.Context(), local, metav1.DeleteOptions{}))
	}
}

// testRefused lets the API server deny one name, as admission policies and webhooks do.
func (f *controllers) testRefused(t *testing.T) {
	group := schema.GroupVersion{Group: "admissionregistration.k8s.io", Version: "v1"}
	policies, bindings := "validatingadmissionpolicies", "validatingadmissionpolicybindings"
	object := func(kind string, spec map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": group.String(), "kind": kind, "metadata": map[string]any{"name": "deny-one"}, "spec": spec,
		}}
	}
	must(t, f.gcp.ApplyObjects(t.Context(),
		object("ValidatingAdmissionPolicy", map[string]any{
			"failurePolicy": "Fail",
			"matchConstraints": map[string]any{"resourceRules": []any{map[string]any{
				"apiGroups": []any{"", "projectcalico.org"}, "apiVersions": []any{"*"}, "operations": []any{"CREATE"},
				"resources": []any{"services", "globalnetworksets"},
			}}},
			"validations": []any{map[string]any{"expression": `!object.metadata.name.endsWith("refused")`}},
		}),
		object("ValidatingAdmissionPolicyBinding", map[string]any{"policyName": "deny-one", "validationActions": []any{"Deny"}}),
	))
	for _, s := range f.subjects {
		eventually(t, patient, "names to be denied", func(ctx context.Context) error {
			_, err := f.gcp.Dynamic().Resource(s.kind()).Namespace(s.namespace()).
				Create(ctx, s.foreign("refused"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if err == nil || !strings.Contains(err.Error(), "denied request") {
				return fmt.Errorf("not yet: %w", err)
			}
			return nil
		})
	}
	for _, s := range f.subjects {
		f.puts(t, s, f.aws, "refused", 4)
		f.says(t, s, f.aws, "refused", "denied request")
		f.has(t, s, f.aws, "other", 4)
		f.has(t, s, f.merit, "other", 4)
		s.alive(t)
	}
	for _, resource := range []string{bindings, policies} {
		must(t, f.gcp.Dynamic().Resource(group.WithResource(resource)).Delete(t.Context(), "deny-one", metav1.DeleteOptions{}))
	}
	for _, s := range f.subjects {
		f.comes(t, s, f.aws, "refused", 4)
		f.says(t, s, f.aws, "refused", "")
	}
}

// testFinalizer delays the deletion of our object.
func (f *controllers) testFinalizer(t *testing.T) {
	for _, s := range f.subjects {
		local := s.local("aws", "held")
		f.has(t, s, f.aws, "held", 5)
		f.patch(t, s, local, `{"metadata":{"finalizers":["example.org/slow"]}}`)
		before := f.requests(t, s, "", "DELETE", "DELETECOLLECTION")
		must(t, s.remove(t.Context(), f.aws, "held"))
		eventually(t, patient, local+" to be deleted", func(ctx context.Context) error {
			o, err := f.gcp.Dynamic().Resource(s.kind()).Namespace(s.namespace()).Get(ctx, local, metav1.GetOptions{})
			if err == nil && o.GetDeletionTimestamp() == nil {
				err = errors.New("not yet")
			}
			return err
		})
		for n := range 10 {
			f.patch(t, s, local, fmt.Sprintf(`{"metadata":{"annotations":{"example.org/waits":"%d"}}}`, n))
			f.has(t, s, f.aws, "other", 10+n)
		}
		// One of each kind, and one of each that may meet an outdated version.
		if n := f.requests(t, s, "", "DELETE", "DELETECOLLECTION") - before; n > 2*len(s.kinds()) {
			t.Errorf("%s: %d requests to delete one object", s.program(), n)
		}
		f.patch(t, s, local, `{"metadata":{"finalizers":null}}`)
		f.goes(t, s, f.aws, "held")
	}
}

// testUnreachable stops the API server of a remote.
func (f *controllers) testUnreachable(t *testing.T) {
	var unchanged []func(*testing.T)
	for _, s := range f.subjects {
		f.has(t, s, f.aws, "away", 6)
		f.has(t, s, f.merit, "there", 6)
		unchanged = append(unchanged, f.untouched(t, s, s.local("merit", "there")))
	}
	f.aws.StopAPI()
	for i, s := range f.subjects {
		f.has(t, s, f.merit, "there", 7)
		eventually(t, patient, s.program()+" to report that aws is unreachable", func(ctx context.Context) error {
			_, fault, err := s.contact(ctx, s.Program, "aws")
			if err == nil && fault == "" {
				err = errors.New("no fault")
			}
			return err
		})
		s.alive(t)
		// One that starts meanwhile.
		f.restart(t, s, nil)
		f.has(t, s, f.merit, "there", 8)
		f.has(t, s, f.merit, "while-aws-is-away", 8)
		s.alive(t)
		unchanged[i](t)
	}
	must(t, f.aws.StartAPI(within(t, patient)))
	for i, s := range f.subjects {
		f.has(t, s, f.aws, "back", 6)
		unchanged[i](t)
		f.has(t, s, f.aws, "away", 7)
		s.alive(t)
	}
}

// backup makes origins of aws of which some change after the backup that it returns.
func (f *controllers) backup(t *testing.T, of *testbed.Cluster, name string) string {
	t.Helper()
	for _, s := range f.subjects {
		f.has(t, s, f.aws, name+"-stays", 20)
		f.has(t, s, f.aws, name+"-changes", 21)
		f.has(t, s, f.aws, name+"-goes", 22)
	}
	file, err := of.Backup(within(t, patient))
	must(t, err)
	for _, s := range f.subjects {
		f.has(t, s, f.aws, name+"-changes", 23)
		must(t, s.remove(t.Context(), f.aws, name+"-goes"))
		f.goes(t, s, f.aws, name+"-goes")
		f.has(t, s, f.aws, name+"-comes", 24)
	}
	return file
}

// testRemoteRestored restores a remote from a backup: our objects follow.
func (f *controllers) testRemoteRestored(t *testing.T) {
	file := f.backup(t, f.aws, "remote")
	var unchanged []func(*testing.T)
	for _, s := range f.subjects {
		unchanged = append(unchanged, f.untouched(t, s, s.local("aws", "remote-changes"), s.local("aws", "remote-comes")))
	}
	must(t, f.aws.RestoreBackup(within(t, patient), file))
	for i, s := range f.subjects {
		f.comes(t, s, f.aws, "remote-changes", 21)
		f.comes(t, s, f.aws, "remote-goes", 22)
		f.goes(t, s, f.aws, "remote-comes")
		unchanged[i](t)
		f.has(t, s, f.aws, "remote-afterwards", 25)
		s.alive(t)
	}
}

// testLocalRestored restores the local cluster from a backup: our objects are written again.
func (f *controllers) testLocalRestored(t *testing.T) {
	file := f.backup(t, f.gcp, "local")
	must(t, f.gcp.RestoreBackup(within(t, patient), file))
	for _, s := range f.subjects {
		f.comes(t, s, f.aws, "local-changes", 23)
		f.comes(t, s, f.aws, "local-comes", 24)
		f.goes(t, s, f.aws, "local-goes")
		f.comes(t, s, f.aws, "local-stays", 20)
		f.comes(t, s, f.merit, "still", 1)
		f.has(t, s, f.aws, "local-afterwards", 25)
		f.has(t, s, f.aws, "local-changes", 26)
		s.alive(t)
	}
}

// without returns settings with which aws is no remote.
func (f *controllers) without(t *testing.T, s *subject, grace string) {
	t.Helper()
	base := s.base
	s.base = maps.Clone(base)
	maps.DeleteFunc(s.base, func(name, _ string) bool { return strings.HasPrefix(name, programs.Variable("aws", "")) })
	f.restart(t, s, map[string]string{"SEMAPHORE_REMOTES": "merit", "SEMAPHORE_REMOVAL_GRACE": grace})
	s.base = base
}

// testUnconfigured removes a remote from the configuration, temporarily and for good.
func (f *controllers) testUnconfigured(t *testing.T) {
	for _, s := range f.subjects {
		f.has(t, s, f.aws, "lingers", 30)
		unchanged := f.untouched(t, s, s.local("merit", "there"))
		f.without(t, s, "1h")
		eventually(t, patient, s.program()+" to say when what is from aws goes", func(ctx context.Context) error {
			at, err := s.removedAt(ctx, s.Program, "aws")
			if err == nil && (at == nil || time.Until(*at) <= 0 || time.Until(*at) > time.Hour) {
				err = fmt.Errorf("it goes %v", at)
			}
			return err
		})
		f.has(t, s, f.merit, "there", 31)
		unchanged(t)
		f.restart(t, s, nil)
		f.has(t, s, f.merit, "there", 32)
		f.has(t, s, f.aws, "returned", 32)
		unchanged(t)
		if at, err := s.removedAt(t.Context(), s.Program, "aws"); at != nil || err != nil {
			t.Errorf("%s: it goes %v, %v", s.program(), at, err)
		}

		unchanged = f.untouched(t, s, f.localOf(t, s, "aws")...)
		f.without(t, s, "2s")
		eventually(t, patient, "nothing of aws to be left by "+s.program(), func(context.Context) error {
			if left := f.localOf(t, s, "aws"); len(left) > 0 {
				return fmt.Errorf("%v", left)
			}
			return nil
		})
		unchanged(t)
		f.restart(t, s, nil)
		f.comes(t, s, f.aws, "lingers", 30)
		unchanged(t)
	}
}

// localOf returns the names of the objects of a remote.
func (f *controllers) localOf(t *testing.T, s *subject, remote string) (names []string) {
	t.Helper()
	all, err := f.observe(t.Context(), s)
	must(t, err)
	for name := range all {
		if strings.HasPrefix(name, s.local(remote, "")) {
			names = append(names, name)
		}
	}
	return names
}

// testStale makes a remote silent, and then answer with errors only.
func (f *controllers) testStale(t *testing.T) {
	r := newRelay(t, f.aws)
	const port = 16443
	ca := serveTLS(t, r, f.node, port)
	local, merged := map[*subject]string{}, map[*subject][]string{}
	unchanged := map[*subject]func(*testing.T){}
	for _, s := range f.subjects {
		f.restart(t, s, map[string]string{
			programs.Variable("aws", "API_URL"):     fmt.Sprintf("https://%s:%d", f.node.Addresses()[0], port),
			programs.Variable("aws", "CA_FILE"):     ca,
			programs.Variable("aws", "STALE_AFTER"): "3s",
		})
		for _, c := range []*testbed.Cluster{f.merit, f.aws} {
			name, both, err := s.shared(t.Context(), c, "stale", addressOf(c, 40))
			must(t, err)
			if local[s] = name; both && c == f.merit {
				merged[s] = []string{addressOf(f.merit, 40)}
			}
		}
		f.holds(t, s, local[s], append(merged[s], addressOf(f.aws, 40))...)
		f.comes(t, s, f.merit, "still", 1)
		unchanged[s] = f.untouched(t, s, append(f.localOf(t, s, "aws"), local[s])...)
	}
	r.set(silent)
	for _, s := range f.subjects {
		f.holds(t, s, local[s], merged[s]...)
	}
	r.set(failing)
	for _, s := range f.subjects {
		eventually(t, patient, s.program()+" to have had each error", func(context.Context) error { return r.had(s.program()) })
		if stale, fault, err := s.contact(t.Context(), s.Program, "aws"); !stale || err != nil {
			t.Errorf("%s: errors ended its being stale: %s, %v", s.program(), fault, err)
		}
		f.holds(t, s, local[s], merged[s]...)
		s.alive(t)
		unchanged[s](t)
	}
	r.set(passing)
	for _, s := range f.subjects {
		f.holds(t, s, local[s], append(merged[s], addressOf(f.aws, 40))...)
		eventually(t, patient, "aws not to be stale", func(ctx context.Context) error {
			stale, fault, err := s.contact(ctx, s.Program, "aws")
			if err == nil && (stale || fault != "") {
				err = fmt.Errorf("stale %t, %s", stale, fault)
			}
			return err
		})
		unchanged[s](t)
		for _, c := range []*testbed.Cluster{f.aws, f.merit} {
			must(t, s.remove(t.Context(), c, "stale"))
			f.goes(t, s, c, "stale")
		}
	}
}

// testFlood creates more objects in one remote than it may have, at once.
func (f *controllers) testFlood(t *testing.T) {
	const flood, bound = 3000, 500
	for _, s := range f.subjects {
		s.Kill()
		must(t, testbed.InParallel(within(t, 4*time.Minute), flood, func(ctx context.Context, i int) error {
			return s.bare(ctx, f.aws, fmt.Sprintf("flood-%04d", i), addressOf(f.aws, 3000+i))
		}))
		setting, metric := s.bound("aws")
		settings := map[string]string{programs.Variable("aws", setting): strconv.Itoa(2 * bound)} // Of which one namespace has half.
		shown := false
		for i := 0; i < 5 && !shown; i++ {
			shown = f.flooded(t, s, settings, fmt.Sprintf("single-%d", i), bound)
		}
		if !shown {
			t.Fatalf("%s: each time the flood was over before another remote changed something", s.program())
		}
		eventually(t, patient, s.program()+" to say what is beyond the bounds", func(ctx context.Context) error {
			said, err := s.bounded(ctx, s.Program, "aws")
			if err == nil && said == "" {
				err = errors.New("nothing in the status")
			}
			metrics, unread := s.Metrics(ctx)
			_, value, _ := strings.Cut(metrics, metric+" ")
			value, _, _ = strings.Cut(value, "\n")
			if beyond, _ := strconv.Atoi(value); beyond < flood-bound {
				err = errors.Join(err, fmt.Errorf("%s %s", metric, value))
			}
			return errors.Join(err, unread)
		})
		s.alive(t)
		s.Kill()
	}
}

// flooded starts a controller with the maximum number of objects in aws, changes an object of
// another remote meanwhile, and fails if that change waits for the end of the flood. If nearly
// all of the flood was handled before the change, it deletes the flood and returns false.
func (f *controllers) flooded(t *testing.T, s *subject, settings map[string]string, name string, bound int) bool {
	t.Helper()
	f.restart(t, s, settings)
	ofFlood := func() (all map[string]copied) {
		var err error
		all, err = f.observe(t.Context(), s)
		must(t, err)
		maps.DeleteFunc(all, func(name string, _ copied) bool { return !strings.HasPrefix(name, s.local("aws", "flood")) })
		return all
	}
	eventually(t, patient, "the flood to begin", func(context.Context) error {
		if len(ofFlood()) == 0 {
			return errors.New("no object of it")
		}
		return nil
	})
	f.puts(t, s, f.merit, name, 90)
	changed, err := f.gcp.Client().CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "changed-"}}, metav1.CreateOptions{})
	must(t, err)
	single := f.comes(t, s, f.merit, name, 90)
	eventually(t, patient, "all that the flood may have", func(context.Context) error {
		if n := len(f.localOf(t, s, "aws")); n != bound {
			return fmt.Errorf("%d objects", n)
		}
		return nil
	})
	all := ofFlood()
	since := func(version string) (n int) {
		for _, o := range all {
			if number(t, o.version) > number(t, version) {
				n++
			}
		}
		return n
	}
	left, later := since(changed.ResourceVersion), since(single.version)
	t.Logf("%s: of %d objects %d came after the change of the other remote, and %d after that was there", s.program(), bound, left, later)
	if left < bound/10 {
		s.Kill()
		names := slices.Collect(maps.Keys(all))
		must(t, testbed.InParallel(within(t, patient), len(names), func(ctx context.Context, i int) error {
			return f.gcp.Dynamic().Resource(s.kind()).Namespace(s.namespace()).Delete(ctx, names[i], metav1.DeleteOptions{})
		}))
		return false
	}
	if later == 0 {
		t.Errorf("%s: the flood delayed another remote's change", s.program())
	}
	return true
}

func number(t *testing.T, version string) int {
	t.Helper()
	n, err := strconv.Atoi(version)
	must(t, err)
	return n
}
