package event

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/clientset"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func TestMessagesAreCutAndPrintable(t *testing.T) {
	for _, c := range []struct{ name, message, want string }{
		{"short", "all is well", "all is well"},
		{"as long as may be", strings.Repeat("a", 1000), strings.Repeat("a", 1000)},
		{"too long", strings.Repeat("a", 1001), strings.Repeat("a", 1000) + "..."},
		{"an escape sequence", "node \"\x1b[2J\"", `node "\x1b[2J"`},
		{"another direction of writing", "a\u202eb", `a\u202eb`},
		{"two lines", "a\nb", "a; b"},
		{"long where it is printable", strings.Repeat("\x1b", 900), strings.Repeat(`\x1b`, 250) + "..."},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := cut(c.message); got != c.want {
				t.Errorf("got %d bytes, ending with %q", len(got), got[max(0, len(got)-10):])
			}
		})
	}
}

func FuzzCut(f *testing.F) {
	f.Add(strings.Repeat("a", 990), "éééééé𝄞𝄞")
	f.Add(strings.Repeat("\xbf", 2000), "")
	f.Fuzz(func(t *testing.T, a, b string) {
		got := cut(a + b)
		if len(got) > 1024 || strings.IndexFunc(got, func(r rune) bool { return r < ' ' || r > '~' }) >= 0 {
			t.Errorf("%q becomes %q", a+b, got)
		}
	})
}

func TestWarningsAreWrittenOnce(t *testing.T) {
	a, b, other := warningKey{"1", "Conflict"}, warningKey{"2", "Conflict"}, warningKey{"1", "NameTaken"}
	type step struct {
		after   time.Duration
		key     warningKey
		message string
		want    bool
	}
	for _, c := range []struct {
		name  string
		steps []step
	}{
		{"the same", []step{{0, a, "x", true}, {time.Minute, a, "x", false}, {28 * time.Minute, a, "x", false}}},
		{"the same, much later", []step{{0, a, "x", true}, {warnRepeat, a, "x", true}}},
		{"another message", []step{{0, a, "x", true}, {0, a, "y", true}, {0, a, "x", true}}},
		{"another object", []step{{0, a, "x", true}, {0, b, "x", true}}},
		{"another reason", []step{{0, a, "x", true}, {0, other, "x", true}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			recorder, now := NewRecorder(Config{}), start
			for i, s := range c.steps {
				now = now.Add(s.after)
				if got := recorder.claim(now, s.key, s.message) != nil; got != s.want {
					t.Errorf("step %d: %t, want %t", i, got, s.want)
				}
			}
		})
	}
}

func TestWarningsAreBounded(t *testing.T) {
	recorder, total := NewRecorder(Config{}), 0
	for i := range 10_000 {
		if recorder.claim(start.Add(time.Duration(i)*time.Millisecond), warningKey{"1", "Conflict"}, strings.Repeat("x", i%900)) != nil {
			total++
		}
	}
	if want := warnBurst + 10*int(warnRate); total < warnBurst || total > want {
		t.Errorf("%d of 10,000 in 10 s are written, want no more than %d", total, want)
	}
	if recorder.claim(start.Add(2*warnRepeat), warningKey{"2", "Conflict"}, ""); len(recorder.warned) != 1 {
		t.Errorf("%d are remembered that may be written again", len(recorder.warned)-1)
	}
}

// events returns all Events of a namespace.
func events(t *testing.T, client *fake.Clientset, namespace string) []corev1.Event {
	t.Helper()
	list, err := client.CoreV1().Events(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

func TestAnEventSaysWhatItIsAbout(t *testing.T) {
	client := fake.NewClientset()
	recorder := NewRecorder(Config{Client: clientset.Client(client), Component: "semaphore-test"})
	about := corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: "mirrors", Name: "web", UID: "u-1"}
	for range 3 {
		if err := recorder.Warn(t.Context(), about, "Conflict", "ports differ"); err != nil {
			t.Fatal(err)
		}
	}
	all := events(t, client, "mirrors")
	if len(all) != 1 {
		t.Fatalf("%d Events, want 1", len(all))
	}
	e := all[0]
	if !strings.HasPrefix(e.Name, "web.") || e.FirstTimestamp.IsZero() || e.FirstTimestamp != e.LastTimestamp {
		t.Errorf("name %q, from %v to %v", e.Name, e.FirstTimestamp, e.LastTimestamp)
	}
	got := corev1.Event{
		InvolvedObject: e.InvolvedObject, Type: e.Type, Reason: e.Reason, Message: e.Message, Source: e.Source, Count: e.Count,
	}
	want := corev1.Event{
		InvolvedObject: about, Type: "Warning", Reason: "Conflict", Message: "ports differ",
		Source: corev1.EventSource{Component: "semaphore-test"}, Count: 1,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestAWarningThatCouldNotBeWrittenIsWrittenLater refuses the first Event: the next one
// of the same text is no repetition.
func TestAWarningThatCouldNotBeWrittenIsWrittenLater(t *testing.T) {
	client, broken := fake.NewClientset(), true
	client.PrependReactor("create", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
		return broken, nil, errors.New("no")
	})
	recorder := NewRecorder(Config{Client: clientset.Client(client), Component: "semaphore-test"})
	warn := func() error {
		return recorder.Warn(t.Context(), Pod("mirrors", "pod", "u-1"), "Conflict", "ports differ")
	}
	if err := warn(); err == nil || err.Error() != "create event: no" {
		t.Errorf("got %v", err)
	}
	broken = false
	for range 2 {
		if err := warn(); err != nil {
			t.Error(err)
		}
	}
	if all := events(t, client, "mirrors"); len(all) != 1 {
		t.Errorf("%d Events, want 1", len(all))
	}
}

// TestOneWarningIsWrittenAtATime repeats a warning during its request, and warns of
// something else, which a failure of that request must not make repeatable.
func TestOneWarningIsWrittenAtATime(t *testing.T) {
	client, requests := fake.NewClientset(), 0
	recorder, about := NewRecorder(Config{Client: clientset.Client(client), Component: "semaphore-test"}), Pod("mirrors", "pod", "u-1")
	client.PrependReactor("create", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
		requests++
		if err := recorder.Warn(t.Context(), about, "Conflict", "ports differ"); err != nil {
			t.Error(err)
		}
		if recorder.claim(time.Now(), warningKey{about.UID, "Conflict"}, "names differ") == nil {
			t.Error("another message is a repetition")
		}
		return true, nil, errors.New("no")
	})
	if err := recorder.Warn(t.Context(), about, "Conflict", "ports differ"); err == nil {
		t.Error("the failure isn't returned")
	}
	if err := recorder.Warn(t.Context(), about, "Conflict", "names differ"); err != nil || requests != 1 {
		t.Errorf("%d requests, want 1; %v", requests, err)
	}
}
