package pathreport

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

func nodes(prefix string, n int) []string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("%s-%04d", prefix, i))
	}
	return all
}

func TestNewDown(t *testing.T) {
	for _, c := range []struct {
		name         string
		down, others []string
		room         int
		want         Down
	}{
		{"one of three", []string{"a"}, []string{"b", "c"}, 100, Down{Nodes: []string{"a"}}},
		{"half", []string{"a"}, []string{"b"}, 100, Down{Nodes: []string{"a"}}},
		{"all", []string{"a", "b"}, nil, 100, Down{AllBut: true}},
		{"all, without any room", []string{"a", "b"}, nil, 0, Down{AllBut: true}},
		{"all but one", []string{"a", "b"}, []string{"c"}, 100, Down{AllBut: true, Nodes: []string{"c"}}},
		{"more than there is room for", []string{"a", "b"}, []string{"c", "d"}, 4, Down{Nodes: []string{"a"}, Omitted: 1}},
		// One that is left out of the others would count as down.
		{"more others than there is room for", []string{"a", "b", "e"}, []string{"c", "d"}, 7, Down{Nodes: []string{"a"}, Omitted: 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := NewDown(c.down, c.others, c.room)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("differs (-want +got):\n%s", diff)
			}
			for _, node := range c.others {
				if got.Has(node) {
					t.Errorf("%s counts as down", node)
				}
			}
		})
	}
}

func TestName(t *testing.T) {
	if got := Name("gcp-1"); got != "semaphore-paths-gcp-1" {
		t.Error(got)
	}
	long := strings.Repeat("a", 60) + "." + strings.Repeat("b", 180)
	got := Name(long)
	if len(validation.IsDNS1123Subdomain(got)) > 0 || got == Name(long+"b") || !strings.HasPrefix(got, "semaphore-paths-"+long[:200]) {
		t.Errorf("%d characters: %s", len(got), got)
	}
}

// TestWorstCaseFits writes the largest report that there can be.
func TestWorstCaseFits(t *testing.T) {
	long := nodes(strings.Repeat("n", 240), 3000)
	r := Report{Node: "gcp-1", Remotes: map[string]Down{
		"aws": NewDown(long, nil, 0), "merit": NewDown(long[:1500], long[1500:], MaxSize-200),
	}}
	text := encode(r.Remotes)
	if len(text) > MaxSize || r.Remotes["merit"].Omitted == 0 {
		t.Errorf("%d bytes, %d nodes omitted", len(text), r.Remotes["merit"].Omitted)
	}
	if _, err := decode(text); err != nil {
		t.Error(err)
	}
}

func lease(r *Report) *coordinationv1.Lease {
	return r.Lease("sys-semaphore", metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "pod", UID: "uid"}, time.Unix(1, 0))
}

func TestReportIsReadAsItWasWritten(t *testing.T) {
	want := Report{Node: "gcp-1", Remotes: map[string]Down{
		"aws": {Nodes: []string{"aws-1", "aws-2"}, Omitted: 3}, "merit": {AllBut: true, Nodes: []string{}},
	}}
	l := lease(&want)
	if l.Labels[Label] != LabelValue || l.Name != "semaphore-paths-gcp-1" || len(l.OwnerReferences) != 1 ||
		*l.Spec.LeaseDurationSeconds != 90 || !l.Spec.RenewTime.Equal(&metav1.MicroTime{Time: time.Unix(1, 0)}) {
		t.Errorf("%+v", l)
	}
	got, err := Read(l)
	if err != nil || !got.Equal(&want) {
		t.Errorf("%+v, %v", got, err)
	}
	l.Spec.HolderIdentity = nil
	if got, err := Read(l); err == nil || got.Node != "" {
		t.Error("a report without a node is valid")
	}
	l = lease(&want)
	l.Name = "semaphore-paths-gcp-2"
	if got, err := Read(l); err == nil || got.Node != "" {
		t.Error("a report of one node under the name of another one counts")
	}
}

func TestDecode(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       map[string]Down
		wrong      string // part of the error; empty: none
	}{
		{"of a later version", `{"aws":{"down":["a"],"oneWay":["b"]},"merit":{"slow":1}}`, map[string]Down{"aws": {Nodes: []string{"a"}}, "merit": {}}, ""},
		{"in any order, and twice", `{"aws":{"down":["b","a","b"]}}`, map[string]Down{"aws": {Nodes: []string{"a", "b"}}}, ""},
		{"wrong about one remote", `{"aws":{"down":["a"]},"merit":{"down":7}}`, map[string]Down{"aws": {Nodes: []string{"a"}}}, `remote "merit"`},
		{"a name that no node has", `{"aws":{"down":["A b"]}}`, map[string]Down{}, `node "A b"`},
		{"a name that no cluster has", `{"a/b":{"down":["a"]}}`, map[string]Down{}, `remote "a/b"`},
		{"both forms", `{"aws":{"down":["a"],"allBut":[]}}`, map[string]Down{}, "both"},
		{"nothing", ``, nil, "not the content of a report"},
		{"too long", `"` + strings.Repeat("x", MaxSize) + `"`, nil, "more than the maximum of"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := decode(c.text)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("differs (-want +got):\n%s", diff)
			}
			if c.wrong == "" && err != nil || c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)) {
				t.Errorf("error %v, want %q", err, c.wrong)
			}
		})
	}
}

// FuzzDecode checks the bounds of any content.
func FuzzDecode(f *testing.F) {
	f.Add(`{"aws":{"down":["aws-1"]},"merit":{"allBut":[],"omitted":2}}`)
	f.Add(`{"aws":{"down":["b","a"],"later":{}}}`)
	f.Add(`{"aws":null}`)
	f.Add(`[]`)
	f.Fuzz(func(t *testing.T, text string) {
		remotes, _ := decode(text)
		for remote, d := range remotes {
			if len(validation.IsDNS1123Label(remote)) > 0 || !slices.IsSorted(d.Nodes) || d.Omitted < 0 {
				t.Errorf("%q: %+v", remote, d)
			}
		}
		// What counts can be written, and says the same again.
		again, err := decode(encode(remotes))
		if len(encode(remotes)) > MaxSize {
			return
		}
		a, b := Report{Remotes: remotes}, Report{Remotes: again}
		if err != nil || !a.Equal(&b) {
			t.Errorf("%v became %v, %v", remotes, again, err)
		}
	})
}
