package event

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/clientset"
)

// conditions returns conditions with the given IDs.
func conditions(ids ...string) []Condition {
	var all []Condition
	for _, id := range ids {
		all = append(all, Condition{ID: id, Reason: "NodeRejected", Message: id + " is bad"})
	}
	return all
}

// many returns n conditions with a common prefix of their IDs.
func many(prefix string, n int) []Condition {
	var ids []string
	for i := range n {
		ids = append(ids, fmt.Sprintf("%s%05d", prefix, i))
	}
	return conditions(ids...)
}

func summary(all []Condition) Condition {
	return Condition{ID: "summary", Reason: "NodesRejected", Message: fmt.Sprint(len(all))}
}

// TestConditionsAreWrittenWhenTheyAreDue follows one remote; each condition waits 10 s.
func TestConditionsAreWrittenWhenTheyAreDue(t *testing.T) {
	type step struct {
		at         time.Duration
		conditions string // IDs
		want       string // IDs
	}
	const hour = repeat
	for _, c := range []struct {
		name  string
		steps []step
	}{
		{"one, after a wait, once", []step{
			{0, "a", ""}, {9 * time.Second, "a", ""}, {10 * time.Second, "a", "a"}, {time.Minute, "a", ""}, {hour, "a", ""},
		}},
		{"again when the Event has expired", []step{
			{0, "a", ""}, {10 * time.Second, "a", "a"}, {hour + 19*time.Second, "a", ""}, {hour + 20*time.Second, "a", "a"},
		}},
		{"ended before it is due", []step{
			{0, "a b", ""}, {5 * time.Second, "b", ""}, {10 * time.Second, "b", "b"}, {20 * time.Second, "b", ""},
		}},
		{"waits again after it returned", []step{
			{0, "a", ""}, {5 * time.Second, "", ""}, {8 * time.Second, "a", ""}, {17 * time.Second, "a", ""}, {18 * time.Second, "a", "a"},
		}},
		{"goes and comes back: written already", []step{
			{0, "a", ""}, {10 * time.Second, "a", "a"}, {20 * time.Second, "", ""}, {30 * time.Second, "a", ""}, {50 * time.Second, "a", ""},
		}},
		{"goes, and comes back after an hour", []step{
			{0, "a", ""}, {10 * time.Second, "a", "a"}, {20 * time.Second, "", ""},
			{2 * hour, "", ""}, {3 * hour, "a", ""}, {3*hour + 10*time.Second, "a", "a"},
		}},
		{"two with one ID", []step{{0, "a a b", ""}, {10 * time.Second, "a a b", "a b"}}},
		{"the first of many, and a summary", []step{
			{0, "a b c d e f g h", ""}, {10 * time.Second, "a b c d e f g h", "summary a b c d e"}, {20 * time.Second, "a b c d e f g h", ""},
		}},
		{"a duplicate doesn't make them many", []step{
			{0, "a b c d e e", ""}, {10 * time.Second, "a b c d e e", "a b c d e"},
		}},
		{"the next one when there is room, at the rate", []step{
			{0, "a b c d e f", ""}, {10 * time.Second, "a b c d e f", "summary a b c d e"},
			{20 * time.Second, "b c d e f", ""}, {30 * time.Second, "b c d e f", ""}, {6 * time.Minute, "b c d e f", "f"},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSchedule(0)
			s.wait = func() time.Duration { return 10 * time.Second }
			for _, step := range c.steps {
				now := start.Add(step.at)
				got := []string{}
				for _, f := range s.due(now, conditions(strings.Fields(step.conditions)...), summary) {
					got = append(got, f.ID)
					s.wrote(now, f)
				}
				if diff := cmp.Diff(strings.Fields(step.want), got); diff != "" {
					t.Errorf("after %v (-want +got):\n%s", step.at, diff)
				}
			}
		})
	}
}

// TestAFloodOfConditionsIsBounded replaces all conditions of a remote every two seconds
// for six hours.
func TestAFloodOfConditionsIsBounded(t *testing.T) {
	s, written := newSchedule(0), 0
	const hours = 6
	for second := 0; second < hours*3600; second += 2 {
		now := start.Add(time.Duration(second) * time.Second)
		for _, f := range s.due(now, many(fmt.Sprint(second), 7), summary) {
			s.wrote(now, f)
			written++
		}
		if len(s.plan) > remoteBurst+int(3600*remoteRate)+2*mostConditions {
			t.Fatalf("%d conditions are remembered after %d s", len(s.plan), second)
		}
	}
	if most := remoteBurst + hours*12; written < hours*12 || written > most {
		t.Errorf("%d Events in six hours, want no more than %d", written, most)
	}
}

// api keeps the Events that are made, and refuses a second one of a name. The
// store of the fake client takes longer for it than a real API server.
type api struct {
	client   *fake.Clientset
	requests int
	messages map[string]string // by name
	broken   error             // answer to everything
}

func newAPI() *api {
	a := &api{client: fake.NewClientset(), messages: map[string]string{}}
	a.client.PrependReactor("create", "events", func(action clienttesting.Action) (bool, runtime.Object, error) {
		a.requests++
		e := action.(clienttesting.CreateAction).GetObject().(*corev1.Event)
		switch _, exists := a.messages[e.Name]; {
		case a.broken != nil:
			return true, nil, a.broken
		case exists:
			return true, nil, apierrors.NewAlreadyExists(corev1.Resource("events"), e.Name)
		}
		a.messages[e.Name] = e.Message
		return true, e, nil
	})
	return a
}

// written returns the messages of all Events, sorted.
func (a *api) written() []string { return slices.Sorted(maps.Values(a.messages)) }

// fleet returns the recorders of n processes, and their API server.
func fleet(n int) ([]*Recorder, *api) {
	a := newAPI()
	recorders := make([]*Recorder, n)
	for i := range recorders {
		pod := Pod("sys-semaphore", fmt.Sprintf("agent-%d", i), fmt.Sprint(i))
		recorders[i] = NewRecorder(Config{Client: clientset.Client(a.client), Component: "semaphore-test", About: pod, Spread: Spread})
	}
	return recorders, a
}

// live runs all recorders on the same conditions for a time.
func live(t *testing.T, recorders []*Recorder, from, to time.Duration, remotes []Remote) {
	t.Helper()
	for at := from; at < to; at += period {
		for _, h := range recorders {
			if err := h.pass(t.Context(), start.Add(at), remotes); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestAThousandProgramsMakeOneEvent(t *testing.T) {
	recorders, api := fleet(1000)
	live(t, recorders, 0, 2*Spread, []Remote{{Name: "gcp", Conditions: conditions("node-1/public_key"), Summary: summary}})
	if diff := cmp.Diff([]string{"node-1/public_key is bad"}, api.written()); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
	if api.requests != len(recorders) {
		t.Errorf("%d requests", api.requests)
	}
}

func TestAThousandBadNodesMakeAHandfulOfEvents(t *testing.T) {
	recorders, api := fleet(50)
	live(t, recorders, 0, 2*time.Minute, []Remote{
		{Name: "gcp", Conditions: many("node-", 1000), Summary: summary},
		{Name: "merit", Conditions: conditions("node-1"), Summary: summary},
	})
	want := []string{
		"1000", "node-00000 is bad", "node-00001 is bad", "node-00002 is bad", "node-00003 is bad", "node-00004 is bad", "node-1 is bad",
	}
	if diff := cmp.Diff(want, api.written()); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
}

func TestWhatCouldNotBeWrittenIsWrittenLater(t *testing.T) {
	recorders, api := fleet(1)
	api.broken = errors.New("forbidden")
	remotes := []Remote{{Name: "gcp", Conditions: conditions("a", "b"), Summary: summary}}
	for i := range 100 {
		err := recorders[0].pass(t.Context(), start.Add(time.Duration(i)*Spread), remotes)
		if i > 1 && (err == nil || err.Error() != "create event: forbidden") {
			t.Fatalf("pass %d: %v", i, err)
		}
	}
	if api.requests > 100 {
		t.Errorf("%d requests in 100 passes", api.requests)
	}
	api.broken = nil
	if err := recorders[0].pass(t.Context(), start.Add(100*Spread), remotes); err != nil {
		t.Fatal(err)
	}
	if all := api.written(); len(all) != 2 {
		t.Errorf("Events %q", all)
	}
}

// TestOneRemotesEventsDontHoldUpAnothers refuses what is written of one remote.
func TestOneRemotesEventsDontHoldUpAnothers(t *testing.T) {
	recorders, api := fleet(1)
	recorders[0].Spread = 0
	api.client.PrependReactor("create", "events", func(action clienttesting.Action) (bool, runtime.Object, error) {
		e := action.(clienttesting.CreateAction).GetObject().(*corev1.Event)
		return strings.Contains(e.Name, ".bad."), nil, errors.New("refused by a policy")
	})
	err := recorders[0].pass(t.Context(), start, []Remote{
		{Name: "bad", Conditions: conditions("a", "b"), Summary: summary}, {Name: "good", Conditions: conditions("c"), Summary: summary},
	})
	if err == nil || !strings.Contains(err.Error(), "refused by a policy") {
		t.Errorf("error %v", err)
	}
	if diff := cmp.Diff([]string{"c is bad"}, api.written()); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
}

func TestEventNamesAreDistinct(t *testing.T) {
	h := NewRecorder(Config{Component: "semaphore-test"})
	names := map[string]bool{}
	for _, c := range [][2]string{{"gcp", "a/b"}, {"gcp", "a/c"}, {"merit", "a/b"}, {"gcp", `a" "b`}, {"gcp", ""}} {
		name := h.name(c[0], Condition{ID: c[1]})
		if names[name] || name != h.name(c[0], Condition{ID: c[1]}) {
			t.Errorf("%q has the name %s", c, name)
		}
		names[name] = true
	}
	if name := h.name("gcp", Condition{ID: "x", Name: "node.endpoint.gcp-1"}); name != "semaphore-test.gcp.node.endpoint.gcp-1" {
		t.Errorf("a condition with a name is %s", name)
	}
}

func TestALoopWritesUntilItEnds(t *testing.T) {
	recorders, api := fleet(1)
	recorders[0].Spread = 0
	cfg := recorders[0].Loop(func() []Remote {
		return []Remote{{Name: "gcp", Conditions: conditions("a"), Summary: summary}}
	})
	if err := cfg.Reconcile(context.Background()); err != nil {
		t.Fatal(err)
	}
	if all := api.written(); len(all) != 1 {
		t.Errorf("Events %q", all)
	}
}
