package event

import (
	"context"
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

func TestNewsAreToldOnce(t *testing.T) {
	a, b, other := newsKey{"1", "Conflict"}, newsKey{"2", "Conflict"}, newsKey{"1", "NameTaken"}
	type step struct {
		after   time.Duration
		key     newsKey
		message string
		want    bool
	}
	for _, c := range []struct {
		name  string
		steps []step
	}{
		{"the same", []step{{0, a, "x", true}, {time.Minute, a, "x", false}, {28 * time.Minute, a, "x", false}}},
		{"the same, much later", []step{{0, a, "x", true}, {newsRepeat, a, "x", true}}},
		{"another message", []step{{0, a, "x", true}, {0, a, "y", true}, {0, a, "x", true}}},
		{"another object", []step{{0, a, "x", true}, {0, b, "x", true}}},
		{"another reason", []step{{0, a, "x", true}, {0, other, "x", true}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			told, now := newTold(), start
			for i, s := range c.steps {
				now = now.Add(s.after)
				if got := told.isNew(now, s.key, s.message); got != s.want {
					t.Errorf("step %d: %t, want %t", i, got, s.want)
				}
			}
		})
	}
}

func TestNewsAreBounded(t *testing.T) {
	told, total := newTold(), 0
	for i := range 10_000 {
		if told.isNew(start.Add(time.Duration(i)*time.Millisecond), newsKey{"1", "Conflict"}, strings.Repeat("x", i%900)) {
			total++
		}
	}
	if want := newsBurst + 10*int(newsRate); total < newsBurst || total > want {
		t.Errorf("%d of 10,000 in 10 s are told, want no more than %d", total, want)
	}
	if told.isNew(start.Add(2*newsRepeat), newsKey{"2", "Conflict"}, ""); len(told.last) != 1 {
		t.Errorf("%d are remembered that may be told again", len(told.last)-1)
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
	news := NewNews(Writer{Client: client, Component: "semaphore-test"})
	about := corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: "mirrors", Name: "web", UID: "u-1"}
	for range 3 {
		if err := news.Warn(t.Context(), about, "Conflict", "ports differ"); err != nil {
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

func TestAFailureIsReturned(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("create", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("no")
	})
	news := NewNews(Writer{Client: client, Component: "semaphore-test"})
	err := news.Warn(context.Background(), Pod("mirrors", "pod", "u-1"), "Conflict", "ports differ")
	if err == nil || err.Error() != "create event: no" {
		t.Errorf("got %v", err)
	}
}
